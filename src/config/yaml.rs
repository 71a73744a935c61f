//! YAML and JSON documents as a tree in which every value knows its line; scalars are read as YAML 1.1, as Istio reads them.
//!
//! Istio turns YAML into JSON with a YAML 1.1 library before it decodes anything, so `yes` is a boolean, `017` is 15 and a
//! key may be a number. Anchors and merge keys are resolved here; how large they may make a document is bounded.

use std::{collections::HashMap, fmt};

use granit_parser::{Event, Parser, ScalarStyle, Span, options};
use serde_json::Number;

use super::scalar;

/// Deeper documents are refused: nothing that Istio or Envoy reads is nested even half as deep.
const MAX_DEPTH: usize = 100;
/// Nodes a document may have once its aliases are resolved; bounds what `*a` of `*b` of `*c` can grow to.
const MAX_NODES: usize = 200_000;

/// One value of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The line it stands on, from 1; for the value of a mapping the line of its key.
    pub line: usize,
    /// What it is.
    pub value: Value,
}

/// What a node is; the types of JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing at all.
    Null,
    /// `true`, `yes`, `on` and their opposites.
    Bool(bool),
    /// A whole or a decimal number.
    Number(Number),
    /// Text, quoted or not.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in document order; of two equal keys only the last is kept.
    Map(Vec<(String, Node)>),
}

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// Line of the mistake, from 1.
    pub line: usize,
    /// Column of the mistake, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl Node {
    /// Reads the first document of `text`; an empty one is null.
    ///
    /// # Errors
    /// Text that is not YAML, a mapping with a key that JSON cannot have, or nesting without end.
    pub fn parse(text: &str) -> Result<Node, YamlError> {
        if let Some(node) = of_line(text) {
            return Ok(node);
        }
        let mut tree = Tree::default();
        let options = options! { emit_comments: false, block_scalar_eof_without_line_feed: true };
        for next in Parser::new_from_str_with_options(text, options) {
            let (event, span) = next.map_err(|error| YamlError {
                line: error.marker().line(),
                column: error.marker().col() + 1,
                message: error.info(),
            })?;
            if tree.event(event, &span)? {
                break;
            }
        }
        Ok(tree.root.unwrap_or(Node { line: 1, value: Value::Null }))
    }

    /// The member of that name, of a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The same as JSON, without lines.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number(number) => number.clone().into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), node.to_json())).collect(),
        }
    }

    /// What kind of value it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(items) => items.iter().map(Node::size).sum(),
            Value::Map(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
            _ => 0,
        }
    }
}

/// One line of JSON, as injectors write it: YAML too, but Envoy's start need not wait for a reader of all that. `None` where the two
/// might be read differently.
fn of_line(text: &str) -> Option<Node> {
    let line = text.trim_ascii_end();
    let is_one = line.starts_with('{') && !line.contains('\n');
    is_one.then(|| of_json(serde_json::from_str(line).ok()?)).flatten()
}

fn of_json(value: serde_json::Value) -> Option<Node> {
    let value = match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::Number(number) => Value::Number(Some(number).filter(|number| !number.is_f64())?),
        serde_json::Value::String(text) => Value::Text(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(of_json).collect::<Option<_>>()?),
        serde_json::Value::Object(entries) => {
            let entry = |(key, value)| Some((key, of_json(value)?));
            Value::Map(entries.into_iter().map(entry).collect::<Option<_>>()?)
        }
    };
    Some(Node { line: 1, value })
}

/// The tree while it grows.
#[derive(Default)]
struct Tree {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

/// A collection whose end has not come yet.
struct Open {
    line: usize,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    /// Entries, the key that waits for its value, and what `<<` brought.
    Map(Vec<(String, Node)>, Option<(Key, usize)>, Vec<(String, Node)>),
}

enum Key {
    Name(String),
    Merge,
}

impl Tree {
    /// Takes the next event; true when the first document is complete.
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<bool, YamlError> {
        let line = span.start.line();
        match event {
            Event::DocumentEnd => return Ok(true),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let value = match tag.as_ref().and_then(|tag| tag.core_suffix()) {
                    Some("str") => Value::Text(text.into_owned()),
                    Some(_) => scalar::resolve(&text),
                    None if plain => scalar::resolve(&text),
                    None => Value::Text(text.into_owned()),
                };
                self.add(Node { line, value }, anchor, plain, span)?;
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, Items::List(Vec::new()), span)?,
            Event::MappingStart(_, anchor, _) => {
                self.begin(line, anchor, Items::Map(Vec::new(), None, Vec::new()), span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let value = match open.items {
                        Items::List(items) => Value::List(items),
                        Items::Map(entries, _, merged) => Value::Map(with_merged(entries, merged)),
                    };
                    self.add(Node { line: open.line, value }, open.anchor, false, span)?;
                }
            }
            Event::Alias(id) => {
                let node = self.anchors.get(&id).cloned();
                let node = node.ok_or_else(|| at(span, "an alias within the value it names"))?;
                self.add(node, 0, false, span)?;
            }
            _ => {}
        }
        Ok(false)
    }

    fn begin(&mut self, line: usize, anchor: usize, items: Items, span: &Span) -> Result<(), YamlError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(at(span, "nested too deeply"));
        }
        self.open.push(Open { line, anchor, items });
        Ok(())
    }

    fn add(&mut self, mut node: Node, anchor: usize, plain: bool, span: &Span) -> Result<(), YamlError> {
        self.nodes += node.size();
        if self.nodes > MAX_NODES {
            return Err(at(span, "too large once its aliases are resolved"));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.items {
            Items::List(items) => items.push(node),
            Items::Map(entries, key, merged) => match key.take() {
                None => *key = Some((key_of(&node, plain).map_err(|message| at(span, message))?, node.line)),
                Some((Key::Merge, _)) => merge_into(merged, node).map_err(|message| at(span, message))?,
                Some((Key::Name(name), line)) => {
                    node.line = line;
                    match entries.iter_mut().find(|(known, _)| *known == name) {
                        Some(entry) => entry.1 = node,
                        None => entries.push((name, node)),
                    }
                }
            },
        }
        Ok(())
    }
}

/// The key as JSON can have it: text; numbers and booleans become text as Istio's converter writes them.
fn key_of(node: &Node, plain: bool) -> Result<Key, &'static str> {
    Ok(Key::Name(match &node.value {
        Value::Text(text) if plain && text == "<<" => return Ok(Key::Merge),
        Value::Text(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        _ => return Err("a key has to be text, a number or a boolean"),
    }))
}

/// What `<<: value` brings: the members of a mapping, or of a list of mappings of which the earlier ones win.
fn merge_into(merged: &mut Vec<(String, Node)>, node: Node) -> Result<(), &'static str> {
    match node.value {
        Value::Map(entries) => {
            let known = std::mem::take(merged);
            *merged = with_merged(known, entries);
            Ok(())
        }
        Value::List(items) => items.into_iter().try_for_each(|item| merge_into(merged, item)),
        _ => Err("a merge key takes a mapping or a list of mappings"),
    }
}

/// `entries` and those of `merged` whose key they lack.
fn with_merged(mut entries: Vec<(String, Node)>, merged: Vec<(String, Node)>) -> Vec<(String, Node)> {
    for (key, node) in merged {
        if !entries.iter().any(|(known, _)| *known == key) {
            entries.push((key, node));
        }
    }
    entries
}

fn at(span: &Span, message: &str) -> YamlError {
    YamlError { line: span.start.line(), column: span.start.col() + 1, message: message.to_owned() }
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for YamlError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> serde_json::Value {
        Node::parse(text).unwrap().to_json()
    }

    #[test]
    fn styles_people_use() {
        let text = "---\n# c\nA:   # trailing\n  B: |\n    two\n    lines\n  F: >-\n    one\n    line\n  'S': 'it''s'\n  \
                    \"D\": \"tab\\tq\\\"\\u00e9\"\n  P: a b c#d http://x:1\nL:\n- a\n- \"b\"\nM: {x: \"1\", 'y': true}\n";
        let want = serde_json::json!({
            "A": {"B": "two\nlines\n", "F": "one line", "S": "it's", "D": "tab\tq\"é", "P": "a b c#d http://x:1"},
            "L": ["a", "b"], "M": {"x": "1", "y": true}
        });
        assert_eq!(json(text), want);
    }

    #[test]
    fn a_block_at_the_end_ends_as_the_document_does() {
        assert_eq!(json("a: |\n  x\n  y"), serde_json::json!({"a": "x\ny"}));
        assert_eq!(json("a: >+\n  x\n"), serde_json::json!({"a": "x\n"}));
    }

    #[test]
    fn json_is_read_too() {
        assert_eq!(
            json("{\"a\": [1, 2.5, null, \"x\\ny\"], \"b\": {}}"),
            serde_json::json!({"a": [1, 2.5, null, "x\ny"], "b": {}})
        );
        assert_eq!(json("{\n\t\"a\": 1,\n\t\"b\": 2\n}"), serde_json::json!({"a": 1, "b": 2}));
    }

    #[test]
    fn a_line_of_json_is_read_as_yaml_is() {
        for text in [
            "{}",
            "{\"a\": {\"b\": [1, -2, \"x\", true, null, {}]}, \"c\": \"\"}\n",
            "{\"yes\":\"no\",\"7\":\"017\",\"<<\":{\"a\":1}} ",
            "{\"a\": \"\\u00e9\\t\\\"\\\\\\/\", \"a\": 18446744073709551615}",
            "{\"a\": 1.0, \"b\": 1e3, \"c\": 18446744073709551616, \"d\": -0}",
            "{a: yes, 'b': 017}",
            "{\"a\": 1} # comment",
            "{\"a\": 1,}",
        ] {
            assert_eq!(json(text), json(&format!("#\n{text}")), "{text}");
        }
        assert!(of_line("{\"a\": [{}, -1]}\n").is_some());
        assert!(Node::parse("{\"a\": ").is_err());
    }

    #[test]
    fn anchors_merge_keys_and_doubled_keys() {
        let text =
            "base: &b {x: 1, w: 2}\nother: &o {w: 3, z: 4}\none:\n  <<: *b\n  w: 9\ntwo:\n  <<: [*b, *o]\nthree: *b\n";
        let value = json(text);
        assert_eq!(value["one"], serde_json::json!({"x": 1, "w": 9}));
        assert_eq!(value["two"], serde_json::json!({"x": 1, "w": 2, "z": 4}));
        assert_eq!(value["three"], serde_json::json!({"x": 1, "w": 2}));
        assert_eq!(json("a: 1\nb: 2\na: 3"), serde_json::json!({"a": 3, "b": 2}));
    }

    #[test]
    fn keys_become_text() {
        assert_eq!(json("yes: 1\n7: 2\n1.5: 3"), serde_json::json!({"true": 1, "7": 2, "1.5": 3}));
        assert!(Node::parse("[1]: 2").is_err());
        assert!(Node::parse("~: 2").is_err());
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(json("a: 1\n---\nb: 2"), serde_json::json!({"a": 1}));
        assert_eq!(json(""), serde_json::Value::Null);
        assert_eq!(json("# nothing\n"), serde_json::Value::Null);
        assert_eq!(json("--- \n"), serde_json::Value::Null);
    }

    #[test]
    fn lines_and_mistakes() {
        let node = Node::parse("a: 1\nb:\n  c: 2\n").unwrap();
        assert_eq!(node.get("b").and_then(|b| b.get("c")).map(|c| c.line), Some(3));
        assert_eq!(node.get("b").map(|b| b.line), Some(2));
        let error = Node::parse("concurrency: 2\n  bad: [1\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
        assert!(Node::parse("a: *unknown").is_err());
        assert!(Node::parse("a: &x [*x]").is_err());
    }

    #[test]
    fn growth_is_bounded() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let list = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        assert!(Node::parse(&bomb).unwrap_err().message.contains("too large"));
        assert!(Node::parse(&"[".repeat(5000)).is_err());
    }
}
