//! What the watch of Nodes reports, and what it misses while it is interrupted.

use std::collections::HashMap;

use kube::runtime::watcher::Event;
use serde_json::json;
use tombolo_proto::NodeId;

use super::world::{NodeIdentity, World};
use super::*;
use crate::bootstrap::identities::{Denied, Identities};
use crate::hub::Registry;
use crate::hub_admission::sweep_once;
use crate::kube::RawObject;

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// Node edge1 with this UID, created this many seconds from now.
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

/// A node that has joined and whose Node is not bound to its record yet.
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
async fn certificate_ends_when_a_list_lacks_its_node() {
    for other in [None, Some(node("u2", 5))] {
        let (_world, identity, identities) = joined().await;
        tell(&identities, vec![Event::Apply(node("u1", 1))]).await;
        assert_eq!(
            judged(&identities, &identity).await,
            Ok(()),
            "not bound: the API server has no such Node"
        );
        tell(&identities, list(other.into_iter().collect())).await;
        assert_eq!(judged(&identities, &identity).await, Err(Denied::Deleted));
    }
}

#[tokio::test]
async fn replaced_node_invalidates_its_certificate() {
    let (_world, identity, identities) = joined().await;
    tell(&identities, vec![Event::Apply(node("u1", 1)), Event::Apply(node("u1", 1))]).await;
    assert_eq!(judged(&identities, &identity).await, Ok(()));
    tell(&identities, vec![Event::Apply(node("u2", 2))]).await;
    assert_eq!(judged(&identities, &identity).await, Err(Denied::Deleted));
}

/// The Node was deleted while the watch was interrupted, and another machine has joined under its name since.
#[tokio::test]
async fn deletion_of_a_node_older_than_the_join_revokes_nothing() {
    let (_world, identity, identities) = joined().await;
    tell(&identities, list(vec![node("u0", -3600)])).await;
    tell(&identities, list(Vec::new())).await;
    assert_eq!(judged(&identities, &identity).await, Ok(()));
}

/// A Node that is deleted while the API accepts no writes.
async fn unrecorded() -> (World, NodeIdentity, Arc<Identities>) {
    let (world, identity, identities) = joined().await;
    tell(&identities, vec![Event::Apply(node("u1", 1))]).await;
    *world.secrets.broken.lock() = Some(identities::SECRET_PREFIX);
    tell(&identities, vec![Event::Delete(node("u1", 1))]).await;
    (world, identity, identities)
}

#[tokio::test]
async fn unrecordable_deletion_takes_effect_at_once_and_is_recorded_later() {
    let (world, identity, identities) = joined().await;
    let registry = Registry::new(5);
    let session = super::in_force::session(&registry, identity.facts());
    tell(&identities, vec![Event::Apply(node("u1", 1))]).await;
    *world.secrets.broken.lock() = Some(identities::SECRET_PREFIX);
    tell(&identities, vec![Event::Delete(node("u1", 1))]).await;
    assert_eq!(judged(&identities, &identity).await, Err(Denied::Deleted));
    let renewed = identities.renewed(&edge1(), &identity.facts(), &identity.facts()).await;
    assert_eq!(renewed.expect("an answer"), Err(Denied::Deleted));
    sweep_once(&identities, &registry).await;
    assert!(session.mailbox.take().goodbye.is_some(), "its session ends");
    // No other replica has seen the deletion.
    let other = world.replica().await.identities();
    assert_eq!(judged(&other, &identity).await, Ok(()));
    let keeping = tokio::spawn(identities::keep_ended(Arc::clone(&identities)));
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(judged(&other, &identity).await, Ok(()), "it cannot be recorded yet");
    *world.secrets.broken.lock() = None;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(judged(&other, &identity).await, Err(Denied::Deleted));
    keeping.abort();
}

#[tokio::test]
async fn pending_deletion_does_not_affect_a_later_join() {
    for elsewhere in [false, true] {
        let (world, former, identities) = unrecorded().await;
        *world.secrets.broken.lock() = None;
        let (new, other) = (World::start().await.joined("edge1").await, world.replica().await.identities());
        let replica = if elsewhere { &other } else { &identities };
        let joined = replica.joined(&edge1(), &new.facts(), elsewhere).await.expect("recorded");
        assert!(joined.is_ok(), "{joined:?}: the name is free once the deletion is known");
        assert!(identities.end_all_deleted().await);
        for replica in [&other, &identities] {
            assert_eq!(judged(replica, &new).await, Ok(()));
            assert_eq!(judged(replica, &former).await, Err(Denied::Replaced));
        }
    }
}
