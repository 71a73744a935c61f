//! What is linked into the binary: how many crates, under which licences, and none that was banned.
//!
//! `deny.toml` is the one list of licences and bans; cargo-deny reads it where it is installed, this test always.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// Every crate is attack surface, build time and bytes.
const MAX_LINKED: usize = 70;

struct Linked {
    name: String,
    version: String,
    licence: String,
}

#[test]
fn linked_crates_are_few() {
    let linked = linked();
    assert!(linked.len() > 1, "cargo tree printed no crates");
    assert!(linked.len() <= MAX_LINKED, "{} crates are linked in, {MAX_LINKED} may be", linked.len());
}

#[test]
fn licences_are_allowed() {
    let allowed = quoted(&section("allow = ["));
    assert!(!allowed.is_empty());
    for linked in linked() {
        assert!(
            is_allowed(&linked.licence, &allowed),
            "{} {}: licence {}",
            linked.name,
            linked.version,
            linked.licence
        );
    }
}

#[test]
fn banned_and_doubled_crates_are_absent() {
    let banned = quoted(&section("deny = ["));
    assert!(!banned.is_empty());
    let mut seen = BTreeMap::new();
    for linked in linked() {
        assert!(!banned.contains(&linked.name), "{} is banned in deny.toml", linked.name);
        if let Some(other) = seen.insert(linked.name.clone(), linked.version.clone()) {
            panic!("{} is linked in twice: {other} and {}", linked.name, linked.version);
        }
    }
}

#[test]
fn every_linked_crate_is_accounted_for() {
    let account = read("docs/decisions/crates.md");
    let is_named = |name: &str| account.split([' ', ',', '|', '\n']).any(|word| word == name);
    let strangers: Vec<String> =
        linked().into_iter().map(|linked| linked.name).filter(|name| name != "footman" && !is_named(name)).collect();
    assert!(strangers.is_empty(), "docs/decisions/crates.md does not say why these are linked in: {strangers:?}");
}

#[test]
fn licence_expressions() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    for (expression, verdict) in [
        ("MIT", true),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND ISC", true),
        ("MIT AND OpenSSL", false),
        ("GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), verdict, "{expression}");
    }
}

/// What `cargo tree` says is linked into the static binary, this package included.
fn linked() -> Vec<Linked> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-e", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe"])
        .args(["--target", "x86_64-unknown-linux-musl", "--format", "{p}\t{l}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    lines
        .into_iter()
        .map(|line| {
            let (package, licence) = line.split_once('\t').unwrap();
            let (name, version) = package.split_once(' ').unwrap();
            Linked { name: name.to_owned(), version: version.to_owned(), licence: licence.to_owned() }
        })
        .collect()
}

/// An SPDX expression without parentheses: AND binds tighter than OR; `/` is the old way to write OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    expression
        .replace('/', " OR ")
        .split(" OR ")
        .any(|choice| choice.split(" AND ").all(|licence| allowed.iter().any(|allowed| allowed == licence.trim())))
}

/// The part of deny.toml between the line that begins with `start` and the bracket that closes it.
fn section(start: &str) -> String {
    let text = read("deny.toml");
    let (_, rest) = text.split_once(&format!("\n{start}")).unwrap();
    rest.split_once(']').unwrap().0.to_owned()
}

fn quoted(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}
