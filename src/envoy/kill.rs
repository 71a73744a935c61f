//! Why the kernel killed Envoy: the memory figures of the agent's cgroup, which Envoy shares (cgroup v2, and v1's memory
//! controller). Read at Envoy's start and at its end.

use std::{fmt::Write, fs};

/// Where cgroup v2 and v1's memory controller are mounted; in a container that is the container's own cgroup.
const V2: &str = "/sys/fs/cgroup";
const V1: &str = "/sys/fs/cgroup/memory";

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

/// The first of `names` that the agent's cgroup has.
fn read(names: &[&str]) -> Option<String> {
    let folders = folders(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    folders.iter().find_map(|folder| names.iter().find_map(|name| fs::read_to_string(format!("{folder}/{name}")).ok()))
}

/// Folders where the cgroup's files may be, by what /proc/self/cgroup says (cgroups(7)): its own path, as on a machine without
/// containers, then the mount itself, which is the own cgroup inside a container whatever the path says.
fn folders(proc_self_cgroup: &str) -> Vec<String> {
    let own = proc_self_cgroup.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_end_matches('/');
        match controllers {
            "" => Some(format!("{V2}{path}")),
            _ => controllers.split(',').any(|name| name == "memory").then(|| format!("{V1}{path}")),
        }
    });
    own.chain([V2.to_owned(), V1.to_owned()]).collect()
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
    fn own_cgroup_comes_first() {
        assert_eq!(folders("0::/system.slice/istio.service\n")[0], "/sys/fs/cgroup/system.slice/istio.service");
        assert_eq!(folders("9:cpu,cpuacct:/x\n4:memory:/kubepods/y\n")[0], "/sys/fs/cgroup/memory/kubepods/y");
        assert_eq!(folders("0::/\n")[0], V2);
        assert_eq!(folders("nonsense"), [V2, V1]);
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
