//! Metadata of a call: HTTP/2 headers with gRPC's rules for names, binary values and timeouts.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Code, Status};

/// Pairs of lower-case name and value, in order; a name may occur several times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(HeaderMap);

impl Metadata {
    /// Adds a pair. The value of a name that ends in `-bin` is sent in base64.
    ///
    /// # Errors
    /// `Internal`, as grpc-go, when the name is not of `[0-9a-z_.-]` or the value is not printable ASCII.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), Status> {
        let allowed = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || b"_.-".contains(&byte);
        let invalid = |what| Status::new(Code::Internal, format!("header key {name:?} contains {what}"));
        if name.is_empty() || !name.bytes().all(allowed) {
            return Err(invalid("illegal characters not in [0-9a-z-_.]"));
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("illegal characters"))?;
        let value = if name.as_str().ends_with("-bin") {
            HeaderValue::try_from(STANDARD_NO_PAD.encode(value))
        } else if value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            HeaderValue::from_str(value)
        } else {
            return Err(Status::new(
                Code::Internal,
                format!("header key {:?} contains value with non-printable ASCII characters", name.as_str()),
            ));
        };
        self.0.append(name, value.map_err(|_| Status::new(Code::Internal, "header value is not valid"))?);
        Ok(())
    }

    /// The first value of that name, when it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(|value| value.to_str().ok())
    }

    /// All pairs that are text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    pub(super) fn from_headers(headers: HeaderMap) -> Metadata {
        Metadata(headers)
    }

    pub(super) fn append_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.append(name.clone(), value.clone());
        }
    }
}

/// `grpc-timeout` for a duration: at most eight digits and a unit, rounded up.
pub fn format_timeout(timeout: Duration) -> String {
    const UNITS: [(u128, char); 5] =
        [(1, 'n'), (1_000, 'u'), (1_000_000, 'm'), (1_000_000_000, 'S'), (60_000_000_000, 'M')];
    let nanos = timeout.as_nanos();
    for (size, unit) in UNITS {
        let count = nanos.div_ceil(size);
        if count < 100_000_000 {
            return format!("{count}{unit}");
        }
    }
    format!("{}H", nanos.div_ceil(3_600_000_000_000).min(99_999_999))
}

/// The reverse; `None` for what the protocol does not allow.
pub fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "n" => Some(Duration::from_nanos(count)),
        "u" => Some(Duration::from_micros(count)),
        "m" => Some(Duration::from_millis(count)),
        "S" => Some(Duration::from_secs(count)),
        "M" => Some(Duration::from_secs(count * 60)),
        "H" => Some(Duration::from_secs(count * 3600)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        let mut metadata = Metadata::default();
        metadata.add("clusterid", "").unwrap();
        metadata.add("x-a_b.c", "v=1").unwrap();
        metadata.add("trace-bin", "ä").unwrap();
        assert_eq!(metadata.get("clusterid"), Some(""));
        assert_eq!(metadata.get("trace-bin"), Some("w6Q"));
        assert_eq!(metadata.iter().count(), 3);
        for (name, value) in [("X", "v"), ("", "v"), ("a b", "v"), ("ä", "v"), ("a", "\n"), ("a", "ä")] {
            assert_eq!(metadata.add(name, value).unwrap_err().code, Code::Internal, "{name:?}");
        }
    }

    #[test]
    fn timeouts() {
        for (nanos, text) in
            [(0, "0n"), (99_999_999, "99999999n"), (100_000_000, "100000u"), (90_000_000_000, "90000000u")]
        {
            assert_eq!(format_timeout(Duration::from_nanos(nanos)), text);
            assert_eq!(parse_timeout(text), Some(Duration::from_nanos(nanos)));
        }
        assert_eq!(format_timeout(Duration::MAX), "99999999H");
        assert_eq!(parse_timeout("2M"), Some(Duration::from_secs(120)));
        for text in ["", "1", "S", "123456789S", "1x", "-1S", "1ß"] {
            assert_eq!(parse_timeout(text), None, "{text:?}");
        }
    }
}
