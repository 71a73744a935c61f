//! Writes the identity to files for programs that are not Envoy (`OUTPUT_CERTS`), whenever it changes.
//!
//! Each file is replaced by rename, so that no reader sees half of one: key, then chain, then roots, right after each other. Bytes
//! that are there already are left alone.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tokio::sync::watch;

use crate::{
    base::{Backoff, Drain, Policy, random_u64},
    config::{Errors, Vars},
    wires::Snapshot,
};

const KEY: &str = "key.pem";
const CHAIN: &str = "cert-chain.pem";
const ROOTS: &str = "root-cert.pem";
const FILES: [&str; 3] = [KEY, CHAIN, ROOTS];

/// Where and how the identity is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `OUTPUT_CERTS`.
    pub directory: PathBuf,
    /// `FOOTMAN_OUTPUT_CERTS_MODE`, octal; by default 0644 in Kubernetes, where other containers of the pod read the files under
    /// another user, and 0600 elsewhere.
    pub mode: u32,
    /// `FOOTMAN_OUTPUT_CERTS_OWNER`: numeric `uid`, `uid:gid` or `:gid`.
    pub owner: (Option<u32>, Option<u32>),
}

impl Config {
    /// `None` when nothing is to be written, which is the default: then keys are in memory only.
    ///
    /// # Errors
    /// Every setting that cannot work.
    pub fn from_vars(vars: &Vars) -> Result<Option<Config>, Errors> {
        let mut errors = Errors::default();
        let directory = vars.text_or("OUTPUT_CERTS", "");
        let in_kubernetes = !vars.text_or("KUBERNETES_SERVICE_HOST", "").is_empty();
        let mut mode = if in_kubernetes { 0o644 } else { 0o600 };
        if let Some(text) = vars.text("FOOTMAN_OUTPUT_CERTS_MODE").filter(|text| !text.is_empty()) {
            match u32::from_str_radix(text, 8) {
                Ok(wanted) if wanted <= 0o777 => mode = wanted,
                _ => errors.add(
                    "FOOTMAN_OUTPUT_CERTS_MODE",
                    format!("{text:?} is no file mode: write it in octal, such as 0640"),
                ),
            }
        }
        let owner = vars.text_or("FOOTMAN_OUTPUT_CERTS_OWNER", "");
        let owner = parse_owner(&owner).unwrap_or_else(|| {
            errors.add("FOOTMAN_OUTPUT_CERTS_OWNER", format!("{owner:?} is not uid, uid:gid or :gid in numbers"));
            (None, None)
        });
        let config = (!directory.is_empty()).then(|| Config { directory: vars.path(directory), mode, owner });
        errors.into_result(config)
    }
}

fn parse_owner(text: &str) -> Option<(Option<u32>, Option<u32>)> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let id = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    Some((id(user)?, id(group)?))
}

/// Writes each snapshot until `drain` starts; a failure is tried again and never disturbs anybody else.
pub async fn run(config: Config, mut snapshots: watch::Receiver<Snapshot>, mut drain: Drain) {
    let mut backoff = Backoff::new(Policy::ISTIOD);
    let mut known: Option<String> = None;
    remove_leftovers(&config.directory);
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let retry = match write(&config, &snapshot).await {
            Ok(()) => {
                backoff.reset();
                known = None;
                None
            }
            Err(error) => {
                let text = format!("error when output the resource: {}: {error}", config.directory.display());
                if known.as_ref() != Some(&text) {
                    log::error!(target: "cache", "{text}");
                }
                known = Some(text);
                Some(backoff.next_delay())
            }
        };
        let retry = async {
            match retry {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = retry => {}
            () = drain.started() => return,
        }
    }
}

/// Brings the files up to date: new ones are written and made durable beside the old ones, then all are renamed.
async fn write(config: &Config, snapshot: &Snapshot) -> io::Result<()> {
    let workload = snapshot.workload.as_deref();
    let wanted: [(&str, Option<&[u8]>); 3] = [
        (KEY, workload.map(|workload| workload.key.pem())),
        (CHAIN, workload.map(|workload| &workload.chain[..])),
        (ROOTS, snapshot.bundle.as_deref().map(|bundle| &bundle.pem[..])),
    ];
    let mut written = Written::default();
    for (name, bytes) in wanted {
        let Some(bytes) = bytes else { continue };
        let path = config.directory.join(name);
        if fs::read(&path).is_ok_and(|old| zeroize::Zeroizing::new(old)[..] == *bytes) {
            continue;
        }
        fs::create_dir_all(&config.directory)?;
        written.add(path, bytes, config)?;
    }
    if written.files.is_empty() {
        return Ok(());
    }
    let directory = File::open(&config.directory)?;
    let files = std::mem::take(&mut written.files);
    sync(files).await?;
    written.rename()?;
    sync(vec![directory]).await
}

/// Files under temporary names, removed unless they were renamed.
#[derive(Default)]
struct Written {
    files: Vec<File>,
    names: Vec<(PathBuf, PathBuf)>,
}

impl Written {
    fn add(&mut self, path: PathBuf, bytes: &[u8], config: &Config) -> io::Result<()> {
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".tmp.{:016x}", random_u64()));
        let temporary = PathBuf::from(temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        self.names.push((temporary.clone(), path));
        file.write_all(bytes)?;
        if config.owner != (None, None) {
            std::os::unix::fs::fchown(&file, config.owner.0, config.owner.1)?;
        }
        file.set_permissions(Permissions::from_mode(config.mode))?;
        self.files.push(file);
        Ok(())
    }

    fn rename(mut self) -> io::Result<()> {
        while !self.names.is_empty() {
            fs::rename(&self.names[0].0, &self.names[0].1)?;
            self.names.remove(0);
        }
        Ok(())
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        for (temporary, _) in &self.names {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// `fsync` may take long on a busy disk: the one thing that borrows a thread.
async fn sync(files: Vec<File>) -> io::Result<()> {
    let synced = tokio::task::spawn_blocking(move || files.iter().try_for_each(File::sync_all)).await;
    synced.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Removes what an agent left that was killed while it wrote.
fn remove_leftovers(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if FILES.iter().any(|file| name.strip_prefix(file).is_some_and(|rest| rest.starts_with(".tmp."))) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::MetadataExt,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::{
        base::Trigger,
        secrets::{
            certificate, key,
            testing::{Authority, Scratch, snapshot},
        },
    };

    fn config(scratch: &Scratch) -> Config {
        Config { directory: scratch.path("out/certs"), mode: 0o640, owner: (None, None) }
    }

    /// Reads key and chain as a consumer would, again when a renewal came between the two; whether they belong together.
    fn read_pair(directory: &Path) -> Option<bool> {
        let text = |name| fs::read(directory.join(name)).ok();
        let whole = |text: &Vec<u8>| text.starts_with(b"-----BEGIN ") && text.ends_with(b"-----\n");
        let (secret, chain, again) = (text(KEY)?, text(CHAIN)?, text(KEY)?);
        assert!(whole(&secret) && whole(&chain) && whole(&again), "half a file was seen");
        let leaf = certificate::parse(&certificate::ders(&chain)[0]).unwrap();
        (secret == again).then(|| key::public_key(&secret).unwrap() == Some(leaf.public_key))
    }

    #[test]
    fn a_hundred_renewals_never_show_half_a_file() {
        let (scratch, authority) = (Scratch::new(), Authority::new("root"));
        let config = config(&scratch);
        let (done, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
        // At most the moment between two renames can be seen, and what is read after it fits.
        let reader = || {
            let mut torn = 0;
            while !done.load(Ordering::Relaxed) {
                match read_pair(&config.directory) {
                    Some(false) => torn += 1,
                    Some(true) => {
                        torn = 0;
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {}
                }
                assert!(torn < 1000, "key and chain stay different");
            }
        };
        std::thread::scope(|scope| {
            let reading = scope.spawn(reader);
            let writing = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let mut inodes = std::collections::BTreeSet::new();
                for _ in 0..100 {
                    let snapshot = snapshot(&authority, Duration::from_secs(60));
                    runtime.block_on(write(&config, &snapshot)).unwrap();
                    assert_eq!(read_pair(&config.directory), Some(true));
                    inodes.insert(fs::metadata(config.directory.join(KEY)).unwrap().ino());
                    // The same once more touches nothing.
                    let modified = fs::metadata(config.directory.join(KEY)).unwrap().ctime_nsec();
                    runtime.block_on(write(&config, &snapshot)).unwrap();
                    assert_eq!(fs::metadata(config.directory.join(KEY)).unwrap().ctime_nsec(), modified);
                }
                inodes.len()
            });
            let inodes = writing.join();
            done.store(true, Ordering::Relaxed);
            reading.join().unwrap();
            assert!(inodes.unwrap() > 1, "files are written in place");
        });
        assert!(seen.into_inner() > 0);
        let mut names: Vec<_> =
            fs::read_dir(&config.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [CHAIN, KEY, ROOTS]);
        for name in FILES {
            assert_eq!(fs::metadata(config.directory.join(name)).unwrap().mode() & 0o777, 0o640, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_cannot_be_made_is_tried_again_until_it_can() {
        let (scratch, authority) = (Scratch::new(), Authority::new("root"));
        let config = config(&scratch);
        fs::write(scratch.path("out"), "a file is in the way").unwrap();
        let (_sender, snapshots) = watch::channel(snapshot(&authority, Duration::from_secs(60)));
        let (trigger, drain) = Trigger::new();
        let directory = config.directory.clone();
        let writer = tokio::spawn(run(config, snapshots, drain));
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(!writer.is_finished() && !directory.exists());
        fs::remove_file(scratch.path("out")).unwrap();
        tokio::time::timeout(Duration::from_secs(100), async {
            while read_pair(&directory) != Some(true) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .await
        .unwrap();
        trigger.start();
        writer.await.unwrap();
    }

    #[test]
    fn modes_and_owners() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = [("OUTPUT_CERTS", "./out")].iter().chain(pairs).copied();
            Config::from_vars(&Vars::from_pairs(pairs)).map(|config| config.map(|config| (config.mode, config.owner)))
        };
        assert_eq!(of(&[]).unwrap(), Some((0o600, (None, None))));
        assert_eq!(of(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).unwrap().unwrap().0, 0o644);
        let own = [("FOOTMAN_OUTPUT_CERTS_MODE", "0440"), ("FOOTMAN_OUTPUT_CERTS_OWNER", ":1337")];
        assert_eq!(of(&own).unwrap(), Some((0o440, (None, Some(1337)))));
        let wrong = [("FOOTMAN_OUTPUT_CERTS_MODE", "rw"), ("FOOTMAN_OUTPUT_CERTS_OWNER", "root")];
        assert_eq!(of(&wrong).unwrap_err().0.len(), 2);
        assert_eq!(Config::from_vars(&Vars::from_pairs([("OUTPUT_CERTS", "")])).unwrap(), None);
    }
}
