//! TLS with client certificates, HTTP/2, hooks that decide.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::auth::{
    Attributes, Audit, AuditRecord, Authenticator, Authorizer, BadCredentials, Decision, Identity,
    Impersonator, Peer,
};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::write::LocalWrites;
use x509_parser::prelude::FromDer;

use crate::server::PATIENCE;

/// The common name of the client certificate; none for an anonymous client.
struct ByCertificate;

impl Authenticator for ByCertificate {
    fn authenticate<'a>(
        &'a self,
        _: &'a http::request::Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        let name = peer.certificates.first().and_then(|der| {
            let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
            let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
            Some(name.to_owned())
        });
        let outcome = name.map(|name| Identity::new(&name, &["system:authenticated"]));
        Box::pin(async move {
            outcome.ok_or_else(|| BadCredentials::Wrong { reason: "no certificate".to_owned() })
        })
    }
}

/// Lets `root` do everything, others read and patch ConfigMaps.
struct Rules;

impl Authorizer for Rules {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision> {
        let allowed = attributes.identity.user == "root"
            || (["list", "patch"].contains(&attributes.verb.as_str()) && attributes.resource == "configmaps");
        let decision = if allowed { Decision::Allow } else { Decision::NoOpinion(String::new()) };
        Box::pin(async move { decision })
    }
}

impl Impersonator for Rules {
    fn impersonate<'a>(
        &'a self,
        caller: &'a Identity,
        headers: &'a http::HeaderMap,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Identity, ApiError>> {
        let outcome = match headers["impersonate-user"].to_str() {
            Ok(user) if caller.user == "root" => Ok(Identity::new(user, &[])),
            _ => Err(ApiError::forbidden(attributes, "only root impersonates")),
        };
        Box::pin(async move { outcome })
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Audit for Notes {
    fn record(&self, record: &AuditRecord<'_>) {
        let AuditRecord { attributes, impersonator, code } = record;
        let behind = impersonator.map_or("-", |caller| caller.user.as_str());
        let user = &attributes.identity.user;
        self.0.lock().push(format!("{user} {behind} {} {} {code}", attributes.verb, attributes.resource));
    }
}

struct Secure {
    address: std::net::SocketAddr,
    ca: CertifiedIssuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
    notes: Arc<Notes>,
    stop: CancellationToken,
}

fn certificate(
    ca: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
) -> (rcgen::Certificate, PrivateKeyDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let signed = params.signed_by(&key, ca).unwrap();
    (signed, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

async fn secure() -> Secure {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let roots = Arc::new(roots);
    let verifier = WebPkiClientVerifier::builder(Arc::clone(&roots)).allow_unauthenticated().build().unwrap();
    let (own, key) = certificate(&ca, "server");
    let mut tls = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let notes = Arc::new(Notes::default());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let api = ApiServer::builder(Arc::new(store.clone()), Registry::new(tombolo_catalog::kinds()))
        .authenticator(Arc::new(ByCertificate))
        .authorizer(Arc::new(Rules))
        .impersonator(Arc::new(Rules))
        .audit(Arc::clone(&notes) as Arc<dyn Audit>)
        .writes(Arc::new(LocalWrites::new(Arc::new(store))))
        .build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = Serving { tls: Some(Arc::new(tls)), stop: stop.clone(), grace: PATIENCE };
    tokio::spawn(serve(listener, api, serving));
    Secure { address, ca, roots, notes, stop }
}

impl Secure {
    async fn get(&self, user: Option<&str>, path: &str, impersonate: Option<&str>) -> (u16, Value) {
        let mut request = Request::get(format!("https://127.0.0.1{path}"));
        if let Some(user) = impersonate {
            request = request.header("impersonate-user", user);
        }
        self.send(user, request.body(Full::default()).unwrap()).await
    }

    /// One request over HTTP/2, with a certificate for `user` or none.
    async fn send(&self, user: Option<&str>, request: Request<Full<bytes::Bytes>>) -> (u16, Value) {
        let builder = ClientConfig::builder().with_root_certificates(Arc::clone(&self.roots));
        let mut config = match user {
            Some(user) => {
                let (own, key) = certificate(&self.ca, user);
                builder.with_client_auth_cert(vec![own.der().clone()], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

#[tokio::test]
async fn certificates_identify_and_hooks_decide() {
    let server = secure().await;
    let (code, refused) = server.get(None, "/api/v1/configmaps", None).await;
    assert_eq!((code, refused["message"].as_str()), (401, Some("Unauthorized")));
    assert_eq!(server.get(Some("alice"), "/api/v1/configmaps", None).await.0, 200);
    let (code, refused) = server.get(Some("alice"), "/api/v1/namespaces/x/secrets/s", None).await;
    let wanted = "secrets \"s\" is forbidden: User \"alice\" cannot get resource \"secrets\" in API group \"\" in the \
                  namespace \"x\"";
    assert_eq!((code, refused["message"].as_str()), (403, Some(wanted)));
    let (code, refused) = server.get(Some("alice"), "/version", None).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (403, Some("forbidden: User \"alice\" cannot get path \"/version\""))
    );
    assert_eq!(server.get(Some("alice"), "/api/v1/configmaps", Some("root")).await.0, 403);
    assert_eq!(server.get(Some("root"), "/api/v1/configmaps", Some("bob")).await.0, 200);
    assert_eq!(server.get(Some("root"), "/api/v1/secrets", Some("bob")).await.0, 403);
    let notes = server.notes.0.lock().clone();
    assert_eq!(
        notes,
        [
            "alice - list configmaps 200",
            "alice - get secrets 403",
            "alice - get  403",
            "bob root list configmaps 200",
            "bob root list secrets 403"
        ]
    );
    server.stop.cancel();
}

#[tokio::test]
async fn an_apply_that_creates_needs_the_right_to_create() {
    let server = secure().await;
    let apply = |user: &'static str| {
        let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#;
        let path = "https://127.0.0.1/api/v1/namespaces/default/configmaps/a?fieldManager=m";
        let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
        server.send(Some(user), request.body(Full::from(body)).unwrap())
    };
    let (code, refused) = apply("alice").await;
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("cannot create resource \"configmaps\""));
    assert_eq!(apply("root").await.0, 201);
    assert_eq!(apply("alice").await.0, 200, "what is there may be patched");
}
