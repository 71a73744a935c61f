//! Why the kernel killed Envoy: the memory figures of the agent's cgroup, which Envoy shares (cgroup v2, and v1's memory
//! controller). Read at Envoy's start and at its end.

use std::{fmt::Write, fs};

/// Where the cgroup of a container is mounted, for v2 and for v1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"];

/// How many processes of the cgroup the kernel has killed for want of memory so far; `None` where it does not tell.
pub fn oom_kills() -> Option<u64> {
    read(&["memory.events", "memory.oom_control"]).and_then(|text| parse_oom_kills(&text))
}

/// One sentence for the log after a SIGKILL that nobody here sent; `before` is [`oom_kills`] at the start.
pub fn explain(before: Option<u64>) -> String {
    let now = oom_kills();
    let figures = [
        ("limit", read(&["memory.max", "memory.limit_in_bytes"])),
        ("in use now", read(&["memory.current", "memory.usage_in_bytes"])),
        ("peak", read(&["memory.peak", "memory.max_usage_in_bytes"])),
    ];
    sentence(before, now, &figures)
}

fn sentence(before: Option<u64>, now: Option<u64>, figures: &[(&str, Option<String>)]) -> String {
    let mut text = match (before, now) {
        (Some(before), Some(now)) if now > before => "Envoy was out of memory killed".to_owned(),
        _ => "Envoy may have been out of memory killed".to_owned(),
    };
    let _ = match now {
        Some(now) => write!(text, " (memory cgroup: oom_kill {now}"),
        None => write!(text, " (memory cgroup: no oom_kill counter"),
    };
    for (name, value) in figures {
        if let Some(value) = value {
            let value = value.trim();
            let _ = match value.parse::<u64>() {
                Ok(bytes) => write!(text, ", {name} {} MiB", bytes >> 20),
                Err(_) => write!(text, ", {name} {value}"),
            };
        }
    }
    text.push_str("); if so, raise the container's memory limit");
    text
}

fn parse_oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn read(names: &[&str]) -> Option<String> {
    ROOTS.iter().find_map(|root| names.iter().find_map(|name| fs::read_to_string(format!("{root}/{name}")).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_count() {
        assert_eq!(parse_oom_kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), Some(1));
        assert_eq!(parse_oom_kills("oom_kill_disable 0\n"), None);
    }

    #[test]
    fn certain_only_when_the_counter_moved() {
        let figures = [("limit", Some("134217728\n".to_owned())), ("peak", None), ("x", Some("max\n".to_owned()))];
        let text = sentence(Some(0), Some(1), &figures);
        assert!(
            text.starts_with("Envoy was out of memory killed (memory cgroup: oom_kill 1, limit 128 MiB, x max)"),
            "{text}"
        );
        for (before, now) in [(Some(1), Some(1)), (None, None), (None, Some(1))] {
            assert!(sentence(before, now, &[]).starts_with("Envoy may have been"), "{before:?} {now:?}");
        }
    }
}
