//! Header fields in the order and spelling in which they came: a probe that is passed on looks as the kubelet sent it.

use bytes::Bytes;

/// Header fields; names compare without case (RFC 9110 §5.1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Bytes)>);

impl Headers {
    /// Adds a field after the others.
    pub fn add(&mut self, name: &str, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// Replaces all fields of that name by one.
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        self.remove(name);
        self.add(name, value);
    }

    /// Drops all fields of that name.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }

    /// The first value of that name, when it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All values of that name, in order.
    pub fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a Bytes> + use<'a, 'n> {
        self.0.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether a field of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// Whether `token` is in the comma-separated lists of that name, without case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.all(name).any(|value| {
            value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    /// All fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the fields as they go over the wire.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            // A value that came from configuration must not end the line.
            out.extend(value.iter().map(|byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { *byte }));
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_compare_without_case_and_keep_order() {
        let mut headers = Headers::default();
        headers.add("X-Two", "1");
        headers.add("Accept", "*/*");
        headers.add("x-two", "2, Close");
        assert_eq!(headers.all("X-TWO").collect::<Vec<_>>(), ["1", "2, Close"]);
        assert!(headers.has_token("x-two", "close") && !headers.has_token("x-two", "clos"));
        headers.set("x-Two", "3");
        assert_eq!(headers.get("x-two"), Some("3"));
        assert_eq!(headers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["Accept", "x-Two"]);
    }

    #[test]
    fn value_cannot_end_its_line() {
        let mut headers = Headers::default();
        headers.add("A", "1\r\nB: 2");
        let mut out = Vec::new();
        headers.write(&mut out);
        assert_eq!(out, b"A: 1  B: 2\r\n");
    }
}
