//! Which exposition format is asked for and which one is declared. Pure.
//!
//! Bodies are joined, so protobuf must never be negotiated with anybody, nor OpenMetrics with Envoy, whose part does not come last.

use crate::telemetry::metrics::TEXT;

/// What is asked for when nothing that the scraper accepts can be joined.
const FALLBACK: &str = "text/plain;version=0.0.4";

/// Media types that Envoy may be asked for.
pub const ENVOY: &[&str] = &["text/*", "text/plain"];
/// Media types that an application may be asked for.
pub const APPLICATION: &[&str] = &["text/*", "text/plain", OPENMETRICS];

const OPENMETRICS: &str = "application/openmetrics-text";

/// Formats of the merged page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 0.0.1.
    OpenMetrics0,
    /// OpenMetrics 1.0.0.
    OpenMetrics1,
}

/// A media type with its parameters, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Media {
    kind: String,
    parameters: Vec<(String, String)>,
}

/// The `Accept` for a source that may answer by one of `allowed`, out of the scraper's. Order stays, weights are made anew.
pub fn accept(scraper: &str, allowed: &[&str]) -> String {
    let mut kept: Vec<Media> = Vec::new();
    for part in scraper.split(',') {
        let Some(mut media) = Media::parse(part) else { return FALLBACK.to_owned() };
        media.parameters.retain(|(name, _)| name != "q");
        let wildcard = match &*media.kind {
            "*/*" | "*" => Some(("text/plain", "0.0.4")),
            "application/*" => Some((OPENMETRICS, "0.0.1")),
            _ => None,
        };
        if let Some((kind, version)) = wildcard {
            let parameters = vec![("version".to_owned(), version.to_owned())];
            media = Media { kind: kind.to_owned(), parameters };
        }
        if allowed.contains(&&*media.kind) && (wildcard.is_none() || !kept.contains(&media)) {
            kept.push(media);
        }
    }
    if kept.is_empty() {
        return FALLBACK.to_owned();
    }
    let count = kept.len();
    let width = count.to_string().len();
    let weighted = kept.into_iter().enumerate().map(|(index, mut media)| {
        media.parameters.push(("q".to_owned(), format!("0.{:0width$}", count - index)));
        media.parameters.sort();
        media.to_text()
    });
    weighted.collect::<Vec<_>>().join(",")
}

impl Format {
    /// The format of a page of that content type.
    pub fn of(content_type: &str) -> Format {
        let Some(media) = Media::parse(content_type).filter(|media| media.kind == OPENMETRICS) else {
            return Format::Text;
        };
        match media.parameters.iter().find(|(name, _)| name == "version").map(|(_, version)| &**version) {
            Some("1.0.0") => Format::OpenMetrics1,
            Some("0.0.1") | None => Format::OpenMetrics0,
            Some(_) => Format::Text,
        }
    }

    /// The format of several pages in one: theirs if all have the same, else text.
    pub fn join(formats: impl IntoIterator<Item = Format>) -> Format {
        let mut formats = formats.into_iter();
        let first = formats.next().unwrap_or(Format::Text);
        if formats.all(|other| other == first) { first } else { Format::Text }
    }

    /// Its content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => TEXT,
            Format::OpenMetrics0 => "application/openmetrics-text; version=0.0.1; charset=utf-8",
            Format::OpenMetrics1 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Media {
    /// Reads `type; name=value; name="quoted"`; `None` for anything else.
    fn parse(text: &str) -> Option<Media> {
        let (kind, mut rest) = text.split_once(';').map_or((text, ""), |(kind, rest)| (kind, rest));
        let kind = kind.trim().to_ascii_lowercase();
        let mut halves = kind.split('/');
        let both_are_tokens = halves.by_ref().take(2).all(is_token);
        if !both_are_tokens || halves.next().is_some() {
            return None;
        }
        let mut parameters: Vec<(String, String)> = Vec::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (name, tail) = rest.split_once('=')?;
            let name = name.trim().to_ascii_lowercase();
            let (value, tail) = parameter_value(tail)?;
            if !is_token(&name) || parameters.iter().any(|(other, _)| *other == name) {
                return None;
            }
            parameters.push((name, value));
            let tail = tail.trim_start();
            rest = if tail.is_empty() { tail } else { tail.strip_prefix(';')? };
        }
        parameters.sort();
        Some(Media { kind, parameters })
    }

    fn to_text(&self) -> String {
        let mut out = self.kind.clone();
        for (name, value) in &self.parameters {
            out.push_str(&format!("; {name}="));
            if is_token(value) {
                out.push_str(value);
            } else {
                out.push_str(&format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")));
            }
        }
        out
    }
}

/// A token or quoted string at the beginning of `text`, and what follows it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        let value = text[..end].trim_end();
        return is_token(value).then(|| (value.to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[index + 1..])),
            '\\' => value.push(chars.next()?.1),
            _ => value.push(c),
        }
    }
    None
}

/// RFC 9110 §5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

    #[test]
    fn prometheus_default_header() {
        assert_eq!(
            accept(PROMETHEUS, ENVOY),
            "text/plain; escaping=allow-utf-8; q=0.2; version=1.0.0,text/plain; q=0.1; version=0.0.4"
        );
        assert_eq!(
            accept(PROMETHEUS, APPLICATION),
            "application/openmetrics-text; escaping=allow-utf-8; q=0.4; version=1.0.0,\
             application/openmetrics-text; q=0.3; version=0.0.1,\
             text/plain; escaping=allow-utf-8; q=0.2; version=1.0.0,text/plain; q=0.1; version=0.0.4"
        );
    }

    #[test]
    fn what_cannot_be_joined_is_not_asked_for() {
        let protobuf =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7";
        for (scraper, envoy, application) in [
            ("", FALLBACK, FALLBACK),
            ("/", FALLBACK, FALLBACK),
            (protobuf, FALLBACK, FALLBACK),
            ("text/html", FALLBACK, FALLBACK),
            ("text/plain;", "text/plain; q=0.1", "text/plain; q=0.1"),
            ("text/plain;x", FALLBACK, FALLBACK),
            ("text/plain,,", FALLBACK, FALLBACK),
            ("*/*", "text/plain; q=0.1; version=0.0.4", "text/plain; q=0.1; version=0.0.4"),
            (
                "*;q=0.9, text/plain;version=0.0.4",
                "text/plain; q=0.2; version=0.0.4,text/plain; q=0.1; version=0.0.4",
                "",
            ),
            ("TEXT/*;Q=1", "text/*; q=0.1", "text/*; q=0.1"),
            ("application/*", FALLBACK, "application/openmetrics-text; q=0.1; version=0.0.1"),
            (r#"text/plain; a="b c""#, r#"text/plain; a="b c"; q=0.1"#, r#"text/plain; a="b c"; q=0.1"#),
        ] {
            assert_eq!(accept(scraper, ENVOY), envoy, "{scraper}");
            if !application.is_empty() {
                assert_eq!(accept(scraper, APPLICATION), application, "{scraper}");
            }
        }
        let many = ["text/plain"; 12].join(",");
        let weights = accept(&many, ENVOY);
        assert!(
            weights.starts_with("text/plain; q=0.12,text/plain; q=0.11,") && weights.ends_with("q=0.01"),
            "{weights}"
        );
    }

    #[test]
    fn format_follows_the_application() {
        use Format::{OpenMetrics0, OpenMetrics1, Text};
        for (content_type, format) in [
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", OpenMetrics1),
            ("application/openmetrics-text;version=0.0.1", OpenMetrics0),
            ("Application/OpenMetrics-Text", OpenMetrics0),
            ("application/openmetrics-text; version=2.0.0", Text),
            ("application/openmetrics-text; version", Text),
            ("text/plain; version=0.0.4", Text),
            ("text/html", Text),
            ("", Text),
        ] {
            assert_eq!(Format::of(content_type), format, "{content_type}");
        }
        assert_eq!(Format::join([OpenMetrics1, OpenMetrics1]), OpenMetrics1);
        assert_eq!(Format::join([OpenMetrics1, OpenMetrics0]), Text);
        assert_eq!(Format::join([]), Text);
    }
}
