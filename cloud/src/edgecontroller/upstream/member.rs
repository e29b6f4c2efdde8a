//! Reads and sets single members of an object in its text. The author of the text decides how many members there are,
//! and in a map each would take many times its text.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tombolo_apicore::raw::{span, splice};

/// The member of this name in the text of an object, as it was written; the others are skipped.
///
/// # Errors
/// The text is not an object, or the name occurs twice: readers would not agree which one counts.
pub(super) fn member<'t>(text: &'t [u8], name: &str) -> serde_json::Result<Option<&'t RawValue>> {
    struct WantedMember<'n>(&'n str);
    impl<'de> Visitor<'de> for WantedMember<'_> {
        type Value = Option<&'de RawValue>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(MemberName(name)) = members.next_key::<MemberName<'de>>()? {
                if name != self.0 {
                    members.next_value::<IgnoredAny>()?;
                } else if found.replace(members.next_value()?).is_some() {
                    return Err(A::Error::custom(format_args!("duplicate member {:?}", self.0)));
                }
            }
            Ok(found)
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let found = reader.deserialize_map(WantedMember(name))?;
    reader.end()?;
    Ok(found)
}

/// A name, copied only if it contains escapes.
#[derive(serde::Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of an object with a member set at this path. It replaces the existing member, which is returned, or is
/// inserted before all others of its object. Missing or null objects on the path are created.
///
/// # Errors
/// As [`member`], for each object on the path.
pub(super) fn with_member<'t>(
    text: &'t [u8],
    path: &[&str],
    value: &str,
) -> serde_json::Result<(Bytes, Option<&'t RawValue>)> {
    let mut object = 0..text.len();
    for (name, rest) in path.iter().zip((1..).map(|next| &path[next..])) {
        let Some(found) = member(&text[object.clone()], name)? else {
            let is_space = |byte: &&u8| byte.is_ascii_whitespace();
            let start = object.start + text[object].iter().take_while(is_space).count() + 1;
            let is_empty = text[start..].iter().find(|byte| !is_space(byte)) == Some(&b'}');
            let (member, comma) = (named(name, &within(rest, value)?)?, if is_empty { "" } else { "," });
            return Ok((splice(text, start..start, &format!("{member}{comma}")), None));
        };
        object = span(text, found);
        if rest.is_empty() || found.get() == "null" {
            return Ok((splice(text, object, &within(rest, value)?), rest.is_empty().then_some(found)));
        }
    }
    Ok((splice(text, object, value), None))
}

/// A value wrapped in objects for a path that does not exist yet.
fn within(path: &[&str], value: &str) -> serde_json::Result<String> {
    path.iter().rev().try_fold(value.to_owned(), |value, name| Ok(format!("{{{}}}", named(name, &value)?)))
}

fn named(name: &str, value: &str) -> serde_json::Result<String> {
    Ok(format!("{}:{value}", serde_json::to_string(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_is_replaced_in_place() {
        let text = r#" { "a" : [1.50], "b\u0063":{"a":2} }"#;
        let found = |name: &str| member(text.as_bytes(), name).expect("an object").map(RawValue::get);
        assert_eq!((found("a"), found("bc"), found("c")), (Some("[1.50]"), Some(r#"{"a":2}"#), None));
        let with = |text: &'static str, path: &[&str]| {
            let (changed, before) = with_member(text.as_bytes(), path, "7").expect("an object");
            (String::from_utf8(changed.to_vec()).expect("a text"), before.map(RawValue::get))
        };
        for (path, changed, before) in [
            (&["a"][..], r#" { "a" : 7, "b\u0063":{"a":2} }"#, Some("[1.50]")),
            (&["bc"], r#" { "a" : [1.50], "b\u0063":7 }"#, Some(r#"{"a":2}"#)),
            (&["bc", "a"], r#" { "a" : [1.50], "b\u0063":{"a":7} }"#, Some("2")),
            (&["bc", "d", "e"], r#" { "a" : [1.50], "b\u0063":{"d":{"e":7},"a":2} }"#, None),
            (&["\""], r#" {"\"":7, "a" : [1.50], "b\u0063":{"a":2} }"#, None),
        ] {
            assert_eq!(with(text, path), (changed.to_owned(), before), "{path:?}");
        }
        assert_eq!(with(" { } ", &["a"]), (r#" {"a":7 } "#.to_owned(), None));
        assert_eq!(with(r#"{"a":null}"#, &["a", "b"]), (r#"{"a":{"b":7}}"#.to_owned(), None));
        assert_eq!(with(r#"{"a":null}"#, &["a"]), (r#"{"a":7}"#.to_owned(), Some("null")));
        with_member(text.as_bytes(), &["a", "b"], "7").expect_err("a list");
    }

    #[test]
    fn non_objects_and_duplicate_members_are_refused() {
        for text in ["", "null", "[]", "7", r#"{"a":1}}"#, r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#] {
            assert!(member(text.as_bytes(), "a").is_err(), "{text}");
            assert!(with_member(text.as_bytes(), &["a"], "7").is_err(), "{text}");
        }
    }
}
