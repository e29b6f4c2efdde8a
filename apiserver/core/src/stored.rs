//! One version of one object, as stored and as seen by selectors.

pub mod compressed;
mod labels;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use self::compressed::CompressedBody;
use self::labels::Known;
pub(crate) use self::labels::Newest;
use crate::raw::{self, Layout};
use crate::revision::Revision;

/// One version of one object.
#[derive(Debug)]
pub struct Stored {
    /// The key of the object, under the version in which it is stored.
    pub key: ObjectKey,
    /// UID of the object.
    pub uid: Uid,
    /// Revision of this version.
    pub revision: Revision,
    pub(crate) text: CompressedBody,
    /// Data that selectors look at, extracted once for all watchers.
    pub(crate) facts: OnceLock<Box<Facts>>,
    layout: OnceLock<Option<Layout>>,
}

impl Stored {
    /// Creates a version. The body must have `revision` as its `metadata.resourceVersion`.
    #[must_use]
    pub fn new(key: ObjectKey, uid: Uid, revision: Revision, body: Bytes) -> Self {
        Self {
            key,
            uid,
            revision,
            text: CompressedBody::new(body),
            facts: OnceLock::new(),
            layout: OnceLock::new(),
        }
    }

    /// JSON text with `metadata.resourceVersion` already set to `revision`.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.text.read()
    }

    /// Length of the body in bytes.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.text.len()
    }

    /// The positions of the parts of the body, located once. `None` for bodies that do not begin with their type.
    #[must_use]
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.get_or_init(|| Layout::of(&self.body())).as_ref()
    }

    /// The same object under another revision, as shown when it leaves a selection.
    pub(crate) fn revised(&self, revision: Revision) -> Self {
        let body = match self.layout() {
            Some(layout) => layout.revised(&self.body(), revision),
            None => raw::with_revision(&self.body(), revision).unwrap_or_else(|_| self.body()),
        };
        Self::new(self.key.clone(), self.uid.clone(), revision, body)
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision
            && self.key == other.key
            && self.uid == other.uid
            && self.body() == other.body()
    }
}

/// Objects of one resource as they were at one revision, ordered by namespace, then name.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Revision of the snapshot.
    pub revision: Revision,
    /// The objects.
    pub items: Vec<Arc<Stored>>,
}

/// Data of an object that selectors look at, as far as it was requested.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) labels: Known,
    /// Limited by the number of selectable fields of the kind. The list is short, so it is searched linearly.
    fields: Mutex<Vec<(Box<str>, Box<str>)>>,
}

impl Facts {
    /// The value of a field, extracted at most once.
    pub(crate) fn field(&self, field: &str, find: impl FnOnce() -> String) -> Cow<'static, str> {
        let mut known = self.fields.lock();
        if let Some((_, value)) = known.iter().find(|(own, _)| &**own == field) {
            return Cow::Owned(value.to_string());
        }
        let value = find();
        known.push((field.into(), value.as_str().into()));
        Cow::Owned(value)
    }
}
