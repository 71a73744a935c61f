//! The servers behind us: what resolv.conf says, read again when it changes, and how each has behaved lately.
//! Called by `forward` once a query. Never asks anybody.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    base::{random_below, random_u64},
    net::resolve::{Conf, Options},
};

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);
/// How long a server that did not answer is asked last.
const PENALTY: Duration = Duration::from_secs(10);
/// Addresses of systemd-resolved's stub (systemd-resolved(8)). With capture its own queries come back to us, so the servers it
/// uses are asked instead.
const STUBS: [IpAddr; 2] =
    [IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 54))];
/// Where systemd-resolved writes those.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";

/// resolv.conf and what is known of its servers.
#[derive(Debug)]
pub struct Servers {
    path: PathBuf,
    behind_stub: PathBuf,
    port: u16,
    /// Asked instead of the file's servers, when there are any.
    instead: Vec<SocketAddr>,
    /// Addresses that are ourselves.
    own: Vec<SocketAddr>,
    /// This machine's addresses, which a wildcard among those stands for.
    machine: Vec<IpAddr>,
    conf: Conf,
    families: (bool, bool),
    stamp: Option<Stamp>,
    looked: Instant,
    penalties: Vec<(SocketAddr, Instant)>,
    turn: usize,
}

/// What changes when a file does.
type Stamp = [Option<(u64, u64, i64, i64)>; 2];

impl Servers {
    /// Reads resolv.conf; its servers are asked at `port`, normally 53.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(path: &Path, port: u16) -> io::Result<Servers> {
        Servers::load_from(path, Path::new(BEHIND_STUB), port)
    }

    fn load_from(path: &Path, behind_stub: &Path, port: u16) -> io::Result<Servers> {
        let mut servers = Servers {
            path: path.to_owned(),
            behind_stub: behind_stub.to_owned(),
            port,
            instead: Vec::new(),
            own: Vec::new(),
            machine: Vec::new(),
            conf: Conf::default(),
            families: (false, false),
            stamp: None,
            looked: Instant::now(),
            penalties: Vec::new(),
            turn: random_u64() as u16 as usize,
        };
        servers.stamp = Some(servers.stamp());
        let named = Conf::load(path)?.servers;
        servers.families = (named.iter().any(SocketAddr::is_ipv4), named.iter().any(SocketAddr::is_ipv6));
        servers.conf = servers.read()?;
        Ok(servers)
    }

    /// Asks `others` instead of the file's servers, when there are any.
    pub fn replace(&mut self, others: &[SocketAddr]) {
        self.instead = others.to_vec();
    }

    /// Leaves out servers that are ourselves, at `own` on a machine with these addresses: a query sent there would come back for ever.
    pub fn exclude(&mut self, own: Vec<SocketAddr>, machine: Vec<IpAddr>) {
        (self.own, self.machine) = (own, machine);
    }

    /// The families of the servers in the file, whoever stands behind them: (some IPv4, some IPv6).
    pub fn families(&self) -> (bool, bool) {
        self.families
    }

    /// `options` of the file.
    pub fn options(&self) -> Options {
        self.conf.options
    }

    /// First entry of the search list, lower-case.
    pub fn search(&self) -> Option<&str> {
        self.conf.search.first().map(String::as_str)
    }

    /// Reads the file again when it has changed; at most once a second it is looked at. An unreadable or empty file, which is
    /// what an editor leaves for a moment, changes nothing.
    pub fn refresh(&mut self, now: Instant) {
        if now.duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        let stamp = Some(self.stamp());
        if stamp == self.stamp {
            return;
        }
        if let Ok(conf) = self.read()
            && (!conf.servers.is_empty() || self.conf.servers.is_empty())
        {
            log::info!(target: "dns", "{} changed: servers {:?}, search {:?}", self.path.display(), conf.servers, conf.search);
            self.conf = conf;
            self.stamp = stamp;
        }
    }

    /// The servers in the order in which this query asks them: at random, or in turn by `options rotate`; those that failed
    /// lately last.
    pub fn order(&mut self, now: Instant) -> Vec<SocketAddr> {
        self.penalties.retain(|(_, until)| *until > now);
        let servers = if self.instead.is_empty() { &self.conf.servers } else { &self.instead };
        let mut order: Vec<SocketAddr> = servers.iter().copied().filter(|server| !self.is_own(server)).collect();
        if order.is_empty() {
            return order;
        }
        if self.conf.options.rotate {
            self.turn = self.turn.wrapping_add(1);
            let turn = self.turn % order.len();
            order.rotate_left(turn);
        } else {
            for last in (1..order.len()).rev() {
                order.swap(last, random_below(last as u64 + 1) as usize);
            }
        }
        order.sort_by_key(|server| self.penalties.iter().any(|(penalised, _)| penalised == server));
        order
    }

    /// Notes whether a server answered; whether it fails for the first time lately.
    pub fn note(&mut self, server: SocketAddr, answered: bool, now: Instant) -> bool {
        if answered && self.penalties.is_empty() {
            return false;
        }
        let known = self.penalties.len();
        self.penalties.retain(|(penalised, _)| *penalised != server);
        let is_new = !answered && self.penalties.len() == known;
        if !answered {
            self.penalties.push((server, now + PENALTY));
        }
        is_new
    }

    fn is_own(&self, server: &SocketAddr) -> bool {
        let is_here = server.ip().is_loopback() || self.machine.contains(&server.ip());
        self.own
            .iter()
            .any(|own| own.port() == server.port() && (own.ip() == server.ip() || own.ip().is_unspecified() && is_here))
    }

    fn read(&self) -> io::Result<Conf> {
        let mut conf = Conf::load(&self.path)?;
        if !conf.servers.is_empty() && conf.servers.iter().all(|server| STUBS.contains(&server.ip())) {
            let behind = Conf::load(&self.behind_stub).unwrap_or_default();
            if !behind.servers.is_empty() {
                conf.servers = behind.servers;
            }
        }
        conf.servers.iter_mut().for_each(|server| server.set_port(self.port));
        conf.search.truncate(1);
        conf.search.iter_mut().for_each(|domain| domain.make_ascii_lowercase());
        Ok(conf)
    }

    fn stamp(&self) -> Stamp {
        [&self.path, &self.behind_stub].map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(PathBuf);

    impl Files {
        fn new(conf: &str) -> Files {
            let dir = std::env::temp_dir().join(format!("footman-servers-{:x}", random_u64()));
            fs::create_dir(&dir).unwrap();
            let files = Files(dir);
            files.write("resolv.conf", conf);
            files
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join(name), text).unwrap();
        }

        fn servers(&self) -> Servers {
            Servers::load_from(&self.0.join("resolv.conf"), &self.0.join("behind"), 53).unwrap()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn order(servers: &mut Servers) -> Vec<String> {
        servers.order(Instant::now()).iter().map(|server| server.ip().to_string()).collect()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_followed_once_a_second_and_a_moment_of_emptiness_is_not() {
        let files = Files::new("nameserver 10.0.0.1\nsearch Ns1.Example other\n");
        let mut servers = files.servers();
        assert_eq!((servers.search(), servers.families()), (Some("ns1.example"), (true, false)));
        files.write("resolv.conf", "");
        tokio::time::advance(LOOK).await;
        servers.refresh(Instant::now());
        assert_eq!(order(&mut servers), ["10.0.0.1"]);
        files.write("resolv.conf", "nameserver 10.0.0.22\n");
        servers.refresh(Instant::now());
        assert_eq!(order(&mut servers), ["10.0.0.1"], "looked a moment ago");
        tokio::time::advance(LOOK).await;
        servers.refresh(Instant::now());
        assert_eq!((order(&mut servers), servers.search()), (vec!["10.0.0.22".into()], None));
        fs::remove_file(files.0.join("resolv.conf")).unwrap();
        tokio::time::advance(LOOK).await;
        servers.refresh(Instant::now());
        assert_eq!(order(&mut servers), ["10.0.0.22"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_servers_are_asked_last_for_a_while() {
        let files = Files::new("nameserver 10.0.0.1\nnameserver 10.0.0.2\n");
        let mut servers = files.servers();
        let bad = servers.order(Instant::now())[0];
        assert!(servers.note(bad, false, Instant::now()));
        assert!(!servers.note(bad, false, Instant::now()), "known by now");
        for _ in 0..20 {
            assert_eq!(servers.order(Instant::now())[1], bad);
        }
        tokio::time::advance(PENALTY).await;
        let firsts: Vec<_> = (0..64).map(|_| servers.order(Instant::now())[0]).collect();
        assert!(firsts.contains(&bad), "forgiven by now");
        assert!(servers.note(bad, false, Instant::now()));
        assert!(!servers.note(bad, true, Instant::now()));
        assert!(servers.penalties.is_empty(), "an answer makes good");
    }

    #[tokio::test]
    async fn rotation_takes_turns() {
        let files = Files::new("nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\noptions rotate\n");
        let mut servers = files.servers();
        let firsts: Vec<String> = (0..6).map(|_| order(&mut servers)[0].clone()).collect();
        assert_eq!(firsts[..3], firsts[3..]);
        let mut each = firsts[..3].to_vec();
        each.sort();
        assert_eq!(each, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    }

    #[tokio::test]
    async fn we_are_no_server_of_ours() {
        let files = Files::new("nameserver 127.0.0.1\nnameserver 10.0.0.1\n");
        let mut servers = files.servers();
        servers.exclude(addresses(&["127.0.0.1:15053"]), Vec::new());
        assert_eq!(servers.order(Instant::now()).len(), 2, "another port is somebody else");
        servers.exclude(addresses(&["127.0.0.1:53"]), vec!["10.0.0.1".parse().unwrap()]);
        assert_eq!(order(&mut servers), ["10.0.0.1"]);
        servers.exclude(addresses(&["0.0.0.0:53"]), vec!["10.0.0.2".parse().unwrap()]);
        assert_eq!(order(&mut servers), ["10.0.0.1"]);
        servers.exclude(addresses(&["10.0.0.1:53", "127.0.0.1:53"]), Vec::new());
        assert!(order(&mut servers).is_empty());
        servers.exclude(addresses(&["[::]:53"]), vec!["10.0.0.1".parse().unwrap()]);
        assert!(order(&mut servers).is_empty(), "a wildcard is every address of the machine");
    }

    #[tokio::test]
    async fn behind_a_stub_stand_the_true_servers() {
        let files = Files::new("nameserver 127.0.0.53\nsearch here.example\n");
        assert_eq!(order(&mut files.servers()), ["127.0.0.53"]);
        files.write("behind", "nameserver 192.0.2.1\nsearch there.example\n");
        let mut servers = files.servers();
        assert_eq!((order(&mut servers), servers.search()), (vec!["192.0.2.1".into()], Some("here.example")));
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(Servers::load(Path::new("/nonexistent/resolv.conf"), 53).is_err());
    }
}
