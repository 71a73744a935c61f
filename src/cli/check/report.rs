//! What `check` found, as text for a person and as JSON for a program.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use crate::{
    config::{Errors, ISTIO_VERSION, Vars},
    istiod,
};

/// A setting in effect and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) origin: String,
}

/// Something that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// What was tried, `istiod istiod.istio-system.svc:15012: TLS`.
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// What was found.
    Fine(String),
    /// Why it was not tried.
    Skipped(String),
    /// What went wrong, and what to look at.
    Failed(String, String),
    /// What is wrong with the configuration.
    Wrong(String),
}

/// Everything that was found.
#[derive(Debug, Default)]
pub(super) struct Report {
    node_id: String,
    pub(super) settings: Vec<Setting>,
    pub(super) errors: Errors,
    pub(super) warnings: Vec<String>,
    pub(super) steps: Vec<Step>,
    pub(super) bootstrap: Option<Json>,
}

impl Step {
    pub(super) fn new(name: impl Into<String>, result: Result<String, String>, advice: &str) -> Step {
        let outcome = match result {
            Ok(found) => Outcome::Fine(found),
            Err(why) => Outcome::Failed(why, advice.to_owned()),
        };
        Step { name: name.into(), outcome }
    }

    /// The steps of reaching istiod, or a CA.
    pub(super) fn of_way(who: &str, config: &istiod::Config, steps: Vec<istiod::Step>) -> Vec<Step> {
        let address = &config.endpoint.address;
        let named = |step: istiod::Step| Step::new(format!("{who} {address}: {}", step.name), step.result, step.advice);
        steps.into_iter().map(named).collect()
    }

    fn json(&self) -> Json {
        let (state, detail, advice) = match &self.outcome {
            Outcome::Fine(text) => ("ok", text, None),
            Outcome::Skipped(text) => ("skipped", text, None),
            Outcome::Failed(text, advice) => ("failed", text, Some(advice)),
            Outcome::Wrong(text) => ("wrong", text, None),
        };
        let mut step = json!({"step": self.name, "state": state, "detail": detail});
        if let (Some(advice), Json::Object(members)) = (advice, &mut step) {
            members.insert("advice".to_owned(), advice.as_str().into());
        }
        step
    }
}

impl Report {
    pub(super) fn new(vars: &Vars) -> Report {
        Report { node_id: vars.node_id(), ..Report::default() }
    }

    /// 64 for a wrong configuration, 1 for something that cannot be reached, else 0.
    pub(super) fn exit_code(&self) -> u8 {
        let any = |found: fn(&Outcome) -> bool| self.steps.iter().any(|step| found(&step.outcome));
        if !self.errors.0.is_empty() || any(|outcome| matches!(outcome, Outcome::Wrong(_))) {
            64
        } else {
            u8::from(any(|outcome| matches!(outcome, Outcome::Failed(..))))
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("node      {}\nversion   Istio {ISTIO_VERSION}\n\nSettings\n", self.node_id);
        // Writing to a String cannot fail.
        let width = self.settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0).min(44);
        for Setting { name, value, origin } in &self.settings {
            let value = if value.is_empty() { "-".to_owned() } else { indented(value) };
            let _ = writeln!(text, "  {name:width$}  {value}  ({origin})");
        }
        let section = |text: &mut String, title: &str, lines: &mut dyn Iterator<Item = String>| {
            let lines: Vec<String> = lines.collect();
            if !lines.is_empty() {
                let _ = write!(text, "\n{title}\n");
                for line in &lines {
                    let _ = writeln!(text, "  {}", indented(line));
                }
            }
        };
        section(&mut text, "Warnings", &mut self.warnings.iter().cloned());
        section(&mut text, "Errors", &mut self.errors.0.iter().map(ToString::to_string));
        section(&mut text, "Tried", &mut self.steps.iter().flat_map(lines));
        if let Some(bootstrap) = &self.bootstrap {
            let _ = write!(text, "\nBootstrap\n{bootstrap:#}\n");
        }
        let _ = write!(text, "\n{}\n", self.verdict());
        text
    }

    pub(super) fn json(&self) -> String {
        let setting =
            |Setting { name, value, origin }: &Setting| json!({"name": name, "value": value, "origin": origin});
        let errors = self.errors.0.iter().map(|error| json!({"source": error.source, "message": error.message}));
        let mut report = json!({
            "ok": self.exit_code() == 0,
            "node": self.node_id,
            "settings": self.settings.iter().map(setting).collect::<Vec<_>>(),
            "warnings": self.warnings,
            "errors": errors.collect::<Vec<_>>(),
            "steps": self.steps.iter().map(Step::json).collect::<Vec<_>>()
        });
        if let (Some(bootstrap), Json::Object(members)) = (&self.bootstrap, &mut report) {
            members.insert("bootstrap".to_owned(), bootstrap.clone());
        }
        format!("{report:#}\n")
    }

    fn verdict(&self) -> &'static str {
        match self.exit_code() {
            0 => "Everything that was tried works.",
            1 => "The configuration is fine, but not everything could be reached.",
            _ => "The configuration is wrong; the agent would not start with it.",
        }
    }
}

fn lines(step: &Step) -> Vec<String> {
    let name = &step.name;
    match &step.outcome {
        Outcome::Fine(text) => vec![format!("ok       {name}: {text}")],
        Outcome::Skipped(text) => vec![format!("skipped  {name}: {text}")],
        Outcome::Wrong(text) => vec![format!("wrong    {name}: {text}")],
        Outcome::Failed(text, advice) => vec![format!("failed   {name}: {text}"), format!("         {advice}")],
    }
}

/// A text of several lines within the report.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let setting =
            Setting { name: "statusPort".to_owned(), value: "15020".to_owned(), origin: "default".to_owned() };
        let step = Step { name: "istiod a:1: TLS".to_owned(), outcome };
        Report { settings: vec![setting], warnings: vec!["w".to_owned()], steps: vec![step], ..Report::default() }
    }

    #[test]
    fn texts_and_codes() {
        let fine = report(Outcome::Fine("found".to_owned()));
        let text = fine.text();
        for wanted in ["  statusPort  15020  (default)\n", "Warnings\n  w\n", "  ok       istiod a:1: TLS: found\n"] {
            assert!(text.contains(wanted), "{wanted:?} in {text}");
        }
        assert!(!text.contains("Errors"));
        assert_eq!(fine.exit_code(), 0);
        let failed = report(Outcome::Failed("refused".to_owned(), "look there".to_owned()));
        assert!(failed.text().contains("failed   istiod a:1: TLS: refused\n           look there\n"));
        assert_eq!(failed.exit_code(), 1);
        let mut wrong = report(Outcome::Failed("refused".to_owned(), String::new()));
        wrong.errors.add("PROXY_CONFIG:1: statusPort", "no");
        assert_eq!(wrong.exit_code(), 64);
        assert!(wrong.text().contains("Errors\n  PROXY_CONFIG:1: statusPort: no\n"));
        assert_eq!(report(Outcome::Skipped(String::new())).exit_code(), 0);
        assert_eq!(report(Outcome::Wrong(String::new())).exit_code(), 64);
    }

    #[test]
    fn the_same_as_json() {
        let mut failed = report(Outcome::Failed("refused".to_owned(), "look there".to_owned()));
        failed.bootstrap = Some(json!({"node": {}}));
        let value: Json = serde_json::from_str(&failed.json()).unwrap();
        assert_eq!(value["ok"], false);
        assert_eq!(value["settings"][0], json!({"name": "statusPort", "value": "15020", "origin": "default"}));
        let step = json!({"step": "istiod a:1: TLS", "state": "failed", "detail": "refused", "advice": "look there"});
        assert_eq!(value["steps"][0], step);
        assert_eq!(value["bootstrap"], json!({"node": {}}));
    }
}
