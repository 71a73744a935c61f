//! JSON that is made to be written down: members in the order in which they are added, names and texts borrowed where they can be.
//!
//! serde_json's `Value` copies, sorts and frees every name, and its printer writes piece by piece: both together took a third of the
//! time until Envoy's start. Values that came as JSON stay serde_json's.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// A value to be written.
#[derive(Debug, Clone)]
pub(super) enum Json<'a> {
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Object<'a>),
    /// Numbers, booleans, and what came as JSON.
    Value(Cow<'a, Value>),
}

/// Members of an object, each name once.
#[derive(Debug, Clone, Default)]
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

/// `json!({"name": value, "list": [{...}, value]})`; names are different literals or constants, values whatever [`Json`] is made
/// `From`.
macro_rules! json {
    ({ $($members:tt)* }) => {
        $crate::bootstrap::json::Json::Object($crate::bootstrap::json::Object::new($crate::bootstrap::json::members!([] $($members)*)))
    };
    ([ $($elements:tt)* ]) => {
        $crate::bootstrap::json::Json::List($crate::bootstrap::json::elements!([] $($elements)*))
    };
    ($value:expr) => { $crate::bootstrap::json::Json::from($value) };
}

/// Takes one member after the other, into the brackets.
macro_rules! members {
    ([ $($taken:expr,)* ]) => { vec![$($taken),*] };
    ([ $($taken:expr,)* ] $name:tt : { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::members!(
            [ $($taken,)* (std::borrow::Cow::from($name), $crate::bootstrap::json::json!({ $($value)* })), ] $($($rest)*)?)
    };
    ([ $($taken:expr,)* ] $name:tt : [ $($value:tt)* ] $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::members!(
            [ $($taken,)* (std::borrow::Cow::from($name), $crate::bootstrap::json::json!([ $($value)* ])), ] $($($rest)*)?)
    };
    ([ $($taken:expr,)* ] $name:tt : $value:expr $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::members!(
            [ $($taken,)* (std::borrow::Cow::from($name), $crate::bootstrap::json::Json::from($value)), ] $($($rest)*)?)
    };
}

/// Takes one element after the other, into the brackets.
macro_rules! elements {
    ([ $($taken:expr,)* ]) => { vec![$($taken),*] };
    ([ $($taken:expr,)* ] { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::elements!([ $($taken,)* $crate::bootstrap::json::json!({ $($value)* }), ] $($($rest)*)?)
    };
    ([ $($taken:expr,)* ] $value:expr $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::elements!([ $($taken,)* $crate::bootstrap::json::Json::from($value), ] $($($rest)*)?)
    };
}

pub(super) use {elements, json, members};

impl<'a> Object<'a> {
    /// Of members that all have different names.
    pub(super) fn new(members: Vec<(Cow<'a, str>, Json<'a>)>) -> Object<'a> {
        Object(members)
    }

    /// Adds a member, or gives the one of that name another value.
    pub(super) fn insert(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Json<'a>>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Json<'a>)> for Object<'a> {
    /// As [`Object::new`].
    fn from_iter<T: IntoIterator<Item = (Cow<'a, str>, Json<'a>)>>(members: T) -> Self {
        Object::new(members.into_iter().collect())
    }
}

impl<'a> Json<'a> {
    /// Adds a member, where this is an object.
    pub(super) fn insert(&mut self, name: &'static str, value: impl Into<Json<'a>>) {
        if let Json::Object(object) = self {
            object.insert(name, value);
        }
    }

    /// Takes a member away, where this is an object.
    pub(super) fn remove(&mut self, name: &str) {
        if let Json::Object(object) = self {
            object.remove(name);
        }
    }

    /// The text of all of it, without any blanks.
    pub(super) fn compact(&self) -> Vec<u8> {
        self.printed(None)
    }

    /// The text of all of it, for people: a line for each member and element.
    pub(super) fn pretty(&self) -> Vec<u8> {
        self.printed(Some(0))
    }

    fn printed(&self, depth: Option<usize>) -> Vec<u8> {
        let mut printer = Printer { out: Vec::with_capacity(ROOM), depth };
        printer.json(self);
        printer.out
    }
}

/// A bootstrap fits in.
const ROOM: usize = 12 * 1024;

struct Printer {
    out: Vec<u8>,
    /// How far lines are indented; `None` for no lines.
    depth: Option<usize>,
}

impl Printer {
    fn json(&mut self, json: &Json<'_>) {
        match json {
            Json::Text(text) => self.text(text),
            Json::List(list) => self.items(b"[]", list.iter(), Printer::json),
            Json::Object(Object(members)) => self.items(b"{}", members.iter(), |printer, (name, value)| {
                printer.name(name);
                printer.json(value);
            }),
            Json::Value(value) => self.value(value),
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(list) => self.items(b"[]", list.iter(), Printer::value),
            Value::Object(members) => self.items(b"{}", members.iter(), |printer, (name, value)| {
                printer.name(name);
                printer.value(value);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => self.out.extend_from_slice(value.to_string().as_bytes()),
        }
    }

    fn items<T>(&mut self, ends: &[u8; 2], items: impl Iterator<Item = T>, each: impl Fn(&mut Printer, T)) {
        let outer = self.depth;
        self.out.push(ends[0]);
        let mut is_empty = true;
        for item in items {
            if !std::mem::take(&mut is_empty) {
                self.out.push(b',');
            }
            self.depth = outer.map(|depth| depth + 1);
            self.line();
            each(self, item);
        }
        self.depth = outer;
        if !is_empty {
            self.line();
        }
        self.out.push(ends[1]);
    }

    fn line(&mut self) {
        if let Some(depth) = self.depth {
            self.out.push(b'\n');
            self.out.resize(self.out.len() + 2 * depth, b' ');
        }
    }

    fn name(&mut self, name: &str) {
        self.text(name);
        self.out.extend_from_slice(if self.depth.is_some() { b": " } else { b":" });
    }

    /// In quotes, with what RFC 8259 wants escaped.
    fn text(&mut self, text: &str) {
        self.out.push(b'"');
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|byte| *byte < b' ' || *byte == b'"' || *byte == b'\\') {
            self.out.extend_from_slice(&rest[..at]);
            match rest[at] {
                byte @ (b'"' | b'\\') => self.out.extend_from_slice(&[b'\\', byte]),
                byte => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            }
            rest = &rest[at + 1..];
        }
        self.out.extend_from_slice(rest);
        self.out.push(b'"');
    }
}

/// For whoever looks into it rather than writes it.
impl From<Json<'_>> for Value {
    fn from(json: Json<'_>) -> Value {
        match json {
            Json::Text(text) => Value::String(text.into_owned()),
            Json::List(list) => Value::Array(list.into_iter().map(Value::from).collect()),
            Json::Object(Object(members)) => {
                members.into_iter().map(|(name, value)| (name.into_owned(), Value::from(value))).collect()
            }
            Json::Value(value) => value.into_owned(),
        }
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Self {
        Json::Text(text.into())
    }
}

impl From<String> for Json<'_> {
    fn from(text: String) -> Self {
        Json::Text(text.into())
    }
}

impl<'a> From<Vec<Json<'a>>> for Json<'a> {
    fn from(list: Vec<Json<'a>>) -> Self {
        Json::List(list)
    }
}

impl<'a> From<&[&'a str]> for Json<'a> {
    fn from(list: &[&'a str]) -> Self {
        Json::List(list.iter().map(|text| Json::from(*text)).collect())
    }
}

impl<'a> From<Object<'a>> for Json<'a> {
    fn from(object: Object<'a>) -> Self {
        Json::Object(object)
    }
}

impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Self {
        Json::Value(Cow::Borrowed(value))
    }
}

impl<'a> From<&'a Map<String, Value>> for Json<'a> {
    fn from(members: &'a Map<String, Value>) -> Self {
        Json::Object(members.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

macro_rules! scalars {
    ($($kind:ty)*) => {$(
        impl From<$kind> for Json<'_> {
            fn from(value: $kind) -> Self {
                Json::Value(Cow::Owned(value.into()))
            }
        }
    )*};
}

scalars! { bool i32 i64 u16 u32 u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_that_of_serde_json() {
        let awkward = "q\" b\\ t\t n\n nul\0 del\u{7f} é 😀 \u{2028} </script>";
        let quoted = "q\" b\\ é 😀 \u{2028} </script>";
        let foreign: Value = serde_json::json!({
            "a": [], "b": {}, "c": [1, -2, 0.5, 1e300, u64::MAX, null, true], quoted: [{quoted: quoted}]
        });
        let members = foreign.as_object().unwrap().clone();
        let mut json = json!({
            "none": {}, "nothing": [], "list": [{"a": awkward}, json!([1, awkward.to_owned()]), "b", 1_u16], "yes": true, "foreign": &foreign,
            "members": &members, "more": vec![json!(7_i64), json!(&["x", "y"][..])], "last": 1
        });
        json.insert("last", "other");
        json.insert("added", awkward);
        let value = Value::from(json.clone());
        assert_eq!(value["last"], "other");
        assert_eq!(value["list"][1][1], awkward);
        assert_eq!(serde_json::from_slice::<Value>(&json.compact()).unwrap(), value);
        assert_eq!(serde_json::from_slice::<Value>(&json.pretty()).unwrap(), value);
        // Where the order is the same, so is every byte.
        let json = Json::from(&foreign);
        assert_eq!(String::from_utf8(json.compact()).unwrap(), foreign.to_string());
        assert_eq!(String::from_utf8(json.pretty()).unwrap(), format!("{foreign:#}"));
    }

    #[test]
    fn a_name_is_there_once() {
        let mut object = Object::default();
        assert!(object.is_empty());
        object.insert("a", 1);
        object.insert(String::from("b"), 2);
        object.insert("a", 3);
        object.remove("c");
        assert_eq!(Value::from(Json::from(object.clone())), serde_json::json!({"a": 3, "b": 2}));
        object.remove("a");
        assert_eq!(Json::from(object).compact(), br#"{"b":2}"#);
        let mut list = json!([]);
        list.insert("a", 1);
        assert_eq!(list.compact(), b"[]");
    }
}
