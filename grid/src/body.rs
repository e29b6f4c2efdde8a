//! JSON text of objects: reads the few relevant members, and changes parts of the text in place.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// A body that is not an object, or in which a relevant member has a wrong type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the object cannot be read: {0}")]
pub struct BodyError(String);

impl From<serde_json::Error> for BodyError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// The relevant parts of any object's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ObjectMetadata {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    /// Labels.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

impl ObjectMetadata {
    /// Reads the metadata of an object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not an object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Object {
            metadata: ObjectMetadata,
        }
        Ok(view::<Object>(body)?.metadata)
    }
}

/// Reads a view of an object.
pub(crate) fn view<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BodyError> {
    // A JSON array would also deserialize, as the members in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(BodyError("it is not a JSON object".to_owned()));
    }
    Ok(serde_json::from_slice(body)?)
}

/// A member for which absence and null mean the same, as in Go.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// An array of at most `MAX` items; null is an empty array.
pub(crate) fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Items<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {MAX} items")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Items::<T, MAX>(PhantomData))
}

/// A member that is present, even when it is null.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A member of an object, read without the other members. None when it is null or missing; of equal names the last one
/// counts.
pub(crate) fn member<'a, T: Deserialize<'a>>(
    object: &'a RawValue,
    name: &str,
) -> Result<Option<T>, BodyError> {
    struct MemberNamed<'n, T>(&'n str, PhantomData<T>);
    impl<'a, T: Deserialize<'a>> Visitor<'a> for MemberNamed<'_, T> {
        type Value = Option<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(name) = members.next_key::<String>()? {
                match name == self.0 {
                    true => found = members.next_value()?,
                    false => drop(members.next_value::<IgnoredAny>()?),
                }
            }
            Ok(found)
        }
    }
    Ok(serde_json::Deserializer::from_str(object.get()).deserialize_map(MemberNamed(name, PhantomData))?)
}

/// Whether an array of texts contains a text.
pub(crate) fn has(array: &RawValue, text: &str) -> Result<bool, BodyError> {
    struct Searched<'n>(&'n str);
    impl<'a> Visitor<'a> for Searched<'_> {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of strings")
        }
        fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<bool, A::Error> {
            let mut found = false;
            while let Some(item) = items.next_element::<String>()? {
                found |= item == self.0;
            }
            Ok(found)
        }
    }
    Ok(serde_json::Deserializer::from_str(array.get()).deserialize_seq(Searched(text))?)
}

/// Changes of a text that are applied together.
pub(crate) struct Edits<'a> {
    text: &'a [u8],
    edits: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, edits: Vec::new() }
    }

    /// Replaces a part that was borrowed from the text.
    pub(crate) fn replace(&mut self, part: &RawValue, by: String) {
        let start = (part.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.edits.push((start..start + part.get().len(), by));
    }

    /// Replaces the value of a member of the object, or adds the member.
    pub(crate) fn put(&mut self, name: &str, old: Option<&RawValue>, value: String) {
        if let Some(old) = old {
            return self.replace(old, value);
        }
        // The object has metadata, so another member precedes this one.
        let end = self.text.iter().rposition(|byte| *byte == b'}').unwrap_or(self.text.len());
        self.edits.push((end..end, format!(",\"{name}\":{value}")));
    }

    /// The text itself when there are no changes, otherwise with all changes applied.
    pub(crate) fn apply_any(self) -> Cow<'a, [u8]> {
        if self.edits.is_empty() { Cow::Borrowed(self.text) } else { Cow::Owned(self.apply()) }
    }

    /// The text with all changes applied.
    pub(crate) fn apply(mut self) -> Vec<u8> {
        self.edits.sort_by_key(|(range, _)| range.start);
        let mut out = Vec::with_capacity(self.text.len());
        let mut taken = 0;
        for (range, by) in &self.edits {
            out.extend_from_slice(self.text.get(taken..range.start).unwrap_or_default());
            out.extend_from_slice(by.as_bytes());
            taken = range.end;
        }
        out.extend_from_slice(self.text.get(taken..).unwrap_or_default());
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::{ObjectMetadata, has, member};

    #[test]
    fn member_and_text_are_found_without_parsing_the_rest() {
        let text = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let object = text(r#"{"a":"x","b":{"c":[1]},"\u0064":"y","n":null,"a":"z"}"#);
        let found = |name: &str| member::<String>(&object, name);
        assert_eq!(found("a"), Ok(Some("z".to_owned())));
        assert_eq!(found("d"), Ok(Some("y".to_owned())));
        assert_eq!([found("n"), found("other")], [Ok(None), Ok(None)]);
        assert!(found("b").is_err());
        assert!(member::<String>(&text(r#"["a"]"#), "a").is_err());
        let array = text(r#"["a","\u0062"]"#);
        assert_eq!(["a", "b", "c"].map(|one| has(&array, one).unwrap()), [true, true, false]);
        assert!(has(&text(r#"["a",1]"#), "a").is_err() && has(&text("{}"), "a").is_err());
    }

    #[test]
    fn metadata_treats_null_as_absent_and_refuses_non_objects() {
        let read = |text: &str| ObjectMetadata::of(text.as_bytes());
        let metadata =
            read(r#"{"metadata":{"name":"a","labels":null,"annotations":{"k":"v"},"uid":"u"}}"#).unwrap();
        assert_eq!((metadata.name.as_str(), metadata.labels.len()), ("a", 0));
        assert_eq!(metadata.annotations["k"], "v");
        for text in ["", "null", "[]", "{}", r#"[{"name":"a"}]"#, r#"{"metadata":{"labels":{"a":1}}}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
