use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, SanType};
use rustls_pki_types::PrivateKeyDer;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::clock::WallClock;
use super::testing::{TestCa, identity_for, test_ca};
use super::*;

/// How the join endpoint behaves.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Honest,
    /// Answers 401 as for an expired token, with the date of another day.
    Expired,
    /// Issues a certificate for another node.
    OtherName,
    /// Issues a certificate for another key.
    OtherKey,
    /// Answers with more than the limit.
    Endless,
}

struct Endpoint {
    address: String,
    token: String,
    /// Of each request: path, authorization header, and whether a client certificate was shown.
    seen: Arc<Mutex<Vec<(String, String, bool)>>>,
}

async fn endpoint(mode: Mode) -> Endpoint {
    let ca = Arc::new(test_ca());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let token = format!("{}.a.b.c", hex::encode(Sha256::digest(&ca.certificate)));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let acceptor = TlsAcceptor::from(Arc::new(server_tls(&ca)));
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let shown = stream.get_ref().1.peer_certificates().is_some();
            let service =
                service_fn(|request| answer(Arc::clone(&ca), mode, shown, Arc::clone(&log), request));
            // A client may close the connection early.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    Endpoint { address, token, seen }
}

fn server_tls(ca: &TestCa) -> rustls::ServerConfig {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse().unwrap())];
    let leaf = params.signed_by(&key, &ca.issuer).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate.clone()).unwrap();
    let provider = tombolo_link::tls::provider();
    let clients =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap()
}

async fn answer(
    ca: Arc<TestCa>,
    mode: Mode,
    shown: bool,
    log: Arc<Mutex<Vec<(String, String, bool)>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let authorization = parts.headers.get("authorization").map_or("", |value| value.to_str().unwrap());
    log.lock().push((parts.uri.path().to_owned(), authorization.to_owned(), shown));
    let body = body.collect().await.unwrap().to_bytes();
    let content = match parts.uri.path() {
        _ if mode == Mode::Endless => vec![0; 64 * 1024 * 1024],
        "/ca.crt" => ca.certificate.to_vec(),
        _ if mode == Mode::Expired => {
            let response = Response::builder().status(401).header("date", "Sat, 01 Jan 2000 00:00:00 GMT");
            return Ok(response.body(Full::new("the token has expired".into())).unwrap());
        }
        _ => sign(&ca, mode, &body),
    };
    Ok(Response::builder().status(StatusCode::OK).body(Full::new(content.into())).unwrap())
}

fn sign(ca: &TestCa, mode: Mode, csr: &[u8]) -> Vec<u8> {
    let mut request = CertificateSigningRequestParams::from_der(&csr.to_vec().into()).unwrap();
    if mode == Mode::OtherName {
        request.params.distinguished_name = rcgen::DistinguishedName::new();
        request.params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:other");
    }
    if mode == Mode::OtherKey {
        let key = KeyPair::generate().unwrap();
        return request.params.signed_by(&key, &ca.issuer).unwrap().der().to_vec();
    }
    request.signed_by(&ca.issuer).unwrap().der().to_vec()
}

fn options(endpoint: &Endpoint, token: &str) -> EnrollOptions {
    EnrollOptions {
        endpoint: endpoint.address.clone(),
        node: NodeId::parse("edge-a").unwrap(),
        token: token.to_owned(),
    }
}

#[tokio::test]
async fn joining_keeps_a_pair_that_fits_and_renewing_needs_no_token() {
    let endpoint = endpoint(Mode::Honest).await;
    let folder = tempfile::tempdir().unwrap();
    let node = NodeId::parse("edge-a").unwrap();
    let enroll = options(&endpoint, &endpoint.token);
    let joined = join(&JoinOptions { enroll, data_dir: folder.path().into() }).await.unwrap();
    let loaded = Identity::load(folder.path(), &node).unwrap();
    assert_eq!(loaded.certificate, joined.certificate);
    loaded.client_tls().expect("key and certificate fit");
    let renewed = renew(&loaded, &node, &endpoint.address).await.unwrap();
    assert_ne!(renewed.certificate, loaded.certificate);
    renewed.client_tls().unwrap();
    let seen = endpoint.seen.lock().clone();
    let seen: Vec<_> =
        seen.iter().map(|(path, bearer, shown)| (path.as_str(), bearer.as_str(), *shown)).collect();
    assert_eq!(
        seen,
        [("/ca.crt", "", false), ("/edge.crt", "Bearer a.b.c", false), ("/edge.crt", "", true)],
        "the token is not sent before the CA is checked; a renewal presents the old certificate"
    );
}

#[tokio::test]
async fn tokens_that_do_not_fit_are_refused_before_anything_is_sent() {
    let endpoint = endpoint(Mode::Honest).await;
    let wrong_hash = format!("{}.a.b.c", "00".repeat(32));
    let error = enroll(&options(&endpoint, &wrong_hash)).await.unwrap_err();
    assert!(matches!(error, JoinError::WrongCa { .. }), "{error}");
    assert_eq!(endpoint.seen.lock().len(), 1, "only the CA was requested");
    for token in ["", "abc", "zz.a.b.c", "00.a.b.c", &endpoint.token[..68]] {
        let error = enroll(&options(&endpoint, token)).await.unwrap_err();
        assert!(matches!(error, JoinError::Token(_)), "{token}: {error}");
    }
}

#[tokio::test]
async fn endless_answer_of_the_cloud_does_not_fill_the_agent() {
    let endpoint = endpoint(Mode::Endless).await;
    let error = enroll(&options(&endpoint, &endpoint.token)).await.unwrap_err();
    assert!(matches!(error, JoinError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("length limit exceeded"), "{error}");
}

#[tokio::test]
async fn refusals_are_repeated_with_possible_causes() {
    let endpoint = endpoint(Mode::Expired).await;
    let error = enroll(&options(&endpoint, &endpoint.token)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("401") && text.contains("the token has expired"), "{text}");
    assert!(text.contains("clock is") && text.contains("ahead of the cloud's"), "{text}");
}

#[tokio::test]
async fn unrequested_certificates_are_not_kept() {
    for (mode, problem) in [(Mode::OtherName, "not for system:node:edge-a"), (Mode::OtherKey, "another key")]
    {
        let endpoint = endpoint(mode).await;
        let error = enroll(&options(&endpoint, &endpoint.token)).await.unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[tokio::test]
async fn unreachable_join_endpoint_is_reported() {
    let mut nobody = options(&endpoint(Mode::Honest).await, "");
    nobody.endpoint = "127.0.0.1:1".to_owned();
    nobody.token = format!("{}.a.b.c", "00".repeat(32));
    let error = enroll(&nobody).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1") && error.may_heal(), "{error}");
}

#[test]
fn an_identity_of_another_node_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (NodeId::parse("edge-a").unwrap(), NodeId::parse("edge-b").unwrap());
    let error = Identity::load(folder.path(), &a).unwrap_err().to_string();
    assert!(error.contains("run edgecore join"), "{error}");
    identity_for(&a).save(folder.path()).unwrap();
    Identity::load(folder.path(), &a).unwrap();
    let error = Identity::load(folder.path(), &b).unwrap_err().to_string();
    assert!(error.contains("system:node:edge-a") && error.contains("system:node:edge-b"), "{error}");
    std::fs::write(folder.path().join("pki/node.pem"), "-----BEGIN").unwrap();
    assert!(Identity::load(folder.path(), &a).unwrap_err().to_string().contains("node.pem"));
}

#[tokio::test]
async fn wrong_clock_is_reported_before_verification() {
    let day = Duration::from_secs(86_400);
    let endpoint = endpoint(Mode::Honest).await;
    let enroll_at = async |clock: WallClock| {
        enroll::enroll_by(&options(&endpoint, &endpoint.token), &clock).await.map(drop)
    };
    let behind = enroll_at(WallClock::new(move || SystemTime::now() - day)).await.unwrap_err();
    let text = behind.to_string();
    assert!(text.contains("minutes behind the cloud's") && text.contains("not yet valid"), "{text}");
    assert!(text.contains(&endpoint.address) && behind.may_heal(), "{text}");
    let ahead = enroll_at(WallClock::new(move || SystemTime::now() + day)).await.unwrap_err().to_string();
    assert!(ahead.contains("minutes ahead of the cloud's") && ahead.contains("expired"), "{ahead}");
    assert_eq!(endpoint.seen.lock().len(), 2, "the token was not sent");
    enroll_at(WallClock::system()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_another_time_names_the_times() {
    let ca = test_ca();
    let day = Duration::from_secs(86_400);
    let now = std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (now.into(), (now + day).into());
    let leaf = params.signed_by(&KeyPair::generate().unwrap(), &ca.issuer).unwrap().der().clone();
    clock::within_life(&leaf, now + day / 2).unwrap();
    for (here, problem) in [(now - day, "not yet valid"), (now + day * 2, "expired")] {
        let text = clock::within_life(&leaf, here).unwrap_err();
        assert!(text.contains(problem) && text.contains(&clock::text(here)), "{text}");
        assert!(text.contains("2027-01-15T08:00:00Z") && text.contains("2027-01-16T08:00:00Z"), "{text}");
    }
}
