//! The admission hook: it sees every object before it is stored, can complete it, and can refuse it.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::auth::Attributes;
use crate::kinds::KindInfo;
use crate::status::ApiError;

/// The operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change of an object, also through a subresource.
    Update,
    /// A deletion request. The hook is called at every attempt, with the object as it is then, and not when the
    /// finalizers are done.
    Delete,
}

/// One object on its way into the store.
#[derive(Debug)]
pub struct AdmissionRequest<'a> {
    /// Who requests what; `attributes.subresource` tells `status` from the object itself.
    pub attributes: &'a Attributes,
    /// The operation.
    pub operation: Operation,
    /// The kind of the object.
    pub kind: &'a Arc<KindInfo>,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// The object to be stored, which the hook may change; `None` for deletions.
    pub object: Option<&'a mut Value>,
    /// The object that is stored now; `None` for creations.
    pub old: Option<&'a Value>,
    /// Nothing will be stored, so the hook must not have side effects.
    pub dry_run: bool,
    /// Warnings for the client.
    pub warnings: Warnings,
}

/// Warnings for a client, sent as `Warning` headers. Validating hooks may add to them, too.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Vec<String>>);

/// Once the warnings of one request have this many bytes, no more are kept. This is more than an answer shows, since
/// each is cut. There may be one for each object that a hook inspects.
pub const WARNINGS_BYTES_MAX: usize = 128 * 1024;

impl Warnings {
    /// Adds a warning, unless it is already there or the limit is reached.
    pub fn add(&self, text: impl Into<String>) {
        let (mut kept, text) = (self.0.lock(), text.into());
        let bytes: usize = kept.iter().map(String::len).sum();
        if bytes < WARNINGS_BYTES_MAX && !kept.contains(&text) {
            kept.push(text);
        }
    }

    /// All warnings, in the order in which they were added.
    #[must_use]
    pub fn into_vec(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// Sees every write. Hooks are called in the order in which they were given to the builder: first [`Self::mutate`] of
/// each; then, after defaulting and the kind's own validation, [`Self::validate`] of each.
pub trait Admission: Send + Sync + 'static {
    /// Completes the object, or refuses it.
    ///
    /// # Errors
    /// The answer for the client.
    fn mutate<'a>(&'a self, request: &'a mut AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = request;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Checks the finished object.
    ///
    /// # Errors
    /// The answer for the client.
    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = request;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The object that [`Self::mutate`] accepted is not stored: it was refused later, or another write came in between
    /// and the request starts again. Resources that were allocated for it can be released.
    fn abandon(&self, request: &AdmissionRequest<'_>) {
        let _ = request;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_warnings_are_bounded_by_what_an_answer_can_show() {
        let warnings = Warnings::default();
        for number in 0..2000 {
            warnings.add("again");
            warnings.add(format!("{number:01000}"));
        }
        let kept = warnings.into_vec();
        let bytes: usize = kept.iter().map(String::len).sum();
        assert!((WARNINGS_BYTES_MAX..WARNINGS_BYTES_MAX + 1000).contains(&bytes), "{bytes} bytes");
        assert_eq!((kept.len(), &*kept[0]), (133, "again"), "each once");
    }
}
