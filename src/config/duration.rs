//! Durations as Go writes them: `1m30s`, `500ms`, `0`.

use std::time::Duration;

/// Nanoseconds of each unit of Go's `time.ParseDuration`.
const UNITS: &[(&str, f64)] =
    &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Parses Go's duration text; `None` for anything else, negative durations included.
///
/// A bare number is refused as Go refuses it, except `0`.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let scale = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let whole = match number.split_once('.') {
            Some((whole, fraction)) if !whole.is_empty() || !fraction.is_empty() => {
                let part = format!("0.{fraction}").parse::<f64>().ok()? * scale;
                nanos = nanos.checked_add(part as u64)?;
                whole
            }
            Some(_) => return None,
            None => number,
        };
        if whole.is_empty() {
            if !number.starts_with('.') {
                return None;
            }
        } else {
            nanos = nanos.checked_add(whole.parse::<u64>().ok()?.checked_mul(scale as u64)?)?;
        }
        rest = tail;
    }
    // Go keeps nanoseconds in an i64 and refuses what does not fit.
    (nanos <= i64::MAX as u64).then(|| Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, millis) in [
            ("0", 0),
            ("5s", 5_000),
            ("+5s", 5_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("250ms", 250),
            ("1h0m0.25s", 3_600_250),
        ] {
            assert_eq!(parse_go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_go_duration("3µs"), Some(Duration::from_micros(3)));
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["", "5", "s", "-1s", "1x", "1.2.3s", ".s", "1 s", "99999999999h"] {
            assert_eq!(parse_go_duration(text), None, "{text}");
        }
    }
}
