//! Modules compiled ahead of time for WAMR (Higress): a custom section says so, and then Envoy needs WAMR's runtime.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
};

/// The section's name: alone, or with the version of WAMR that made it.
const NAME: &str = "wamr-aot";
/// Modules of this version and later are loaded by any runtime.
const UNIVERSAL_SINCE: (u64, u64, u64) = (2, 1, 0);
/// Real modules have a few dozen.
const MAX_SECTIONS: usize = 1024;
const MAX_NAME: u64 = 64;

/// Whether the first section of that kind asks for WAMR. A module that cannot be read is not one.
pub(super) fn needs_wamr(file: &mut File) -> bool {
    let section = file.seek(SeekFrom::Start(8)).and_then(|_| find_section(file));
    section.ok().flatten().is_some_and(|name| match name.strip_prefix(NAME) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').and_then(version).is_some_and(|version| version < UNIVERSAL_SINCE),
        None => false,
    })
}

fn find_section(file: &mut File) -> io::Result<Option<String>> {
    for _ in 0..MAX_SECTIONS {
        let mut id = [0];
        if file.read(&mut id)? == 0 {
            return Ok(None);
        }
        let size = leb128(file)?;
        let end = file.stream_position()?.saturating_add(size);
        if id[0] == 0 {
            let length = leb128(file)?;
            if length <= MAX_NAME {
                let mut name = String::new();
                Read::by_ref(file).take(length).read_to_string(&mut name)?;
                if name == NAME || name.starts_with("wamr-aot-") {
                    return Ok(Some(name));
                }
            }
        }
        file.seek(SeekFrom::Start(end))?;
    }
    Ok(None)
}

fn leb128(file: &mut File) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn version(text: &str) -> Option<(u64, u64, u64)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wasm::testing::{Folder, module};

    fn asks(bytes: &[u8]) -> bool {
        let folder = Folder::new();
        let mut file = File::options().read(true).write(true).create_new(true).open(folder.path().join("m")).unwrap();
        file.write_all(bytes).unwrap();
        needs_wamr(&mut file)
    }

    #[test]
    fn by_section_and_version() {
        for (name, expected) in [
            ("wamr-aot", true),
            ("wamr-aot-2.0.0", true),
            ("wamr-aot-2.1.0", false),
            ("wamr-aot-10.0.0", false),
            ("wamr-aot-new", false),
            ("wamr-aotx", false),
            ("name", false),
        ] {
            assert_eq!(asks(&module(name, 100)), expected, "{name}");
            let second = [module("name", 300), module(name, 10)[8..].to_vec()].concat();
            assert_eq!(asks(&second), expected, "{name} second");
        }
    }

    #[test]
    fn broken_modules_do_not() {
        for bytes in [
            &b"\0asm\x01\0\0\0"[..],
            b"\0asm\x01\0\0\0\0",
            b"\0asm\x01\0\0\0\0\xff\xff\xff\xff\xff\xff",
            b"\0asm\x01\0\0\0\0\xff\xff\xff\xff\x0f\x08wamr",
        ] {
            assert!(!asks(bytes), "{bytes:?}");
        }
    }
}
