//! Boxes of every kind, and what only looks like one.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};

use super::*;
use crate::wasm::testing::{Folder, module};

const LIMIT: u64 = 1 << 20;

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn entry(kind: EntryType, name: &str, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out: Vec<u8> = files
        .iter()
        .flat_map(|(name, content)| entry(EntryType::Regular, name, content.len() as u64, content))
        .collect();
    out.extend_from_slice(&[0; 2 * BLOCK]);
    out
}

async fn spooled(folder: &Folder, bytes: &[u8]) -> Spooled {
    let mut spool = Spool::create(folder.path(), u64::MAX).unwrap();
    spool.write(bytes).await.unwrap();
    spool.finish().unwrap()
}

fn content(mut spooled: Spooled) -> Vec<u8> {
    let mut all = Vec::new();
    spooled.file.read_to_end(&mut all).unwrap();
    assert_eq!(spool::sha256_hex(&all), spooled.sha256);
    assert_eq!(all.len() as u64, spooled.size);
    all
}

async fn unboxed(bytes: &[u8], limit: u64) -> Result<Vec<u8>, spool::Error> {
    let folder = Folder::new();
    let boxed = spooled(&folder, bytes).await;
    unbox(boxed, folder.path(), limit).await.map(content)
}

async fn from_layer(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let folder = Folder::new();
    let layer = spooled(&folder, bytes).await;
    let found = plugin(layer, folder.path(), LIMIT).await.map(content);
    assert!(folder.names().is_empty(), "files stay behind");
    found
}

#[tokio::test]
async fn boxes_are_removed() {
    let wasm = module("m", 100_000);
    for boxed in [
        wasm.clone(),
        gz(&wasm),
        tar(&[("any", &wasm), ("second", b"x")]),
        gz(&tar(&[("plugin.wasm", &wasm)])),
        gz(&gz(&wasm)),
        gz(&gz(&tar(&[("m", &wasm)]))),
        [entry(EntryType::Directory, "./", 0, b""), tar(&[("./m", &wasm)])].concat(),
    ] {
        assert!(unboxed(&boxed, LIMIT).await.unwrap() == wasm, "{:?}", &boxed[..20]);
    }
}

#[tokio::test]
async fn what_is_no_box_stays_as_it_is() {
    let wasm = module("m", 1000);
    for body in
        [&b""[..], b"<html>", b"\x1f\x8b", &gz(&wasm)[..200], &tar(&[("m", &wasm)])[..600], &gz(&gz(&gz(&gz(&wasm))))]
    {
        let out = unboxed(body, LIMIT).await.unwrap();
        assert!(!out.starts_with(b"\0asm"), "{body:?}");
    }
}

#[tokio::test]
async fn bombs_are_refused() {
    let bomb = gz(&vec![0; 4 << 20]);
    assert!(bomb.len() < 64 << 10);
    assert!(matches!(unboxed(&bomb, LIMIT).await, Err(spool::Error::TooLarge(LIMIT))));
    let inside = gz(&tar(&[("plugin.wasm", &vec![0; 2 << 20])]));
    assert!(matches!(from_layer(&inside).await, Err(Error::Spool(spool::Error::TooLarge(LIMIT)))));
    let beside = gz(&tar(&[("other", &vec![0; 2 << 20]), ("plugin.wasm", &module("m", 1))]));
    assert!(matches!(from_layer(&beside).await, Err(Error::Spool(spool::Error::TooLarge(LIMIT)))));
    let claims = gz(&entry(EntryType::Regular, "plugin.wasm", 1 << 42, b"\0asm"));
    assert!(from_layer(&claims).await.is_err());
    let name = gz(&entry(EntryType::GNULongName, "././@LongLink", 1 << 20, &vec![b'a'; 1 << 20]));
    assert!(matches!(from_layer(&name).await, Err(Error::NotTarGz(_))));
}

#[tokio::test]
async fn plugin_is_found_by_its_base_name() {
    let (wasm, other) = (module("m", 70_000), module("other", 5));
    let pax = b"27 path=deep/x/plugin.wasm\n";
    let record = [entry(EntryType::XHeader, "pax", pax.len() as u64, pax), tar(&[("plugin.was", &wasm)])].concat();
    let long = format!("{}/plugin.wasm", "d".repeat(300));
    let gnu = [
        entry(EntryType::GNULongName, "././@LongLink", long.len() as u64 + 1, format!("{long}\0").as_bytes()),
        tar(&[("ddd", &wasm)]),
    ]
    .concat();
    let link = [entry(EntryType::Symlink, "plugin.wasm", 0, b""), tar(&[("b/plugin.wasm", &wasm)])].concat();
    for archive in [
        tar(&[("plugin.wasm", &wasm)]),
        tar(&[("README.md", b"hello"), ("./opt/plugin.wasm", &wasm), ("plugin.wasm", &other)]),
        tar(&[("../../../plugin.wasm", &wasm)]),
        tar(&[("xplugin.wasm", &other), ("/plugin.wasm", &wasm)]),
        record,
        gnu,
        link,
    ] {
        assert!(from_layer(&gz(&archive)).await.unwrap() == wasm);
    }
}

#[tokio::test]
async fn layers_without_the_plugin() {
    for (layer, error) in [
        (gz(&tar(&[("other.wasm", b"x")])), "plugin.wasm not found in the archive"),
        (gz(&tar(&[])), "plugin.wasm not found in the archive"),
        (b"not gzip".to_vec(), "failed to parse layer as tar.gz: "),
        (
            gz(b"not tar, but long enough to be a header block: ".repeat(20).as_slice()),
            "failed to parse layer as tar.gz: archive/tar: invalid tar header",
        ),
        (gz(&tar(&[("plugin.wasm", &[1; 5000])])[..1000]), "failed to parse layer as tar.gz: "),
    ] {
        let text = from_layer(&layer).await.unwrap_err().to_string();
        assert!(text.starts_with(error), "{text}");
    }
}
