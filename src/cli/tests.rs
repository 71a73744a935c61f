//! Command lines by tables: what is taken apart how, what is refused with which words.

use super::*;
use crate::config::FlagKind;

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

fn parse(command: &Command, text: &str) -> Result<Typed, String> {
    command.parse(words(text)).map_err(|error| error.to_string())
}

#[test]
fn flags_and_positionals_in_any_order() {
    let typed = parse(&commands::PROXY, "sidecar --domain a.b --log_as_json --concurrency=4 -- --not-a-flag").unwrap();
    assert_eq!(typed.positionals, ["sidecar", "--not-a-flag"]);
    let flags = [("domain", "a.b"), ("log_as_json", "true"), ("concurrency", "4")].map(|(n, v)| (n, v.to_owned()));
    assert_eq!(typed.flags, flags);
    let typed = parse(&commands::REQUEST, "POST --debug-port 15020 /drain body").unwrap();
    assert_eq!((typed.positionals.len(), typed.text(&commands::DEBUG_PORT)), (3, "15020"));
}

#[test]
fn bools_take_a_value_only_after_the_equals_sign() {
    let typed = parse(&commands::PROXY, "--profiling=false --log_as_json router").unwrap();
    assert_eq!(typed.positionals, ["router"]);
    assert_eq!(typed.flags[0], ("profiling", "false".to_owned()));
    assert_eq!(parse(&commands::VERSION, "-s").unwrap().text(&commands::SHORT), "true");
    let typed = parse(&commands::VERSION, "-so json").unwrap();
    assert_eq!((typed.text(&commands::SHORT), typed.text(&commands::OUTPUT)), ("true", "json"));
    for text in ["-o json", "-ojson", "-o=json", "--output=json", "--output json"] {
        assert_eq!(parse(&commands::VERSION, text).unwrap().text(&commands::OUTPUT), "json", "{text}");
    }
}

#[test]
fn unknown_flags_of_proxy_never_swallow_the_role() {
    for (text, positionals) in [
        ("router --not-a-flag=1", vec!["router"]),
        ("--oldflag router", vec!["router"]),
        ("--oldflag value router", vec!["router"]),
        ("--oldflag --other=x router", vec!["router"]),
        ("--oldflag", vec![]),
        ("-x router", vec!["router"]),
        ("sidecar surplus words", vec!["sidecar", "surplus", "words"]),
    ] {
        assert_eq!(parse(&commands::PROXY, text).unwrap().positionals, positionals, "{text}");
    }
}

#[test]
fn mistakes_are_named() {
    for (command, text, part) in [
        (&commands::WAIT, "--bogus", "--bogus"),
        (&commands::WAIT, "--timeoutSecond 5", "did you mean --timeoutSeconds?"),
        (&commands::WAIT, "--timeoutSeconds=soon", "--timeoutSeconds: \"soon\" is not a whole number"),
        (&commands::WAIT, "--url", "needs an argument: --url"),
        (&commands::REQUEST, "GET", "at least 2 arguments, got 1"),
        (&commands::STATUS, "now", "at most 0 arguments, got 1"),
        (&commands::PROXY, "--log_as_json=maybe", "--log_as_json: \"maybe\" is not true or false"),
        (&commands::VERSION, "-x", "unknown flag: -x"),
    ] {
        let error = parse(command, text).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn errors_are_json_in_every_spelling_of_the_flag() {
    for word in ["--log_as_json", "--log_as_json=true", "--log_as_json=1", "--log_as_json=T"] {
        assert!(args::asks_for_json(word), "{word}");
    }
    for word in ["--log_as_json=false", "--log_as_json=maybe", "--log_as_jsonx", "--log_as_json=", "log_as_json"] {
        assert!(!args::asks_for_json(word), "{word}");
    }
}

#[test]
fn command_may_follow_global_flags() {
    for (text, name, rest) in [
        ("proxy sidecar", "proxy", "sidecar"),
        ("--log_as_json proxy sidecar", "proxy", "--log_as_json sidecar"),
        ("--vklog 3 proxy router", "proxy", "--vklog 3 router"),
        ("--vklog=3 version", "version", "--vklog=3"),
        ("--version -s", "version", "-s"),
    ] {
        assert_eq!(split(words(text)), Some((name.to_owned(), words(rest))), "{text}");
    }
    for text in ["", "--help", "-h", "--log_as_json"] {
        assert_eq!(split(words(text)), None, "{text}");
    }
}

#[test]
fn unknown_and_refused_commands_say_what_to_do() {
    for (name, part) in [
        ("porxy", "did you mean proxy?"),
        ("bogus", "the commands are proxy, "),
        ("istio-iptables", "Istio CNI"),
        ("istio-clean-iptables", "Istio CNI"),
        ("collateral", "not compiled with collateral support"),
    ] {
        let failure = unknown(name);
        assert!(failure.code == 64 && failure.message.contains(part), "{name}: {}", failure.message);
    }
}

#[test]
fn version_in_four_forms() {
    let run = |text: &str| version::run(&parse(&commands::VERSION, text).unwrap());
    let short = run("-s").unwrap();
    let number = short.trim().strip_prefix("client version: ").unwrap().to_owned();
    assert!(run("").unwrap().contains(&format!("Version:\"{number}\", GitRevision:")));
    let json: serde_json::Value = serde_json::from_str(&run("-o json").unwrap()).unwrap();
    assert_eq!(json["clientVersion"]["version"], number.as_str());
    assert!(run("-o yaml").unwrap().starts_with(&format!("clientVersion:\n  version: {number}\n")));
    assert_eq!(run("-o xml").unwrap_err().code, 64);
}

#[test]
fn help_names_every_flag_and_completion_every_command() {
    let overview = help::overview("footman");
    for command in commands::ALL {
        assert!(overview.contains(command.name), "{}", command.name);
        let text = help::of("footman", command);
        assert_eq!(
            text.contains("agentgateway (default sidecar)"),
            ["proxy", "check"].contains(&command.name),
            "{text}"
        );
        for flag in command.all_flags() {
            assert!(text.contains(&format!("--{}", flag.name)) && text.contains(flag.help), "{}", flag.name);
            assert!(flag.kind != FlagKind::Bool || text.contains(&format!("--{}  ", flag.name)), "{}", flag.name);
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = completion::run("footman", &parse(&commands::COMPLETION, shell).unwrap()).unwrap();
        for word in commands::ALL.iter().map(|command| command.name).chain(["sidecar", "agentgateway"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(completion::run("footman", &parse(&commands::COMPLETION, "tcsh").unwrap()).unwrap_err().code, 64);
}

#[test]
fn bash_completes_commands_their_flags_and_roles() {
    let script = completion::run("footman", &parse(&commands::COMPLETION, "bash").unwrap()).unwrap();
    for (typed, wanted) in [
        ("che", "check"),
        ("--log_as_json che", "check"),
        ("--vklog 3 ver", "version"),
        ("--vklog = 3 ver", "version"),
        ("--log_as_json check --boot", "--bootstrap"),
        ("proxy agent", "agentgateway"),
        ("--vkl", "--vklog"),
    ] {
        let words =
            format!("COMP_WORDS=(footman {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _footman; echo $COMPREPLY");
        let output = std::process::Command::new("bash").args(["-c", &format!("{script}{words}")]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), wanted, "{typed}: {output:?}");
    }
}
