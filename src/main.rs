//! The binary: argv in, exit code out. One thread, one runtime.

use std::{env, ffi::OsString, path::Path, process::ExitCode};

use footman::{base, cli, envoy::guard, telemetry::log::write_last};

/// Events taken from the kernel at once: tokio's 1024 are more than ever come, and their list is two pages of memory.
const EVENTS: usize = 64;

fn main() -> ExitCode {
    base::process_start();
    let mut args = env::args_os();
    let program = args.next().unwrap_or_default();
    let words: Vec<OsString> = args.collect();
    if words.first().is_some_and(|word| word == guard::WORD) {
        return guard::run(words.into_iter().skip(1));
    }
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("a defect of footman, please report it: {panic}");
        match log::max_level() {
            // No log yet.
            log::LevelFilter::Off => eprintln!("Error: {text}"),
            _ => write_last(&text),
        }
    }));
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().max_io_events_per_tick(EVENTS).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("Error: no event loop: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(cli::run(&name(&program), words));
    // What still runs is dropped here, not waited for.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// `footman`, or `pilot-agent` when called by that name.
fn name(program: &OsString) -> String {
    Path::new(program).file_name().map_or_else(|| "footman".to_owned(), |name| name.to_string_lossy().into_owned())
}
