//! Certificates in force: renewals follow the records, and so do all replicas.

use http::StatusCode;
use rcgen::KeyPair;
use tombolo_link::identity::PeerCertificate;
use tombolo_link::{PeerInfo, Transport};
use tombolo_proto::NodeId;
use tombolo_proto::frame::GoodbyeReason;

use super::world::{MemorySecrets, NodeIdentity, World, csr, options, parts, present};
use super::*;
use crate::bootstrap::identities::{Denied, IdentityError};
use crate::hub::{Admission, Registry, SessionHandle};
use crate::hub_admission::sweep_once;

async fn renew(world: &World, identity: &NodeIdentity, node: &str) -> (StatusCode, String, NodeIdentity) {
    let key = KeyPair::generate().expect("a key");
    let headers = [("nodename", node.to_owned())];
    let (status, body) = world.enroll(Some(identity), &headers, csr(node, &key)).await;
    let text = String::from_utf8_lossy(&body).into_owned();
    (status, text, NodeIdentity { certificate: body.to_vec(), key: key.serialize_der() })
}

async fn judged(world: &World, identity: &NodeIdentity) -> Result<(), Denied> {
    let node = NodeId::parse("edge1").expect("a name");
    world.bootstrap.identities().ask(&node, &identity.facts()).await.expect("an answer")
}

#[tokio::test]
async fn certificate_of_a_deleted_node_opens_no_session_and_renews_nothing() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    assert_eq!(judged(&world, &identity).await, Ok(()), "before it registers");
    world.set_node("edge1", present("u1"));
    assert_eq!(judged(&world, &identity).await, Ok(()));
    for state in [Some(NodeState::Absent), present("u2")] {
        world.set_node("edge1", state);
        assert_eq!(judged(&world, &identity).await, Err(Denied::Deleted));
        let (status, text, _) = renew(&world, &identity, "edge1").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(text.contains("was deleted: join again"), "{text}");
    }
}

#[tokio::test]
async fn certificate_of_a_deleted_node_stays_invalid_after_the_next_join() {
    let world = World::start().await;
    let old = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    assert_eq!(judged(&world, &old).await, Ok(()));
    world.set_node("edge1", Some(NodeState::Absent));
    let new = world.joined("edge1").await;
    world.set_node("edge1", present("u2"));
    assert_eq!(judged(&world, &new).await, Ok(()));
    assert_eq!(judged(&world, &old).await, Err(Denied::Replaced));
    assert_eq!(renew(&world, &old, "edge1").await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn renewing_certificate_stays_valid_until_the_next_renewal() {
    let world = World::start().await;
    let first = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    let (status, text, second) = renew(&world, &first, "edge1").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    // The answer may have been lost.
    assert_eq!(judged(&world, &first).await, Ok(()));
    assert_eq!(judged(&world, &second).await, Ok(()));
    let (status, _, third) = renew(&world, &second, "edge1").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(judged(&world, &third).await, Ok(()));
    assert_eq!(judged(&world, &first).await, Err(Denied::Replaced));
}

/// Another machine may join after a certificate was checked and before its renewal is recorded.
#[tokio::test]
async fn renewal_overtaken_by_a_join_is_not_recorded() {
    let world = World::start().await;
    let (old, node) = (world.joined("edge1").await, NodeId::parse("edge1").expect("a name"));
    let (new, identities) = (World::start().await.joined("edge1").await, world.bootstrap.identities());
    identities.joined(&node, &new.facts(), true).await.expect("stored").expect("replaced");
    let renewed = PeerCertificate { serial: 3.into(), ..old.facts() };
    let outcome = identities.renewed(&node, &old.facts(), &renewed).await.expect("an answer");
    assert_eq!(outcome, Err(Denied::Replaced));
    assert_eq!(judged(&world, &new).await, Ok(()));
}

/// A thief renews while a join that replaces the node is about to be recorded. All certificates that the thief has
/// received by then, including discarded ones, end with that join.
#[tokio::test]
async fn renewal_does_not_survive_a_replacing_join() {
    let world = World::start().await;
    let (stolen, node) = (world.joined("edge1").await.facts(), NodeId::parse("edge1").expect("a name"));
    let identities = world.bootstrap.identities();
    let signed = |number: u8, later: u64| PeerCertificate {
        serial: u64::from(number).into(),
        key: [number; 32],
        issued: stolen.issued + later,
        ..stolen
    };
    let (waiting, thrown_away, kept) = (signed(1, 10), signed(2, 30), signed(3, 20));
    for renewed in [&thrown_away, &kept] {
        let answer = identities.renewed(&node, &stolen, renewed).await.expect("an answer");
        assert_eq!(answer, Ok(()));
    }
    identities.joined(&node, &waiting, true).await.expect("stored").expect("replaced");
    for certificate in [&stolen, &thrown_away, &kept] {
        let judged = identities.ask(&node, certificate).await.expect("an answer");
        assert_eq!(judged, Err(Denied::Replaced), "{certificate:?}");
        let renewed = identities.renewed(&node, certificate, &signed(4, 40)).await.expect("an answer");
        assert_eq!(renewed, Err(Denied::Replaced), "{certificate:?}");
    }
    // A certificate that another cloudcore with the same authority has renewed since then counts.
    let later = identities.ask(&node, &signed(5, 50)).await.expect("an answer");
    assert_eq!((identities.ask(&node, &waiting).await.expect("an answer"), later), (Ok(()), Ok(())));
}

/// A cloudcore of an older version writes the records of all names of a Secret, but without the start of their latest
/// certificates.
#[tokio::test]
async fn record_written_by_an_older_cloudcore_restores_no_certificate() {
    let world = World::start().await;
    let (first, node) = (world.joined("edge1").await.facts(), NodeId::parse("edge1").expect("a name"));
    let identities = world.bootstrap.identities();
    let signed = |number: u8, later: u64| PeerCertificate {
        serial: u64::from(number).into(),
        key: [number; 32],
        issued: first.issued + later,
        ..first
    };
    let (thrown_away, waiting) = (signed(1, 30), signed(2, 10));
    identities.renewed(&node, &first, &thrown_away).await.expect("an answer").expect("in force");
    identities.joined(&node, &waiting, true).await.expect("stored").expect("replaced");
    let recorded = || {
        let secrets = world.secrets.secrets.lock();
        let texts = secrets.values().filter_map(|secret| secret.data.get("edge1"));
        texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect::<String>()
    };
    assert!(recorded().contains("latest"));
    for secret in world.secrets.secrets.lock().values_mut() {
        if let Some(text) = secret.data.get_mut("edge1") {
            let mut entry: serde_json::Value = serde_json::from_slice(text).expect("JSON");
            entry.as_object_mut().expect("a record").remove("latest");
            *text = entry.to_string().into_bytes();
            let mut writes = world.secrets.writes.lock();
            writes.push("an older cloudcore".to_owned());
            secret.version = writes.len().to_string();
        }
    }
    assert!(!recorded().contains("latest"));
    let judged = identities.ask(&node, &thrown_away).await.expect("an answer");
    assert_eq!(judged, Err(Denied::Replaced));
    // The next write repairs it for the others.
    world.set_node("edge1", present("u1"));
    assert_eq!(identities.ask(&node, &waiting).await.expect("an answer"), Ok(()));
    assert!(recorded().contains("latest"), "{}", recorded());
    let other = world.replica().await.identities();
    assert_eq!(other.ask(&node, &thrown_away).await.expect("an answer"), Err(Denied::Replaced));
}

/// Expired records are removed with the next write to their Secret. Lifetimes of certificates differ: the successor of
/// a certificate may expire first.
#[tokio::test]
async fn replaced_certificate_stays_invalid_after_its_successor_expires() {
    let world = World::start().await;
    let (long, node) = (world.joined("edge1").await.facts(), NodeId::parse("edge1").expect("a name"));
    let identities = world.bootstrap.identities();
    let expires = long.issued + 30 * 86_400;
    let short = PeerCertificate { serial: 2.into(), key: [2; 32], issued: long.issued + 1, expires };
    identities.joined(&node, &short, true).await.expect("stored").expect("replaced");
    world.set_node("edge1", present("u1"));
    assert_eq!(identities.ask(&node, &short).await.expect("an answer"), Ok(()));
    let others_write = async || {
        for number in 0..16 {
            let other = NodeId::parse(&format!("other{number}")).expect("a name");
            identities.joined(&other, &short, true).await.expect("stored").expect("joined");
        }
    };
    let day = Duration::from_secs(86_400);
    world.skip(31 * day + EXPIRED_GRACE);
    others_write().await;
    assert_eq!(identities.ask(&node, &long).await.expect("an answer"), Err(Denied::Replaced));
    world.skip(335 * day);
    others_write().await;
    let recorded = world.secrets.secrets.lock().values().any(|secret| secret.data.contains_key("edge1"));
    assert!(!recorded, "none of its certificates can still be valid");
}

#[tokio::test]
async fn revocation_by_one_replica_is_enforced_by_all() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    assert_eq!(judged(&world, &identity).await, Ok(()));
    let nodes: Arc<dyn NodeLookup> = Arc::<super::world::Nodes>::clone(&world.nodes);
    let store: Arc<dyn SecretStore> = Arc::<MemorySecrets>::clone(&world.secrets);
    for (name, on_record) in [("edge1", true), ("edgel", false)] {
        let (store, nodes, name) =
            (Arc::clone(&store), Arc::clone(&nodes), NodeId::parse(name).expect("a name"));
        assert_eq!(identities::revoke(store, nodes, &name).await.expect("revoked"), on_record, "{name}");
    }
    assert_eq!(judged(&world, &identity).await, Err(Denied::Revoked));
    let (status, text, _) = renew(&world, &identity, "edge1").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(text.contains("revoked"), "{text}");
    // While the Node cannot be read, a revoked name stays revoked.
    world.nodes.0.lock().insert("edge1".to_owned(), None);
    assert_eq!(judged(&world, &identity).await, Err(Denied::Revoked));
}

#[tokio::test]
async fn unrecorded_certificate_is_not_issued() {
    let world = World::start().await;
    let headers = [("nodename", "edge1".to_owned()), world.bearer()];
    let body = || csr("edge1", &KeyPair::generate().expect("a key"));
    *world.secrets.broken.lock() = Some("");
    assert_eq!(world.enroll(None, &headers, body()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    *world.secrets.broken.lock() = None;
    assert_eq!(world.enroll(None, &headers, body()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn fleet_from_before_the_records_is_adopted_by_its_nodes() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.secrets.secrets.lock().retain(|name, _| !name.starts_with(identities::SECRET_PREFIX));
    let (bootstrap, certificate) = (world.replica().await, identity.facts());
    let (node, identities) = (NodeId::parse("edge1").expect("a name"), bootstrap.identities());
    let asked = async || identities.ask(&node, &certificate).await.expect("an answer");
    assert_eq!(asked().await, Err(Denied::Unknown), "there is no Node");
    world.set_node("edge1", present("u1"));
    assert_eq!(asked().await, Ok(()));
    world.set_node("edge1", present("u2"));
    assert_eq!(asked().await, Err(Denied::Deleted));
}

#[tokio::test]
async fn damaged_record_admits_nobody() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    for secret in world.secrets.secrets.lock().values_mut() {
        if let Some(value) = secret.data.get_mut("edge1") {
            *value = b"garbage".to_vec();
            secret.version = "1000".to_owned();
        }
    }
    assert_eq!(judged(&world, &identity).await, Err(Denied::Revoked));
}

/// The authority is one Secret, and its replacement ends the process: no session of the former authority continues.
#[tokio::test(start_paused = true)]
async fn replaced_authority_ends_the_process() {
    let secrets = Arc::new(MemorySecrets::default());
    let bootstrap = Bootstrap::with_parts(parts(&secrets), options()).await.expect("ready");
    let watching = tokio::spawn(bootstrap.authority_stays());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let kept = secrets.secrets.lock().remove("casecret").expect("stored");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!watching.is_finished(), "a missing record is only reported");
    let other = Arc::new(MemorySecrets::default());
    Bootstrap::with_parts(parts(&other), options()).await.expect("ready");
    let mut replaced = other.secrets.lock()["casecret"].clone();
    replaced.version = kept.version;
    secrets.secrets.lock().insert("casecret".to_owned(), replaced);
    let ended = tokio::time::timeout(Duration::from_secs(600), watching).await.expect("it ends");
    let error = ended.expect("no panic").expect_err("another authority").to_string();
    assert!(error.contains("casecret"), "{error}");
}

#[tokio::test]
async fn certificate_records_are_bounded() {
    let world = World::start().await;
    let identities = world.bootstrap.identities();
    let certificate = PeerCertificate { serial: 7.into(), key: [7; 32], issued: 1, expires: u64::MAX / 2 };
    let long = "n".repeat(63);
    let mut refused = None;
    for number in 0..40_000 {
        let node = NodeId::parse(&format!("{long}.{long}.{long}.{number}")).expect("a name");
        // Each record writes a whole Secret, so most of them go directly into the store.
        if number % 4_000 == 3_999 {
            if let Err(error) = identities.joined(&node, &certificate, true).await {
                refused = Some(error.error);
                break;
            }
        } else {
            let entry = format!(
                r#"{{"keys":[{{"key":"{}","issued":1,"expires":9999999999999}}],"joined":1}}"#,
                "07".repeat(32)
            );
            let mut secrets = world.secrets.secrets.lock();
            let shards: Vec<_> =
                secrets.iter_mut().filter(|(name, _)| name.starts_with(identities::SECRET_PREFIX)).collect();
            for (_, secret) in shards {
                secret.data.insert(node.to_string(), entry.clone().into_bytes());
            }
        }
    }
    assert!(matches!(refused, Some(IdentityError::Full { .. })), "{refused:?}");
}

/// A session of edge1 with this certificate.
pub(super) fn session(registry: &Registry, certificate: PeerCertificate) -> Arc<SessionHandle> {
    let node = NodeId::parse("edge1").expect("a name");
    let peer = PeerInfo {
        remote: ([127, 0, 0, 1], 1).into(),
        transport: Transport::Memory,
        node: Some(node.clone()),
        certificate: Some(certificate),
    };
    match registry.admit(&node, &peer) {
        Admission::Admitted(handle) => handle,
        Admission::Full(limit) => panic!("full at {limit}"),
    }
}

#[tokio::test]
async fn session_ends_when_its_certificate_is_no_longer_in_force() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let (node, identities) = (NodeId::parse("edge1").expect("a name"), world.bootstrap.identities());
    let certificate = identity.facts();
    let registry = Registry::new(5);
    let handle = session(&registry, certificate);
    let said = async || {
        sweep_once(&identities, &registry).await;
        handle.mailbox.take().goodbye.map(|goodbye| (goodbye.reason, goodbye.message))
    };
    assert_eq!(said().await, None, "before it registers, and before a list of Nodes is known");
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(node.clone(), "u1".to_owned())].into());
    assert_eq!(said().await, None, "its Node is bound to it");
    assert!(identities.is_known_good(&node, &certificate));

    world.set_node("edge1", Some(NodeState::Absent));
    identities.know_nodes([].into());
    assert_eq!(said().await.expect("the Node no longer exists").0, GoodbyeReason::NodeDeleted);

    world.set_node("edge1", present("u1"));
    identities.know_nodes([(node.clone(), "u1".to_owned())].into());
    assert_eq!(said().await, None);
    identities.revoke(&node).await.expect("revoked");
    let (reason, message) = said().await.expect("revoked");
    assert_eq!(reason, GoodbyeReason::Forbidden);
    assert!(message.contains("revoked"), "{message}");

    // A certificate that is already known is not asked about.
    *world.secrets.unreadable.lock() = Some(identities::SECRET_PREFIX);
    let handle = session(&registry, certificate);
    sweep_once(&identities, &registry).await;
    let goodbye = handle.mailbox.take().goodbye.expect("revoked, whether the API answers or not");
    assert_eq!(goodbye.reason, GoodbyeReason::Forbidden);

    let ended = session(&registry, PeerCertificate { expires: 1, ..certificate });
    sweep_once(&identities, &registry).await;
    let goodbye = ended.mailbox.take().goodbye.expect("its certificate has ended");
    assert!(goodbye.message.contains("has expired"), "{}", goodbye.message);
}
