//! What configuration and bootstrap cost of the start: everything is read, checked, put together and printed, in this process.

use std::time::Instant;

use footman::{
    agent,
    bootstrap::{self, Surroundings},
    config::{Sources, Vars},
};
use serde_json::Value as Json;

use crate::{
    Bench, Figure, median,
    support::{TempDir, ca::Ca},
};

pub const METHOD: &str =
    "500 times what sidecar injection gives a pod (tests/golden/sidecar-injected.json), in this process, median";
const CASE: &str = include_str!("../tests/golden/sidecar-injected.json");

pub async fn run(_: &Bench) -> Vec<Figure> {
    let case: Json = serde_json::from_str(CASE).unwrap();
    let folder = TempDir::new();
    let roots = Ca::new("a root").unwrap().root_pem();
    for (path, text) in case["files"].as_object().unwrap() {
        folder.write(path, text.as_str().unwrap().replace("${CA_PEM}", &roots));
    }
    let env = case["env"].as_object().unwrap().iter();
    let env: Vec<(String, String)> = env.map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect();
    let once = || {
        let began = Instant::now();
        let sources = Sources { env: env.iter().cloned().collect(), root: folder.to_path_buf(), ..Sources::default() };
        let (vars, errors) = Vars::load(sources);
        assert!(errors.0.is_empty(), "{errors}");
        let config = agent::Config::from_vars(&vars).unwrap();
        let written = bootstrap::write(config.bootstrap(), &Surroundings::default()).unwrap();
        let args = bootstrap::envoy_args(config.bootstrap(), &written.path);
        assert!(!args.is_empty());
        began.elapsed().as_secs_f64() * 1e3
    };
    vec![Figure::new("configuration and bootstrap", median((0..500).map(|_| once()).collect()), "ms").at_most(1.0)]
}
