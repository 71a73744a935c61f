//! What works, but probably not as it was meant.

use std::path::Path;

use crate::config::{HealthCheck, Origin, Vars};

/// Variables of our own; a misspelt one would be ignored in silence.
const OWN_PREFIX: &str = "FOOTMAN_";
/// Where the kernel tells the container's share of the processors (cgroup version 2; version 1).
const CPU_MAX: &str = "/sys/fs/cgroup/cpu.max";
const CPU_V1: [&str; 2] = ["/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"];

/// Adds a line for each.
pub(super) fn add(vars: &Vars, lines: &mut Vec<String>) {
    lines.extend(vars.unasked(OWN_PREFIX).into_iter().map(|name| format!("{name}: no such variable; is it misspelt?")));
    for flag in ["serviceCluster", "tokenManagerPlugin", "stsPort"] {
        let counts = flag == "serviceCluster" && vars.proxy_origin(flag) == Origin::Flag;
        if vars.flags().origin(flag) == Origin::Flag && !counts {
            lines.push(format!("--{flag}: has no effect in this version of Istio"));
        }
    }
    for name in ["XDS_AUTH_PROVIDER", "JWT_POLICY"] {
        if vars.text(name).is_some_and(|value| !value.is_empty()) {
            lines.push(format!("{name}: has no effect in this version of Istio"));
        }
    }
    lines.extend(readiness_probe(vars));
    let unset = vars.proxy().concurrency.unwrap_or(0) == 0;
    if let Some(share) = cpu_share(Path::new("/")).filter(|_| unset) {
        lines.push(format!(
            "concurrency: the container has {share} processors, but Envoy will run a worker for each of the machine's; set \
             concurrency or ISTIO_CPU_LIMIT"
        ));
    }
}

/// A readiness probe that can never succeed.
fn readiness_probe(vars: &Vars) -> Option<String> {
    let missing = match &vars.proxy().readiness_probe.as_ref()?.check {
        None => "readinessProbe: has none of httpGet, tcpSocket, exec, grpc",
        Some(HealthCheck::Exec(command)) if command.is_empty() => "readinessProbe.exec.command: is empty",
        Some(_) => return None,
    };
    let origin = vars.proxy_origin("readinessProbe");
    Some(format!("{origin}: {missing}; the workload will be reported unhealthy"))
}

/// How many processors the container may use, where that is limited.
fn cpu_share(root: &Path) -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
    let (quota, period) = match read(CPU_MAX) {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        }
        None => {
            let [quota, period] = CPU_V1.map(read);
            (quota?.trim().parse().ok()?, period?.trim().parse().ok()?)
        }
    };
    (quota > 0.0 && period > 0.0).then(|| format!("{:.1}", quota / period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_both_versions() {
        let root = std::env::temp_dir().join(format!("footman-hints-{}", std::process::id()));
        let v1 = root.join("sys/fs/cgroup/cpu");
        std::fs::create_dir_all(&v1).unwrap();
        assert_eq!(cpu_share(&root), None);
        std::fs::write(v1.join("cpu.cfs_quota_us"), "-1\n").unwrap();
        std::fs::write(v1.join("cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(cpu_share(&root), None);
        std::fs::write(v1.join("cpu.cfs_quota_us"), "50000\n").unwrap();
        assert_eq!(cpu_share(&root).as_deref(), Some("0.5"));
        std::fs::write(root.join("sys/fs/cgroup/cpu.max"), "max 100000\n").unwrap();
        assert_eq!(cpu_share(&root), None);
        std::fs::write(root.join("sys/fs/cgroup/cpu.max"), "200000 100000\n").unwrap();
        assert_eq!(cpu_share(&root).as_deref(), Some("2.0"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn settings_without_effect() {
        let vars = Vars::from_pairs([("FOOTMAN_NO_SUCH", "1"), ("JWT_POLICY", "third-party-jwt")]);
        let mut lines = Vec::new();
        add(&vars, &mut lines);
        let text = lines.join("\n");
        assert!(text.contains("FOOTMAN_NO_SUCH") && text.contains("JWT_POLICY"), "{text}");
    }
}
