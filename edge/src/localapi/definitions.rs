//! Definitions of the custom resources that local clients read. Tables get the columns that the definitions declare.
//!
//! A definition is followed as long as a client reads the resource, and kept for use without a cloud connection. It is
//! read in the name of the node. If the node may not read it, tables have only names and ages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::store::{Revision, Store as ServedStore};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::{debug, warn};

use super::discovery::Discovery;
use crate::store::Selection;
use crate::subscriptions::Subscriptions;

/// How long a client waits for a definition that was never read before. The requested object matters more than its
/// columns.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads the definitions of custom resources.
pub(super) struct Definitions {
    subscriptions: Subscriptions,
    discovery: Arc<Discovery>,
    /// The versions of the definitions that were read. Bounded by the number of kinds in discovery.
    read: Mutex<HashMap<ObjectKey, Revision>>,
}

impl Definitions {
    pub(super) fn new(subscriptions: Subscriptions, discovery: Arc<Discovery>) -> Self {
        Self { subscriptions, discovery, read: Mutex::default() }
    }

    /// Reads the definition of the resource that a client is about to read.
    pub(super) async fn read(&self, asked: &Attributes) {
        if !asked.is_resource || !matches!(asked.verb.as_str(), "get" | "list" | "watch") {
            return;
        }
        if !self.discovery.is_custom(&Resource::new(&asked.group, &asked.version, &asked.resource)) {
            return;
        }
        let definition = ObjectKey::new(
            Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            "",
            &format!("{}.{}", asked.resource, asked.group),
        );
        if tokio::time::timeout(PATIENCE, self.follow(&definition)).await.is_err() {
            debug!(%definition, "reading a definition takes too long");
        }
    }

    async fn follow(&self, key: &ObjectKey) {
        let selection = Selection {
            field_selector: format!("metadata.name={}", key.name()),
            ..Selection::all(key.resource().clone())
        };
        let definition = match self.subscriptions.reader(&selection, None).await {
            Ok(copy) => copy.get(key).ok().flatten(),
            Err(error) => return debug!(definition = %key, %error, "cannot read a definition"),
        };
        let Some(definition) = definition else { return };
        if self.read.lock().insert(key.clone(), definition.revision) == Some(definition.revision) {
            return;
        }
        match serde_json::from_slice::<Value>(&definition.body()) {
            Ok(definition) => self.discovery.declare(&definition),
            Err(error) => warn!(definition = %key, %error, "cannot parse a definition"),
        }
    }
}
