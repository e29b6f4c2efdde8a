//! Limits of what strangers can take from shared resources: reads of the join tokens, and room in the records.

use http::StatusCode;
use rcgen::KeyPair;
use tombolo_proto::NodeId;

use super::world::{MemorySecrets, World, csr, options, parts, present};
use super::*;
use crate::bootstrap::identities::{SECRET_PREFIX, SHARD_LEN_MAX, SHARED_LEN_MAX};
use crate::bootstrap::join_tokens::Refused;

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

fn token(names: Vec<NodeId>) -> NewToken {
    NewToken { names, uses: 1, life: Duration::from_secs(3600), replace: false }
}

async fn made(bootstrap: &Bootstrap) -> String {
    let made = bootstrap.create_token(&token(vec![edge1()])).await.expect("made");
    made.split_once('.').expect("a hash first").1.to_owned()
}

/// The API answers immediately here, so each read costs one pause.
#[tokio::test(start_paused = true)]
async fn guessed_tokens_cost_a_bounded_number_of_reads() {
    let secrets = Arc::new(MemorySecrets::default());
    let bootstrap = Bootstrap::with_parts(parts(&secrets), options()).await.expect("ready");
    let (inner, node) = (&bootstrap.inner, edge1());
    let looks =
        async |bearer: &str| inner.known_tokens.look(&*inner.secrets, bearer, &node, SystemTime::now()).await;
    let first = made(&bootstrap).await;
    *secrets.reads.lock() = 0;
    let guess = "tombolo.0000000000.guess";
    let guesses = futures::future::join_all((0..256).map(|_| looks(guess)));
    for outcome in guesses.await {
        assert!(matches!(outcome, Err(Refused::Unknown)), "{outcome:?}");
    }
    assert!(*secrets.reads.lock() <= 2, "{} reads", secrets.reads.lock());
    let begin = tokio::time::Instant::now();
    looks(&first).await.expect("it was there before the guesses");
    let second = made(&bootstrap).await;
    looks(&second).await.expect("it was made after that");
    assert!(begin.elapsed() <= Duration::from_secs(1), "{:?}", begin.elapsed());
    // A client that hangs up does not make the next read start earlier.
    tokio::time::sleep(Duration::from_secs(60)).await;
    secrets.hold_reads(true);
    *secrets.reads.lock() = 0;
    for _ in 0..100 {
        let given_up = tokio::time::timeout(Duration::from_millis(10), looks(guess));
        assert!(given_up.await.is_err());
    }
    assert!(*secrets.reads.lock() <= 5, "{} reads in a second", secrets.reads.lock());
}

#[tokio::test]
async fn deleted_token_is_refused() {
    let world = World::start().await;
    let (inner, node) = (&world.bootstrap.inner, edge1());
    let bearer = made(&world.bootstrap).await;
    let looks = async || inner.known_tokens.look(&*inner.secrets, &bearer, &node, SystemTime::now()).await;
    looks().await.expect("known");
    delete(&*inner.secrets, bearer.split('.').nth(1).expect("an ID")).await.expect("deleted");
    let headers = [("nodename", "edge1".to_owned()), ("authorization", format!("Bearer {bearer}"))];
    let body = csr("edge1", &KeyPair::generate().expect("a key"));
    assert_eq!(world.enroll(None, &headers, body).await.0, StatusCode::UNAUTHORIZED);
}

/// Fills the records with joined names, up to this many bytes in each Secret.
fn fill(world: &World, until: usize) {
    let key = "07".repeat(32);
    let entry = format!(r#"{{"keys":[{{"key":"{key}","issued":1,"expires":9999999999999}}],"joined":1}}"#);
    let mut secrets = world.secrets.secrets.lock();
    for (_, secret) in secrets.iter_mut().filter(|(name, _)| name.starts_with(SECRET_PREFIX)) {
        let mut len: usize = secret.data.iter().map(|(name, value)| name.len() + value.len()).sum();
        let mut number = 0;
        while len < until {
            let name = format!("made-up-{until}-{number}");
            len += name.len() + entry.len();
            secret.data.insert(name, entry.clone().into_bytes());
            number += 1;
        }
    }
}

#[tokio::test]
async fn shared_token_joins_leave_record_space_for_named_tokens() {
    let world = World::start().await;
    let there = world.joined("edge2").await;
    world.set_node("edge2", present("u2"));
    fill(&world, SHARED_LEN_MAX);
    let join = async |with: Option<_>, node: &str, authorization: Vec<(&str, String)>| {
        let headers = [vec![("nodename", node.to_owned())], authorization].concat();
        let body = csr(node, &KeyPair::generate().expect("a key"));
        let (status, text) = world.enroll(with, &headers, body).await;
        (status, String::from_utf8_lossy(&text).into_owned())
    };
    let (status, text) = join(None, "edge1", vec![world.bearer()]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(text.contains("create a token for its name"), "{text}");
    assert_eq!(join(Some(&there), "edge2", Vec::new()).await.0, StatusCode::OK, "existing nodes renew");
    let bearer = ("authorization", format!("Bearer {}", made(&world.bootstrap).await));
    assert_eq!(join(None, "edge1", vec![bearer]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn revocation_works_when_the_records_are_full() {
    let world = World::start().await;
    let (identity, identities) = (world.joined("edge1").await, world.bootstrap.identities());
    fill(&world, SHARD_LEN_MAX);
    assert!(identities.revoke(&edge1()).await.expect("revoked"));
    let judged = identities.ask(&edge1(), &identity.facts()).await.expect("an answer");
    assert_eq!(judged, Err(identities::Denied::Revoked));
}
