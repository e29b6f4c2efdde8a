//! A join whose client hangs up, at every step of it.

use futures::FutureExt as _;
use http::StatusCode;
use rcgen::KeyPair;
use tombolo_proto::NodeId;

use super::world::{World, csr};
use super::*;
use crate::bootstrap::issue::{ISSUES_MAX, Way, issue};

fn edge1() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// A token for one join of edge1, as it is presented.
async fn bearer(world: &World) -> String {
    let token = NewToken { names: vec![edge1()], uses: 1, life: Duration::from_secs(3600), replace: false };
    let made = world.bootstrap.create_token(&token).await.expect("made");
    made.split_once('.').expect("a hash first").1.to_owned()
}

async fn uses_left(world: &World) -> u32 {
    list(&*world.secrets).await.expect("listed").values().map(|token| token.uses_left).sum()
}

async fn all_recorded(inner: &Inner) {
    while !inner.issues.is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Begins a join and drops it after this many polls, or with `later` a moment after them, when it may have been
/// answered. False when it was done before that.
async fn given_up_after(world: &World, looks: usize, later: bool, bearer: &str) -> bool {
    let inner = &world.bootstrap.inner;
    let waiting = inner.limiter.enter([192, 0, 2, 1].into()).expect("a place");
    assert!(waiting.spoke());
    let slot = Arc::new(waiting.work().await.expect("a slot"));
    let certificate = World::start().await.joined("edge1").await.facts();
    let way = Way::Token { bearer: bearer.to_owned(), replace: false };
    let node = edge1();
    let mut asked = Box::pin(issue(inner, &slot, &node, way, certificate));
    for look in 0..looks {
        if look > 0 {
            tokio::task::yield_now().await;
        }
        if let Some(issued) = asked.as_mut().now_or_never() {
            assert!(issued.is_ok(), "{issued:?}");
            return false;
        }
    }
    if later {
        tokio::task::yield_now().await;
    }
    drop(asked);
    drop(slot);
    let held = usize::from(!inner.issues.is_empty());
    assert_eq!(inner.limiter.working(), held, "it keeps its slot until it finishes");
    all_recorded(inner).await;
    assert_eq!(inner.limiter.working(), 0);
    true
}

#[tokio::test]
async fn disconnected_client_consumes_no_use_and_leaves_no_record() {
    let mut looks = 0;
    for later in [false, true].into_iter().cycle() {
        let world = World::start().await;
        let bearer = bearer(&world).await;
        let given_up = given_up_after(&world, looks, later, &bearer).await;
        assert_eq!(uses_left(&world).await, u32::from(given_up), "after {looks} looks");
        if !given_up {
            break;
        }
        let headers = [("nodename", "edge1".to_owned()), ("authorization", format!("Bearer {bearer}"))];
        let body = csr("edge1", &KeyPair::generate().expect("a key"));
        let (status, text) = world.enroll(None, &headers, body).await;
        assert_eq!(status, StatusCode::OK, "after {looks} looks: {text:?}");
        looks += usize::from(later);
    }
    assert!(looks > 5, "it was given up at {looks} steps only");
}

#[tokio::test]
async fn repeated_disconnects_use_up_the_token() {
    let mut looks = 0;
    loop {
        let world = World::start().await;
        let bearer = bearer(&world).await;
        if !given_up_after(&world, looks + 1, false, &bearer).await {
            break;
        }
        looks += 1;
    }
    let world = World::start().await;
    let bearer = bearer(&world).await;
    let mut times = 0;
    while uses_left(&world).await > 0 && times < 10 {
        assert!(given_up_after(&world, looks, false, &bearer).await);
        times += 1;
    }
    assert_eq!((uses_left(&world).await, times), (0, 2), "it is excused once");
}

#[tokio::test]
async fn concurrent_certificate_records_are_bounded() {
    let world = World::start().await;
    for _ in 0..ISSUES_MAX {
        world.bootstrap.inner.issues.spawn_isolated("another one", std::future::pending::<()>());
    }
    let headers = [("nodename", "edge1".to_owned()), world.bearer()];
    let body = csr("edge1", &KeyPair::generate().expect("a key"));
    let (status, text) = world.enroll(None, &headers, body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(String::from_utf8_lossy(&text).contains("too many certificates are being recorded"));
}
