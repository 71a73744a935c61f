//! The table of sub-commands: names, flags, help. Everything that lists commands is made from it.

use super::{args::Command, check};
use crate::config::{Flag, FlagKind, PROXY_FLAGS};

const fn flag(name: &'static str, kind: FlagKind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, help }
}

/// `wait --timeoutSeconds`.
pub const TIMEOUT: Flag = flag("timeoutSeconds", FlagKind::Int, "60", "seconds until it gives up");
/// `wait --requestTimeoutMillis`.
pub const REQUEST_TIMEOUT: Flag =
    flag("requestTimeoutMillis", FlagKind::Int, "500", "milliseconds that one attempt may take; 0: all that is left");
/// `wait --periodMillis`.
pub const PERIOD: Flag = flag("periodMillis", FlagKind::Int, "500", "milliseconds before each attempt");
/// `wait --url`.
pub const URL: Flag =
    flag("url", FlagKind::Text, "http://localhost:15021/healthz/ready", "what is asked until it answers 200");
/// `request --debug-port`.
pub const DEBUG_PORT: Flag = flag("debug-port", FlagKind::Int, "15000", "local port: 15000, 15004, 15020 or 15021");
/// `version --short`.
pub const SHORT: Flag = flag("short", FlagKind::Bool, "false", "print the version number only");
/// `version --output`.
pub const OUTPUT: Flag = flag("output", FlagKind::Text, "", "json or yaml");

/// `check --bootstrap`.
pub const BOOTSTRAP: Flag = flag("bootstrap", FlagKind::Bool, "false", "print the bootstrap too, without its secrets");
/// `check --request-certificate`.
pub const REQUEST_CERTIFICATE: Flag =
    flag("request-certificate", FlagKind::Bool, "false", "ask the CA for a certificate, and throw it away");

/// `status --watch`.
pub const WATCH: Flag = flag("watch", FlagKind::Bool, "false", "show it again every two seconds");
/// `status --status-port`.
pub const STATUS_PORT: Flag = flag(
    "status-port",
    FlagKind::Int,
    "",
    "the agent's status port; by default the one that proxy finds in its configuration",
);
/// `status --output`.
pub const STATUS_OUTPUT: Flag = flag("output", FlagKind::Text, "", "text or json");

/// What `proxy` and `check` take.
pub const ROLE: &str = "[role]";

const ANY: usize = usize::MAX;

const fn command(name: &'static str, operands: &'static str, about: &'static str, flags: &'static [Flag]) -> Command {
    Command { name, operands, about, flags, shorts: &[], tolerant: false, positionals: (0, ANY) }
}

/// `proxy`.
pub const PROXY: Command =
    Command { tolerant: true, ..command("proxy", ROLE, "run the agent beside an Envoy", PROXY_FLAGS) };
/// `check`.
pub const CHECK: Command = Command {
    tolerant: true,
    shorts: &[('o', "output")],
    ..command("check", ROLE, "say what proxy would do with the same arguments, and try it", check::FLAGS)
};
/// `wait`.
pub const WAIT: Command = Command {
    positionals: (0, ANY),
    ..command("wait", "", "wait until the proxy is ready", &[PERIOD, REQUEST_TIMEOUT, TIMEOUT, URL])
};
/// `request`.
pub const REQUEST: Command = Command {
    positionals: (2, ANY),
    ..command("request", "<method> <path> [<body>]", "one HTTP request to a port of this pod's proxy", &[DEBUG_PORT])
};
/// `status`.
pub const STATUS: Command = Command {
    shorts: &[('o', "output"), ('w', "watch")],
    positionals: (0, 0),
    ..command("status", "", "show what a running agent says of itself", &[STATUS_OUTPUT, STATUS_PORT, WATCH])
};
/// `version`.
pub const VERSION: Command = Command {
    shorts: &[('s', "short"), ('o', "output")],
    ..command("version", "", "print the version", &[OUTPUT, SHORT])
};
/// `completion`.
pub const COMPLETION: Command = Command {
    positionals: (1, 1),
    ..command("completion", "bash|zsh|fish", "print a completion script for a shell", &[])
};
/// `help`.
pub const HELP: Command = command("help", "[command]", "explain a command", &[]);

/// All of them, in the order in which they are listed.
pub const ALL: &[Command] = &[PROXY, CHECK, STATUS, REQUEST, WAIT, VERSION, COMPLETION, HELP];

/// Words of pilot-agent that footman does not serve, and what to use.
pub const REFUSED: &[(&str, &str)] = &[
    (
        "istio-iptables",
        "footman does not redirect traffic: use Istio CNI (istio-cni-node), or keep Istio's own image for the istio-init container",
    ),
    (
        "istio-clean-iptables",
        "footman does not redirect traffic: clean up with what set it up, Istio CNI or Istio's own image",
    ),
    ("collateral", "this build is not compiled with collateral support"),
];

/// The command of that name.
pub fn find(name: &str) -> Option<&'static Command> {
    ALL.iter().find(|command| command.name == name)
}
