//! Renewals are limited across all clients and replicas, and a revocation always succeeds.

use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use rcgen::KeyPair;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

use super::world::{MemorySecrets, NodeIdentity, World, csr, options, parts, present, request};
use super::*;
use crate::bootstrap::identities::{IdentityError, SECRET_PREFIX};

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// Outcome of a renewal: the new identity, or how long the node must wait, in seconds.
async fn renew(world: &World, with: &NodeIdentity) -> Result<NodeIdentity, u64> {
    let key = KeyPair::generate().expect("a key");
    let headers = [("nodename", "edge1".to_owned())];
    let asked = request(Method::GET, "/edge.crt", &headers, csr("edge1", &key));
    let answer = world.answer(Some(with), asked).await;
    if answer.status() == StatusCode::OK {
        return Ok(NodeIdentity { certificate: answer.body().to_vec(), key: key.serialize_der() });
    }
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "{:?}", answer.body());
    let after = answer.headers()[RETRY_AFTER].to_str().expect("text");
    Err(after.parse().expect("seconds"))
}

/// Number of writes of records.
fn writes(world: &World) -> usize {
    world.secrets.writes.lock().iter().filter(|name| name.starts_with(SECRET_PREFIX)).count()
}

/// Number of Nodes and Secrets read since the last call.
fn reads(world: &World) -> usize {
    std::mem::take(&mut *world.nodes.1.lock()) + std::mem::take(&mut *world.secrets.reads.lock())
}

/// A registered node that the watches have reported.
async fn registered() -> (World, NodeIdentity) {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    let identities = world.bootstrap.identities();
    identities.know_nodes([(edge1(), "u1".to_owned())].into());
    assert_eq!(identities.check(&edge1(), &identity.facts()).await.expect("an answer"), Ok(()));
    (world, identity)
}

#[tokio::test]
async fn renewals_in_a_loop_cause_few_record_writes() {
    let (world, mut identity) = registered().await;
    let before = writes(&world);
    for _ in 0..3 {
        identity = renew(&world, &identity).await.expect("at once");
    }
    assert_eq!(writes(&world) - before, 3);
    reads(&world);
    for _ in 0..20 {
        let wait = renew(&world, &identity).await.map(drop).expect_err("too often");
        assert!((50..=60).contains(&wait), "{wait} s");
    }
    assert_eq!(writes(&world) - before, 3);
    assert_eq!(reads(&world), 0, "the copy in memory answers");
    world.skip(Duration::from_secs(60));
    identity = renew(&world, &identity).await.expect("after the pause");
    let wait = renew(&world, &identity).await.map(drop).expect_err("too often");
    assert!((110..=120).contains(&wait), "{wait} s: it doubles");
    world.skip(Duration::from_secs(250 * 86_400));
    for _ in 0..3 {
        identity = renew(&world, &identity).await.expect("at its usual time, and after lost answers");
    }
}

#[tokio::test]
async fn renewal_after_a_lost_answer_succeeds() {
    let (world, identity) = registered().await;
    for _ in 0..3 {
        renew(&world, &identity).await.expect("no node has the previous one");
    }
    renew(&world, &identity).await.map(drop).expect_err("too often");
}

#[tokio::test]
async fn concurrent_renewals_are_paced_like_consecutive_ones() {
    let (world, identity) = registered().await;
    reads(&world);
    let before = writes(&world);
    let all = futures::future::join_all((0..12).map(|_| renew(&world, &identity))).await;
    assert_eq!(all.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert_eq!(writes(&world) - before, 3);
    let reads = reads(&world);
    assert!(reads <= 6, "{reads} reads");
}

/// The limit comes from the record, not from the memory of one replica.
#[tokio::test]
async fn all_replicas_apply_the_same_renewal_pace() {
    let (world, identity) = registered().await;
    let replicas = [world.replica().await, world.replica().await];
    let with = identity.facts();
    let mut renewed = 0;
    for round in 0..4 {
        for replica in &replicas {
            let new = PeerCertificate { serial: (100 + renewed).into(), key: [round; 32], ..with };
            match replica.identities().renewed(&edge1(), &with, &new).await {
                Ok(outcome) => {
                    assert_eq!(outcome, Ok(()));
                    renewed += 1;
                }
                Err(error) => assert!(matches!(error, IdentityError::TooOften(_)), "{error}"),
            }
        }
    }
    assert_eq!(renewed, 3);
    assert!(matches!(renew(&world, &identity).await, Err(50..=60)), "and so does this one");
}

/// Such a request is not a renewal, and a client can send any number of them.
#[tokio::test]
async fn failed_renewal_costs_no_api_call() {
    let (world, identity) = registered().await;
    reads(&world);
    let headers = [("nodename", "edge1".to_owned())];
    for _ in 0..20 {
        let (status, _) = world.enroll(Some(&identity), &headers, b"garbage".to_vec()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(reads(&world), 0);
}

#[tokio::test]
async fn expired_certificate_without_a_node_costs_one_api_call() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.skip(Duration::from_secs(366 * 86_400));
    reads(&world);
    let headers = [("nodename", "edge1".to_owned())];
    for _ in 0..20 {
        let body = csr("edge1", &KeyPair::generate().expect("a key"));
        let (status, text) = world.enroll(Some(&identity), &headers, body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(String::from_utf8_lossy(&text).contains("no longer registered"), "{text:?}");
    }
    assert_eq!(reads(&world), 2, "its Node and its record");
}

#[tokio::test]
async fn repeated_node_queries_cost_few_api_calls() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let identities = world.bootstrap.identities();
    let ask = async || {
        let asked = request(Method::GET, "/node/edge1", &[], Vec::new());
        world.ask(Some(&identity), asked).await.0
    };
    reads(&world);
    for _ in 0..20 {
        assert_eq!(ask().await, StatusCode::NOT_FOUND);
    }
    assert_eq!(reads(&world), 2, "its Node and its record");
    let judged = identities.check(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged, Ok(()), "it may register all the same");
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(edge1(), "u1".to_owned())].into());
    assert_eq!(ask().await, StatusCode::OK);
    reads(&world);
    for _ in 0..20 {
        assert_eq!(ask().await, StatusCode::OK);
    }
    assert_eq!(reads(&world), 0, "the copy in memory answers");
}

/// Other writers of the same Secret never stop.
#[tokio::test(start_paused = true)]
async fn revocation_succeeds_despite_concurrent_writers() {
    let secrets = Arc::new(MemorySecrets::default());
    let bootstrap = Bootstrap::with_parts(parts(&secrets), options()).await.expect("ready");
    *secrets.overtaken.lock() = 100;
    bootstrap.identities().revoke(&edge1()).await.expect("revoked");
    let secrets = secrets.secrets.lock();
    let recorded = secrets.values().find_map(|secret| secret.data.get("edge1")).expect("recorded");
    assert!(String::from_utf8_lossy(recorded).contains(r#""revoked":true"#));
}
