//! The served kinds and everything derived from them, replaced atomically when they change.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tombolo_proto::object::Resource;

use crate::discovery::Documents;
use crate::kinds::{KindInfo, Kinds};
use crate::openapi;
use crate::query::path::ResourcePath;
use crate::value::to_bytes;

/// The kinds at one moment.
pub struct Catalog {
    /// The kinds.
    pub kinds: Kinds,
    pub(crate) documents: Documents,
}

impl Catalog {
    fn new(kinds: Kinds) -> Arc<Self> {
        let documents = Documents::new(&kinds);
        Arc::new(Self { kinds, documents })
    }

    /// The kind that a path names, if it is served.
    #[must_use]
    pub fn find(&self, path: &ResourcePath) -> Option<&Arc<KindInfo>> {
        self.kinds.get(&Resource::new(&path.group, &path.version, &path.resource))
    }

    /// The OpenAPI v3 document under a path.
    pub(crate) fn openapi(&self, path: &str) -> Option<OpenApi<'_>> {
        let rest = path.strip_prefix("/openapi/v3")?.trim_start_matches('/');
        let parts: Vec<&str> = rest.split('/').collect();
        let (group, version) = match parts.as_slice() {
            [""] => return Some(OpenApi::Index(&self.kinds)),
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            _ => return None,
        };
        let hash = openapi::hash(&self.kinds, group, version)?;
        Some(OpenApi::Document {
            kinds: &self.kinds,
            group: group.to_owned(),
            version: version.to_owned(),
            hash,
        })
    }
}

/// An OpenAPI document that is not generated yet: a client that has cached it needs only its hash.
pub(crate) enum OpenApi<'a> {
    /// The index of documents.
    Index(&'a Kinds),
    /// The document of one group version.
    Document { kinds: &'a Kinds, group: String, version: String, hash: String },
}

impl OpenApi<'_> {
    /// Changes when the document does.
    pub(crate) fn hash(&self) -> Option<&str> {
        match self {
            Self::Index(_) => None,
            Self::Document { hash, .. } => Some(hash),
        }
    }

    /// JSON text.
    pub(crate) fn write(&self) -> Bytes {
        match self {
            Self::Index(kinds) => to_bytes(&openapi::index(kinds)),
            Self::Document { kinds, group, version, .. } => {
                let document = openapi::document(kinds, group, version).unwrap_or_default();
                Bytes::copy_from_slice(&document)
            }
        }
    }
}

/// Holds the current [`Catalog`]. Cheap to clone: clones share it.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<RegistryInner>,
}

struct RegistryInner {
    current: ArcSwap<Catalog>,
    /// Held while a new catalog is derived from the current one.
    change: Mutex<()>,
    /// Notifies of a new catalog.
    changed: watch::Sender<()>,
}

impl Registry {
    /// Starts with these kinds.
    #[must_use]
    pub fn new(kinds: Kinds) -> Self {
        let current = ArcSwap::new(Catalog::new(kinds));
        let shared = RegistryInner { current, change: Mutex::new(()), changed: watch::Sender::new(()) };
        Self { shared: Arc::new(shared) }
    }

    /// Whether the specification of a custom kind has changed since the kind was looked up, while its version is still
    /// served.
    pub(crate) fn is_superseded(&self, kind: &KindInfo) -> bool {
        let content = |kind: &KindInfo| kind.definition().map(|definition| definition.fingerprint.content);
        let catalog = self.shared.current.load();
        catalog.kinds.get(&kind.resource).is_some_and(|current| content(current) != content(kind))
    }

    /// The current catalog. The returned value never changes.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.current.load_full()
    }

    /// Derives new kinds from the current ones and serves them: discovery, OpenAPI and paths change together.
    /// Concurrent updates are serialized.
    ///
    /// # Errors
    /// The error of `change`; in that case nothing is changed.
    pub fn update<E>(&self, change: impl FnOnce(&Kinds) -> Result<Kinds, E>) -> Result<(), E> {
        let _turn = self.shared.change.lock();
        let current = self.shared.current.load();
        let kinds = change(&current.kinds)?;
        if kinds.same(&current.kinds) {
            return Ok(());
        }
        self.shared.current.store(Catalog::new(kinds));
        self.shared.changed.send_replace(());
        Ok(())
    }

    /// Notifies of every change from now on; changes in quick succession may be notified once.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }
}
