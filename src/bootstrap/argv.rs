//! Envoy's command line.

use std::path::Path;

use super::{Config, overlay};
use crate::config::{Errors, Vars};

/// How often Envoy flushes its log files when nothing is configured.
const FLUSH_MILLIS: u128 = 1000;
/// What the command line is made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Args {
    v6_only: bool,
    level: Option<String>,
    components: String,
    skip_deprecated_logs: bool,
    core_dump: bool,
    overlay: Option<String>,
    outlier_log_path: String,
}

impl Args {
    pub(super) fn from_vars(vars: &Vars, errors: &mut Errors) -> Args {
        let (level, mut components) = split_levels(vars.flags().text("proxyLogLevel"), vars);
        if components.is_empty() {
            components = vars.flags().text("proxyComponentLogLevel").to_owned();
        }
        let addresses = vars.ip_addresses();
        Args {
            // Without any address too, as in Istio.
            v6_only: addresses.iter().all(std::net::IpAddr::is_ipv6),
            level,
            components,
            skip_deprecated_logs: vars.bool("ENVOY_SKIP_DEPRECATED_LOGS", true),
            core_dump: vars.bool("ISTIO_ENVOY_ENABLE_CORE_DUMP", false),
            overlay: overlay::read(vars, errors),
            outlier_log_path: vars.flags().text("outlierLogPath").to_owned(),
        }
    }

    pub(super) fn outlier_log_path(&self) -> &str {
        &self.outlier_log_path
    }
}

/// Envoy's arguments, in Istio's order; `bootstrap` is the file it reads.
pub fn envoy_args(config: &Config, bootstrap: &Path) -> Vec<String> {
    let (proxy, args) = (&config.proxy, &config.args);
    let flush = proxy.file_flush_interval.map_or(FLUSH_MILLIS, |interval| interval.as_millis());
    let mut list: Vec<String> = Vec::new();
    let mut option = |name: &str, value: &str| list.extend([name.to_owned(), value.to_owned()]);
    option("-c", &bootstrap.to_string_lossy());
    option("--drain-time-s", &proxy.drain_duration.as_secs().to_string());
    option("--drain-strategy", "immediate");
    option("--local-address-ip-version", if args.v6_only { "v6" } else { "v4" });
    option("--file-flush-interval-msec", &flush.to_string());
    list.extend(["--disable-hot-restart", "--allow-unknown-static-fields"].map(str::to_owned));
    let mut option = |name: &str, value: &str| list.extend([name.to_owned(), value.to_owned()]);
    if proxy.file_flush_min_size_kb > 0 {
        option("--file-flush-min-size-kb", &proxy.file_flush_min_size_kb.to_string());
    }
    if let Some(level) = &args.level {
        option("-l", level);
    }
    if !args.components.is_empty() {
        option("--component-log-level", &args.components);
    }
    if args.skip_deprecated_logs {
        list.push("--skip-deprecated-logs".to_owned());
    }
    if args.core_dump {
        list.push("--enable-core-dump".to_owned());
    }
    if let Some(overlay) = &args.overlay {
        list.extend(["--config-yaml".to_owned(), overlay.clone()]);
    }
    if let Some(threads) = proxy.concurrency.filter(|threads| *threads > 0) {
        list.extend(["--concurrency".to_owned(), threads.to_string()]);
    }
    list
}

/// Splits `info,upstream:debug` into the level (the last one wins, also an empty one, which is none) and the component items.
fn split_levels(text: &str, vars: &Vars) -> (Option<String>, String) {
    let (mut level, mut components) = (None, Vec::new());
    for item in text.split(',') {
        match item.matches(':').count() {
            0 => level = (!item.is_empty()).then(|| item.to_owned()),
            1 => components.push(item),
            _ => vars.warn(format!("--proxyLogLevel: {item:?} is not component:level; ignored")),
        }
    }
    (level, components.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        for (text, level, components, warned) in [
            ("info", Some("info"), "", 0),
            ("info,warn", Some("warn"), "", 0),
            ("misc:warn,info,upstream:debug", Some("info"), "misc:warn,upstream:debug", 0),
            ("", None, "", 0),
            ("debug,", None, "", 0),
            (",debug", Some("debug"), "", 0),
            ("a:b:c,x:y", None, "x:y", 1),
        ] {
            let vars = Vars::from_pairs([("", "")]);
            let split = split_levels(text, &vars);
            assert_eq!(
                (split.0.as_deref(), split.1.as_str(), vars.warnings().len()),
                (level, components, warned),
                "{text}"
            );
        }
    }
}
