//! Prometheus text format 0.0.4 of one family.

use std::{fmt::Write, sync::PoisonError};

use super::{Family, Kind, Labels, PREFIX, Value};

/// Appends the family; nothing when none of its series has a value.
pub(super) fn family(out: &mut String, name: &str, family: &Family) {
    let before = out.len();
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let _ = write!(out, "# HELP {PREFIX}{name} ");
    escape(out, family.help, false);
    let _ = writeln!(out, "\n# TYPE {PREFIX}{name} {kind}");
    let head = out.len();
    for series in &family.series {
        match &*series.value {
            Value::Number(_) => {
                if let Some(value) = series.value.number() {
                    sample(out, name, "", &series.labels, None, value);
                }
            }
            Value::Histogram(buckets) => {
                let buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
                let mut total = 0;
                for (index, count) in buckets.counts.iter().enumerate() {
                    total += count;
                    let bound = buckets.bounds.get(index).copied().unwrap_or(f64::INFINITY);
                    sample(out, name, "_bucket", &series.labels, Some(bound), total as f64);
                }
                sample(out, name, "_sum", &series.labels, None, buckets.sum);
                sample(out, name, "_count", &series.labels, None, total as f64);
            }
        }
    }
    if out.len() == head {
        out.truncate(before);
    }
}

fn sample(out: &mut String, name: &str, suffix: &str, labels: &Labels, bound: Option<f64>, value: f64) {
    let _ = write!(out, "{PREFIX}{name}{suffix}");
    let mut open = '{';
    for (label, value) in labels {
        let _ = write!(out, "{open}{label}=\"");
        escape(out, value, true);
        out.push('"');
        open = ',';
    }
    if let Some(bound) = bound {
        let _ = write!(out, "{open}le=\"");
        number(out, bound);
        out.push('"');
        open = ',';
    }
    out.push_str(if open == '{' { " " } else { "} " });
    number(out, value);
    out.push('\n');
}

fn number(out: &mut String, value: f64) {
    let _ = match value {
        f64::INFINITY => write!(out, "+Inf"),
        f64::NEG_INFINITY => write!(out, "-Inf"),
        // Rust's shortest text that reads back as the same number; NaN is spelt as Prometheus spells it.
        _ => write!(out, "{value}"),
    };
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}
