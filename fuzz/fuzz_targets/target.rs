//! Hands libFuzzer's inputs to the target that bears this binary's name.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/fuzz/targets/mod.rs"]
mod targets;

fuzz_target!(|data: &[u8]| {
    let (_, target) = targets::ALL.iter().find(|(name, _)| *name == env!("CARGO_BIN_NAME")).expect("a target of that name");
    target(data);
});
