//! Authorization that knows the kinds of the cluster.

use std::sync::Arc;

use futures::future::BoxFuture;
use tombolo_apicore::auth::{Attributes, Authorizer, Decision};

use super::definitions::Definitions;
use super::discovery::Discovery;

/// Authorizes a request after the kinds that it may concern are known.
pub(super) struct Informed<A> {
    pub(super) inner: A,
    pub(super) discovery: Arc<Discovery>,
    pub(super) definitions: Arc<Definitions>,
}

impl<A: Authorizer> Authorizer for Informed<A> {
    fn authorize<'a>(&'a self, asked: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(async move {
            let decision = self.inner.authorize(asked).await;
            if decision != Decision::Allow {
                return decision;
            }
            if let Err(why) = self.discovery.learn(asked).await {
                return Decision::Undecided(why);
            }
            self.definitions.read(asked).await;
            decision
        })
    }
}
