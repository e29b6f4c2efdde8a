//! Renewal with a certificate: the current one, an expired one, and those that prove nothing.

use http::StatusCode;
use rcgen::KeyPair;

use super::world::{NodeIdentity, World, csr, present};
use super::*;

const DAY: Duration = Duration::from_secs(86_400);

async fn renew(world: &World, identity: &NodeIdentity, node: &str, token: bool) -> (StatusCode, String) {
    let mut headers = vec![("nodename", node.to_owned())];
    headers.extend(token.then(|| world.bearer()));
    let body = csr(node, &KeyPair::generate().expect("a key"));
    let (status, body) = world.enroll(Some(identity), &headers, body).await;
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_node_renews_with_its_certificate_even_while_it_is_ready() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.set_node("edge1", present("u1"));
    assert_eq!(renew(&world, &identity, "edge1", false).await.0, StatusCode::OK);
}

#[tokio::test]
async fn certificate_is_valid_only_for_its_own_node() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    for token in [false, true] {
        let (status, text) = renew(&world, &identity, "edge2", token).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert_eq!(text, "the client certificate belongs to node edge1, but the request is for node edge2");
    }
}

#[tokio::test]
async fn an_expired_certificate_renews_within_the_grace_period_while_the_node_exists() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    world.skip(366 * DAY);
    let (status, text) = renew(&world, &identity, "edge1", false).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(text.contains("no longer registered"), "{text}");
    world.set_node("edge1", None);
    world.bootstrap.identities().know_nodes([].into());
    assert_eq!(renew(&world, &identity, "edge1", false).await.0, StatusCode::SERVICE_UNAVAILABLE);
    world.set_node("edge1", present("u1"));
    assert_eq!(renew(&world, &identity, "edge1", false).await.0, StatusCode::OK);
    assert_eq!(renew(&world, &identity, "edge2", false).await.0, StatusCode::FORBIDDEN);
    world.skip(30 * DAY);
    let (status, text) = renew(&world, &identity, "edge1", false).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(text.contains("beyond the grace period of 30 days"), "{text}");
}

#[tokio::test]
async fn foreign_certificate_is_ignored_and_a_token_still_counts() {
    let world = World::start().await;
    let foreign = World::start().await.joined("edge1").await;
    let (status, text) = renew(&world, &foreign, "edge1", false).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(text.contains("not valid here"), "{text}");
    assert_eq!(renew(&world, &foreign, "edge1", true).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_hubs_own_certificate_is_no_node() {
    let world = World::start().await;
    let (certificate, key) = (
        world.secrets.value("tombolo-server", "cloudcoredata"),
        world.secrets.value("tombolo-server", "cloudcorekeydata"),
    );
    let (status, text) = renew(&world, &NodeIdentity { certificate, key }, "edge1", false).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
}
