//! How many connections of clients Envoy still has, from its statistics. Pure.
//!
//! The mesh's own listeners do not count: probes and scrapes would keep a drained gateway alive for ever (Istio excludes them by
//! their IPv4 wildcard names only; here every address of a known port is excluded).

use log::warn;

/// The query that gives the statistics for [`Active`].
pub const QUERY: &str = "/stats?usedonly&filter=downstream_cx_active$";

/// The statistic of a listener.
const SUFFIX: &str = ".downstream_cx_active";

/// Counts line by line: a gateway has one for each of its listeners and each worker's share.
#[derive(Debug)]
pub struct Active<'a> {
    /// Ports of listeners that serve probes and scrapes.
    own: &'a [u16],
    /// Sum over the listeners for clients; `None` when Envoy has no such statistics.
    pub count: Option<u64>,
}

impl Active<'_> {
    /// Before the first line.
    pub fn new(own: &[u16]) -> Active<'_> {
        Active { own, count: None }
    }

    /// Takes one line.
    pub fn line(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let value = self.value(line).unwrap_or(0);
        self.count = Some(self.count.unwrap_or(0).saturating_add(value));
    }

    /// What a line adds.
    fn value(&self, line: &str) -> Option<u64> {
        let (name, value) = line.split_once(": ").or_else(|| {
            warn!("Envoy's statistics have a line that is none: {line:?}");
            None
        })?;
        let listener = name.trim().strip_prefix("listener.")?.strip_suffix(SUFFIX)?;
        if !is_for_clients(listener, self.own) {
            return None;
        }
        value.trim().parse::<u64>().map_err(|_| warn!("{name} of Envoy's statistics is no number: {value:?}")).ok()
    }
}

/// Whether `listener`, named by its address, takes connections of clients.
fn is_for_clients(listener: &str, own: &[u16]) -> bool {
    if listener.contains("worker_") || listener.starts_with("envoy_internal_") {
        return false;
    }
    if listener == "admin" || listener.starts_with("admin.") {
        return false;
    }
    let port = listener.rsplit_once('_').and_then(|(address, port)| Some((address, port.parse::<u16>().ok()?)));
    !port.is_some_and(|(address, port)| own.contains(&port) && is_local_or_any(address))
}

/// Envoy writes `:` of an address as `_`: `[::]` is `[__]`, `::1` is `[__1]`.
fn is_local_or_any(address: &str) -> bool {
    matches!(address, "0.0.0.0" | "127.0.0.1" | "[__]" | "[__1]" | "__" | "__1")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[u16] = &[15021, 15090];

    fn active_connections(stats: &str, own: &[u16]) -> Option<u64> {
        let mut active = Active::new(own);
        stats.lines().for_each(|line| active.line(line));
        active.count
    }

    fn stats(lines: &[(&str, &str)]) -> String {
        lines.iter().map(|(name, value)| format!("listener.{name}.downstream_cx_active: {value}\n")).collect()
    }

    #[test]
    fn clients_are_summed() {
        let text = stats(&[
            ("0.0.0.0_8443", "6"),
            ("0.0.0.0_9093", "8"),
            ("10.112.32.70_9043", "1"),
            ("10.112.40.186_2181", "1"),
            ("10.112.43.239_9043", "2"),
            ("10.112.49.68_9043", "1"),
            ("admin", "2"),
            ("admin.main_thread", "2"),
            ("envoy_internal_connect_originate", "4"),
            ("0.0.0.0_8443.worker_0", "6"),
        ]) + "http.inbound.downstream_cx_active: 9\n";
        assert_eq!(active_connections(&text, OWN), Some(19));
    }

    #[test]
    fn own_listeners_are_left_out_in_either_family() {
        for name in ["0.0.0.0_15021", "[__]_15090", "127.0.0.1_15090", "[__1]_15021", "admin"] {
            assert_eq!(active_connections(&stats(&[(name, "3")]), OWN), Some(0), "{name}");
        }
        for name in ["10.1.2.3_15021", "0.0.0.0_443", "[__]_443", "named-listener", "0.0.0.0_x"] {
            assert_eq!(active_connections(&stats(&[(name, "3")]), OWN), Some(3), "{name}");
        }
    }

    #[test]
    fn none_is_not_zero() {
        assert_eq!(active_connections("", OWN), None);
        assert_eq!(active_connections("\n", OWN), None);
        assert_eq!(active_connections("listener.0.0.0.0_80.downstream_cx_active: 0\n", OWN), Some(0));
    }

    #[test]
    fn garbage_is_skipped_and_never_overflows() {
        let text = "nonsense\nlistener.a.downstream_cx_active: many\nlistener.b.downstream_cx_active: 18446744073709551615\nlistener.c.downstream_cx_active: 2\n";
        assert_eq!(active_connections(text, OWN), Some(u64::MAX));
    }
}
