//! A message as texts, before its fields are checked: the common intermediate form of both codecs.

use std::borrow::Cow;

use thiserror::Error;

use super::{Content, Group, Header, Message, MessageId, Operation, ResourcePath, Route, Source};
use crate::error::IdError;
use crate::limits;

/// A field of a message's header or route that breaks its rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldError {
    /// The text is too long.
    #[error("{field} of {size} bytes exceeds the limit of {max} bytes")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Bytes received.
        size: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// An identity or a path breaks its grammar, or is missing.
    #[error("{field}: {source}")]
    Id {
        /// Which field.
        field: &'static str,
        /// The broken rule.
        source: IdError,
    },
}

/// Header and route as texts, which may borrow the received bytes: most of them become keywords or ids and need no
/// copy.
#[derive(Debug, Default)]
pub(crate) struct RawMessage<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) parent: Cow<'a, str>,
    pub(crate) timestamp_millis: i64,
    pub(crate) resource_version: Cow<'a, str>,
    pub(crate) sync: bool,
    pub(crate) context_type: Cow<'a, str>,
    pub(crate) source: Cow<'a, str>,
    pub(crate) destination: Cow<'a, str>,
    pub(crate) group: Cow<'a, str>,
    pub(crate) operation: Cow<'a, str>,
    pub(crate) resource: Cow<'a, str>,
}

impl RawMessage<'_> {
    /// Checks every field, in the order of the envelope.
    pub(crate) fn check(self, content: Content) -> Result<Message, FieldError> {
        let parent = match &*self.parent {
            "" => None,
            text => Some(id("header.parent_msg_id", MessageId::parse(text))?),
        };
        Ok(Message {
            header: Header {
                id: id("header.msg_id", MessageId::parse(&self.id))?,
                parent,
                timestamp_millis: self.timestamp_millis,
                resource_version: short("header.resourceversion", &self.resource_version)?.to_owned(),
                sync: self.sync,
                context_type: short("header.type", &self.context_type)?.to_owned(),
            },
            route: Route {
                source: Source::parse(short("route.source", &self.source)?),
                destination: short("route.destination", &self.destination)?.to_owned(),
                group: Group::parse(short("route.group", &self.group)?),
                operation: Operation::parse(short("route.operation", &self.operation)?),
                resource: id("route.resource", ResourcePath::parse_wire(&self.resource))?,
            },
            content,
        })
    }
}

fn id<T>(field: &'static str, parsed: Result<T, IdError>) -> Result<T, FieldError> {
    parsed.map_err(|source| FieldError::Id { field, source })
}

fn short<'a>(field: &'static str, text: &'a str) -> Result<&'a str, FieldError> {
    let (size, max) = (text.len(), limits::WORD_LEN_MAX);
    if size > max {
        return Err(FieldError::TooLong { field, size, max });
    }
    Ok(text)
}
