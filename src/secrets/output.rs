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
