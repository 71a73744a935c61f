//! The cache's files: put in place, looked at, tidied up. Knows no table.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ring::digest;

use crate::wasm::spool::{self, Pace, Spooled, hex, sha256_hex};

use super::table::{Key, Module, Stamp};

/// Where a module's file belongs: a folder for each name, a file for each checksum, as Istio lays them out.
pub(super) fn path(folder: &Path, key: &Key) -> PathBuf {
    folder.join(sha256_hex(key.name.as_bytes())).join(format!("{}.wasm", key.checksum))
}

/// Makes the cache's folder, its parents too.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Moves a complete file to `path`, on disk before it has its name there. Envoy reads it, perhaps as another user.
pub(super) async fn place(module: Spooled, path: &Path) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    prepare(parent)?;
    module.file.set_permissions(fs::Permissions::from_mode(0o644))?;
    sync(module.file).await?;
    module.path.persist(path)?;
    sync(File::open(parent)?).await
}

/// Flushes to disk, which may take seconds: on a thread that ends again.
pub(super) async fn sync(file: File) -> io::Result<()> {
    tokio::task::spawn_blocking(move || file.sync_all()).await.map_err(io::Error::other)?
}

/// How the file looks now.
pub(super) fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(path)?;
    Ok(Stamp { inode: meta.ino(), size: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) })
}

/// Whether the file holds these bytes.
pub(super) async fn holds(path: &Path, sha256: &str) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let (mut hash, mut pace) = (digest::Context::new(&digest::SHA256), Pace::default());
    let mut buffer = vec![0; spool::STEP / 4];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(hex(hash.finish().as_ref()) == sha256);
        }
        hash.update(&buffer[..length]);
        pace.spend(length).await;
    }
}

/// Removes what a crash left behind: unfinished files, and modules that are in no index.
pub(super) fn tidy<'a>(folder: &Path, known: impl Iterator<Item = &'a Module>) {
    let known: BTreeSet<&Path> = known.map(|module| module.path.as_path()).collect();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.starts_with(spool::PREFIX) {
            discard(&entry.path());
        } else if is_hash(name) {
            let modules = fs::read_dir(entry.path()).into_iter().flatten().flatten().map(|entry| entry.path());
            for path in modules.filter(|path| is_module_name(path) && !known.contains(path.as_path())) {
                discard(&path);
            }
            // Succeeds only when nothing is left in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Removes a file; one that is gone already is as good.
pub(super) fn discard(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!(target: "wasm", "could not remove {}: {error}", path.display());
        }
        _ => {}
    }
}

fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_module_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_suffix(".wasm")).is_some_and(is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wasm::{spool::Spool, testing::Folder};

    #[tokio::test]
    async fn placed_files_are_whole_and_for_envoy_to_read() {
        let folder = Folder::new();
        let key = Key { name: "n".to_owned(), checksum: "c".to_owned() };
        let path = path(folder.path(), &key);
        let mut spool = Spool::create(folder.path(), 10).unwrap();
        spool.write(b"module").await.unwrap();
        let spooled = spool.finish().unwrap();
        let sha256 = spooled.sha256.clone();
        place(spooled, &path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        assert!(holds(&path, &sha256).await.unwrap());
        let before = stamp(&path).unwrap();
        fs::write(&path, b"modulE").unwrap();
        assert!(!holds(&path, &sha256).await.unwrap());
        fs::write(&path, b"module and more").unwrap();
        assert_ne!(stamp(&path).unwrap(), before);
    }

    #[test]
    fn tidies_only_its_own() {
        let folder = Folder::new();
        let hash = "a".repeat(64);
        let inside = folder.path().join(&hash);
        fs::create_dir(&inside).unwrap();
        let (kept, orphan, other) = (inside.join(format!("{hash}.wasm")), "b".repeat(64), inside.join("notes"));
        for path in [
            &kept,
            &inside.join(format!("{orphan}.wasm")),
            &other,
            &folder.path().join(".fetch-1"),
            &folder.path().join("mine"),
        ] {
            fs::write(path, b"").unwrap();
        }
        let module = Module::new(kept.clone(), String::new(), 0, std::time::SystemTime::UNIX_EPOCH);
        tidy(folder.path(), [&module].into_iter());
        assert_eq!(folder.names(), [hash.as_str(), "mine"]);
        assert!(kept.exists() && other.exists());
        fs::remove_file(other).unwrap();
        tidy(folder.path(), [].into_iter());
        assert_eq!(folder.names(), ["mine"]);
    }
}
