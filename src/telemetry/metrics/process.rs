//! Metrics of this process from `/proc`, by the names of Prometheus's client libraries. What cannot be read is left out.

use std::{fs, sync::Once};

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{SysconfVar, sysconf},
};

use super::{Counter, Gauge, Registry};

struct Process {
    /// `/proc`.
    root: &'static str,
    cpu: Counter,
    open_fds: Gauge,
    virtual_bytes: Gauge,
    resident_bytes: Gauge,
    received: Counter,
    transmitted: Counter,
    start: Gauge,
    /// The kernel makes `/proc/stat` of all its counters, which is too slow for start-up.
    start_is_known: Once,
    ticks: f64,
    page: f64,
}

/// Fields of `self/stat`, counted from 0 behind the command's name (proc(5) fields 14, 15, 22, 23, 24).
const UTIME: usize = 11;
const STIME: usize = 12;
const START: usize = 19;
const VSIZE: usize = 20;
const RSS: usize = 21;

pub(super) fn register(registry: &Registry, root: &'static str) {
    let gauge = |name, help| registry.gauge(name, help, &[]);
    let constant = |variable| sysconf(variable).ok().flatten().filter(|value| *value > 0).map(|value| value as f64);
    let process = Process {
        root,
        cpu: registry.total("process_cpu_seconds_total", "CPU time of this process, user and system, seconds."),
        open_fds: gauge("process_open_fds", "File descriptors that are open."),
        virtual_bytes: gauge("process_virtual_memory_bytes", "Address space in use, bytes."),
        resident_bytes: gauge("process_resident_memory_bytes", "Memory that is resident, bytes."),
        received: registry.total("process_network_receive_bytes_total", "Bytes that came into the network namespace."),
        transmitted: registry.total("process_network_transmit_bytes_total", "Bytes that left the network namespace."),
        start: gauge("process_start_time_seconds", "When this process started, Unix time."),
        start_is_known: Once::new(),
        ticks: constant(SysconfVar::CLK_TCK).unwrap_or(100.0),
        page: constant(SysconfVar::PAGE_SIZE).unwrap_or(4096.0),
    };
    let limit = |resource| getrlimit(resource).ok().map(|(soft, _)| soft as f64);
    if let Some(most) = limit(Resource::RLIMIT_NOFILE) {
        gauge("process_max_fds", "Most file descriptors that may be open.").set(most);
    }
    if let Some(most) = limit(Resource::RLIMIT_AS) {
        gauge("process_virtual_memory_max_bytes", "Largest address space that is allowed, bytes.").set(most);
    }
    registry.on_scrape(move || process.refresh());
}

impl Process {
    fn refresh(&self) {
        self.start_is_known.call_once(|| {
            self.start_time().inspect(|time| self.start.set(*time));
        });
        if let Some(stat) = self.read("self/stat") {
            let field = |index| stat_field(&stat, index);
            if let (Some(user), Some(system)) = (field(UTIME), field(STIME)) {
                self.cpu.set_total((user + system) / self.ticks);
            }
            field(VSIZE).inspect(|bytes| self.virtual_bytes.set(*bytes));
            field(RSS).inspect(|pages| self.resident_bytes.set(pages * self.page));
        }
        if let Ok(entries) = fs::read_dir(format!("{}/self/fd", self.root)) {
            // The directory that is being read is one of them.
            self.open_fds.set(entries.count().saturating_sub(1) as f64);
        }
        if let Some(netstat) = self.read("self/net/netstat") {
            netstat_field(&netstat, "InOctets").inspect(|bytes| self.received.set_total(*bytes));
            netstat_field(&netstat, "OutOctets").inspect(|bytes| self.transmitted.set_total(*bytes));
        }
    }

    /// Unix time at which this process started: boot time and the ticks since.
    fn start_time(&self) -> Option<f64> {
        let boot = self.read("stat")?.lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok())?;
        Some(boot + stat_field(&self.read("self/stat")?, START)? / self.ticks)
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(format!("{}/{path}", self.root)).ok()
    }
}

/// The command's name may hold blanks and parentheses: fields count from behind the last one.
fn stat_field(stat: &str, index: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(index)?.parse().ok()
}

/// A column of the `IpExt` table: names on its first line, values on its second.
fn netstat_field(netstat: &str, name: &str) -> Option<f64> {
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let column = lines.next()?.split_ascii_whitespace().position(|other| other == name)?;
    lines.next()?.split_ascii_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_odd_files() {
        assert_eq!(stat_field("7 (a) b) S 1 2", 1), Some(1.0));
        assert_eq!(stat_field("7 (a", 1), None);
        let netstat = "TcpExt: A\nTcpExt: 1\nIpExt: InNoRoutes InOctets\nIpExt: 0 42\n";
        assert_eq!(netstat_field(netstat, "InOctets"), Some(42.0));
        assert_eq!(netstat_field(netstat, "OutOctets"), None);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let registry = Registry::default();
        register(&registry, "/nonexistent");
        let text = registry.text();
        for name in ["start_time", "cpu", "network", "open_fds", "resident"] {
            assert!(!text.contains(name), "{text}");
        }
    }

    #[test]
    fn exposes_this_process() {
        let text = Registry::default().with_process_metrics().text();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("istio_agent_{name} ")));
            line.and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.parse::<f64>().unwrap()).unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 4096.0);
        assert!(value("process_open_fds") >= 1.0 && value("process_max_fds") > value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1.6e9);
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
