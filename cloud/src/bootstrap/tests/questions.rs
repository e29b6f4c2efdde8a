//! What a certificate that is not in force costs the API, in reads.

use tombolo_proto::NodeId;

use super::world::{NodeIdentity, World, present};
use super::*;
use crate::bootstrap::identities::{Denied, Identities, IdentityError};

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// Number of Nodes and Secrets read since the last call.
fn reads(world: &World) -> (usize, usize) {
    (std::mem::take(&mut *world.nodes.1.lock()), std::mem::take(&mut *world.secrets.reads.lock()))
}

/// A node whose certificate was revoked.
async fn revoked() -> (World, NodeIdentity, Arc<Identities>) {
    let world = World::start().await;
    let (identity, identities) = (world.joined("edge1").await, world.bootstrap.identities());
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(edge1(), "u1".to_owned())].into());
    identities.revoke(&edge1()).await.expect("revoked");
    reads(&world);
    (world, identity, identities)
}

#[tokio::test]
async fn refused_certificate_costs_one_api_call_however_often_it_connects() {
    let (world, identity, identities) = revoked().await;
    let (node, facts) = (edge1(), identity.facts());
    let dials = (0..16).map(|_| identities.check(&node, &facts));
    for answer in futures::future::join_all(dials).await {
        assert_eq!(answer.expect("an answer"), Err(Denied::Revoked));
    }
    assert_eq!(reads(&world), (1, 1), "those at the same time wait for one answer");
    for _ in 0..100 {
        assert_eq!(identities.check(&node, &facts).await.expect("an answer"), Err(Denied::Revoked));
    }
    assert_eq!(reads(&world), (0, 0));
}

#[tokio::test]
async fn join_clears_a_cached_refusal_at_once() {
    let (world, old, identities) = revoked().await;
    let (node, facts) = (edge1(), old.facts());
    assert_eq!(identities.check(&node, &facts).await.expect("an answer"), Err(Denied::Revoked));
    // Done through another replica; this one reads the record when it is asked about the new certificate.
    let new = World::start().await.joined("edge1").await.facts();
    let other = world.replica().await.identities();
    other.joined(&node, &new, true).await.expect("stored").expect("replaced");
    assert_eq!(identities.check(&node, &new).await.expect("an answer"), Ok(()));
    assert_eq!(
        identities.check(&node, &facts).await.expect("an answer"),
        Err(Denied::Replaced),
        "asked again"
    );
}

#[tokio::test]
async fn created_node_clears_a_cached_refusal_at_once() {
    let (world, identity, _) = revoked().await;
    world.secrets.secrets.lock().retain(|name, _| !name.starts_with(identities::SECRET_PREFIX));
    world.set_node("edge1", Some(NodeState::Absent));
    let identities = world.replica().await.identities();
    identities.know_nodes([].into());
    let checked = async || identities.check(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(checked().await, Err(Denied::Unknown));
    world.set_node("edge1", present("u1"));
    assert_eq!(checked().await, Err(Denied::Unknown), "remembered");
    identities.know_nodes([(edge1(), "u1".to_owned())].into());
    assert_eq!(checked().await, Ok(()));
}

/// A change that is reported while the answer is on its way is newer than the answer.
#[tokio::test]
async fn refusal_is_not_cached_past_a_change_during_its_check() {
    let (world, identity, _) = revoked().await;
    world.secrets.secrets.lock().retain(|name, _| !name.starts_with(identities::SECRET_PREFIX));
    world.set_node("edge1", Some(NodeState::Absent));
    let identities = world.replica().await.identities();
    identities.know_nodes([].into());
    let (node, facts) = (edge1(), identity.facts());
    let mut asked = Box::pin(identities.check(&node, &facts));
    // Its Node has been read, and its record is on its way.
    world.secrets.hold_reads(true);
    assert!(futures::poll!(&mut asked).is_pending());
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(node.clone(), "u1".to_owned())].into());
    world.secrets.hold_reads(false);
    assert_eq!(asked.await.expect("an answer"), Err(Denied::Unknown));
    assert_eq!(identities.check(&node, &facts).await.expect("an answer"), Ok(()), "asked again");
}

/// Many connections for one name take no slots from others.
#[tokio::test]
async fn requests_for_one_name_leave_room_for_other_names() {
    let (world, identity, identities) = revoked().await;
    let facts = identity.facts();
    let (node, other) = (edge1(), NodeId::parse("edge2").expect("a name"));
    let dials = futures::future::join_all((0..200).map(|_| identities.check(&node, &facts)));
    let (answers, elsewhere) = futures::join!(dials, identities.check(&other, &facts));
    assert_eq!(elsewhere.expect("room for another name"), Err(Denied::Unknown));
    let busy = answers.iter().filter(|answer| matches!(answer, Err(IdentityError::Busy))).count();
    assert!(busy > 100, "{busy}");
    assert_eq!(reads(&world), (2, 2));
}
