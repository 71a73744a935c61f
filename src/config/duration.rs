//! Durations as Go writes them: `1m30s`, `500ms`, `0`.

use std::time::Duration;

/// Nanoseconds of each unit of Go's `time.ParseDuration`.
const UNITS: &[(&str, f64)] =
    &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Parses Go's duration text; `None` for anything else, negative durations included.
///
/// A bare number is refused as Go refuses it, except `0`.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    u64::try_from(go_nanos(text)?).ok().map(Duration::from_nanos)
}

/// Go's duration text in nanoseconds; negative ones too.
pub(super) fn go_nanos(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(rest) if !rest.starts_with('+') => unsigned_nanos(rest).map(|nanos| -nanos),
        _ => unsigned_nanos(text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Proto-JSON's form: seconds with no, three, six or nine decimals.
pub(crate) fn proto_text(nanos: i64) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (seconds, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    match part {
        0 => format!("{sign}{seconds}s"),
        _ if part % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", part / 1_000_000),
        _ if part % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", part / 1_000),
        _ => format!("{sign}{seconds}.{part:09}s"),
    }
}

fn unsigned_nanos(text: &str) -> Option<i64> {
    let mut rest = text;
    if rest == "0" {
        return Some(0);
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
    i64::try_from(nanos).ok()
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
    fn signs_and_the_form_of_proto_json() {
        for (text, wanted) in [
            ("-1s", "-1s"),
            ("+1.5s", "1.500s"),
            ("1m", "60s"),
            ("250us", "0.000250s"),
            ("3ns", "0.000000003s"),
            ("-250ms", "-0.250s"),
            ("0", "0s"),
        ] {
            assert_eq!(go_nanos(text).map(proto_text).as_deref(), Some(wanted), "{text}");
        }
        assert_eq!(go_nanos("-+1s"), None);
        assert_eq!(go_nanos("+-1s"), None);
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["", "5", "s", "-1s", "1x", "1.2.3s", ".s", "1 s", "99999999999h"] {
            assert_eq!(parse_go_duration(text), None, "{text}");
        }
    }
}
