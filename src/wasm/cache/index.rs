//! The cache's table as JSON on disk, so that a new start finds its modules. Pure but for [`load`] and [`save`].
//!
//! The file is rebuilt when it is missing or broken; then modules are fetched again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::wasm::spool;

use super::table::{Key, Latest, Module, Table};

/// Its name in the cache's folder.
const NAME: &str = "index.json";
/// Another layout gets another number; a file of a number that is not known is not read.
const VERSION: u64 = 1;

/// What is kept over restarts.
#[derive(Debug, Default)]
pub(in crate::wasm) struct Index {
    pub(in crate::wasm) table: Table,
    /// Goes into the fingerprints of logins, so that equal ones look different elsewhere.
    pub(in crate::wasm) salt: String,
}

/// Reads the index of `folder`; `None` when there is none that can be used.
pub(super) fn load(folder: &Path) -> Option<Index> {
    let path = folder.join(NAME);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            log::warn!(target: "wasm", "{}: {error}; Wasm modules will be fetched anew", path.display());
            return None;
        }
    };
    let index = decode(&text, folder);
    if index.is_none() {
        log::warn!(target: "wasm", "{}: not an index of this version; Wasm modules will be fetched anew", path.display());
    }
    index
}

/// Writes the index of `folder`: a new file, readable by this user only, moved over the old one.
pub(super) async fn save(folder: &Path, text: String) -> io::Result<()> {
    let scratch = folder.join(format!("{}index", spool::PREFIX));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
    file.write_all(text.as_bytes())?;
    super::sync(file).await?;
    fs::rename(&scratch, folder.join(NAME))
}

/// The index as text; paths are relative to `folder`.
pub(super) fn encode(table: &Table, salt: &str, folder: &Path) -> String {
    let modules: Vec<Value> = table.modules.iter().map(|(key, module)| module_json(key, module, folder)).collect();
    let urls: Vec<Value> = table
        .urls
        .iter()
        .map(|(url, latest)| {
            json!({"url": url, "name": latest.name, "checksum": latest.checksum, "versions": latest.versions})
        })
        .collect();
    let aliases: Vec<Value> = table
        .aliases
        .iter()
        .map(|(alias, checksum)| json!({"name": alias.name, "index": alias.checksum, "checksum": checksum}))
        .collect();
    json!({"version": VERSION, "salt": salt, "modules": modules, "urls": urls, "aliases": aliases}).to_string()
}

fn module_json(key: &Key, module: &Module, folder: &Path) -> Value {
    let path = module.path.strip_prefix(folder).unwrap_or(&module.path);
    let last_use = module.last_use.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "name": key.name, "checksum": key.checksum, "file": path.to_string_lossy(), "sha256": module.sha256,
        "size": module.size, "aot": module.aot, "lastUse": last_use, "logins": module.logins, "signer": module.signer,
    })
}

/// Reads what [`encode`] made.
pub(in crate::wasm) fn decode(text: &[u8], folder: &Path) -> Option<Index> {
    let index: Value = serde_json::from_slice(text).ok()?;
    if index.get("version")?.as_u64()? != VERSION {
        return None;
    }
    let mut table = Table::default();
    for value in index.get("modules")?.as_array()? {
        table.modules.insert(key(value, "checksum")?, module(value, folder)?);
    }
    for value in index.get("urls")?.as_array()? {
        let versions = value.get("versions")?.as_object()?;
        let versions: Option<BTreeMap<String, String>> =
            versions.iter().map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned()))).collect();
        let latest =
            Latest { name: text_of(value, "name")?, checksum: text_of(value, "checksum")?, versions: versions? };
        table.urls.insert(text_of(value, "url")?, latest);
    }
    for value in index.get("aliases")?.as_array()? {
        table.aliases.insert(key(value, "index")?, text_of(value, "checksum")?);
    }
    Some(Index { table, salt: text_of(&index, "salt")? })
}

fn module(value: &Value, folder: &Path) -> Option<Module> {
    let file = PathBuf::from(text_of(value, "file")?);
    // Only what lies in the folder is the cache's.
    if !file.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
        return None;
    }
    let last_use = Duration::from_secs(value.get("lastUse")?.as_u64()?);
    let last_use = SystemTime::UNIX_EPOCH.checked_add(last_use)?;
    let size = value.get("size")?.as_u64()?;
    let mut module = Module::new(folder.join(file), text_of(value, "sha256")?, size, last_use);
    module.aot = value.get("aot")?.as_bool()?;
    module.signer = value.get("signer").and_then(Value::as_str).map(str::to_owned);
    let logins = value.get("logins")?.as_array()?;
    module.logins = logins.iter().map(|login| login.as_str().map(str::to_owned)).collect::<Option<BTreeSet<_>>>()?;
    Some(module)
}

fn key(value: &Value, checksum: &str) -> Option<Key> {
    Some(Key { name: text_of(value, "name")?, checksum: text_of(value, checksum)? })
}

fn text_of(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wasm::testing::Folder;

    fn filled(folder: &Path) -> Table {
        let key = Key { name: "oci://r/x".to_owned(), checksum: "c".to_owned() };
        let last_use = SystemTime::UNIX_EPOCH + Duration::from_secs(77);
        let mut module = Module::new(folder.join("d/c.wasm"), "s".to_owned(), 9, last_use);
        module.logins.insert("f".to_owned());
        module.signer = Some("k".to_owned());
        let mut table = Table::default();
        table.aliases.insert(Key { checksum: "i".to_owned(), ..key.clone() }, "c".to_owned());
        let versions = [("r".to_owned(), "1".to_owned())].into();
        table.urls.insert("u".to_owned(), Latest { name: key.name.clone(), checksum: "c".to_owned(), versions });
        table.modules.insert(key, module);
        table
    }

    #[tokio::test]
    async fn comes_back_as_it_was() {
        let folder = Folder::new();
        assert!(load(folder.path()).is_none());
        let text = encode(&filled(folder.path()), "salt", folder.path());
        save(folder.path(), text.clone()).await.unwrap();
        let index = load(folder.path()).unwrap();
        assert_eq!(index.salt, "salt");
        assert_eq!(encode(&index.table, "salt", folder.path()), text);
        assert_eq!(index.table.modules.values().next().unwrap().path, folder.path().join("d/c.wasm"));
        assert_eq!(folder.names(), [NAME]);
    }

    #[test]
    fn other_content_is_not_read() {
        let folder = Path::new("/f");
        let text = encode(&filled(folder), "salt", folder);
        for broken in [
            String::new(),
            "{}".to_owned(),
            text[..text.len() / 2].to_owned(),
            text.replace("\"version\":1", "\"version\":2"),
            text.replace("d/c.wasm", "../../etc/passwd"),
            text.replace("d/c.wasm", "/etc/passwd"),
            text.replace("\"size\":9", "\"size\":-9"),
        ] {
            assert!(decode(broken.as_bytes(), folder).is_none(), "{broken}");
        }
    }
}
