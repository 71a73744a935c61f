//! What a plain YAML scalar is, by the rules of the YAML 1.1 library that Istio uses (go-yaml v2).

use serde_json::Number;

use super::{flags::parse_int, yaml::Value};

/// Reads an unquoted scalar.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Value::Text(text.to_owned());
    }
    number(&text.replace('_', "")).map_or_else(|| Value::Text(text.to_owned()), Value::Number)
}

fn number(plain: &str) -> Option<Number> {
    if let Some(value) = parse_int(plain) {
        return Some(value.into());
    }
    if let Ok(value) = plain.parse::<u64>() {
        return Some(value.into());
    }
    is_float(plain).then(|| plain.parse().ok().and_then(Number::from_f64)).flatten()
}

/// `[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?`, or digits with a dot behind them.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && !mantissa.is_empty()
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_as_yaml_1_1_reads_them() {
        for text in ["y", "Yes", "ON", "true"] {
            assert_eq!(resolve(text), Value::Bool(true), "{text}");
        }
        for text in ["n", "No", "off", "FALSE"] {
            assert_eq!(resolve(text), Value::Bool(false), "{text}");
        }
        for text in ["", "~", "null", "NULL"] {
            assert_eq!(resolve(text), Value::Null, "{text}");
        }
        for (text, value) in
            [("0", 0), ("08", 8), ("007", 7), ("017", 15), ("0x1f", 31), ("1_000", 1000), ("-3", -3), ("+3", 3)]
        {
            assert_eq!(resolve(text), Value::Number(value.into()), "{text}");
        }
        for (text, value) in [("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("-1.5E-1", -0.15), ("1.", 1.0)] {
            assert_eq!(resolve(text), Value::Number(Number::from_f64(value).unwrap()), "{text}");
        }
        assert_eq!(resolve("18446744073709551615"), Value::Number(u64::MAX.into()));
    }

    #[test]
    fn everything_else_is_text() {
        for text in
            ["yEs", "1m30s", "1.2.3.4", "2001-01-01", "2001:db8::9", ".", "-", "+", "1e", ".inf", "é", "0x", "-.e1"]
        {
            assert_eq!(resolve(text), Value::Text(text.to_owned()), "{text}");
        }
    }
}
