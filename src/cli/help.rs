//! `help`, `--help`: made from the table of commands.

use std::fmt::Write;

use super::{
    args::Command,
    commands::{self, HELP, ROLE},
};
use crate::config::{Flag, FlagKind, GLOBAL_FLAGS, ROLES, Role};

/// What `footman` alone, `footman help` and `footman --help` print.
pub fn overview(program: &str) -> String {
    let mut text = format!(
        "{program}: the agent that lives beside an Envoy proxy; takes the place of Istio's pilot-agent.\n\n\
         Usage:\n  {program} <command> [flags]\n\nCommands:\n"
    );
    for command in commands::ALL {
        let _ = writeln!(text, "  {:<12}{}", command.name, command.about);
    }
    let _ = write!(text, "\nFlags of every command:\n{}", flags(GLOBAL_FLAGS));
    let _ = write!(
        text,
        "\nExit status: 0 done, 1 failed, 64 wrong command line or configuration; `proxy`: Envoy's own, or 128 and its signal.\n\
         More on a command: {program} {} <command>\n",
        HELP.name
    );
    text
}

/// What `footman help COMMAND` prints.
pub fn of(program: &str, command: &Command) -> String {
    let mut text = format!("{}.\n\nUsage:\n  {program} {}\n", command.about, command.usage());
    if command.operands == ROLE {
        let _ = writeln!(text, "\nThe role is {ROLES} (default {}).", Role::default());
    }
    if !command.flags.is_empty() {
        let _ = write!(text, "\nFlags:\n{}", flags(command.flags));
        for (letter, name) in command.shorts {
            let _ = writeln!(text, "  -{letter} is --{name}");
        }
    }
    let _ = write!(text, "\nFlags of every command:\n{}", flags(GLOBAL_FLAGS));
    text
}

fn flags(flags: &[Flag]) -> String {
    let mut text = String::new();
    for flag in flags {
        let value = match flag.kind {
            FlagKind::Bool => "",
            FlagKind::Int => " N",
            FlagKind::Text | FlagKind::Texts => " TEXT",
        };
        let _ = write!(text, "  {:<30} {}", format!("--{}{value}", flag.name), flag.help);
        match flag.default {
            "" | "0" | "false" => text.push('\n'),
            default => drop(writeln!(text, " (default {default})")),
        }
    }
    text
}
