//! Distinguished names as text (RFC 4514): what logs and /debug/certs show. Pure.
//!
//! x509-cert could print them too, but brings a table of some nine hundred object identifiers along for it.

use std::fmt::{self, Display, Write};

use der::{Encode, Tag, Tagged, asn1::ObjectIdentifier};
use x509_cert::{attr::AttributeTypeAndValue, name::Name};

/// The attribute types with a short name in RFC 4514 §3, and the one of e-mail addresses that old authorities use.
const SHORT: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("1.2.840.113549.1.9.1", "EMAIL"),
];

/// A name, printed from its last part to its first as RFC 4514 §2.1 wants it.
pub(super) struct Distinguished<'a>(pub &'a Name);

impl Display for Distinguished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter_rdn().collect();
        for (index, part) in parts.into_iter().rev().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            for (index, attribute) in part.iter().enumerate() {
                if index > 0 {
                    f.write_char('+')?;
                }
                attribute_text(attribute, f)?;
            }
        }
        Ok(())
    }
}

fn attribute_text(attribute: &AttributeTypeAndValue, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_text =
        matches!(attribute.value.tag(), Tag::PrintableString | Tag::Utf8String | Tag::Ia5String | Tag::TeletexString);
    let text = std::str::from_utf8(attribute.value.value()).ok().filter(|_| is_text);
    match (short_name(attribute.oid), text) {
        (Some(name), Some(text)) => {
            write!(f, "{name}=")?;
            escaped(text, f)
        }
        _ => {
            write!(f, "{}=#", attribute.oid)?;
            let value = attribute.value.to_der().map_err(|_| fmt::Error)?;
            value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
}

fn short_name(oid: ObjectIdentifier) -> Option<&'static str> {
    SHORT
        .iter()
        .find(|(dotted, _)| ObjectIdentifier::new(dotted).is_ok_and(|known| known == oid))
        .map(|(_, name)| *name)
}

/// RFC 4514 §2.4.
fn escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, c) in text.char_indices() {
        let is_end = index == 0 || index + c.len_utf8() == text.len();
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => write!(f, "\\{c}")?,
            '#' if index == 0 => f.write_str("\\#")?,
            ' ' if is_end => f.write_str("\\ ")?,
            '\0'..='\x1f' | '\x7f' => write!(f, "\\{:02x}", u32::from(c))?,
            _ => f.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    #[test]
    fn prints_as_rfc_4514() {
        assert_eq!(Distinguished(&Name::default()).to_string(), "");
        for text in ["CN=istiod", "CN=a\\,b,OU=x+L=y,O=cluster.local,C=DE", "CN=\\ a #\\ ", "1.2.3.4=#0c0161"] {
            let name = Name::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(Distinguished(&name).to_string().replace("L=y+OU=x", "OU=x+L=y"), text);
        }
    }
}
