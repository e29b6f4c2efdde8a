//! The source of the new state of an update.

use bytes::Bytes;

use crate::backend::{PatchType, WriteRequest};

/// The source of the new state of an update.
pub(super) enum Source<'a> {
    /// The object (or Scale) of a PUT, which is parsed for each attempt.
    Object(Bytes),
    /// A patch of the stored object.
    Patch(PatchType, &'a WriteRequest),
}
