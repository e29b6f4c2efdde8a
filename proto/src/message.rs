//! KubeEdge's message: the model of both dialects and of the requests inside the program
//! (docs/reference/kubeedge.md#messages).
//!
//! The keywords of a route are open sets: a keyword that this version does not know is kept as received, so that the
//! reply can be a refusal that names it.

mod content;
mod id;
mod outcome;
mod path;
mod raw;
mod reply;
#[cfg(test)]
pub(crate) mod strategies;
mod words;

pub(crate) use content::BorrowedText;
pub use content::{Content, ContentError};
pub use id::MessageId;
pub use outcome::{Outcome, StatusDetails, StatusError, is_passing};
pub use path::{ObjectPath, ResourcePath};
pub use raw::FieldError;
pub(crate) use raw::RawMessage;
pub(crate) use words::open_words;
pub use words::{Group, Operation, ResourceType, Source, UnknownKeyword};

/// One message: sender, operation, resource and content.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Identity and version.
    pub header: Header,
    /// From whom, about what.
    pub route: Route,
    /// Content as raw JSON.
    pub content: Content,
}

/// Identity of a message and of the object version in it (docs/reference/kubeedge.md#json-envelope).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// This message.
    pub id: MessageId,
    /// The message that this one answers.
    pub parent: Option<MessageId>,
    /// Creation time, milliseconds since the Unix epoch, by the sender's clock.
    pub timestamp_millis: i64,
    /// `metadata.resourceVersion` of the object in the content; empty without one. Opaque text.
    pub resource_version: String,
    /// The sender waits for the answer inside its own process; never set by KubeEdge peers on the wire.
    pub sync: bool,
    /// In-process context type of the sender; normally empty.
    pub context_type: String,
}

/// Sender and resource of a message (docs/reference/kubeedge.md#json-envelope).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Module that sends the message.
    pub source: Source,
    /// Module that is addressed; no KubeEdge code path sets it.
    pub destination: String,
    /// Group of modules that the message is for.
    pub group: Group,
    /// What is done or requested.
    pub operation: Operation,
    /// The resource of the operation.
    pub resource: ResourcePath,
}

impl Route {
    /// A route without destination.
    #[must_use]
    pub fn new(source: Source, group: Group, operation: Operation, resource: ResourcePath) -> Self {
        Self { source, destination: String::new(), group, operation, resource }
    }
}

impl Message {
    /// A message that answers no other and carries no resource version.
    #[must_use]
    pub fn new(id: MessageId, timestamp_millis: i64, route: Route, content: Content) -> Self {
        let header = Header {
            id,
            parent: None,
            timestamp_millis,
            resource_version: String::new(),
            sync: false,
            context_type: String::new(),
        };
        Self { header, route, content }
    }

    /// The same message with the resource version of the object in its content.
    #[must_use]
    pub fn with_resource_version(mut self, resource_version: &str) -> Self {
        self.header.resource_version = resource_version.to_owned();
        self
    }
}
