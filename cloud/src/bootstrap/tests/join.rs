//! Joins by token, and everything that is refused.

use http::{Method, StatusCode};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P384_SHA384, SanType};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tombolo_proto::NodeId;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::world::{World, csr, csr_params, present, request};
use super::*;

#[tokio::test]
async fn token_pins_the_ca_of_the_join_port() {
    let world = World::start().await;
    let (status, ca) = world.ask(None, request(Method::GET, "/ca.crt", &[], Vec::new())).await;
    assert_eq!((status, &ca[..]), (StatusCode::OK, world.bootstrap.authority().as_ref()));
    let token = world.secrets.shared_token();
    assert_eq!(token.split('.').count(), 4);
    assert_eq!(token.split('.').next(), Some(hex::encode(Sha256::digest(&ca)).as_str()));
    let (_, ca) = X509Certificate::from_der(&ca).expect("DER");
    assert_eq!(
        (ca.subject().to_string().as_str(), ca.raw_serial_as_string().as_str()),
        ("CN=KubeEdge", "04:00")
    );
}

#[tokio::test]
async fn tokens_and_keys_are_those_of_kubeedge() {
    let world = World::start().await;
    let key = world.secrets.value("casecret", "cakeydata");
    // SEC 1: a sequence that begins with version 1, not PKCS #8's version 0. The curve is named, as Go's parser needs
    // it.
    assert_eq!(key.get(2..5), Some(&[2, 1, 1][..]));
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::HS256);
    validation.required_spec_claims = ["exp".to_owned()].into();
    let claims = jsonwebtoken::decode::<serde_json::Map<String, serde_json::Value>>(
        world.jwt(),
        &jsonwebtoken::DecodingKey::from_secret(&key),
        &validation,
    )
    .expect("signed with the stored DER");
    assert_eq!(claims.claims.keys().collect::<Vec<_>>(), ["exp"]);
}

#[tokio::test]
async fn certificate_of_a_joined_node_has_only_its_name() {
    let world = World::start().await;
    let identity = world.joined("edge1").await;
    let (_, certificate) = X509Certificate::from_der(&identity.certificate).expect("DER");
    assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:edge1");
    assert!(certificate.subject_alternative_name().expect("readable").is_none());
    assert!(!certificate.is_ca());
    let usage = certificate.extended_key_usage().expect("readable").expect("present").value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any);
    let ca = world.bootstrap.authority();
    let (_, ca) = X509Certificate::from_der(&ca).expect("DER");
    certificate.verify_signature(Some(ca.public_key())).expect("signed by the CA");
    assert!(certificate.raw_serial().len() <= 8);
    let life = certificate.validity().not_after.timestamp() - certificate.validity().not_before.timestamp();
    assert_eq!(life, 365 * 86_400 + 3600);
}

fn with(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = csr_params("edge1");
    change(&mut params);
    params.serialize_request(&KeyPair::generate().expect("a key")).expect("a request").der().to_vec()
}

fn bad_requests() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let key = KeyPair::generate().expect("a key");
    let good = csr("edge1", &key);
    let mut forged = good.clone();
    // This changes the common name, so that the signature no longer matches: edge1 becomes edge0.
    let at = good.windows(5).position(|window| window == b"edge1").expect("the name") + 4;
    forged[at] = b'0';
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    vec![
        ("empty", Vec::new(), "not a certificate signing request"),
        ("garbage", b"hello".to_vec(), "not a certificate signing request"),
        ("trailing", [&good[..], b"x"].concat(), "bytes follow"),
        ("forged", forged, "not signed by the key"),
        ("other node", csr("edge2", &key), "system:node:edge2"),
        (
            "other key",
            csr_params("edge1").serialize_request(&p384).expect("a request").der().to_vec(),
            "P-256",
        ),
        (
            "organisation",
            with(|params| params.distinguished_name.push(DnType::OrganizationName, "system:masters")),
            "organisations",
        ),
        (
            "unit",
            with(|params| params.distinguished_name.push(DnType::OrganizationalUnitName, "x")),
            "subject field",
        ),
        (
            "names",
            with(|params| {
                let name = "cloudcore.example".try_into().expect("a name");
                params.subject_alt_names = vec![SanType::DnsName(name)];
            }),
            "extension 2.5.29.17",
        ),
        (
            "usages",
            with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "extension 2.5.29.37",
        ),
    ]
}

#[tokio::test]
async fn signing_request_fields_are_each_validated() {
    let world = World::start().await;
    for (case, body, sentence) in bad_requests() {
        let headers = [("nodename", "edge1".to_owned()), world.bearer()];
        let (status, text) = world.enroll(None, &headers, body).await;
        let text = String::from_utf8_lossy(&text).into_owned();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{case}: {text}");
        assert!(text.contains(sentence), "{case}: {text}");
    }
}

#[tokio::test]
async fn bad_tokens_and_headers_are_refused_with_a_sentence() {
    let world = World::start().await;
    let other = World::start().await;
    let none = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.".to_owned();
    let node = || ("nodename", "edge1".to_owned());
    let auth = |text: String| ("authorization", text);
    let whole = world.secrets.shared_token();
    type Case = (&'static str, Vec<(&'static str, String)>, StatusCode, &'static str);
    let cases: Vec<Case> = vec![
        ("no node", vec![world.bearer()], StatusCode::BAD_REQUEST, "node name is missing"),
        (
            "bad node",
            vec![("nodename", "Edge_1".to_owned()), world.bearer()],
            StatusCode::BAD_REQUEST,
            "DNS-1123",
        ),
        ("no token", vec![node()], StatusCode::UNAUTHORIZED, "a join token"),
        ("no scheme", vec![node(), auth(world.jwt())], StatusCode::UNAUTHORIZED, "must be: Bearer"),
        ("garbage", vec![node(), auth("Bearer x.y.z".to_owned())], StatusCode::UNAUTHORIZED, "malformed"),
        ("whole token", vec![node(), auth(format!("Bearer {whole}"))], StatusCode::UNAUTHORIZED, "malformed"),
        (
            "other cloud",
            vec![node(), other.bearer()],
            StatusCode::UNAUTHORIZED,
            "was not signed by this cloud",
        ),
        (
            "no algorithm",
            vec![node(), auth(format!("Bearer {none}"))],
            StatusCode::UNAUTHORIZED,
            "join token",
        ),
        (
            "usages",
            vec![node(), world.bearer(), ("extkeyusages", "[1,2]".to_owned())],
            StatusCode::BAD_REQUEST,
            "exactly clientAuth",
        ),
    ];
    let body = csr("edge1", &KeyPair::generate().expect("a key"));
    for (case, headers, expected, sentence) in cases {
        let (status, text) = world.enroll(None, &headers, body.clone()).await;
        let text = String::from_utf8_lossy(&text).into_owned();
        assert_eq!(status, expected, "{case}: {text}");
        assert!(text.contains(sentence), "{case}: {text}");
    }
    let headers = [node(), world.bearer(), ("extkeyusages", "[2]".to_owned())];
    assert_eq!(
        world.enroll(None, &headers, body).await.0,
        StatusCode::OK,
        "clientAuth alone is what is given"
    );
}

#[tokio::test]
async fn expired_token_is_reported_as_expired() {
    let world = World::start().await;
    world.skip(Duration::from_secs(25 * 3600));
    let headers = [("nodename", "edge1".to_owned()), world.bearer()];
    let (status, text) =
        world.enroll(None, &headers, csr("edge1", &KeyPair::generate().expect("a key"))).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let ago = text.split_once("expired ").and_then(|(_, rest)| rest.split_once(" seconds ago"));
    let ago: u64 = ago.and_then(|(seconds, _)| seconds.parse().ok()).expect(&text);
    assert!((3600..3660).contains(&ago), "{text}");
}

#[tokio::test]
async fn shared_token_cannot_take_over_a_name() {
    let world = World::start().await;
    let body = || csr("edge1", &KeyPair::generate().expect("a key"));
    let headers = [("nodename", "edge1".to_owned()), world.bearer()];
    let refused = async |state: Option<NodeState>, sentence: &str| {
        world.set_node("edge1", state);
        let (status, text) = world.enroll(None, &headers, body()).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(String::from_utf8_lossy(&text).contains(sentence), "{text:?}");
    };
    refused(present("u1"), "edge1 exists").await;
    let master = NodeState::Present { uid: "u1".to_owned(), control_plane: true };
    refused(Some(master), "edge1 runs the control plane").await;
    world.set_node("edge1", None);
    assert_eq!(world.enroll(None, &headers, body()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    world.set_node("edge1", Some(NodeState::Absent));
    assert_eq!(world.enroll(None, &headers, body()).await.0, StatusCode::OK);
    let identities = world.bootstrap.identities();
    identities.revoke(&NodeId::parse("edge1").expect("a name")).await.expect("revoked");
    refused(Some(NodeState::Absent), "edge1 was revoked").await;
}

#[tokio::test]
async fn join_body_beyond_the_limit_is_refused() {
    let world = World::start().await;
    let headers = [("nodename", "edge1".to_owned()), world.bearer()];
    let (status, text) = world.enroll(None, &headers, vec![0; routes::BODY_LEN_MAX + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(String::from_utf8_lossy(&text).contains("65536 bytes"));
}

#[tokio::test]
async fn other_routes_answer_as_documented() {
    let world = World::start().await;
    world.set_node("edge1", present("u1"));
    world.set_node("edge3", None);
    let absent = || (StatusCode::NOT_FOUND, "Node not found".to_owned());
    // A client without a certificate always gets the same answer.
    for name in ["edge1", "edge2", "edge3"] {
        assert_eq!(world.get(&format!("/node/{name}")).await, absent());
    }
    world.set_node("edge1", Some(NodeState::Absent));
    let own = world.joined("edge1").await;
    let ask = async |path: &str| world.ask(Some(&own), request(Method::GET, path, &[], Vec::new())).await.0;
    assert_eq!(ask("/node/edge1").await, StatusCode::NOT_FOUND);
    world.set_node("edge1", present("u1"));
    let node = NodeId::parse("edge1").expect("a name");
    world.bootstrap.identities().know_nodes([(node, "u1".to_owned())].into());
    assert_eq!(ask("/node/edge1").await, StatusCode::OK, "the node itself learns it");
    assert_eq!(ask("/node/edge2").await, StatusCode::NOT_FOUND, "and of no other");
    assert_eq!(world.get("/node/").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(world.get("/elsewhere").await.0, StatusCode::NOT_FOUND);
    let post = |path| request(Method::POST, path, &[], Vec::new());
    assert_eq!(world.ask(None, post("/ca.crt")).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(world.ask(None, post("/nodeupgrade")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(world.ask(Some(&own), post("/nodeupgrade")).await.0, StatusCode::NOT_IMPLEMENTED);
}

/// With a paused clock, time passes only when all tasks wait: a deadline is reached immediately, and without one the
/// test would hang.
#[tokio::test]
async fn silent_connections_are_closed() {
    let world = World::start().await;
    let (mut silent, mut half) = (world.connect().await, world.secured(None).await);
    half.write_all(b"GET /ca.crt HTTP/1.1\r\nhost: x\r\n").await.expect("sent");
    half.flush().await.expect("sent");
    tokio::time::pause();
    assert_eq!(silent.read(&mut [0; 1]).await.expect("an end in good order"), 0);
    // An end without a TLS close is an error in rustls; in both cases there was no answer.
    let mut answer = Vec::new();
    let _ = half.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    tokio::time::resume();
    assert_eq!(world.get("/node/edge9").await.0, StatusCode::NOT_FOUND, "the port still answers");
}

#[tokio::test]
async fn connection_without_tls_is_closed() {
    let world = World::start().await;
    let mut plain = world.connect().await;
    plain.write_all(b"GET /ca.crt HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(world.get("/node/edge9").await.0, StatusCode::NOT_FOUND, "the port still answers");
}
