//! What the kubelet tells about the pod: the downward-API files with labels and annotations.

use std::{collections::BTreeMap, io, path::Path};

/// Labels or annotations.
pub type Pairs = BTreeMap<String, String>;

/// Reads a downward-API file; `Ok(None)` when there is none.
///
/// # Errors
/// A file that cannot be read, or one with a value that is not quoted as Go quotes (Istio then ignores the whole file).
pub(super) fn read(path: &Path) -> Result<Option<Pairs>, String> {
    match std::fs::read(path) {
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes)).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Lines `key="value"`; lines without `=` do not count.
///
/// # Errors
/// The first line whose value is not a Go string literal.
pub fn parse(text: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    for (index, line) in text.split('\n').enumerate() {
        let Some((key, quoted)) = line.split_once('=') else { continue };
        let value =
            unquote(quoted).ok_or_else(|| format!("line {}: the value of {key} is not quoted well", index + 1))?;
        pairs.insert(key.to_owned(), value);
    }
    Ok(pairs)
}

/// Go's `strconv.Unquote` for `"…"`, `` `…` `` and one-character `'…'` literals.
fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next()?;
    let inner = text[quote.len_utf8()..].strip_suffix(quote)?;
    if text.len() < 2 || inner.contains('\n') && quote != '`' {
        return None;
    }
    match quote {
        '`' => (!inner.contains('`')).then(|| inner.replace('\r', "")),
        '"' => unescape(inner, quote),
        '\'' => unescape(inner, quote).filter(|value| value.chars().count() == 1),
        _ => None,
    }
}

fn unescape(inner: &str, quote: char) -> Option<String> {
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == quote {
            return None;
        }
        if c != '\\' {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let kind = rest.chars().next()?;
        let (digits, radix, skip) = match kind {
            'x' => (2, 16, 1),
            'u' => (4, 16, 1),
            'U' => (8, 16, 1),
            '0'..='7' => (3, 8, 0),
            _ => {
                out.push(simple_escape(kind, quote)?);
                rest = &rest[kind.len_utf8()..];
                continue;
            }
        };
        let number = rest.get(skip..skip + digits)?;
        rest = &rest[skip + digits..];
        if !number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let value = u32::from_str_radix(number, radix).ok()?;
        if matches!(kind, 'u' | 'U') {
            out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            out.push(u8::try_from(value).ok()?);
        }
    }
    // \xff and the like can spell what is not UTF-8; JSON cannot carry it.
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn simple_escape(kind: char, quote: char) -> Option<u8> {
    Some(match kind {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' => b'\\',
        '"' if quote == '"' => b'"',
        '\'' if quote == '\'' => b'\'',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_quoted_values() {
        let text = "config=\"a: b\\nc: d\"\nbar=\"a=b\"\nno equal sign\n\
                    esc=\"\\a\\b\\f\\n\\r\\t\\v\\\\\\\"\\x41\\101\\u00fc\\U0001F600\"\nraw=`a\\n`\nempty=\"\"\n";
        let pairs = parse(text).unwrap();
        assert_eq!(pairs["config"], "a: b\nc: d");
        assert_eq!(pairs["bar"], "a=b");
        assert_eq!(pairs["esc"], "\u{7}\u{8}\u{c}\n\r\t\u{b}\\\"AAü😀");
        assert_eq!((pairs["raw"].as_str(), pairs["empty"].as_str(), pairs.len()), ("a\\n", "", 5));
    }

    #[test]
    fn bytes_beyond_utf8_do_not_get_through() {
        assert_eq!(parse("a=\"\\xff\"").unwrap()["a"], "\u{fffd}");
    }

    #[test]
    fn a_value_quoted_badly_spoils_the_file() {
        for value in [
            "x",
            "\"x",
            "x\"",
            "\"",
            "",
            "\"a\"b\"",
            "\"\\q\"",
            "\"\\x4\"",
            "\"\\400\"",
            "\"\\ud800\"",
            "'ab'",
            "\"\\x-1\"",
        ] {
            let error = parse(&format!("good=\"1\"\nbad={value}")).unwrap_err();
            assert!(error.contains("line 2") && error.contains("bad"), "{value}: {error}");
        }
    }
}
