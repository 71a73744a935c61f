//! Fuzz targets on the stable compiler: each runs over its corpus and over inputs mutated from it, the same ones every time.
//!
//! The targets are plain functions (`targets/`), which `fuzz/` hands to libFuzzer for long runs. An input that makes a target
//! panic is kept under `target/tmp/`; add it to `corpus/TARGET/` with the fix.

mod mutate;
mod targets;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
};

use mutate::Mutator;
use targets::Target;

/// Inputs for each target beside its corpus.
const INPUTS: u64 = 10_000;

#[test]
fn no_input_makes_a_target_panic() {
    let failed: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = targets::ALL.iter().map(|target| scope.spawn(|| run(target))).collect();
        running.into_iter().filter_map(|target| target.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn a_panic_is_found_and_its_input_kept() {
    fn breaks(data: &[u8]) {
        assert!(data.len() < 3, "too long");
    }
    let error = run_inputs("breaks", breaks, &[b"a".to_vec(), b"abc".to_vec()]).unwrap_err();
    let path = error.rsplit(' ').next().unwrap();
    assert!(fs::read(path).unwrap().len() >= 3, "{error}");
}

#[test]
fn libfuzzer_knows_every_target() {
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    let named: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).skip(1).collect();
    let targets: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, targets, "the [[bin]]s of fuzz/Cargo.toml and the table of tests/fuzz/targets/mod.rs differ");
}

fn run((name, target): &Target) -> Result<(), String> {
    let corpus = corpus(name);
    if corpus.is_empty() {
        return Err(format!("{name}: tests/fuzz/corpus/{name}/ has no seed"));
    }
    run_inputs(name, *target, &corpus)
}

fn run_inputs(name: &str, target: fn(&[u8]), corpus: &[Vec<u8>]) -> Result<(), String> {
    let mut mutator = Mutator::new(name);
    let mutated = (0..INPUTS).map(|_| mutator.next(corpus));
    for input in corpus.iter().cloned().chain(mutated) {
        if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
            fs::write(&path, &input).unwrap();
            return Err(format!("{name}: panics on {}", path.display()));
        }
    }
    Ok(())
}

/// The seeds of a target, in the order of their names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = fs::read_dir(root().join("tests/fuzz/corpus").join(name)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
