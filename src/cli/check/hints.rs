//! What works, but probably not as it was meant.

use std::path::Path;

use crate::{
    cli::suggest::nearest,
    config::{HealthCheck, Origin, Vars},
};

/// Variables of our own; a misspelt one would be ignored in silence.
const OWN_PREFIX: &str = "FOOTMAN_";
/// All of them, as in docs/settings.md.
const OWN: &str = "CAPTURE_ENVOY_LOG CONTROL_SOCKET DEBUG_REMOTE DNS_ATTEMPTS DNS_CACHE DNS_CACHE_BYTES DNS_FORWARD_BEFORE_TABLE \
                   DNS_HEDGE DNS_PTR DNS_RETRIES DNS_SERVE_STALE DNS_TTL DNS_UPSTREAMS EXTERNAL_SDS_WAIT FORCE_ON_SIGNAL \
                   HIGRESS_BOOTSTRAP LAST_GOOD LAST_GOOD_MAX_AGE LAST_GOOD_MAX_BYTES OUTPUT_CERTS_MODE OUTPUT_CERTS_OWNER \
                   PRE_DRAIN_DELAY READINESS_TIMEOUT RESTART_ENVOY SDS_SOCKET_MODE STOCK_ENVOY UNHEALTHY_ON_DRAIN WASM_CACHE_DIR \
                   WASM_CACHE_MAX_BYTES WASM_NACK_ON_FAILURE WASM_PUBLIC_KEY";
/// Where the kernel tells the container's share of the processors (cgroup version 2; version 1).
const CPU_MAX: &str = "/sys/fs/cgroup/cpu.max";
const CPU_V1: [&str; 2] = ["/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"];

/// Adds a line for each. A room that was not to be made of a wrong configuration (`is_wrong`) may not have asked for its variables.
pub(super) fn add(vars: &Vars, is_wrong: bool, lines: &mut Vec<String>) {
    for name in vars.unasked(OWN_PREFIX) {
        let (own, rest) = (OWN.split(' '), &name[OWN_PREFIX.len()..]);
        if !own.clone().any(|own| own == rest) {
            let near =
                nearest(rest, own).map_or_else(String::new, |near| format!("; did you mean {OWN_PREFIX}{near}?"));
            lines.push(format!("{name}: no such variable{near}"));
        } else if !is_wrong {
            lines.push(format!("{name}: has no effect here: what it belongs to is off"));
        }
    }
    for flag in ["serviceCluster", "tokenManagerPlugin", "stsPort"] {
        let counts = flag == "serviceCluster" && vars.proxy_origin(flag) == Origin::Flag;
        if vars.flags().origin(flag) == Origin::Flag && !counts {
            lines.push(format!("--{flag}: has no effect in this version of Istio"));
        }
    }
    // Higress's token is obeyed (`istiod::Config`).
    for (name, obeyed) in [("XDS_AUTH_PROVIDER", ""), ("JWT_POLICY", "first-party-jwt")] {
        if vars.text(name).is_some_and(|value| !["", obeyed].contains(&value)) {
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

    fn lines(name: &str, value: &str, is_wrong: bool) -> String {
        let mut lines = Vec::new();
        add(&Vars::from_pairs([(name, value)]), is_wrong, &mut lines);
        lines.retain(|line| line.starts_with(name));
        lines.join("\n")
    }

    #[test]
    fn settings_without_effect() {
        assert!(lines("JWT_POLICY", "third-party-jwt", false).contains("no effect"));
        assert_eq!(lines("JWT_POLICY", "first-party-jwt", false), "");
        assert_eq!(
            lines("FOOTMAN_DNS_TTL", "30", false),
            "FOOTMAN_DNS_TTL: has no effect here: what it belongs to is off"
        );
        assert_eq!(lines("FOOTMAN_DNS_TTL", "30", true), "");
        for (name, hint) in [("FOOTMAN_DNS_TLT", "; did you mean FOOTMAN_DNS_TTL?"), ("FOOTMAN_QQ", "")] {
            assert_eq!(lines(name, "1", true), format!("{name}: no such variable{hint}"));
        }
    }

    #[test]
    fn own_variables_are_those_of_the_documentation() {
        let table = include_str!("../../../docs/settings.md").lines();
        let mut documented: Vec<&str> =
            table.filter_map(|line| line.strip_prefix("| `FOOTMAN_")?.split('`').next()).collect();
        documented.sort_unstable();
        assert_eq!(documented.join(" "), OWN);
    }
}
