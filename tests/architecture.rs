//! The rules of the house that no lint knows: ranks of rooms, who may spawn, who reads the environment, how files open.
//!
//! The table of ranks is `src/lib.rs` itself: a `// rank N` line stands above the modules of that rank.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Where tasks are spawned outside of `agent`: the path, and whose lifetime bounds the task.
const SPAWNS: &[(&str, &str)] = &[
    ("dns/mod.rs", "the loop of each socket: until the room's drain"),
    ("dns/tcp.rs", "connections and their forwarded queries: until the client goes or the room's drain"),
    ("dns/udp.rs", "forwarded queries: until the servers' time is up or the room's drain"),
    ("grpc/server.rs", "connections and their calls: until the peer goes or the listener's drain"),
    ("istiod/shared.rs", "the connection to istiod: until its last call and its owner are gone"),
    ("net/http1/server/mod.rs", "connections of the status port: until the client goes or the drain"),
    ("secrets/output.rs", "fsync on a thread of its own, awaited at once"),
    ("wasm/cache/files.rs", "fsync on a thread of its own, awaited at once"),
    ("xds/lastgood/recorder.rs", "compaction of a file: one at a time for each, without waiting for anything"),
];

/// A source file: its room, its path below `src/`, and its text without comments, strings and tests.
struct Source {
    room: String,
    path: String,
    text: String,
    code: String,
}

#[test]
fn rooms_use_only_lower_ranks() {
    let ranks = ranks(&read("src/lib.rs"));
    let mut wrong = Vec::new();
    for source in sources() {
        wrong.extend(rank_errors(&ranks, &source.room, &source.path, &source.code));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_room_has_a_rank_and_they_ascend() {
    let ranks = ranks(&read("src/lib.rs"));
    for source in sources() {
        assert!(
            ranks.contains_key(&source.room),
            "src/{}: room {} has no rank in src/lib.rs",
            source.path,
            source.room
        );
    }
    let order: Vec<u8> = rank_lines(&read("src/lib.rs"));
    assert!(order.is_sorted(), "ranks in src/lib.rs are not in order: {order:?}");
}

#[test]
fn tasks_are_spawned_by_agent_and_connection_loops_only() {
    let spawning: Vec<Source> =
        sources().into_iter().filter(|source| source.room != "agent" && spawns(&source.code)).collect();
    let spawning: Vec<&str> = spawning.iter().map(|source| source.path.as_str()).collect();
    let allowed: Vec<&str> = SPAWNS.iter().map(|(path, _)| *path).collect();
    let differ = |these: &[&str], those: &[&str]| {
        these.iter().filter(|path| !those.contains(path)).map(|path| (*path).to_owned()).collect::<Vec<_>>()
    };
    let strangers = differ(&spawning, &allowed);
    assert!(
        strangers.is_empty(),
        "these spawn; long-lived tasks belong to agent, a connection loop into SPAWNS: {strangers:?}"
    );
    let idle = differ(&allowed, &spawning);
    assert!(idle.is_empty(), "these no longer spawn, take them out of SPAWNS: {idle:?}");
}

#[test]
fn only_config_reads_the_environment() {
    for source in sources().iter().filter(|source| source.path != "config/env.rs") {
        assert!(!reads_environment(&source.code), "src/{} reads the environment: take a config::Vars", source.path);
    }
}

#[test]
fn every_setting_of_our_own_is_documented() {
    let documented = read("docs/settings.md");
    let mut asked = std::collections::BTreeSet::new();
    for source in sources() {
        let text = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        let literals = text.match_indices("\"FOOTMAN_").filter_map(|(start, _)| text[start + 1..].split('"').next());
        let is_name = |text: &&str| !text.ends_with('_') && text.bytes().all(|c| c == b'_' || c.is_ascii_uppercase());
        asked.extend(literals.filter(is_name).map(str::to_owned));
    }
    // What a build, not an agent, is told.
    asked.remove("FOOTMAN_REVISION");
    let missing: Vec<_> = asked.iter().filter(|name| !documented.contains(&format!("| `{name}` |"))).collect();
    assert!(asked.len() > 10 && missing.is_empty(), "not in docs/settings.md: {missing:?}");
    let stale: Vec<_> = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `FOOTMAN_")?.split('`').next())
        .filter(|name| !asked.contains(&format!("FOOTMAN_{name}")))
        .collect();
    assert!(stale.is_empty(), "in docs/settings.md, but nobody asks: {stale:?}");
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> =
        sources().into_iter().filter(|source| !source.text.starts_with("//! ")).map(|source| source.path).collect();
    assert!(silent.is_empty(), "these do not open with //!: {silent:?}");
}

#[test]
fn every_timer_is_in_the_table() {
    let table = read("ARCHITECTURE.md");
    let mut missing = Vec::new();
    for source in sources() {
        let row = format!("| `{}` |", source.room);
        let row = table.lines().rfind(|line| line.starts_with(&row)).unwrap_or_default();
        for name in timers(&source.code).filter(|name| !row.contains(&format!("`{name}`"))) {
            missing.push(format!("{name} of src/{}", source.path));
        }
    }
    assert!(missing.is_empty(), "the timers' table of ARCHITECTURE.md lacks {missing:?}");
}

#[test]
fn checks_see_what_they_look_for() {
    let ranks = ranks("// rank 0\npub mod base;\n// rank 2\npub mod grpc;\npub mod config;\n");
    let errors = |code: &str| rank_errors(&ranks, "grpc", "grpc/x.rs", code).len();
    assert_eq!(errors("use crate::base::Drain;\nuse crate::grpc::Status;"), 0);
    assert_eq!(errors("use crate::config::Vars;"), 1);
    assert_eq!(errors("use crate::{base::Drain, config::{Vars, Errors}};"), 1);
    assert_eq!(errors("let x = crate::unknown::x();"), 1);
    assert!(
        spawns("tokio::spawn(async {})") && spawns("tasks.spawn_local(x)") && !spawns("respawn(x); command.spawn()")
    );
    assert!(reads_environment("std::env::var(\"A\")") && reads_environment("env::vars_os()"));
    assert!(!reads_environment("std::env::args_os()"));
    assert_eq!(timers("pub const A: Duration = x;\nconst B: u8 = 1;").collect::<Vec<_>>(), ["A"]);
    let code = code(
        "// crate::agent\nlet a = \"crate::cli\"; /* crate::x */ b\n#[cfg(test)]\nmod tests {\n use crate::y;\n}\nend",
    );
    assert!(
        !code.contains("crate::") && code.contains("let a = ") && code.contains('b') && code.contains("end"),
        "{code}"
    );
}

/// Every way towards a room of the same or a higher rank.
fn rank_errors(ranks: &BTreeMap<String, u8>, room: &str, path: &str, code: &str) -> Vec<String> {
    let own = ranks.get(room).copied().unwrap_or_default();
    let mut wrong = Vec::new();
    for target in crate_paths(code).into_iter().filter(|target| target != room) {
        match ranks.get(&target) {
            Some(rank) if *rank < own => {}
            Some(rank) => wrong.push(format!("src/{path}: {room} (rank {own}) uses {target} (rank {rank})")),
            None => wrong.push(format!("src/{path}: uses crate::{target}, which is no room")),
        }
    }
    wrong
}

/// The first segment of every `crate::…` path, those of `use crate::{…}` groups included.
fn crate_paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        if !rest.starts_with('{') {
            found.push(identifier(rest));
            continue;
        }
        let (mut depth, mut segment_starts) = (0, false);
        for (index, byte) in rest.bytes().enumerate() {
            match byte {
                b'{' => (depth, segment_starts) = (depth + 1, depth == 0),
                b'}' if depth == 1 => break,
                b'}' => depth -= 1,
                b',' => segment_starts = depth == 1,
                _ if segment_starts && !byte.is_ascii_whitespace() => {
                    found.push(identifier(&rest[index..]));
                    segment_starts = false;
                }
                _ => {}
            }
        }
    }
    found
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// `child.spawn()` starts a process; what is spawned with a future is a task.
fn spawns(code: &str) -> bool {
    ["tokio::spawn(", "task::spawn(", ".spawn(", "spawn_local(", "spawn_blocking(", "thread::spawn("]
        .iter()
        .flat_map(|call| code.match_indices(call).map(|(at, call)| &code[at + call.len()..]))
        .any(|rest| !rest.starts_with(')'))
}

/// The names of constant durations.
fn timers(code: &str) -> impl Iterator<Item = String> {
    code.lines().filter_map(|line| {
        let (name, rest) = line.split_once("const ")?.1.split_once(": ")?;
        rest.starts_with("Duration").then(|| name.to_owned())
    })
}

fn reads_environment(code: &str) -> bool {
    ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("].iter().any(|call| code.contains(call))
}

/// Room to rank, from the `// rank N` lines of lib.rs.
fn ranks(lib: &str) -> BTreeMap<String, u8> {
    let (mut rank, mut ranks) = (None, BTreeMap::new());
    for line in lib.lines() {
        if let Some(number) = line.strip_prefix("// rank ") {
            rank = Some(number.trim().parse().unwrap());
        } else if let Some(name) = line.strip_prefix("pub mod ").or(line.strip_prefix("mod ")) {
            ranks.insert(identifier(name), rank.expect("a module above the first rank"));
        }
    }
    ranks
}

fn rank_lines(lib: &str) -> Vec<u8> {
    lib.lines().filter_map(|line| line.strip_prefix("// rank ")).map(|number| number.trim().parse().unwrap()).collect()
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    let mut sources = Vec::new();
    for file in paths {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let Some((room, _)) = path.split_once('/') else { continue };
        let text = fs::read_to_string(&file).unwrap();
        let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
        let code = if is_test { String::new() } else { code(&text) };
        sources.push(Source { room: room.to_owned(), path, text, code });
    }
    assert!(!sources.is_empty());
    sources
}

fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The text without comments, contents of string literals, and inline test modules (which end at a `}` in column one).
fn code(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(test)]") {
            let opens_block = lines.next().is_some_and(|line| line.ends_with('{'));
            if opens_block {
                lines.by_ref().find(|line| *line == "}");
            }
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    without_comments_and_strings(&kept)
}

fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string_length(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map_or(rest.len(), |end| end + 2)
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    out
}

/// Length of the literal at the start of `text`, both quotes included.
fn string_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut index = 1;
    while index < bytes.len() && bytes[index] != b'"' {
        index += if bytes[index] == b'\\' { 2 } else { 1 };
    }
    (index + 1).min(bytes.len())
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}
