//! The hook that sees, completes and may refuse every object before it is stored.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::auth::Attributes;
use crate::kinds::KindInfo;
use crate::status::ApiError;

/// What is about to happen to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// Another version of an object, also through a subresource.
    Update,
    /// A deletion request: called at every attempt with the object as it then is, not when finalizers are done.
    Delete,
}

/// One object on its way into the store.
#[derive(Debug)]
pub struct AdmissionRequest<'a> {
    /// Who asks for what; `attributes.subresource` tells `status` from the object itself.
    pub attributes: &'a Attributes,
    /// What is about to happen.
    pub operation: Operation,
    /// The kind.
    pub kind: &'a Arc<KindInfo>,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// The object to be stored, which may be changed; `None` for deletions.
    pub object: Option<&'a mut Value>,
    /// What is stored now; `None` for creations.
    pub old: Option<&'a Value>,
    /// Nothing will be stored: have no side effects.
    pub dry_run: bool,
    /// Warnings for the client.
    pub warnings: Warnings,
}

/// Warnings for a client, sent as `Warning` headers. Hooks that only look at a request may add to them.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Vec<String>>);

/// Bytes of the warnings of one request from which on no more are kept: more than an answer shows, each being cut. There may be one
/// for each object that a hook has looked at.
pub const WARNINGS_BYTES_MAX: usize = 128 * 1024;

impl Warnings {
    /// Adds a warning, unless it is there already or there are enough.
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

/// Sees every write. Several hooks are called in the order in which they were given to the builder: first
/// [`Self::mutate`] of each, then (defaults and the kind's own validation done) [`Self::validate`] of each.
pub trait Admission: Send + Sync + 'static {
    /// Completes the object, or refuses it.
    ///
    /// # Errors
    /// The answer for the client.
    fn mutate<'a>(&'a self, request: &'a mut AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = request;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Looks at the finished object.
    ///
    /// # Errors
    /// The answer for the client.
    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = request;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The object that [`Self::mutate`] let through is not stored: it was refused later, or somebody else wrote in between
    /// and the request begins anew. What was allocated for it can be given back.
    fn abandon(&self, request: &AdmissionRequest<'_>) {
        let _ = request;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_warnings_are_kept_than_an_answer_can_show() {
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
