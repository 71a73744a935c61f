//! Golden bootstraps: each file of `tests/golden` is one start of Istio's pilot-agent 1.31, recorded: its arguments, environment and
//! files, and what it wrote and how it called Envoy. The configuration and bootstrap rooms have to make the same of them.
//!
//! `better` names the places where we are meant to differ, `accept` other values that are as good. Cases of our own lie in
//! `tests/golden/own`; `UPDATE_GOLDEN=1` rewrites what they expect (never by hand).

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use footman::{
    agent,
    bootstrap::{
        self, Surroundings,
        platform::{self, Platform},
    },
    config::{Errors, Flags, Interface, Sources, Vars},
    envoy,
};
use serde_json::{Map, Value as Json};

use crate::support::{TempDir, ca::Ca};

/// Members of durations, which are compared by value.
const DURATIONS: [&str; 5] = ["timeout", "interval", "rate", "duration", "delay"];

struct Case {
    name: String,
    json: Json,
}

/// What one start gives.
struct Outcome {
    bootstrap: Option<Json>,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    grpc: Option<Json>,
}

fn cases(folder: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut cases: Vec<Case> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| Case {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            json: serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap(),
        })
        .collect();
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(!cases.is_empty(), "no cases in {}", folder.display());
    cases
}

/// The agent's configuration, read as `proxy` reads it.
fn agent(vars: &Vars, errors: &mut Errors) -> Option<agent::Config> {
    let agent = errors.take(agent::Config::from_vars(vars));
    if let Some(agent) = &agent {
        errors.append(block_on(agent.faults()));
    }
    agent
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl Case {
    fn text(&self, member: &str) -> &str {
        self.json[member].as_str().unwrap_or_default()
    }

    fn texts(&self, member: &str) -> Vec<&str> {
        self.json[member].as_array().into_iter().flatten().filter_map(Json::as_str).collect()
    }

    /// Starts what the agent starts, as far as it is about configuration.
    fn run(&self, root: &Path) -> Result<Outcome, Errors> {
        for (path, text) in self.json["files"].as_object().into_iter().flatten() {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, self.expand(text.as_str().unwrap(), root)).unwrap();
        }
        self.texts("dirs").iter().for_each(|path| fs::create_dir_all(root.join(path)).unwrap());
        let sockets = self.texts("sockets");
        let around = Surroundings {
            platform: self.platform(root),
            external_sds: sockets.iter().any(|path| path.contains("workload-spiffe-uds/")),
            credential_socket: sockets.iter().any(|path| path.contains("credential-uds/")),
        };
        let (mut vars, mut errors) = Vars::load(self.sources(root));
        if vars.statsd_host().is_some() {
            vars.set_statsd(&Err("no such name".to_owned()));
        }
        let agent = agent(&vars, &mut errors);
        let agent = errors.clone().into_result(agent)?.unwrap();
        let config = agent.bootstrap();
        let written = bootstrap::write_grpc(config, &around).and_then(|()| bootstrap::write(config, &around));
        let written = written.map_err(|error| {
            errors.add("bootstrap", error.to_string());
            errors
        })?;
        let text = fs::read_to_string(&written.path).unwrap();
        Ok(Outcome {
            bootstrap: Some(serde_json::from_str(&text).unwrap_or_else(|_| serde_json::json!({"$text": text}))),
            argv: bootstrap::envoy_args(config, &written.path),
            env: envoy::Config::from_vars(&vars)?.env.into_iter().collect(),
            grpc: fs::read(root.join("etc/istio/proxy/grpc-bootstrap.json"))
                .ok()
                .map(|bytes| serde_json::from_slice(&bytes).unwrap()),
        })
    }

    /// What variables say of the cloud; no case asks a metadata server.
    fn platform(&self, root: &Path) -> Platform {
        let (vars, _) = Vars::load(self.sources(root));
        let config = platform::Config::from_vars(&vars).unwrap();
        block_on(platform::detect(&config))
    }

    fn sources(&self, root: &Path) -> Sources {
        let env: BTreeMap<String, String> = self.json["env"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), self.expand(value.as_str().unwrap(), root)))
            .collect();
        let first = env.get("INSTANCE_IP").map_or("10.244.1.7", String::as_str);
        let default = serde_json::json!({ "eth0": [first] });
        let net = if self.json["net"].is_object() { &self.json["net"] } else { &default };
        let address = |text: &Json| text.as_str()?.split('/').next()?.parse().ok();
        let interfaces = net.as_object().unwrap().iter().map(|(name, addresses)| Interface {
            name: name.clone(),
            addresses: addresses.as_array().unwrap().iter().filter_map(address).collect(),
        });
        Sources {
            flags: flags(&self.texts("argv")[1..]),
            interfaces: interfaces.collect(),
            env,
            root: root.to_owned(),
            processors: 2,
            ..Sources::default()
        }
    }

    fn expand(&self, text: &str, root: &Path) -> String {
        static CA_PEM: LazyLock<String> = LazyLock::new(|| Ca::new("golden root").unwrap().root_pem());
        text.replace("${CWD}", &root.to_string_lossy()).replace("${CA_PEM}", &CA_PEM)
    }

    /// Everything in which `outcome` differs from the recording.
    fn differences(&self, outcome: Outcome, root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut got = normal(outcome.bootstrap.unwrap_or_default(), root, true);
        let mut want = normal(self.json["bootstrap"].clone(), root, true);
        for (pointer, value) in self.json["better"].as_object().into_iter().flatten() {
            place(&mut want, pointer, value.clone());
        }
        for (pointer, values) in self.json["accept"].as_object().into_iter().flatten() {
            let value = at(&got, pointer).cloned();
            let values = normal(values.clone(), root, true);
            if let Some(value) = value.filter(|value| values.as_array().is_some_and(|values| values.contains(value))) {
                place(&mut want, pointer, value);
            }
        }
        if self.json["envoy"] != false && self.json["bootstrap"]["$text"].is_null() {
            compare(&want, &got, "bootstrap", &mut found);
        } else if let Some(text) = self.json["bootstrap"]["$text"].as_str() {
            got = outcome_text(&got);
            if got != text && serde_json::from_str::<Json>(text).ok().as_ref() != Some(&got) {
                found.push(format!("bootstrap: {got}"));
            }
        }
        let envoy = &self.json["envoy"];
        let wanted: Vec<&str> = envoy["argv"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        if envoy.is_object() {
            compare(&options(&wanted, root), &options(&outcome.argv, root), "argv", &mut found);
            compare(&envoy["env_added"], &serde_json::json!(outcome.env), "env", &mut found);
        }
        match (&self.json["grpc_bootstrap"], outcome.grpc) {
            (Json::Null, Some(_)) if self.json["grpc"] == false => {
                found.push("the gRPC bootstrap was written".to_owned())
            }
            (Json::Null, _) => {}
            (_, None) => found.push("no gRPC bootstrap".to_owned()),
            (want, Some(got)) => {
                let (mut want, got) = (normal(want.clone(), root, false), normal(got, root, false));
                if let Some(node) = want["node"].as_object_mut() {
                    node.retain(|_, value| !value.is_null());
                }
                compare(&want, &got, "grpc", &mut found);
            }
        }
        found
    }
}

/// A bootstrap of the user that is no JSON is compared as text.
fn outcome_text(got: &Json) -> Json {
    got.get("$text").unwrap_or(got).clone()
}

fn flags(argv: &[&str]) -> Flags {
    let mut flags = Flags::default();
    let mut argv = argv.iter().peekable();
    while let Some(argument) = argv.next() {
        match argument.strip_prefix("--").map(|flag| flag.split_once('=').unwrap_or((flag, "\0"))) {
            None => flags.positional(*argument),
            // The command line itself is `cli`'s; unknown flags are its tests'.
            Some((name, "\0")) => drop(flags.set(name, argv.next().unwrap_or(&"true"))),
            Some((name, value)) => drop(flags.set(name, value)),
        }
    }
    flags
}

/// The scratch folder, the version and ways to spell what is the same.
fn normal(value: Json, root: &Path, is_envoy: bool) -> Json {
    let mut value = spelled(value, root, is_envoy, false, "");
    if let Some(metadata) = value.pointer_mut("/node/metadata") {
        if metadata["ISTIO_VERSION"] == footman::config::ISTIO_VERSION {
            metadata["ISTIO_VERSION"] = "<version>".into();
        }
        let ports =
            metadata.get("POD_PORTS").and_then(Json::as_str).and_then(|text| serde_json::from_str::<Json>(text).ok());
        if let Some(ports) = ports {
            metadata["POD_PORTS"] = spelled(serde_json::json!({ "$json": ports }), root, is_envoy, true, "");
        }
    }
    value
}

fn spelled(value: Json, root: &Path, is_envoy: bool, verbatim: bool, key: &str) -> Json {
    match value {
        Json::String(text) => {
            let text = text.replace(&*root.to_string_lossy(), "${CWD}");
            let seconds = text.strip_suffix('s').and_then(|number| number.parse::<f64>().ok());
            match seconds.filter(|_| DURATIONS.iter().any(|end| key.to_ascii_lowercase().ends_with(end))) {
                Some(seconds) => format!("{seconds}s").into(),
                None => text.into(),
            }
        }
        Json::Number(number) => number.as_f64().map_or(Json::Number(number), Json::from),
        Json::Array(items) => items.into_iter().map(|item| spelled(item, root, is_envoy, verbatim, key)).collect(),
        Json::Object(members) => {
            let rename = is_envoy && !verbatim;
            let members = members.into_iter().map(|(key, value)| {
                let name = if rename && !key.contains(['.', '-']) { snake(&key) } else { key };
                let verbatim = verbatim || name == "node" || name == "static_layer";
                let value = spelled(value, root, is_envoy, verbatim, &name);
                (name, value)
            });
            Json::Object(members.collect())
        }
        other => other,
    }
}

fn snake(key: &str) -> String {
    let mut out = String::new();
    for (index, c) in key.chars().enumerate() {
        if c.is_ascii_uppercase() && index > 0 && key.starts_with(|c: char| c.is_ascii_lowercase()) {
            out.push('_');
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(c);
        }
    }
    out
}

/// Envoy's options by name; their order has no meaning.
fn options(argv: &[impl AsRef<str>], root: &Path) -> Json {
    let mut map = Map::new();
    let mut argv = argv.iter().map(AsRef::as_ref).peekable();
    while let Some(name) = argv.next() {
        let value =
            argv.next_if(|next| !next.starts_with('-')).map(|value| value.replace(&*root.to_string_lossy(), "${CWD}"));
        let value = match (name, value) {
            ("-c", Some(path)) => path.strip_prefix("${CWD}/").unwrap_or(&path).into(),
            ("--config-yaml", Some(text)) => serde_json::from_str(&text).unwrap_or(Json::String(text)),
            (_, Some(value)) => value.into(),
            (_, None) => true.into(),
        };
        assert!(map.insert(name.to_owned(), value).is_none(), "{name} twice");
    }
    Json::Object(map)
}

/// The way to a member, as `/static_resources/clusters/[name=agent]`.
fn steps(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
}

fn at<'a>(value: &'a Json, pointer: &str) -> Option<&'a Json> {
    steps(pointer).iter().try_fold(value, |value, step| match value {
        Json::Array(items) => items.get(index_of(items, step)?),
        _ => value.get(step),
    })
}

fn index_of(items: &[Json], step: &str) -> Option<usize> {
    match step.strip_prefix('[').and_then(|step| step.strip_suffix(']')?.split_once('=')) {
        Some((key, name)) => items.iter().position(|item| item[key] == name),
        None => step.parse().ok(),
    }
}

fn place(document: &mut Json, pointer: &str, value: Json) {
    let steps = steps(pointer);
    let (last, folders) = steps.split_last().unwrap();
    let mut parent = document;
    for step in folders {
        parent = match parent {
            Json::Array(items) => {
                let index = index_of(items, step).unwrap();
                &mut items[index]
            }
            other => &mut other[step.as_str()],
        };
    }
    match parent {
        Json::Array(items) => match index_of(items, last) {
            Some(index) if value["$absent"] == true => drop(items.remove(index)),
            Some(index) if index < items.len() => items[index] = value,
            _ => items.push(value),
        },
        Json::Object(members) if value["$absent"] == true => drop(members.remove(last)),
        other => other[last.as_str()] = value,
    }
}

fn compare(want: &Json, got: &Json, at: &str, found: &mut Vec<String>) {
    match (want, got) {
        (Json::Object(want), Json::Object(got)) => {
            for (key, value) in want {
                match got.get(key) {
                    Some(other) => compare(value, other, &format!("{at}/{key}"), found),
                    None => found.push(format!("missing {at}/{key}: {value}")),
                }
            }
            for (key, value) in got.iter().filter(|(key, _)| !want.contains_key(*key)) {
                found.push(format!("extra {at}/{key}: {value}"));
            }
        }
        (Json::Array(want), Json::Array(got)) if want.len() == got.len() => {
            for (index, (want, got)) in want.iter().zip(got).enumerate() {
                compare(want, got, &format!("{at}/{index}"), found);
            }
        }
        _ if want == got => {}
        _ => found.push(format!("{at}: wanted {want}, got {got}")),
    }
}

fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Refused by the command line, or only when a socket is looked for: the tests of `cli` and `sds` have them.
const REFUSED_ELSEWHERE: &[&str] = &["bad-log-level", "bad-socket-absent"];

#[test]
fn recorded_starts() {
    let mut failures = Vec::new();
    for case in cases("tests/golden") {
        let folder = TempDir::new();
        let root: PathBuf = fs::canonicalize(&*folder).unwrap();
        let found = match (case.run(&root), case.text("expect")) {
            (Ok(_), "error") if REFUSED_ELSEWHERE.contains(&case.name.as_str()) => continue,
            (Ok(_), "error") => vec!["was not refused".to_owned()],
            (Err(errors), "error") => {
                let text = letters(&errors.to_string());
                let names = case.texts("names").into_iter().chain(case.texts("names_better"));
                names
                    .filter(|name| !text.contains(&letters(name)))
                    .map(|name| format!("{name} not in: {errors}"))
                    .collect()
            }
            (Ok(outcome), _) => case.differences(outcome, &root),
            (Err(errors), _) => {
                let word = case.text("may_refuse");
                if !word.is_empty() && letters(&errors.to_string()).contains(&letters(word)) {
                    continue;
                }
                vec![format!("refused: {errors}")]
            }
        };
        failures.extend(found.into_iter().map(|difference| format!("{}: {difference}", case.name)));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[allow(clippy::disallowed_methods, reason = "how a test is run is no configuration of the agent")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The places of a case's file that hold what is expected.
fn expectation(outcome: Outcome, root: &Path) -> Map<String, Json> {
    let mut map = Map::new();
    map.insert("bootstrap".to_owned(), normal(outcome.bootstrap.unwrap_or_default(), root, true));
    let relative = |word: &String| word.replace(&format!("{}/", root.display()), "");
    let argv: Vec<String> = outcome.argv.iter().map(relative).collect();
    map.insert("envoy".to_owned(), serde_json::json!({ "argv": argv, "env_added": outcome.env }));
    if let Some(grpc) = outcome.grpc {
        map.insert("grpc_bootstrap".to_owned(), normal(grpc, root, false));
    }
    map
}

/// JSON with one member of the outermost object a line.
fn by_line(case: &Json) -> String {
    let line = |(key, value): (&String, &Json)| format!(" {key:?}: {value}");
    let lines: Vec<String> = case.as_object().unwrap().iter().map(line).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

#[test]
fn own_starts() {
    let update = variable("UPDATE_GOLDEN").is_some();
    let mut failures = Vec::new();
    for mut case in cases("tests/golden/own") {
        let folder = TempDir::new();
        let root: PathBuf = fs::canonicalize(&*folder).unwrap();
        let outcome = case.run(&root).unwrap_or_else(|errors| panic!("{}: {errors}", case.name));
        if update {
            case.json.as_object_mut().unwrap().extend(expectation(outcome, &root));
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/own").join(&case.name);
            fs::write(path.with_extension("json"), by_line(&case.json)).unwrap();
        } else {
            let found = case.differences(outcome, &root);
            failures.extend(found.into_iter().map(|difference| format!("{}: {difference}", case.name)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_two_rooms_find_wrong_is_said_once() {
    let root = TempDir::new();
    for (name, value, said) in [
        ("WORKLOAD_IDENTITY_SOCKET_FILE", "a/b", "WORKLOAD_IDENTITY_SOCKET_FILE"),
        ("PROXY_CONFIG", "discoveryAddress: x", "discoveryAddress"),
        ("PROXY_CONFIG", "discoveryAddress: x:70000", "discoveryAddress"),
        ("CA_ADDR", "x", "CA_ADDR"),
        ("ENVOY_PROMETHEUS_PORT", "70000", "ENVOY_PROMETHEUS_PORT"),
        ("ENVOY_STATUS_PORT", "-1", "ENVOY_STATUS_PORT"),
        ("CREDENTIAL_FETCHER_TYPE", "x", "CREDENTIAL_FETCHER_TYPE"),
        ("COMPLIANCE_POLICY", "pqc", "COMPLIANCE_POLICY"),
        ("ISTIO_KUBE_APP_PROBERS", "{", "ISTIO_KUBE_APP_PROBERS"),
        ("HTTPS_PROXY", "ftp://x", "HTTPS_PROXY"),
        ("PROXY_CONFIG", "statusPort: 0", "statusPort"),
        ("PROXY_CONFIG", "privateKeyProvider: {qat: {}}", "pollDelay"),
    ] {
        let roots = [("XDS_ROOT_CA", "SYSTEM"), ("CA_ROOT_CA", "SYSTEM"), (name, value)];
        let env = roots.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let (vars, mut errors) = Vars::load(Sources { env, root: root.to_path_buf(), ..Sources::default() });
        agent(&vars, &mut errors);
        assert!(errors.0.len() == 1 && errors.0[0].source.contains(said), "{name}={value}: {errors}");
    }
}

/// What an Envoy without Istio's extensions, or of today, cannot take (spec of each: Istio's own build has them).
const NOT_STOCK: &[&str] = &["istio.workload.BootstrapExtension", "envoy.tracers.lightstep"];

#[test]
fn a_real_envoy_takes_every_bootstrap() {
    // scripts/test sets it; without one there is nothing to ask.
    let Some(envoy) = variable("ENVOY") else { return };
    let mut failures = Vec::new();
    for case in cases("tests/golden").into_iter().chain(cases("tests/golden/own")) {
        let folder = TempDir::new();
        let root: PathBuf = fs::canonicalize(&*folder).unwrap();
        let Ok(outcome) = case.run(&root) else { continue };
        let text = outcome.bootstrap.unwrap_or_default().to_string();
        if NOT_STOCK.iter().any(|name| text.contains(name)) || text.contains("$text") || text.contains("{{") {
            continue;
        }
        let mut command = Command::new(&envoy);
        command.args(&outcome.argv).args(["--mode", "validate"]).current_dir(&root);
        let output = command.output().unwrap();
        if !output.status.success() {
            failures.push(format!("{}: {}", case.name, String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
