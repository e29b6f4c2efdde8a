//! Chooses the store that answers a read. A server over one store does not need this; a server with parts of several
//! histories (a local copy of what a node and its clients follow) chooses per request.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::auth::Attributes;
use crate::kinds::KindInfo;
use crate::status::ApiError;
use crate::store::Store;

/// One read, authenticated and authorized.
#[derive(Debug, Clone, Copy)]
pub struct Read<'a> {
    /// Who requests what, with the verb, the namespace, the name and the selectors.
    pub attributes: &'a Attributes,
    /// The kind that the path names.
    pub kind: &'a KindInfo,
    /// Value of the `Authorization` header, for sources that forward the request on behalf of the caller.
    pub authorization: Option<&'a str>,
}

/// Chooses the store that answers a read.
pub trait Sources: Send + Sync + 'static {
    /// The store for a read. May take time, for example to fetch objects that were never requested before.
    ///
    /// # Errors
    /// The answer for the client.
    fn source<'a>(&'a self, read: Read<'a>) -> BoxFuture<'a, Result<Arc<dyn Store>, ApiError>>;
}

/// Answers every read from one store.
pub(crate) struct Single(pub(crate) Arc<dyn Store>);

impl Sources for Single {
    fn source<'a>(&'a self, _: Read<'a>) -> BoxFuture<'a, Result<Arc<dyn Store>, ApiError>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.0))))
    }
}
