//! Join tokens: bound to names, counted, kept as hashes.

use http::{Method, StatusCode};
use rcgen::KeyPair;
use sha2::{Digest, Sha256};
use tombolo_proto::NodeId;

use super::world::{Lost, MemorySecrets, NodeIdentity, World, csr, options, parts, present, request};
use super::*;
use crate::bootstrap::join_tokens::{self, JoinId};

const HOUR: Duration = Duration::from_secs(3600);

fn token(names: &[&str], uses: u32, replace: bool) -> NewToken {
    let names = names.iter().map(|name| NodeId::parse(name).expect("a name")).collect();
    NewToken { names, uses, life: HOUR, replace }
}

async fn join(world: &World, node: &str, token: &str) -> (StatusCode, String) {
    let bearer = token.split_once('.').expect("a hash first").1;
    let headers = [("nodename", node.to_owned()), ("authorization", format!("Bearer {bearer}"))];
    let (status, body) = world.enroll(None, &headers, csr(node, &KeyPair::generate().expect("a key"))).await;
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn refused(world: &World, node: &str, token: &str, code: StatusCode, sentence: &str) {
    let (status, text) = join(world, node, token).await;
    assert_eq!(status, code, "{text}");
    assert!(text.contains(sentence), "{text}");
}

#[tokio::test]
async fn token_is_limited_to_its_names_and_uses() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1", "edge2"], 2, false)).await.expect("made");
    assert_eq!(made.split('.').count(), 4, "a KubeEdge edge splits it into four parts");
    assert!(made.starts_with(&world.bootstrap.inner.authority.hash()));
    refused(&world, "edge3", &made, StatusCode::FORBIDDEN, "not valid for node edge3").await;
    assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK);
    assert_eq!(join(&world, "edge2", &made).await.0, StatusCode::OK);
    refused(&world, "edge2", &made, StatusCode::UNAUTHORIZED, "no uses left").await;
    world.skip(HOUR);
    refused(&world, "edge1", &made, StatusCode::UNAUTHORIZED, "the join token expired").await;
}

#[tokio::test]
async fn refused_request_consumes_no_use() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    let bearer = format!("Bearer {}", made.split_once('.').expect("a hash").1);
    let headers = [("nodename", "edge1".to_owned()), ("authorization", bearer)];
    assert_eq!(world.enroll(None, &headers, b"garbage".to_vec()).await.0, StatusCode::BAD_REQUEST);
    world.set_node("edge1", present("u1"));
    refused(&world, "edge1", &made, StatusCode::CONFLICT, "edge1 exists").await;
    world.set_node("edge1", Some(NodeState::Absent));
    assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK);
}

#[tokio::test]
async fn failed_join_returns_its_use() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    // The use is counted, but the certificate cannot be recorded.
    *world.secrets.broken.lock() = Some(identities::SECRET_PREFIX);
    refused(&world, "edge1", &made, StatusCode::SERVICE_UNAVAILABLE, "broken").await;
    *world.secrets.broken.lock() = None;
    let left = list(&*world.secrets).await.expect("listed");
    assert_eq!(left.values().map(|token| token.uses_left).collect::<Vec<_>>(), [1]);
    assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK);
    refused(&world, "edge1", &made, StatusCode::UNAUTHORIZED, "no uses left").await;
}

async fn uses_left(world: &World) -> Vec<u32> {
    list(&*world.secrets).await.expect("listed").values().map(|token| token.uses_left).collect()
}

/// If the answer to a write is lost, it is unknown whether the write was made.
#[tokio::test]
async fn token_use_with_a_lost_answer_is_counted_once() {
    for lost in [Lost::Failed, Lost::Repeated] {
        let world = World::start().await;
        let made = world.bootstrap.create_token(&token(&["edge1", "edge2"], 2, false)).await.expect("made");
        *world.secrets.lost.lock() = Some((join_tokens::SECRET, lost));
        assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK);
        assert_eq!(uses_left(&world).await, [1]);
        assert_eq!(join(&world, "edge2", &made).await.0, StatusCode::OK);
    }
}

/// Otherwise the name would be taken by a certificate that no client has.
#[tokio::test]
async fn retried_join_recognises_its_own_record() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 2, false)).await.expect("made");
    *world.secrets.lost.lock() = Some((identities::SECRET_PREFIX, Lost::Repeated));
    let identity = world.joined_with("edge1", &made).await;
    assert_eq!(uses_left(&world).await, [1]);
    let node = NodeId::parse("edge1").expect("a name");
    let judged = world.bootstrap.identities().ask(&node, &identity.facts()).await;
    assert_eq!(judged.expect("an answer"), Ok(()));
    refused(&world, "edge1", &made, StatusCode::CONFLICT, "has joined and has no Node yet").await;
}

#[tokio::test]
async fn deletion_with_a_lost_answer_succeeds() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    let id = made.split('.').nth(2).expect("an ID");
    *world.secrets.lost.lock() = Some((join_tokens::SECRET, Lost::Repeated));
    delete(&*world.secrets, id).await.expect("deleted");
    assert!(matches!(delete(&*world.secrets, id).await, Err(TokenStoreError::Absent(_))));
}

/// The outcome of a join whose count or record is lost is unknown until the API answers again.
#[tokio::test]
async fn abandoned_join_is_undone_when_the_api_answers_again() {
    for of in [join_tokens::SECRET, identities::SECRET_PREFIX] {
        let world = World::start().await;
        let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
        *world.secrets.lost.lock() = Some((of, Lost::Unreadable));
        refused(&world, "edge1", &made, StatusCode::SERVICE_UNAVAILABLE, "no answer").await;
        *world.secrets.unreadable.lock() = None;
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(60)).await;
        tokio::time::resume();
        assert_eq!(uses_left(&world).await, [1], "{of}");
        assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK, "{of}: the name is free");
    }
}

/// A permanent error does not occupy a slot for ever.
#[tokio::test]
async fn cleanup_of_an_abandoned_join_is_given_up_after_an_hour() {
    for of in [join_tokens::SECRET, identities::SECRET_PREFIX] {
        let world = World::start().await;
        let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
        *world.secrets.lost.lock() = Some((of, Lost::Unreadable));
        refused(&world, "edge1", &made, StatusCode::SERVICE_UNAVAILABLE, "no answer").await;
        let reads = || *world.secrets.reads.lock();
        let (issues, before) = (&world.bootstrap.inner.issues, reads());
        tokio::time::pause();
        tokio::time::sleep(HOUR - Duration::from_secs(60)).await;
        assert_eq!(issues.len(), 1, "{of}: an API server may be away for long");
        tokio::time::sleep(Duration::from_secs(180)).await;
        tokio::time::resume();
        assert!(issues.is_empty(), "{of}");
        assert!((60..600).contains(&(reads() - before)), "{of}: {} reads", reads() - before);
        *world.secrets.unreadable.lock() = None;
        assert_eq!(uses_left(&world).await, [0], "{of}");
        let replacing = world.bootstrap.create_token(&token(&["edge1"], 1, true)).await.expect("made");
        assert_eq!(join(&world, "edge1", &replacing).await.0, StatusCode::OK, "{of}: as the log says");
    }
}

#[tokio::test]
async fn used_up_token_gets_an_abandoned_use_back() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    let (bearer, node) = (made.split_once('.').expect("a hash").1, NodeId::parse("edge1").expect("a name"));
    let (own, another) = (JoinId::new(), JoinId::new());
    join_tokens::spend(&*world.secrets, bearer, &node, own, SystemTime::now()).await.expect("counted");
    world.bootstrap.create_token(&token(&["edge2"], 7, false)).await.expect("made");
    join_tokens::give_back(&*world.secrets, bearer, another).await.expect("an answer");
    let left = async || uses_left(&world).await.into_iter().filter(|uses| *uses != 7).sum::<u32>();
    assert_eq!(left().await, 0, "it was not counted for that join");
    for _ in 0..2 {
        join_tokens::give_back(&*world.secrets, bearer, own).await.expect("an answer");
        assert_eq!(left().await, 1, "once");
    }
    assert_eq!(join(&world, "edge1", &made).await.0, StatusCode::OK);
}

/// A node owns its name already between its join and its first report.
#[tokio::test]
async fn only_a_replacing_token_takes_the_name_of_a_joined_node() {
    let world = World::start().await;
    let plain = world.bootstrap.create_token(&token(&[], 9, false)).await.expect("made");
    let replacing = world.bootstrap.create_token(&token(&["edge1"], 1, true)).await.expect("made");
    assert_eq!(join(&world, "edge1", &plain).await.0, StatusCode::OK);
    let version = || world.secrets.secrets.lock()[join_tokens::SECRET].version.clone();
    let before = version();
    refused(&world, "edge1", &plain, StatusCode::CONFLICT, "has joined and has no Node yet").await;
    assert_eq!(version(), before, "no use is counted and given back for it");
    assert_eq!(join(&world, "edge1", &replacing).await.0, StatusCode::OK);
    refused(&world, "edge1", &plain, StatusCode::CONFLICT, "--replace").await;
    world.skip(366 * 24 * HOUR);
    let plain = world.bootstrap.create_token(&token(&[], 9, false)).await.expect("made");
    assert_eq!(join(&world, "edge1", &plain).await.0, StatusCode::OK, "its certificate has ended");
}

/// Both find the name free when they ask, but only one of them gets it.
#[tokio::test]
async fn two_concurrent_joins_cannot_share_a_name() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 2, false)).await.expect("made");
    let (one, other) = futures::join!(join(&world, "edge1", &made), join(&world, "edge1", &made));
    let mut codes = [one.0, other.0];
    codes.sort_unstable();
    assert_eq!(codes, [StatusCode::OK, StatusCode::CONFLICT]);
    let left = list(&*world.secrets).await.expect("listed");
    assert_eq!(left.values().map(|token| token.uses_left).collect::<Vec<_>>(), [1], "one use is given back");
}

/// Every step of KubeEdge edgecore (docs/reference/kubeedge.md#join-procedure): the token is split at its dots. The
/// first part is the hash of the CA, and the other three, joined again, are presented.
#[tokio::test]
async fn a_kubeedge_edge_joins_with_a_token_for_its_name() {
    let world = World::start_with(Options { shared_token: false, ..options() }).await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    let (status, ca) = world.ask(None, request(Method::GET, "/ca.crt", &[], Vec::new())).await;
    assert_eq!(status, StatusCode::OK);
    let parts: Vec<&str> = made.split('.').collect();
    assert_eq!((parts.len(), parts[0]), (4, hex::encode(Sha256::digest(&ca)).as_str()));
    let header = |node: &str| {
        let bearer = format!("Bearer {}", parts[1..].join("."));
        [("NodeName", node.to_owned()), ("Authorization", bearer)]
    };
    let key = KeyPair::generate().expect("a key");
    let (status, text) = world.enroll(None, &header("edge2"), csr("edge2", &key)).await;
    assert_eq!((status, text.is_empty()), (StatusCode::FORBIDDEN, false), "the token is for edge1");
    let (status, certificate) = world.enroll(None, &header("edge1"), csr("edge1", &key)).await;
    assert_eq!(status, StatusCode::OK, "{certificate:?}");
    // It renews with the certificate alone.
    let identity = NodeIdentity { certificate: certificate.to_vec(), key: key.serialize_der() };
    let name = [("NodeName", "edge1".to_owned())];
    let key = KeyPair::generate().expect("a key");
    assert_eq!(world.enroll(Some(&identity), &name, csr("edge1", &key)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn only_a_replacing_token_takes_the_name_of_a_node() {
    let world = World::start().await;
    let plain = world.bootstrap.create_token(&token(&[], 9, false)).await.expect("made");
    let replacing = world.bootstrap.create_token(&token(&["edge1"], 1, true)).await.expect("made");
    world.set_node("edge1", present("u1"));
    refused(&world, "edge1", &plain, StatusCode::CONFLICT, "--replace").await;
    assert_eq!(join(&world, "edge1", &replacing).await.0, StatusCode::OK);
    assert_eq!(join(&world, "edge7", &plain).await.0, StatusCode::OK, "no name is pinned");
}

#[tokio::test]
async fn secrets_of_tokens_are_stored_as_hashes_only() {
    let world = World::start().await;
    let made = world.bootstrap.create_token(&token(&["edge1"], 1, false)).await.expect("made");
    let secret = made.rsplit('.').next().expect("the last part");
    let stored = world.secrets.secrets.lock()["tombolo-join-tokens"].data.clone();
    let (id, text) = stored.iter().next().expect("one token");
    assert!(made.contains(id.as_str()));
    assert!(!String::from_utf8_lossy(text).contains(secret));
    let forged = made.replace(secret, &"0".repeat(secret.len()));
    refused(&world, "edge1", &forged, StatusCode::UNAUTHORIZED, "does not know the join token").await;

    let listed = list(&*world.secrets).await.expect("listed");
    assert_eq!((listed.len(), listed[id].uses_left), (1, 1));
    delete(&*world.secrets, id).await.expect("deleted");
    assert!(matches!(delete(&*world.secrets, id).await, Err(TokenStoreError::Absent(_))));
    refused(&world, "edge1", &made, StatusCode::UNAUTHORIZED, "does not know the join token").await;
}

#[tokio::test]
async fn two_replicas_cannot_both_grant_the_last_use() {
    let secrets = Arc::new(MemorySecrets::default());
    let bootstrap = Bootstrap::with_parts(parts(&secrets), options()).await.expect("ready");
    let made = bootstrap.create_token(&token(&[], 3, false)).await.expect("made");
    let bearer = made.split_once('.').expect("a hash").1;
    let node = NodeId::parse("edge1").expect("a name");
    // Called without the lock that a process holds, so that each call acts as a separate replica.
    let spent = futures::future::join_all(
        (0..8).map(|_| join_tokens::spend(&*secrets, bearer, &node, JoinId::new(), SystemTime::now())),
    )
    .await;
    assert_eq!(spent.iter().filter(|outcome| outcome.is_ok()).count(), 3);
}

#[tokio::test]
async fn shared_token_is_off_by_default() {
    let on = World::start().await;
    let world = World::start_with(Options { shared_token: false, ..options() }).await;
    assert!(!world.secrets.secrets.lock().contains_key("tokensecret"), "none is stored");
    let shared = on.secrets.shared_token();
    refused(&world, "edge1", &shared, StatusCode::UNAUTHORIZED, "sharedToken").await;
}

#[tokio::test]
async fn token_options_are_validated() {
    let world = World::start().await;
    for bad in [
        NewToken { uses: 0, ..token(&[], 1, false) },
        NewToken { life: Duration::ZERO, ..token(&[], 1, false) },
        NewToken { life: Duration::from_secs(367 * 86_400), ..token(&[], 1, false) },
    ] {
        let made = world.bootstrap.create_token(&bad).await;
        assert!(matches!(made, Err(TokenStoreError::Invalid(_))), "{made:?}");
    }
}
