//! One log line as text, in Istio's layout or as JSON. Pure; time is passed in.

use std::{
    fmt::{self, Write},
    time::{Duration, SystemTime},
};

use crate::base::civil_date;

/// What one line says.
#[derive(Debug)]
pub struct Line<'a> {
    /// When.
    pub time: SystemTime,
    /// `debug`, `info`, `warn`, `error` or `fatal`.
    pub level: &'a str,
    /// The scope; not printed when empty.
    pub scope: &'a str,
    /// `file:line`, where asked for.
    pub caller: Option<(&'a str, u32)>,
    /// The message.
    pub message: fmt::Arguments<'a>,
}

/// Appends `<time> TAB <level> TAB [<scope> TAB] [<caller> TAB] <message>` and a newline. Line breaks in the message stay.
pub fn write_plain(out: &mut String, line: &Line<'_>) {
    write_time(out, line.time);
    for part in [line.level, line.scope].into_iter().filter(|part| !part.is_empty()) {
        out.push('\t');
        out.push_str(part);
    }
    if let Some((file, number)) = line.caller {
        let _ = write!(out, "\t{file}:{number}");
    }
    let _ = writeln!(out, "\t{}", line.message);
}

/// Appends an object with Istio's keys `level`, `time`, `scope`, `caller`, `msg` and a newline.
pub fn write_json(out: &mut String, line: &Line<'_>) {
    let _ = write!(out, "{{\"level\":\"{}\",\"time\":\"", line.level);
    write_time(out, line.time);
    out.push('"');
    if !line.scope.is_empty() {
        out.push_str(",\"scope\":\"");
        let _ = JsonText(out).write_str(line.scope);
        out.push('"');
    }
    if let Some((file, number)) = line.caller {
        let _ = write!(out, ",\"caller\":\"{file}:{number}\"");
    }
    out.push_str(",\"msg\":\"");
    let _ = write!(JsonText(out), "{}", line.message);
    out.push_str("\"}\n");
}

/// UTC with microseconds: `2026-11-30T10:40:00.000123Z`.
pub fn write_time(out: &mut String, time: SystemTime) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let date = [(year.unsigned_abs(), 4, '-'), (month.unsigned_abs(), 2, '-'), (day.unsigned_abs(), 2, 'T')];
    let time = [(hour, 2, ':'), (minute, 2, ':'), (second, 2, '.'), (since.subsec_micros().into(), 6, 'Z')];
    for (number, width, mark) in date.into_iter().chain(time) {
        // Not by `write!`, which takes several times as long: Envoy's start waits for some thirty lines.
        for place in (0..width).rev() {
            out.push(char::from(b'0' + (number / 10_u64.pow(place) % 10) as u8));
        }
        out.push(mark);
    }
}

/// Escapes what is written for the inside of a JSON string (RFC 8259 §7).
struct JsonText<'a>(&'a mut String);

impl Write for JsonText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                '\t' => self.0.push_str("\\t"),
                c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c))?,
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: u64, micros: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    fn both(line: &Line<'_>) -> (String, String) {
        let (mut plain, mut json) = (String::new(), String::new());
        write_plain(&mut plain, line);
        write_json(&mut json, line);
        (plain, json)
    }

    #[test]
    fn layout_of_istio() {
        let mut line =
            Line { time: time(0, 5), level: "info", scope: "", caller: None, message: format_args!("a\tb\n\"c\"") };
        let (plain, json) = both(&line);
        assert_eq!(plain, "1970-01-01T00:00:00.000005Z\tinfo\ta\tb\n\"c\"\n");
        let json =
            "{\"level\":\"info\",\"time\":\"1970-01-01T00:00:00.000005Z\",\"msg\":\"a\\tb\\n\\\"c\\\"\"}\n" == json;
        assert!(json);
        line = Line { scope: "sds", level: "warn", caller: Some(("sds/mod.rs", 7)), ..line };
        let (plain, json) = both(&line);
        assert!(plain.starts_with("1970-01-01T00:00:00.000005Z\twarn\tsds\tsds/mod.rs:7\ta"), "{plain}");
        let value: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
        assert_eq!((&value["scope"], &value["caller"]), (&"sds".into(), &"sds/mod.rs:7".into()));
    }

    #[test]
    fn any_text_is_valid_json() {
        let text: String = (0..0x250).filter_map(char::from_u32).collect();
        let (_, json) = both(&Line {
            time: time(1, 0),
            level: "debug",
            scope: &text,
            caller: None,
            message: format_args!("{text}"),
        });
        let value: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
        assert_eq!(value["msg"], text.as_str());
        assert_eq!(json.matches('\n').count(), 1);
    }

    #[test]
    fn calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_200, "2024-03-01T00:00:00"),
            (1_798_761_599, "2026-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let mut out = String::new();
            write_time(&mut out, time(seconds, 0));
            assert_eq!(out, format!("{text}.000000Z"));
        }
    }
}
