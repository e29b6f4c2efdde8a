//! The parts of OpenAPI documents that a kind keeps.

use std::sync::OnceLock;

use bytes::Bytes;

/// The part of a document for some kinds.
#[derive(Debug)]
pub(crate) struct Part {
    /// Members of `paths`, without braces.
    pub(crate) paths: Bytes,
    /// Members of `definitions`, without braces.
    pub(crate) definitions: Bytes,
    pub(crate) hash: [u8; 32],
    pub(crate) protobuf: OnceLock<Bytes>,
}

/// A part that is built on first use.
pub(crate) type LazyPart = OnceLock<Part>;
