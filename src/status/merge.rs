//! One source of the merged metrics page on its way to the scraper: pieces in, whole lines out. Pure.
//!
//! Nothing is held but the line in progress. What would spoil the joined page is taken out: `# EOF` before the end, families that the
//! agent itself exposes, half lines, pages that are no metrics. Blocks of whole lines without any of that pass as they are.

use std::fmt;

use memchr::{memchr, memmem, memrchr};

use super::openmetrics::{self, Converter};
use crate::telemetry::metrics::PREFIX;

/// Longest line that is passed on.
const MAX_LINE: usize = 256 * 1024;

/// Why the rest of a source was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its first line is neither a comment nor a sample: HTML, JSON, a greeting.
    NotMetrics,
    /// A line is longer than [`MAX_LINE`].
    LongLine,
    /// It is larger than its limit; what came before the next family has passed.
    TooLarge,
}

/// How a source is treated.
pub struct Rules<'a> {
    /// Whether the agent exposes a family of that name, given without the prefix.
    pub is_own: &'a (dyn Fn(&str) -> bool + Sync),
    /// Largest size in bytes; the family that crosses it still passes, unless it is that large again.
    pub limit: Option<u64>,
    /// Whether the page is OpenMetrics, which allows no blank lines.
    pub openmetrics: bool,
    /// Whether this source is text that must be rewritten for an OpenMetrics page.
    pub convert: bool,
}

/// The state of one source.
pub struct Source<'a> {
    rules: Rules<'a>,
    /// The line in progress.
    line: Vec<u8>,
    /// What of the last piece was not passed on as it was.
    changed: Vec<u8>,
    begun: bool,
    passed: u64,
    ends_with_comment: bool,
    /// The family of the last sample, once the limit is crossed.
    family: Vec<u8>,
    converter: Converter,
}

impl<'a> Source<'a> {
    /// A source of which nothing has come yet.
    pub fn new(rules: Rules<'a>) -> Source<'a> {
        Source {
            rules,
            line: Vec::new(),
            changed: Vec::new(),
            begun: false,
            passed: 0,
            ends_with_comment: false,
            family: Vec::new(),
            converter: Converter::default(),
        }
    }

    /// Takes a piece; what is to be passed on, in this order.
    ///
    /// # Errors
    /// Why the source ends here. What it gave before is to stay.
    pub fn feed<'p>(&'p mut self, piece: &'p [u8]) -> Result<[&'p [u8]; 2], Cut> {
        self.changed.clear();
        let Some(last) = memrchr(b'\n', piece) else {
            self.line.extend_from_slice(piece);
            return if self.line.len() > MAX_LINE { Err(Cut::LongLine) } else { Ok([&[], &[]]) };
        };
        let (whole, rest) = piece.split_at(last + 1);
        let end_of_line = if self.line.is_empty() { 0 } else { memchr(b'\n', whole).map_or(0, |at| at + 1) };
        let (end_of_line, whole) = whole.split_at(end_of_line);
        let mut joined = std::mem::take(&mut self.line);
        joined.extend_from_slice(end_of_line);
        self.line.extend_from_slice(rest);
        self.begins_like_metrics(lines(&joined).chain(lines(whole)))?;
        let size = (joined.len() + whole.len()) as u64;
        if self.is_harmless(&joined, size) && self.is_harmless(whole, size) {
            let last_line = if whole.is_empty() { &joined } else { whole };
            self.ends_with_comment = lines(last_line).next_back().is_some_and(|line| line.starts_with(b"#"));
            self.passed += size;
            self.changed = joined;
            return Ok([&self.changed, whole]);
        }
        for line in lines(&joined).chain(lines(whole)) {
            self.take(line)?;
        }
        Ok([&self.changed, &[]])
    }

    /// The source has ended as it should: its last line, which may lack its end. `guard`: something follows, so that end is added.
    ///
    /// # Errors
    /// As [`Source::feed`].
    pub fn finish(&mut self, guard: bool) -> Result<&[u8], Cut> {
        self.changed.clear();
        let mut line = std::mem::take(&mut self.line);
        self.begins_like_metrics(std::iter::once(&*line))?;
        // A last line without an end may be half of one.
        if line.starts_with(b"#") || is_sample(&line) {
            if guard {
                line.push(b'\n');
            }
            self.take(&line)?;
        }
        self.converter.finish(&mut self.changed);
        Ok(&self.changed)
    }

    /// What `feed` found fit to pass before it failed.
    pub fn before_cut(&self) -> &[u8] {
        &self.changed
    }

    /// The first line decides whether this is an exposition at all.
    fn begins_like_metrics<'l>(&mut self, mut lines: impl Iterator<Item = &'l [u8]>) -> Result<(), Cut> {
        if !self.begun
            && let Some(first) = lines.find(|line| !line.trim_ascii().is_empty())
        {
            self.begun = true;
            let first = first.trim_ascii();
            if !first.starts_with(b"#") && !is_sample(first) {
                return Err(Cut::NotMetrics);
            }
        }
        Ok(())
    }

    /// Whether a block of whole lines can pass as it is.
    fn is_harmless(&self, block: &[u8], size: u64) -> bool {
        let fits = self.rules.limit.is_none_or(|limit| self.passed + size <= limit);
        // A line that begins with a blank may be one that must be taken out.
        let blank = |block: &[u8]| {
            block.first().is_some_and(u8::is_ascii_whitespace)
                || ["\n\n", "\n\r", "\n ", "\n\t", "\n\x0c"]
                    .iter()
                    .any(|start| memmem::find(block, start.as_bytes()).is_some())
        };
        fits && !self.rules.convert
            && !(self.rules.openmetrics && blank(block))
            && memmem::find(block, PREFIX.as_bytes()).is_none()
            && memmem::find(block, b"# EOF").is_none()
    }

    /// One line, with its end if it has one.
    fn take(&mut self, line: &[u8]) -> Result<(), Cut> {
        if line.len() > MAX_LINE {
            return Err(Cut::LongLine);
        }
        let text = line.trim_ascii();
        if text == b"# EOF" || (self.rules.openmetrics && text.is_empty()) {
            return Ok(());
        }
        let name = metric_name(text);
        if self.is_own(name) {
            return Ok(());
        }
        if let Some(limit) = self.rules.limit
            && self.passed + line.len() as u64 > limit
        {
            self.check_limit(text, name, limit)?;
        }
        self.ends_with_comment = text.starts_with(b"#");
        self.passed += line.len() as u64;
        if self.rules.convert {
            self.converter.line(line, &mut self.changed);
        } else {
            self.changed.extend_from_slice(line);
        }
        Ok(())
    }

    /// Beyond the limit: lines of the family that crossed it pass, the next family does not.
    fn check_limit(&mut self, text: &[u8], name: &[u8], limit: u64) -> Result<(), Cut> {
        let is_comment = text.starts_with(b"#");
        let begins_family = if is_comment {
            !self.ends_with_comment
        } else {
            !self.family.is_empty() && self.family != base_name(name) && !self.ends_with_comment
        };
        if begins_family || self.passed > 2 * limit {
            return Err(Cut::TooLarge);
        }
        if !is_comment {
            self.family = base_name(name).to_vec();
        }
        Ok(())
    }

    fn is_own(&self, name: &[u8]) -> bool {
        let own = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| (self.rules.is_own)(name));
        name.strip_prefix(PREFIX.as_bytes()).is_some_and(|name| own(name) || own(base_name(name)))
    }
}

/// Lines with their ends.
fn lines(block: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    block.split_inclusive(|byte| *byte == b'\n')
}

/// Whether a line is a name, perhaps labels, and a number.
fn is_sample(line: &[u8]) -> bool {
    let name = metric_name(line);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    let (series, rest) = line.split_at(openmetrics::labels_end(line));
    let value = rest.trim_ascii_start().split(u8::is_ascii_whitespace).next().and_then(|v| std::str::from_utf8(v).ok());
    let number = value.is_some_and(|value| value.parse::<f64>().is_ok());
    let named = name.iter().all(is_name) && !name.first().is_some_and(u8::is_ascii_digit);
    !series.is_empty() && named && number
}

/// The name that a sample or a `# TYPE`, `# HELP`, `# UNIT` line is about.
fn metric_name(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"#").map_or(line, |comment| {
        let mut words = comment.trim_ascii_start().splitn(2, |byte| *byte == b' ');
        words.next();
        words.next().unwrap_or_default().trim_ascii_start()
    });
    let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t')).unwrap_or(line.len());
    &line[..end]
}

/// A sample's name without what histograms, summaries and OpenMetrics counters add to their family's.
fn base_name(name: &[u8]) -> &[u8] {
    ["_bucket", "_sum", "_count", "_created"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix.as_bytes()))
        .unwrap_or(name)
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::NotMetrics => f.write_str("the page holds no metrics"),
            Cut::LongLine => write!(f, "a line is longer than {MAX_LINE} bytes"),
            Cut::TooLarge => f.write_str("the page is too large; it was cut at the end of a family"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(limit: Option<u64>, openmetrics: bool, convert: bool) -> Rules<'static> {
        Rules { is_own: &|name| name == "scrapes_total" || name == "seconds", limit, openmetrics, convert }
    }

    /// What passes of `input` in pieces of `size`, and how it ends.
    fn pass(rules: Rules<'_>, input: &str, size: usize, guard: bool) -> (String, Option<Cut>) {
        let (mut source, mut out) = (Source::new(rules), Vec::new());
        for piece in input.as_bytes().chunks(size) {
            match source.feed(piece) {
                Ok(parts) => out.extend(parts.concat()),
                Err(cut) => {
                    out.extend_from_slice(source.before_cut());
                    return (String::from_utf8(out).unwrap(), Some(cut));
                }
            }
        }
        let cut = match source.finish(guard) {
            Ok(rest) => {
                out.extend_from_slice(rest);
                None
            }
            Err(cut) => Some(cut),
        };
        (String::from_utf8(out).unwrap(), cut)
    }

    fn every_size(rules: impl Fn() -> Rules<'static>, input: &str, guard: bool) -> (String, Option<Cut>) {
        let whole = pass(rules(), input, input.len().max(1), guard);
        for size in 1..input.len() {
            assert_eq!(pass(rules(), input, size, guard), whole, "pieces of {size}");
        }
        whole
    }

    #[test]
    fn ordinary_pages_pass_as_they_are() {
        let page = "# HELP a A.\n# TYPE a counter\n\na{b=\"c\\n\"} 1\r\na 2 # x\nlast 3";
        assert_eq!(every_size(|| rules(None, false, false), page, false), (page.to_owned(), None));
        assert_eq!(every_size(|| rules(None, false, false), page, true), (format!("{page}\n"), None));
        assert_eq!(every_size(|| rules(None, false, false), "", true), (String::new(), None));
    }

    #[test]
    fn end_markers_and_blank_lines_are_taken_out() {
        let page = "a 1\n\r\n\nb 2\n# EOF\r\n \n";
        assert_eq!(every_size(|| rules(None, true, false), page, true).0, "a 1\nb 2\n");
        assert_eq!(every_size(|| rules(None, false, false), "a 1\n# EOF", true).0, "a 1\n");
        assert_eq!(every_size(|| rules(None, false, false), "a 1 # EOF\n", true).0, "a 1 # EOF\n");
    }

    #[test]
    fn own_families_are_not_repeated() {
        let page = "x 1\n# HELP istio_agent_scrapes_total X.\n# TYPE istio_agent_scrapes_total counter\n\
            istio_agent_scrapes_total 7\nistio_agent_seconds_bucket{le=\"1\"} 1\nistio_agent_other 2\ny 3\n";
        assert_eq!(every_size(|| rules(None, false, false), page, true).0, "x 1\nistio_agent_other 2\ny 3\n");
    }

    #[test]
    fn other_pages_are_no_metrics() {
        for page in [" \n<!DOCTYPE html>\n", "{\"status\": \"up\"}", "ok", "ok\n", "1 2\n", "a b\n", "a{ 1\n"] {
            for size in [1, 2, 100] {
                assert_eq!(pass(rules(None, false, false), page, size, true).1, Some(Cut::NotMetrics), "{page}");
            }
        }
        for page in [
            "{\"a.b\"} 1\n",
            "a{} NaN\n",
            "a:b{c=\"}\"} +Inf 123\n",
            "# x\n",
            "",
            "\n \n",
            "_a 1e5 # {} 1",
            "a { b = \"c\" } 1\n",
        ] {
            assert_eq!(every_size(|| rules(None, false, false), page, false), (page.to_owned(), None), "{page}");
        }
    }

    #[test]
    fn half_a_last_line_is_left_out() {
        assert_eq!(pass(rules(None, false, false), "a 1\nab", 100, false), ("a 1\n".to_owned(), None));
        assert_eq!(pass(rules(None, false, false), "a 1\nab{c=\"", 100, true), ("a 1\n".to_owned(), None));
    }

    #[test]
    fn endless_line_is_cut() {
        let long = "a".repeat(MAX_LINE + 2);
        assert_eq!(pass(rules(None, false, false), &long, 1000, true), (String::new(), Some(Cut::LongLine)));
    }

    #[test]
    fn limit_cuts_between_families() {
        let page = "# HELP a A.\n# TYPE a counter\na{i=\"1\"} 1\na{i=\"2\"} 1\n# HELP b B.\n# TYPE b histogram\n\
            b_bucket{le=\"1\"} 1\nb_sum 1\nb_count 1\nc 1\nd 1\n";
        let size = page.len() as u64;
        let cut = |limit| every_size(move || rules(Some(limit), false, false), page, true);
        assert_eq!(cut(size), (page.to_owned(), None));
        let end = |text: &str| page.find(text).unwrap() as u64;
        // Wherever the limit falls in a family, the whole family passes, and nothing of the next one.
        for limit in end("a{i=\"1\"")..end("# HELP b") {
            assert_eq!(cut(limit), (page[..end("# HELP b") as usize].to_owned(), Some(Cut::TooLarge)), "{limit}");
        }
        for limit in end("b_bucket")..end("\nc 1") {
            assert_eq!(cut(limit), (page[..=end("\nc 1") as usize].to_owned(), Some(Cut::TooLarge)), "{limit}");
        }
        let endless = format!("# TYPE a counter\n{}", "a{i=\"1\"} 1\n".repeat(100));
        let (passed, cut) = every_size(|| rules(Some(100), false, false), &endless, true);
        assert_eq!(cut, Some(Cut::TooLarge));
        assert!(passed.len() < 220 && passed.ends_with(" 1\n"));
    }
}
