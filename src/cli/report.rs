//! The state of a running agent as text for people. Pure: `/debug/state` in, lines out.

use std::fmt::Write;

use serde_json::Value;

/// Escape sequences, or nothing where the output is no terminal.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whether the output takes colours.
    pub colour: bool,
}

/// The lines being written.
struct Report {
    text: String,
    style: Style,
}

/// Width of the first column.
const COLUMN: usize = 14;

/// The whole report.
pub fn render(state: &Value, style: Style) -> String {
    let mut report = Report { text: String::new(), style };
    report.head(state);
    report.envoy(state);
    for (name, room) in state.as_object().into_iter().flatten() {
        match name.as_str() {
            "agent" | "ready" | "waitsFor" | "notes" | "envoy" => {}
            "certs" => report.certificates(room),
            "xds" => report.xds(room),
            "dns" => report.line("DNS", &sentence(room)),
            "wasm" => report.line("Wasm", &sentence(room)),
            _ => report.line(name, &sentence(room)),
        }
    }
    report.text
}

impl Report {
    fn line(&mut self, title: &str, text: &str) {
        let title = self.paint("1", &format!("{title:COLUMN$}"));
        let _ = writeln!(self.text, "{title}{text}");
    }

    fn more(&mut self, text: &str) {
        let _ = writeln!(self.text, "{:COLUMN$}{text}", "");
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn good(&self, text: &str) -> String {
        self.paint("32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.paint("31", text)
    }

    fn head(&mut self, state: &Value) {
        let agent = &state["agent"];
        let ready = if state["ready"] == true { self.good("ready") } else { self.bad("not ready") };
        let about = format!(
            "{ready}, version {}, for Istio {}, pid {}",
            text(&agent["version"]),
            text(&agent["istio"]),
            agent["pid"]
        );
        self.line("footman", &about);
        for (name, reason) in state["waitsFor"].as_object().into_iter().flatten() {
            let reason = self.bad(&text(reason));
            self.more(&format!("waits for {name}: {reason}"));
        }
        for (name, note) in state["notes"].as_object().into_iter().flatten() {
            self.more(&format!("{name}: {}", text(note)));
        }
    }

    fn envoy(&mut self, state: &Value) {
        let envoy = &state["envoy"];
        let running = match envoy["pid"].as_i64() {
            Some(pid) => {
                let since = duration(&envoy["runningSeconds"]);
                format!("{}, pid {pid}, for {since}, start number {}", self.good("running"), envoy["starts"])
            }
            None => self.bad("not running"),
        };
        self.line("Envoy", &running);
        if !envoy["lastExit"].is_null() {
            let exit = self.bad(&text(&envoy["lastExit"]));
            self.more(&format!("last exit: {exit}"));
        }
        let memory = |of: &Value| {
            let kilobytes = |name: &str| of[name].as_u64().map(|kilobytes| size(kilobytes * 1024));
            let (now, most) = (kilobytes("residentKilobytes")?, kilobytes("highestKilobytes")?);
            Some(format!("{now} (at most {most})"))
        };
        let parts = [("agent", memory(&state["agent"]["memory"])), ("Envoy", memory(&envoy["memory"]))];
        let parts = parts.into_iter().filter_map(|(name, memory)| Some(format!("{name} {}", memory?)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        self.line("Memory", &parts);
    }

    fn certificates(&mut self, room: &Value) {
        let one = |name: &str, certificate: &Value, style: &Report| {
            let left = certificate["expires_in_seconds"].as_i64()?;
            let expires = if left < 0 { "expired".to_owned() } else { format!("expires in {}", seconds(left)) };
            let expires = if left < 300 { style.bad(&expires) } else { expires };
            let names = [&certificate["san"][0], &certificate["subject"], &certificate["issuer"]];
            let who = names.into_iter().map(text).find(|name| !name.is_empty()).unwrap_or_default();
            Some(format!("{name} {who}, {expires}"))
        };
        let mut lines: Vec<String> = one("default", &room["default"], self).into_iter().collect();
        lines.extend(room["roots"].as_array().into_iter().flatten().filter_map(|root| one("root", root, self)));
        for file in room["files"].as_array().into_iter().flatten() {
            match text(&file["last_error"]) {
                error if error.is_empty() => lines.extend(one("file", file, self)),
                error => lines.push(self.bad(&error)),
            }
        }
        if !room["last_error"].is_null() {
            lines.push(self.bad(&text(&room["last_error"])));
        }
        let first = if lines.is_empty() { "none yet".to_owned() } else { lines.remove(0) };
        self.line("Certificates", &first);
        lines.iter().for_each(|line| self.more(line));
    }

    fn xds(&mut self, room: &Value) {
        let streams = room["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.line("xDS", &format!("istiod {}, {} streams", text(&room["istiod"]), streams.len()));
        if let (Some(count @ 1..), last) = (room["refusals"]["inARow"].as_u64(), text(&room["refusals"]["last"])) {
            let refused = self.bad(&format!("refused {count} times: {last}"));
            self.more(&refused);
        }
        for stream in streams {
            self.more(&format!(
                "stream {}, {}, for {}",
                stream["id"],
                text(&stream["protocol"]),
                duration(&stream["ageSeconds"])
            ));
            for kind in stream["types"].as_object().into_iter().flat_map(|types| types.values()) {
                let mut line = format!("  {:24}{} responses", text(&kind["name"]), kind["responses"]);
                if kind["responses"].as_u64() > Some(0) {
                    let bytes = kind["bytes"].as_u64().map(size).unwrap_or_default();
                    let _ = write!(
                        line,
                        ", version {}, {bytes}, {} ago",
                        text(&kind["version"]),
                        duration(&kind["ageSeconds"])
                    );
                }
                if kind["refusals"].as_u64() > Some(0) {
                    let refused = format!(", refused {} times: {}", kind["refusals"], text(&kind["lastRefusal"]));
                    line.push_str(&self.bad(&refused));
                }
                self.more(&line);
            }
        }
    }
}

/// The plain members of an object, and how many elements its lists have.
fn sentence(room: &Value) -> String {
    let Some(members) = room.as_object() else { return text(room) };
    let parts = members.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::Array(list) => Some(format!("{name} {}", list.len())),
        _ => Some(format!("{name} {}", text(value))),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Strings without quotes and control characters: what comes from istiod must not drive the terminal.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        other => other.to_string(),
    }
}

fn duration(value: &Value) -> String {
    value.as_i64().map_or_else(|| "–".to_owned(), seconds)
}

/// The largest unit of which there are at least two.
fn seconds(seconds: i64) -> String {
    let units = [(365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "min")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= 2 * unit).unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_a_summary() {
        let state = serde_json::json!({
            "agent": {"version": "0.1.0", "istio": "1.31.0", "pid": 7,
                "memory": {"residentKilobytes": 2304, "highestKilobytes": 3072}},
            "ready": false,
            "waitsFor": {"dns": "no table yet"},
            "notes": {"xds": "istiod is away"},
            "envoy": {"pid": 8, "runningSeconds": 150, "starts": 1, "lastExit": null, "memory": null},
            "dns": {"hosts": 2, "upstreams": ["10.0.0.1:53"], "cachedAnswers": null},
            "certs": {"default": {"san": ["spiffe://a"], "expires_in_seconds": 7300}, "last_error": "CA\u{1b}[2J away",
                "roots": [{"san": [], "subject": "CN=r", "expires_in_seconds": -1}],
                "files": [{"name": "file-cert:a", "last_error": "gone"}]},
            "xds": {"istiod": "istiod:15012", "refusals": {"inARow": 2, "last": "denied"}, "streams": [
                {"id": 1, "protocol": "delta", "ageSeconds": 5, "types": {"x": {"name": "Cluster", "responses": 3,
                 "version": "v1", "bytes": 2048, "ageSeconds": 1, "refusals": 1, "lastRefusal": "bad"}}}]},
        });
        let plain = render(&state, Style { colour: false });
        assert_eq!(
            plain,
            "footman       not ready, version 0.1.0, for Istio 1.31.0, pid 7\n\
             \x20             waits for dns: no table yet\n\
             \x20             xds: istiod is away\n\
             Envoy         running, pid 8, for 2 min, start number 1\n\
             Memory        agent 2.2 MB (at most 3.0 MB)\n\
             Certificates  default spiffe://a, expires in 2 h\n\
             \x20             root CN=r, expired\n\
             \x20             gone\n\
             \x20             CA [2J away\n\
             DNS           hosts 2, upstreams 1\n\
             xDS           istiod istiod:15012, 1 streams\n\
             \x20             refused 2 times: denied\n\
             \x20             stream 1, delta, for 5 s\n\
             \x20               Cluster                 3 responses, version v1, 2.0 KB, 1 s ago, refused 1 times: bad\n"
        );
        let coloured = render(&state, Style { colour: true });
        assert!(coloured.contains("\x1b[31mnot ready\x1b[0m") && !coloured.contains("\x1b[2J"));
    }

    #[test]
    fn odd_states_are_shown_all_the_same() {
        for state in
            [serde_json::json!({}), serde_json::json!([]), serde_json::json!({"xds": 7, "certs": [], "new": "x"})]
        {
            assert!(render(&state, Style { colour: false }).contains("not running"));
        }
    }
}
