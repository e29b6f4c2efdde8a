//! A replica's knowledge of the records only moves forward.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use tombolo_proto::NodeId;

use super::world::{NodeIdentity, World, present};
use super::*;
use crate::bootstrap::identities::{Denied, Identities, SHARDS};
use crate::metrics::Metrics;

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// The Secrets as a watch would report them now.
fn told(world: &World) -> Vec<Secret> {
    let secrets = world.secrets.secrets.lock();
    let told = secrets.iter().map(|(name, StoredSecret { data, version })| {
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.clone());
        secret.metadata.resource_version = Some(version.clone());
        secret.data =
            Some(data.iter().map(|(key, value)| (key.clone(), ByteString(value.clone()))).collect());
        secret
    });
    told.collect()
}

fn take(identities: &Identities, secrets: &[Secret], listing: Option<&[u64; SHARDS]>) {
    secrets.iter().for_each(|secret| identities.take(secret, listing));
}

/// A node with a Node, in force according to memory.
async fn registered() -> (World, NodeIdentity, Arc<Identities>) {
    let world = World::start().await;
    let (identity, identities) = (world.joined("edge1").await, world.bootstrap.identities());
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(edge1(), "u1".to_owned())].into());
    assert_eq!(identities.check(&edge1(), &identity.facts()).await.expect("an answer"), Ok(()));
    assert!(identities.is_known_good(&edge1(), &identity.facts()));
    (world, identity, identities)
}

#[tokio::test]
async fn late_watch_event_does_not_undo_a_revocation() {
    let (world, identity, identities) = registered().await;
    let (earlier, listing) = (told(&world), identities.versions());
    identities.revoke(&edge1()).await.expect("revoked");
    // A watch that lags behind, and a list that was made before.
    take(&identities, &earlier, None);
    assert!(!identities.is_known_good(&edge1(), &identity.facts()));
    take(&identities, &earlier, Some(&listing));
    assert!(!identities.is_known_good(&edge1(), &identity.facts()));
}

#[tokio::test]
async fn slow_read_does_not_undo_a_revocation() {
    let (world, identity, identities) = registered().await;
    let node = edge1();
    let facts = identity.facts();
    let asked = identities.ask(&node, &facts);
    let mut asked = std::pin::pin!(asked);
    // It yields once before it reads; then it has read what is stored, and continues after the revocation.
    world.secrets.hold_reads(true);
    assert!(futures::poll!(&mut asked).is_pending());
    assert!(futures::poll!(&mut asked).is_pending());
    world.secrets.hold_reads(false);
    identities.revoke(&node).await.expect("revoked");
    assert_eq!(asked.await.expect("an answer"), Err(Denied::Revoked));
    assert!(!identities.is_known_good(&node, &facts));
}

/// A restored etcd: the API itself reports the older state, in answer to a later question.
#[tokio::test]
async fn present_api_state_counts_even_after_a_restore() {
    let (world, identity, identities) = registered().await;
    let (before, backup) = (told(&world), world.secrets.secrets.lock().clone());
    identities.revoke(&edge1()).await.expect("revoked");
    *world.secrets.secrets.lock() = backup;
    take(&identities, &before, None);
    assert!(!identities.is_known_good(&edge1(), &identity.facts()), "a watch alone is no proof");
    assert_eq!(identities.ask(&edge1(), &identity.facts()).await.expect("an answer"), Ok(()));
    assert!(identities.is_known_good(&edge1(), &identity.facts()));
}

#[tokio::test]
async fn usage_of_records_and_tokens_is_measured() {
    let (world, _, identities) = registered().await;
    for _ in 0..3 {
        let token = NewToken { names: Vec::new(), uses: 1, life: Duration::from_secs(60), replace: false };
        world.bootstrap.create_token(&token).await.expect("made");
    }
    take(&identities, &told(&world), None);
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    identities.measure(&metrics);
    assert_eq!((metrics.certificate_records.get(), metrics.join_tokens.get()), (1, 3));
    let stored = world.secrets.secrets.lock();
    let records = stored.iter().filter(|(name, _)| name.starts_with(identities::SECRET_PREFIX));
    let bytes = records.flat_map(|(_, secret)| &secret.data).map(|(name, value)| name.len() + value.len());
    assert_eq!(usize::try_from(metrics.certificate_record_bytes.get()), Ok(bytes.sum()));
}
