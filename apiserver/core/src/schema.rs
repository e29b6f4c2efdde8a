//! Object types: one compact form for built-in kinds and for custom resources.
//!
//! Built-in types come from the table of facts ([`facts`]); custom types are compiled from the structural schema of a
//! CustomResourceDefinition ([`crd`]). All code that walks an object along its type works on this form: decoding with
//! unknown and duplicate fields ([`decode`]), the zero-value rules of the Go types ([`canonical`]), defaults
//! ([`default`]), value validation ([`check`], [`rules`]), strategic merge patch and server-side apply.

pub(crate) mod canonical;
pub(crate) mod check;
pub(crate) mod correlate;
pub(crate) mod crd;
pub mod decode;
pub(crate) mod default;
pub(crate) mod facts;
pub mod format;
pub(crate) mod judge;
pub(crate) mod node_checks;
pub mod rules;
#[cfg(test)]
mod tests;
pub(crate) mod types;

use std::fmt;
use std::sync::Arc;

pub use self::format::{NotAQuantity, Quantity};
use self::types::{Cursor, NodeId, Types};

/// Maximum nesting depth of an object. It equals serde_json's own limit, so that every parsed object can be walked.
pub const DEPTH_MAX: usize = 128;

/// The type of one kind. Cheap to clone: kinds from one source share their types.
#[derive(Clone)]
pub struct Schema {
    types: Arc<Types>,
    root: NodeId,
}

impl Schema {
    pub(crate) fn new(types: Arc<Types>, root: NodeId) -> Self {
        Self { types, root }
    }

    /// A schema that accepts and keeps everything; server-side apply deduces structure from values.
    #[must_use]
    pub fn any() -> Self {
        let (types, root) = Types::any();
        Self { types: Arc::new(types), root }
    }

    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor::new(&self.types, self.root)
    }

    pub(crate) fn types(&self) -> &Arc<Types> {
        &self.types
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").field("root", &self.root).finish_non_exhaustive()
    }
}
