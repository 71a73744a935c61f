//! `completion bash|zsh|fish`: scripts made from the table of commands.

use std::fmt::Write;

use super::{Failure, args::Typed, commands};
use crate::config::{FlagKind, GLOBAL_FLAGS, ROLES};

/// What `completion` prints.
///
/// # Errors
/// A shell that is not known.
pub fn run(program: &str, typed: &Typed) -> Result<String, Failure> {
    match typed.positionals.first().map(String::as_str) {
        Some("bash") => Ok(bash(program)),
        Some("zsh") => {
            Ok(format!("#compdef {program}\nautoload -U +X bashcompinit && bashcompinit\n{}", bash(program)))
        }
        Some("fish") => Ok(fish(program)),
        other => Err(Failure::usage(format!("completion: {:?} is not bash, zsh or fish", other.unwrap_or_default()))),
    }
}

/// Bash splits words at `=`, too.
fn bash(program: &str) -> String {
    let function = format!("_{}", program.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    let names = commands::ALL.iter().map(|command| command.name).collect::<Vec<_>>().join(" ");
    let mut cases = String::new();
    for command in commands::ALL {
        let flags = command.all_flags().map(|flag| format!("--{}", flag.name)).collect::<Vec<_>>().join(" ");
        let words = operands(command.name);
        let _ = writeln!(cases, "    {}) words=\"{words} {flags}\" ;;", command.name);
    }
    let flags = |valued: bool, between: &str| {
        let flags = GLOBAL_FLAGS.iter().filter(|flag| !valued || flag.kind != FlagKind::Bool);
        flags.map(|flag| format!("--{}", flag.name)).collect::<Vec<_>>().join(between)
    };
    let (valued, global) = (flags(true, "|"), flags(false, " "));
    format!(
        r#"{function}() {{
  local i command words current="${{COMP_WORDS[COMP_CWORD]}}"
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}" in
    =) i=$((i + 1)) ;;
    {valued}) [ "${{COMP_WORDS[i + 1]}}" = = ] || i=$((i + 1)) ;;
    -*) ;;
    *) command="${{COMP_WORDS[i]}}"; break ;;
    esac
  done
  case "$command" in
{cases}    *) words="{names} {global}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {function} {program}
"#
    )
}

fn fish(program: &str) -> String {
    let mut text = String::new();
    for flag in GLOBAL_FLAGS {
        let _ = writeln!(text, "complete -c {program} -l {} -d '{}'", flag.name, flag.help.replace('\'', ""));
    }
    for command in commands::ALL {
        let name = command.name;
        let _ = writeln!(text, "complete -c {program} -n __fish_use_subcommand -f -a {name} -d '{}'", command.about);
        let words = operands(name);
        if !words.is_empty() {
            let _ = writeln!(text, "complete -c {program} -n '__fish_seen_subcommand_from {name}' -f -a '{words}'");
        }
        for flag in command.flags {
            let help = flag.help.replace('\'', "");
            let _ = writeln!(
                text,
                "complete -c {program} -n '__fish_seen_subcommand_from {name}' -l {} -d '{help}'",
                flag.name
            );
        }
    }
    text
}

/// Words that may follow a command.
fn operands(command: &str) -> String {
    match command {
        "proxy" | "check" => ROLES.replace(" or", "").replace(',', ""),
        "request" => "GET POST".to_owned(),
        "completion" => "bash zsh fish".to_owned(),
        "help" => commands::ALL.iter().map(|command| command.name).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}
