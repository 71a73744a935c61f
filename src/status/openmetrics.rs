//! Prometheus text lines made into OpenMetrics 1.0 lines, for an OpenMetrics page that Envoy's and the agent's families are part of.
//! Pure. Names of samples never change.
//!
//! What differs: a counter family's name lacks the `_total` of its samples, and counters without it are of unknown type; `untyped` is
//! `unknown`; bucket bounds and quantiles are floats; timestamps are seconds; comments are HELP, TYPE, UNIT and EOF only.

/// Rewrites line by line; holds the HELP of a family until its TYPE is known.
#[derive(Default)]
pub struct Converter {
    help: Vec<u8>,
}

impl Converter {
    /// Appends what `line` becomes.
    pub fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let text = line.trim_ascii();
        if let Some(comment) = text.strip_prefix(b"#") {
            self.comment(comment.trim_ascii_start(), out);
        } else if !text.is_empty() {
            self.finish(out);
            sample(text, out);
        }
    }

    /// Appends what was held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let help = std::mem::take(&mut self.help);
        let (name, text) = split_word(&help);
        if !name.is_empty() {
            comment(out, b"HELP", name, text);
        }
    }

    fn comment(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let (keyword, rest) = split_word(text);
        match keyword {
            b"HELP" => {
                self.finish(out);
                self.help = rest.to_vec();
            }
            b"TYPE" => {
                let (name, kind) = split_word(rest);
                let (family, kind): (&[u8], &[u8]) = match (kind, name.strip_suffix(b"_total")) {
                    (b"counter", Some(family)) => (family, b"counter"),
                    (b"counter" | b"untyped", _) => (name, b"unknown"),
                    _ => (name, kind),
                };
                let help = std::mem::take(&mut self.help);
                let (help_name, help_text) = split_word(&help);
                if help_name == name {
                    comment(out, b"HELP", family, help_text);
                } else if !help_name.is_empty() {
                    comment(out, b"HELP", help_name, help_text);
                }
                comment(out, b"TYPE", family, kind);
            }
            _ => {}
        }
    }
}

fn comment(out: &mut Vec<u8>, keyword: &[u8], name: &[u8], text: &[u8]) {
    for part in [b"# ", keyword, b" ", name, b" "] {
        out.extend_from_slice(part);
    }
    let mut escaped = false;
    for byte in text {
        if *byte == b'"' && !escaped {
            out.push(b'\\');
        }
        escaped = *byte == b'\\' && !escaped;
        out.push(*byte);
    }
    out.push(b'\n');
}

fn sample(line: &[u8], out: &mut Vec<u8>) {
    let labels = labels_end(line);
    let (series, rest) = line.split_at(labels);
    match series.iter().position(|byte| *byte == b'{') {
        Some(open) => {
            // Other than in the text format, no blank may stand before them.
            out.extend_from_slice(series[..open].trim_ascii_end());
            float_labels(&series[open..], out);
        }
        None => out.extend_from_slice(series),
    }
    let (value, timestamp) = split_word(rest.trim_ascii_start());
    out.push(b' ');
    out.extend_from_slice(value);
    if let Some(millis) = std::str::from_utf8(timestamp).ok().and_then(|text| text.parse::<i64>().ok()) {
        out.extend_from_slice(format!(" {}.{:03}", millis.div_euclid(1000), millis.rem_euclid(1000)).as_bytes());
    }
    out.push(b'\n');
}

/// Where the value begins: behind the closing brace, or behind the name. Blanks may stand between name and brace.
pub(super) fn labels_end(line: &[u8]) -> usize {
    let name = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t')).unwrap_or(line.len());
    let brace = name + (line.len() - name - line[name..].trim_ascii_start().len());
    if line.get(brace) != Some(&b'{') {
        return name;
    }
    let (mut quoted, mut escaped) = (false, false);
    for (index, byte) in line.iter().enumerate().skip(brace) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return index + 1,
            _ => {}
        }
    }
    line.len()
}

/// Copies `{…}` with whole numbers in `le` and `quantile` written as floats.
fn float_labels(labels: &[u8], out: &mut Vec<u8>) {
    for name in [&b"le=\""[..], b"quantile=\""] {
        let found = memchr::memmem::find_iter(labels, name).find(|at| matches!(labels[at - 1], b'{' | b',' | b' '));
        let Some(start) = found.map(|at| at + name.len()) else { continue };
        let digits = labels[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 && labels.get(start + digits) == Some(&b'"') {
            out.extend_from_slice(&labels[..start]);
            go_float(&labels[start..start + digits], out);
            out.extend_from_slice(&labels[start + digits..]);
            return;
        }
    }
    out.extend_from_slice(labels);
}

/// A whole number as Go prints the float: `10.0`, `1.8e+06`.
fn go_float(digits: &[u8], out: &mut Vec<u8>) {
    if digits.len() <= 6 {
        out.extend_from_slice(digits);
        out.extend_from_slice(b".0");
        return;
    }
    let (first, rest) = digits.split_at(1);
    let kept = rest.iter().rposition(|digit| *digit != b'0').map_or(0, |at| at + 1);
    out.extend_from_slice(first);
    if kept > 0 {
        out.push(b'.');
        out.extend_from_slice(&rest[..kept]);
    }
    out.extend_from_slice(format!("e+{:02}", rest.len()).as_bytes());
}

fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_openmetrics() {
        let text = "# A comment\n# HELP a_total Say \"x\".\n# TYPE a_total counter\na_total{b=\"}\\\"\"} 1\n\n\
            # TYPE b counter\nb 2 1500\n# HELP c C.\nc 3\n# TYPE d untyped\n# HELP e E\n# TYPE f histogram\n\
            f_bucket{x=\"le=\\\"1\\\"\",le=\"1\"} 1\r\nf_bucket{le=\"1800000\"} 2\nf_bucket{le=\"0.5\"} 0\nf_bucket{le=\"+Inf\"} 2\n\
            # TYPE g summary\ng \t{quantile=\"1\"} 5\n# HELP last L.\n";
        let (mut converter, mut out) = (Converter::default(), Vec::new());
        text.split_inclusive('\n').for_each(|line| converter.line(line.as_bytes(), &mut out));
        converter.finish(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "# HELP a Say \\\"x\\\".\n# TYPE a counter\na_total{b=\"}\\\"\"} 1\n\
             # TYPE b unknown\nb 2 1.500\n# HELP c C.\nc 3\n# TYPE d unknown\n# HELP e E\n# TYPE f histogram\n\
             f_bucket{x=\"le=\\\"1\\\"\",le=\"1.0\"} 1\nf_bucket{le=\"1.8e+06\"} 2\nf_bucket{le=\"0.5\"} 0\n\
             f_bucket{le=\"+Inf\"} 2\n# TYPE g summary\ng{quantile=\"1.0\"} 5\n# HELP last L.\n"
        );
    }
}
