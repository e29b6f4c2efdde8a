//! What the watch of Nodes tells, and what it does not tell because it was broken.

use std::collections::HashMap;

use kube::runtime::watcher::Event;
use serde_json::json;
use tombolo_proto::NodeId;

use super::world::{NodeIdentity, World};
use super::*;
use crate::bootstrap::identities::{Denied, Identities};
use crate::kube::RawObject;

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// Node edge1 with this UID, made so many seconds from now.
fn node(uid: &str, from_now: i64) -> RawObject {
    let created = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(from_now);
    let metadata = json!({"name": "edge1", "uid": uid, "creationTimestamp": created.to_string()});
    RawObject::new(json!({"metadata": metadata}))
}

async fn tell(identities: &Identities, events: Vec<Event<RawObject>>) {
    let mut listed = HashMap::new();
    for event in events {
        identities.node_event(event, &mut listed).await;
    }
}

fn list(nodes: Vec<RawObject>) -> Vec<Event<RawObject>> {
    let nodes = nodes.into_iter().map(Event::InitApply);
    [Event::Init].into_iter().chain(nodes).chain([Event::InitDone]).collect()
}

/// A node that has joined and whose Node is not bound to it yet.
async fn joined() -> (World, NodeIdentity, Arc<Identities>) {
    let world = World::start().await;
    let (identity, identities) = (world.joined("edge1").await, world.bootstrap.identities());
    tell(&identities, list(Vec::new())).await;
    (world, identity, identities)
}

async fn judged(identities: &Identities, identity: &NodeIdentity) -> Result<(), Denied> {
    identities.ask(&edge1(), &identity.facts()).await.expect("an answer")
}

#[tokio::test]
async fn a_node_that_is_listed_no_more_takes_its_certificate_along() {
    for other in [None, Some(node("u2", 5))] {
        let (_world, identity, identities) = joined().await;
        tell(&identities, vec![Event::Apply(node("u1", 1))]).await;
        assert_eq!(
            judged(&identities, &identity).await,
            Ok(()),
            "not bound: the API says that there is none"
        );
        tell(&identities, list(other.into_iter().collect())).await;
        assert_eq!(judged(&identities, &identity).await, Err(Denied::Deleted));
    }
}

#[tokio::test]
async fn a_node_in_whose_place_there_is_another_one_takes_its_certificate_along() {
    let (_world, identity, identities) = joined().await;
    tell(&identities, vec![Event::Apply(node("u1", 1)), Event::Apply(node("u1", 1))]).await;
    assert_eq!(judged(&identities, &identity).await, Ok(()));
    tell(&identities, vec![Event::Apply(node("u2", 2))]).await;
    assert_eq!(judged(&identities, &identity).await, Err(Denied::Deleted));
}

/// It was deleted while the watch was broken, and somebody has joined under its name since.
#[tokio::test]
async fn a_node_from_before_the_join_takes_nothing_along() {
    let (_world, identity, identities) = joined().await;
    tell(&identities, list(vec![node("u0", -3600)])).await;
    tell(&identities, list(Vec::new())).await;
    assert_eq!(judged(&identities, &identity).await, Ok(()));
}
