//! JSON as it is written down. As serde_json's `json!`, but values are moved into the document: that one serializes whatever is put
//! in, level by level, which copies a section once for each level above it.

use serde_json::{Map, Value as Json};

/// `json!({"name": value, "list": [{...}, value]})`; names are literals or constants, values whatever [`Json`] is made `From`.
macro_rules! json {
    ({}) => { serde_json::Value::Object(serde_json::Map::new()) };
    ([]) => { serde_json::Value::Array(Vec::new()) };
    ({ $($members:tt)* }) => {{
        let mut object = serde_json::Map::new();
        $crate::bootstrap::json::members!(object $($members)*);
        serde_json::Value::Object(object)
    }};
    ([ $($elements:tt)* ]) => {
        serde_json::Value::Array($crate::bootstrap::json::elements!([] $($elements)*))
    };
    ($value:expr) => { serde_json::Value::from($value) };
}

/// Takes one member after the other.
macro_rules! members {
    ($object:ident) => {};
    ($object:ident $name:tt : { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::insert(&mut $object, $name, $crate::bootstrap::json::json!({ $($value)* }));
        $($crate::bootstrap::json::members!($object $($rest)*);)?
    };
    ($object:ident $name:tt : [ $($value:tt)* ] $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::insert(&mut $object, $name, $crate::bootstrap::json::json!([ $($value)* ]));
        $($crate::bootstrap::json::members!($object $($rest)*);)?
    };
    ($object:ident $name:tt : $value:expr $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::insert(&mut $object, $name, serde_json::Value::from($value));
        $($crate::bootstrap::json::members!($object $($rest)*);)?
    };
}

/// Takes one element after the other, into the brackets.
macro_rules! elements {
    ([ $($taken:expr,)* ]) => { vec![$($taken),*] };
    ([ $($taken:expr,)* ] { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::elements!([ $($taken,)* $crate::bootstrap::json::json!({ $($value)* }), ] $($($rest)*)?)
    };
    ([ $($taken:expr,)* ] $value:expr $(, $($rest:tt)*)?) => {
        $crate::bootstrap::json::elements!([ $($taken,)* serde_json::Value::from($value), ] $($($rest)*)?)
    };
}

pub(super) use {elements, json, members};

/// Adds a member.
pub(super) fn insert(object: &mut Map<String, Json>, name: &str, value: Json) {
    object.insert(name.to_owned(), value);
}
