//! The OpenAPI 2.0 (Swagger) document under `/openapi/v2`, as JSON and as protobuf.
//!
//! It consists of parts: one for all built-in kinds and one for each custom kind in each version. A part is generated
//! when the document is first requested, and kept with its kind, so that a changed definition regenerates only its own
//! parts.

mod protobuf;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::descriptions::Descriptions;
use super::dialect::Dialect;
use super::type_names::schema_name;
use super::{hex_upper, info, operations, schemas};
use crate::kinds::part::Part;
use crate::kinds::{KindInfo, Kinds};
use crate::value::to_bytes;

/// The offered media types, and whether each is protobuf. Clients request the second one; answers are labelled with the
/// third.
pub(crate) const OFFERED: [(&str, bool); 3] = [
    ("application/json", false),
    ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", true),
    (PROTOBUF, true),
];

/// Media type of a protobuf answer.
pub(crate) const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

impl Part {
    fn builtin(kinds: &Kinds) -> Self {
        let builtin = || kinds.iter().filter(|kind| !kind.custom);
        let mut paths = Map::new();
        builtin().for_each(|kind| operations::add(kind, Dialect::V2, &mut paths));
        Self::new(&paths, schemas::schemas(kinds, builtin(), Dialect::V2).iter())
    }

    fn custom(kind: &KindInfo) -> Self {
        let mut paths = Map::new();
        operations::add(kind, Dialect::V2, &mut paths);
        let definition = schemas::custom(kind, Dialect::V2, &Descriptions::default()).unwrap_or_default();
        Self::new(&paths, std::iter::once((&schema_name(kind), &definition)))
    }

    fn new<'b>(
        paths: &Map<String, Value>,
        definitions: impl Iterator<Item = (&'b String, &'b Value)>,
    ) -> Self {
        let (paths, definitions) = (members(paths.iter()), members(definitions));
        let hash =
            Sha256::new().chain_update(&paths).chain_update(b"\0").chain_update(&definitions).finalize();
        Self { paths, definitions, hash: hash.into(), protobuf: OnceLock::new() }
    }

    fn protobuf(&self) -> Bytes {
        let make = || {
            let read = |members: &Bytes| {
                let text = [b"{", members.as_ref(), b"}"].concat();
                serde_json::from_slice(&text).unwrap_or(Value::Null)
            };
            protobuf::document(&json!({"paths": read(&self.paths), "definitions": read(&self.definitions)}))
        };
        self.protobuf.get_or_init(make).clone()
    }
}

/// The document of one set of kinds.
pub(crate) struct Document<'a>(Vec<&'a Part>);

impl<'a> Document<'a> {
    /// Collects the parts, and generates the missing ones.
    pub(crate) fn of(kinds: &'a Kinds) -> Self {
        let builtin = kinds.swagger().get_or_init(|| Part::builtin(kinds));
        let custom = kinds.iter().filter_map(|kind| {
            let slot = &kind.definition()?.swagger;
            Some(slot.get_or_init(|| Part::custom(kind)))
        });
        Self(std::iter::once(builtin).chain(custom).collect())
    }

    /// Changes when the document does.
    pub(crate) fn hash(&self) -> String {
        let whole = self.0.iter().fold(Sha256::new(), |hasher, part| hasher.chain_update(part.hash));
        hex_upper(&whole.finalize())
    }

    /// The JSON text, in pieces.
    pub(crate) fn json(&self) -> Vec<Bytes> {
        let mut head = to_bytes(&head()).to_vec();
        head.pop();
        head.extend_from_slice(b",\"paths\":{");
        let mut pieces = vec![Bytes::from(head)];
        join(self.0.iter().map(|part| &part.paths), &mut pieces);
        pieces.push(Bytes::from_static(b"},\"definitions\":{"));
        join(self.0.iter().map(|part| &part.definitions), &mut pieces);
        pieces.push(Bytes::from_static(b"}}"));
        pieces
    }

    /// The protobuf message, in pieces: a message that is cut between its fields is the concatenation of its pieces,
    /// and repeated members are merged.
    pub(crate) fn protobuf(&self) -> Vec<Bytes> {
        let parts = self.0.iter().map(|part| part.protobuf());
        std::iter::once(protobuf::document(&head())).chain(parts).collect()
    }
}

fn head() -> Value {
    json!({"swagger": "2.0", "info": info()})
}

fn join<'b>(parts: impl Iterator<Item = &'b Bytes>, pieces: &mut Vec<Bytes>) {
    for (index, part) in parts.filter(|part| !part.is_empty()).enumerate() {
        if index > 0 {
            pieces.push(Bytes::from_static(b","));
        }
        pieces.push(part.clone());
    }
}

/// The members of a JSON object without its braces.
fn members<'b>(map: impl Iterator<Item = (&'b String, &'b Value)>) -> Bytes {
    let mut text = Vec::new();
    for (key, value) in map {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(&to_bytes(&Value::from(key.as_str())));
        text.push(b':');
        text.extend_from_slice(&to_bytes(value));
    }
    text.into()
}
