//! The envelope with member names in any case, which serde's derive cannot read.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::{BorrowedText, RawMessage};

/// A document before its fields are checked.
#[derive(Default)]
pub(super) struct Envelope<'a> {
    pub(super) raw: RawMessage<'a>,
    pub(super) content: Option<&'a RawValue>,
}

/// Reads an object whose members are visited by name, whatever their case; `null` is an object without members.
trait Members<'de>: Sized {
    const NAMES: &'static [&'static str];

    /// Takes the value of the member `NAMES[index]`.
    fn member<A: MapAccess<'de>>(&mut self, index: usize, map: &mut A) -> Result<(), A::Error>;
}

const HEADER: usize = 0;
const ROUTE: usize = 1;

impl<'de> Members<'de> for Envelope<'de> {
    const NAMES: &'static [&'static str] = &["header", "route", "content"];

    fn member<A: MapAccess<'de>>(&mut self, index: usize, map: &mut A) -> Result<(), A::Error> {
        match index {
            HEADER => map.next_value_seed(MembersSeed(&mut Header(&mut self.raw))),
            ROUTE => map.next_value_seed(MembersSeed(&mut Route(&mut self.raw))),
            _ => {
                self.content = Some(map.next_value()?);
                Ok(())
            }
        }
    }
}

struct Header<'a, 'de>(&'a mut RawMessage<'de>);

impl<'de> Members<'de> for Header<'_, 'de> {
    const NAMES: &'static [&'static str] =
        &["msg_id", "parent_msg_id", "timestamp", "resourceversion", "sync", "type"];

    fn member<A: MapAccess<'de>>(&mut self, index: usize, map: &mut A) -> Result<(), A::Error> {
        match index {
            0 => set_text(&mut self.0.id, map),
            1 => set_text(&mut self.0.parent, map),
            2 => set(&mut self.0.timestamp_millis, map),
            3 => set_text(&mut self.0.resource_version, map),
            4 => set(&mut self.0.sync, map),
            _ => set_text(&mut self.0.context_type, map),
        }
    }
}

struct Route<'a, 'de>(&'a mut RawMessage<'de>);

impl<'de> Members<'de> for Route<'_, 'de> {
    const NAMES: &'static [&'static str] = &["source", "destination", "group", "operation", "resource"];

    fn member<A: MapAccess<'de>>(&mut self, index: usize, map: &mut A) -> Result<(), A::Error> {
        match index {
            0 => set_text(&mut self.0.source, map),
            1 => set_text(&mut self.0.destination, map),
            2 => set_text(&mut self.0.group, map),
            3 => set_text(&mut self.0.operation, map),
            _ => set_text(&mut self.0.resource, map),
        }
    }
}

/// `null` leaves the value that an earlier member of the same name set, as in Go.
fn set<'de, T: Deserialize<'de>, A: MapAccess<'de>>(field: &mut T, map: &mut A) -> Result<(), A::Error> {
    if let Some(value) = map.next_value::<Option<T>>()? {
        *field = value;
    }
    Ok(())
}

/// The same for a text, which is copied only when it has escapes.
fn set_text<'de, A: MapAccess<'de>>(field: &mut Cow<'de, str>, map: &mut A) -> Result<(), A::Error> {
    if let Some(BorrowedText(text)) = map.next_value()? {
        *field = text;
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Envelope<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut envelope = Self::default();
        MembersSeed(&mut envelope).deserialize(deserializer)?;
        Ok(envelope)
    }
}

struct MembersSeed<'a, T>(&'a mut T);

impl<'de, T: Members<'de>> DeserializeSeed<'de> for MembersSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Members<'de>> Visitor<'de> for MembersSeed<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the members {}", T::NAMES.join(", "))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(known) = map.next_key_seed(MemberNameSeed(T::NAMES))? {
            match known {
                Some(index) => self.0.member(index, &mut map)?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Finds a member name in a list without keeping the text.
struct MemberNameSeed(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for MemberNameSeed {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for MemberNameSeed {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|known| known.eq_ignore_ascii_case(name)))
    }
}
