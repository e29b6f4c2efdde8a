//! What a kind keeps of the documents that are made of it.

use std::sync::OnceLock;

use bytes::Bytes;

/// The part of the document that some kinds make.
#[derive(Debug)]
pub(crate) struct Part {
    /// Members of `paths`, without braces.
    pub(crate) paths: Bytes,
    /// Members of `definitions`, without braces.
    pub(crate) definitions: Bytes,
    pub(crate) hash: [u8; 32],
    pub(crate) protobuf: OnceLock<Bytes>,
}

/// A part that is made when it is first asked for.
pub(crate) type LazyPart = OnceLock<Part>;
