//! The creation of a Node is marked in the record before it: a crash in between does not revive a deleted Node's
//! certificate.

use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

use super::world::{World, present};
use super::*;
use crate::bootstrap::identities::{Denied, IdentityError, Registration, Taken};
use crate::hub::Registry;
use crate::metrics::Metrics;

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

async fn begin(bootstrap: &Bootstrap) -> Result<Result<Registration, Denied>, IdentityError> {
    bootstrap.identities().begin_registration(&edge1()).await
}

async fn begun(bootstrap: &Bootstrap) -> Registration {
    begin(bootstrap).await.expect("recorded").expect("in force")
}

/// A cloudcore that is killed between the creation of a Node and the recording of its UID. It runs nothing after that.
#[tokio::test]
async fn certificate_of_a_node_deleted_while_no_cloudcore_ran_is_invalid() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    std::mem::forget(begun(&world.bootstrap).await);
    // The Node is created here, and deleted before a replica runs again.
    let after = world.replica().await;
    let judged = async || after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged().await, Err(Denied::Interrupted));
    // If it still exists, nothing is lost.
    world.set_node("edge1", present("u1"));
    assert_eq!(judged().await, Ok(()));
    world.set_node("edge1", Some(NodeState::Absent));
    assert_eq!(judged().await, Err(Denied::Deleted));
}

/// The joining client controls how long the request takes, and a token for any name is valid for this one as well.
#[tokio::test]
async fn delayed_join_cannot_take_a_name_taken_meanwhile() {
    let world = World::start().await;
    let (identities, late) = (world.bootstrap.identities(), world.joined("edge2").await.facts());
    let held_back =
        async |replace| identities.joined(&edge1(), &late, replace).await.expect("an answer").map(drop);
    let honest = world.joined("edge1").await;
    assert_eq!(held_back(false).await, Err(Taken::Joined));
    let registration = begun(&world.bootstrap).await;
    world.set_node("edge1", present("u1"));
    registration.end(Some("u1".to_owned())).await;
    assert_eq!(held_back(false).await, Err(Taken::Registered));
    let judged = identities.ask(&edge1(), &honest.facts()).await.expect("an answer");
    assert_eq!(judged, Ok(()), "the name is still whose it was");
    // Without its Node the name is free, and a token that replaces takes it in any case.
    assert_eq!(held_back(true).await, Ok(()));
}

/// The same, but the name is free when the join asks, and another machine has joined and registered when it is
/// recorded.
#[tokio::test]
async fn join_overtaken_during_its_checks_takes_no_name() {
    let (world, elsewhere) = (World::start().await, World::start().await);
    let (late, honest) = (elsewhere.joined("edge1").await.facts(), elsewhere.joined("edge2").await.facts());
    // A deleted Node leaves its record.
    world.joined("edge1").await;
    begun(&world.bootstrap).await.end(Some("u1".to_owned())).await;
    let (node, identities) = (edge1(), world.bootstrap.identities());
    let mut overtaken = std::pin::pin!(identities.joined(&node, &late, false));
    // The join has read the record and seen that there is no Node, and is about to read the record that it will change.
    assert!(futures::poll!(&mut overtaken).is_pending());
    assert!(futures::poll!(&mut overtaken).is_pending());
    let other = world.replica().await;
    other.identities().joined(&node, &honest, false).await.expect("an answer").expect("the name is free");
    begun(&other).await.end(Some("u2".to_owned())).await;
    world.set_node("edge1", present("u2"));
    assert_eq!(overtaken.await.expect("an answer"), Err(Taken::Registered));
    assert_eq!(other.identities().ask(&node, &honest).await.expect("an answer"), Ok(()));
}

#[tokio::test]
async fn registration_is_bound_to_the_node_it_created() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    // The Node is created and deleted before the answer is recorded.
    begun(&world.bootstrap).await.end(Some("u1".to_owned())).await;
    let judged =
        async |of: &Bootstrap| of.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged(&world.bootstrap).await, Err(Denied::Deleted));
    assert_eq!(judged(&world.replica().await).await, Err(Denied::Deleted));
    let denied = begin(&world.bootstrap).await.expect("an answer").expect_err("its Node was deleted");
    assert_eq!(denied, Denied::Deleted, "and it makes no other one");
}

#[tokio::test]
async fn failed_registration_leaves_no_mark() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    begun(&world.bootstrap).await.end(None).await;
    let after = world.replica().await;
    let judged = after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged, Ok(()));
}

/// The API is unavailable when the outcome is to be recorded, or the request is dropped with its session. It is
/// retried.
#[tokio::test]
async fn unfinished_registration_is_checked_again() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let (identities, after) = (world.bootstrap.identities(), world.replica().await);
    let judged =
        async |of: &Bootstrap| of.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    for given_up in [false, true] {
        a_minute().await;
        let registration = begun(&world.bootstrap).await;
        if given_up {
            drop(registration);
        } else {
            world.set_node("edge1", None);
            registration.end(None).await;
            identities.settle().await;
            world.set_node("edge1", Some(NodeState::Absent));
        }
        assert_eq!(judged(&world.bootstrap).await, Ok(()), "it is this one's own registration");
        assert_eq!(judged(&after).await, Err(Denied::Interrupted));
        identities.settle().await;
        assert_eq!(judged(&after).await, Ok(()));
    }
}

/// One of two requests of a node fails while the other one is running: the other's mark stays.
#[tokio::test]
async fn registration_respects_the_mark_of_another() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let (after, identities) = (world.replica().await, world.bootstrap.identities());
    let judged = async || after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    let (one, other) = (begun(&world.bootstrap).await, begun(&world.bootstrap).await);
    one.end(None).await;
    identities.settle().await;
    assert_eq!(judged().await, Err(Denied::Interrupted), "the other one is under way");
    other.end(None).await;
    assert_eq!(judged().await, Ok(()));
}

#[tokio::test]
async fn two_replicas_registering_one_node_respect_each_others_marks() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let (other, after) = (world.replica().await, world.replica().await);
    let judged = async || after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    let (one, two) = futures::join!(begin(&world.bootstrap), begin(&other));
    let (winner, loser) = match (one, two) {
        (Ok(Ok(registration)), Err(IdentityError::Elsewhere)) => (registration, &other),
        (Err(IdentityError::Elsewhere), Ok(Ok(registration))) => (registration, &world.bootstrap),
        both => panic!("{both:?}"),
    };
    for _ in 0..3 {
        assert!(
            matches!(begin(loser).await, Err(IdentityError::Elsewhere)),
            "the Node may be there any moment"
        );
    }
    assert_eq!(judged().await, Err(Denied::Interrupted), "its mark is still there");
    winner.end(None).await;
    assert_eq!(judged().await, Ok(()));
    begun(loser).await.end(Some("u1".to_owned())).await;
    world.set_node("edge1", present("u1"));
    assert_eq!(judged().await, Ok(()));
}

/// The replica has seen that there is no Node when another replica creates it.
#[tokio::test]
async fn registration_overtaken_by_another_replica_reads_the_node_again() {
    let world = World::start().await;
    world.joined("edge1").await;
    let other = world.replica().await;
    let mut late = std::pin::pin!(begin(&other));
    world.secrets.hold_reads(true);
    assert!(futures::poll!(&mut late).is_pending());
    assert!(futures::poll!(&mut late).is_pending());
    world.secrets.hold_reads(false);
    begun(&world.bootstrap).await.end(Some("u1".to_owned())).await;
    world.set_node("edge1", present("u1"));
    let _ = late.await.expect("recorded").expect("it is the same Node");
}

#[tokio::test]
async fn no_node_is_created_when_its_mark_cannot_be_written() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    *world.secrets.broken.lock() = Some(identities::SECRET_PREFIX);
    assert!(matches!(begin(&world.bootstrap).await, Err(IdentityError::Secret(_))));
    *world.secrets.broken.lock() = None;
    world.set_node("edge1", None);
    assert!(matches!(begin(&world.bootstrap).await, Err(IdentityError::Node(_))));
    world.set_node("edge1", Some(NodeState::Absent));
    let after = world.replica().await;
    let judged = after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged, Ok(()), "no registration was started");
}

/// A minute in which nothing happens.
async fn a_minute() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn registration_outcome_is_recorded_before_the_process_ends() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let after = world.replica().await;
    let judged = async || after.identities().ask(&edge1(), &identity.facts()).await.expect("an answer");
    drop(begun(&world.bootstrap).await);
    assert_eq!(judged().await, Err(Denied::Interrupted));
    let tasks = tombolo_runtime::Tasks::new();
    crate::app::end_tasks(&tasks, &world.bootstrap, &Drain::never()).await;
    assert_eq!(judged().await, Ok(()));
    // An API that does not answer blocks nothing for ever.
    a_minute().await;
    drop(begun(&world.bootstrap).await);
    world.secrets.hold_reads(true);
    tokio::time::pause();
    crate::app::end_tasks(&tasks, &world.bootstrap, &Drain::never()).await;
}

/// The API does not answer, but what is known in memory still ends sessions.
#[tokio::test]
async fn unrecordable_registration_does_not_delay_the_end_of_sessions() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    drop(begun(&world.bootstrap).await);
    world.secrets.hold_reads(true);
    let registry = Arc::new(Registry::new(5));
    let ended = super::in_force::session(&registry, PeerCertificate { expires: 1, ..identity.facts() });
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let sweep = crate::hub_admission::sweep(world.bootstrap.identities(), registry, metrics);
    tokio::time::pause();
    let minute = tokio::time::timeout(Duration::from_secs(60), sweep);
    assert!(minute.await.is_err());
    assert!(ended.mailbox.take().goodbye.is_some(), "its certificate has ended");
}
