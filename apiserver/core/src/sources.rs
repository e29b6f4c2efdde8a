//! Which store answers a read. A server over one store needs nothing of this; one that holds parts of several histories
//! (a local copy of what a node and its clients follow) chooses by request.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::auth::Attributes;
use crate::kinds::KindInfo;
use crate::status::ApiError;
use crate::store::Store;

/// One read, authenticated and authorized.
#[derive(Debug, Clone, Copy)]
pub struct Read<'a> {
    /// Who asks for what: verb, namespace, name and selectors are in here.
    pub attributes: &'a Attributes,
    /// The kind that the path names.
    pub kind: &'a KindInfo,
    /// Value of the `Authorization` header, for sources that ask somebody else on behalf of the caller.
    pub authorization: Option<&'a str>,
}

/// Chooses the store that answers a read.
pub trait Sources: Send + Sync + 'static {
    /// The store. May take its time, for example to bring what was never asked for before.
    ///
    /// # Errors
    /// The answer for the client.
    fn source<'a>(&'a self, read: Read<'a>) -> BoxFuture<'a, Result<Arc<dyn Store>, ApiError>>;
}

/// One store answers everything.
pub(crate) struct Single(pub(crate) Arc<dyn Store>);

impl Sources for Single {
    fn source<'a>(&'a self, _: Read<'a>) -> BoxFuture<'a, Result<Arc<dyn Store>, ApiError>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.0))))
    }
}
