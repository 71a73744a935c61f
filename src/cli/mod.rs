//! What a person types: splits the command line, runs the sub-command, turns errors into texts and exit codes.
//!
//! Exit codes: 0 done; 1 failed; 64 wrong command line or configuration (EX_USAGE of sysexits.h); `proxy` also Envoy's own.

mod args;
mod check;
mod commands;
mod completion;
mod fetch;
mod help;
mod logging;
mod proxy;
mod redact;
mod report;
mod request;
mod status;
mod suggest;
mod version;
mod wait;

use std::{
    ffi::OsString,
    future::Future,
    io::{self, Write},
    pin::Pin,
};

use args::{Command, Typed};

use crate::telemetry::log::write_last;

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The command line or the configuration is wrong: 64.
    fn usage(message: impl ToString) -> Failure {
        Failure { code: 64, message: message.to_string() }
    }

    /// What was asked for did not succeed: 1.
    fn failed(message: impl ToString) -> Failure {
        Failure { code: 1, message: message.to_string() }
    }
}

impl From<args::UsageError> for Failure {
    fn from(error: args::UsageError) -> Failure {
        Failure::usage(error)
    }
}

/// Runs the command line, without the program's name; the exit code.
pub async fn run(program: &str, words: Vec<OsString>) -> u8 {
    let json = words.iter().filter_map(|word| word.to_str()).any(args::asks_for_json);
    match dispatch(program, words).await {
        Ok(code) => code,
        Err(failure) => {
            // Said on stderr for people and in the log for collectors; the log may not be there yet.
            logging::install_default(json);
            if !json {
                let _ = writeln!(io::stderr(), "Error: {}", failure.message);
            }
            for line in failure.message.lines() {
                write_last(line);
            }
            failure.code
        }
    }
}

async fn dispatch(program: &str, words: Vec<OsString>) -> Result<u8, Failure> {
    let Some((name, rest)) = split(words) else {
        print(help::overview(program).as_bytes())?;
        return Ok(0);
    };
    let Some(command) = commands::find(&name) else { return Err(unknown(&name)) };
    let typed = command.parse(rest)?;
    if typed.help {
        print(help::of(program, command).as_bytes())?;
        return Ok(0);
    }
    execute(program, command, typed).await
}

async fn execute(program: &str, command: &'static Command, typed: Typed) -> Result<u8, Failure> {
    match command.name {
        "proxy" => return apart(|| proxy::run(typed)).await,
        "check" => {
            let (text, code) = apart(|| check::run(typed)).await?;
            print(text.as_bytes())?;
            return Ok(code);
        }
        "wait" => {
            logging::install_typed(&typed)?;
            apart(|| wait::run(&typed)).await?;
        }
        "status" => apart(|| status::run(&typed)).await?,
        "request" => print(&apart(|| request::run(&typed)).await?)?,
        "version" => print(version::run(&typed)?.as_bytes())?,
        "completion" => print(completion::run(program, &typed)?.as_bytes())?,
        _ => match typed.positionals.first() {
            None => print(help::overview(program).as_bytes())?,
            Some(name) => {
                let command = commands::find(name).ok_or_else(|| unknown(name))?;
                print(help::of(program, command).as_bytes())?;
            }
        },
    }
    Ok(0)
}

/// As `base::apart`, for what stays in the main task: the agent's stack must not have room for every command.
#[inline(never)]
fn apart<'a, F: Future + 'a>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + 'a>> {
    Box::pin(make())
}

/// The first word that is no flag, and all others in their order. Global flags may stand before it.
fn split(mut words: Vec<OsString>) -> Option<(String, Vec<OsString>)> {
    let mut index = 0;
    while index < words.len() {
        let word = words[index].to_string_lossy();
        match word.strip_prefix('-') {
            None => break,
            Some("h" | "-help") => return None,
            Some("-version") => {
                words[index] = "version".into();
                break;
            }
            Some(flag) => index += 1 + usize::from(args::takes_next_word(flag.trim_start_matches('-'))),
        }
    }
    if index >= words.len() {
        return None;
    }
    let name = words.remove(index);
    Some((name.to_string_lossy().into_owned(), words))
}

fn unknown(name: &str) -> Failure {
    if let Some((_, instead)) = commands::REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Failure::usage(format!("{name}: {instead}"));
    }
    let near = suggest::nearest(name, commands::ALL.iter().map(|command| command.name));
    let hint = near.map_or_else(
        || {
            let all: Vec<_> = commands::ALL.iter().map(|command| command.name).collect();
            format!("the commands are {}", all.join(", "))
        },
        |near| format!("did you mean {near}?"),
    );
    Failure::usage(format!("unknown command {name:?}: {hint}"))
}

/// Writes a command's result to standard output, whole. A reader that has gone, as in `| head`, is no failure.
fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
