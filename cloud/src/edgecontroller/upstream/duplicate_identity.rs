//! Notifies operators that two processes use the identity of one node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::PostParams;
use tombolo_proto::NodeId;

use super::Upstream;

/// Reason of the event; `tombolo doctor` looks for it.
pub const CONTESTED_REASON: &str = "IdentityUsedTwice";

/// Namespace of events about cluster-scoped objects.
const NAMESPACE: &str = "default";

/// How long writing the event may take; it is not worth more.
const PATIENCE: Duration = Duration::from_secs(10);

impl Upstream {
    /// Writes an event on the Node.
    pub async fn tell_contested(&self, node: &NodeId) {
        let events: Api<Event> = Api::namespaced(self.kube.client().clone(), NAMESPACE);
        let event = event(node);
        match tokio::time::timeout(PATIENCE, events.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%node, %error, "cannot write the event on the Node"),
            Err(_) => tracing::warn!(%node, "writing the event on the Node timed out"),
        }
    }
}

fn event(node: &NodeId) -> Event {
    let now = Some(Time(Timestamp::now()));
    let message = format!(
        "Two machines use the identity of node {node} and take its session from each other. Stop the copy, remove its data \
         folder and join it under a name of its own"
    );
    Event {
        metadata: ObjectMeta {
            generate_name: Some("identity-used-twice-".to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(CONTESTED_REASON.to_owned()),
        message: Some(message),
        source: Some(EventSource { component: Some("cloudcore".to_owned()), host: None }),
        count: Some(1),
        first_timestamp: now.clone(),
        last_timestamp: now,
        ..Event::default()
    }
}
