//! The HTTPS server of KubeEdge cloudcore where edges join and renew certificates, written only from
//! docs/reference/kubeedge.md#joining.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::Digest as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::FromDer as _;

use crate::pki::Authority;

/// The JWT that this server accepts.
const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjQxMDI0NDQ4MDB9.c3RvY2s";

/// Largest signing request, in bytes (docs/reference/kubeedge.md#join-routes).
const REQUEST_MAX: usize = 1024 * 1024;

/// The server. It serves until it is dropped.
pub struct KubeEdgeJoin {
    /// `HOST:PORT`.
    pub address: SocketAddr,
    shared: Arc<KubeEdgeJoinState>,
    _tasks: JoinSet<()>,
}

struct KubeEdgeJoinState {
    authority: Arc<Authority>,
    clients: Arc<dyn ClientCertVerifier>,
    /// Age and remaining lifetime of the certificates that are issued from now on.
    life: Mutex<(Duration, Duration)>,
    asked: Mutex<Vec<Asked>>,
}

/// One request, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Path.
    pub path: String,
    /// Header `NodeName`.
    pub node: String,
    /// Whether the client sent a certificate.
    pub certificate: bool,
    /// Whether the client sent a bearer token.
    pub bearer: bool,
    /// Status code of the answer.
    pub code: u16,
}

impl KubeEdgeJoin {
    /// Listens.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(authority: Arc<Authority>) -> Result<Self> {
        let life = Mutex::new((Duration::from_secs(60), Duration::from_secs(365 * 86_400)));
        let clients = authority.verifier()?;
        let shared = Arc::new(KubeEdgeJoinState { authority, clients, life, asked: Mutex::default() });
        let served = Arc::clone(&shared);
        let serve = move |stream| serve(stream, Arc::clone(&served));
        let any = Arc::new(AnyClient(tombolo_link::tls::provider()));
        let (address, tasks) = shared.authority.serve_tls(any, serve).await?;
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// The token that operators give to edges: the hash of the CA certificate, then the JWT.
    #[must_use]
    pub fn token(&self) -> String {
        format!("{}.{JWT}", hex::encode(sha2::Sha256::digest(self.shared.authority.der())))
    }

    /// Sets age and remaining lifetime of the certificates that are issued from now on.
    pub fn set_life(&self, begun: Duration, left: Duration) {
        *self.shared.life.lock() = (begun, left);
    }

    /// The requests received so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().clone()
    }
}

async fn serve(stream: TlsStream<TcpStream>, shared: Arc<KubeEdgeJoinState>) -> Result<()> {
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let shown = shown.map(|certificate| certificate.clone().into_owned());
    let service = service_fn(move |request| {
        let (shared, shown) = (Arc::clone(&shared), shown.clone());
        async move { Ok::<_, Infallible>(shared.answer(request, shown).await) }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?;
    Ok(())
}

impl KubeEdgeJoinState {
    async fn answer(
        &self,
        request: Request<Incoming>,
        shown: Option<CertificateDer<'static>>,
    ) -> Response<Full<Bytes>> {
        let header = |name: &str| {
            let value = request.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (path, node, authorization) =
            (request.uri().path().to_owned(), header("NodeName"), header("Authorization"));
        let certificate = shown.is_some();
        let (code, body) = match (request.method(), path.as_str()) {
            (&Method::GET, "/ca.crt") => (StatusCode::OK, self.authority.der().to_vec()),
            (&Method::GET, "/edge.crt") => match self.admit(&node, &authorization, shown) {
                Err(error) => (StatusCode::UNAUTHORIZED, error.to_string().into_bytes()),
                Ok(()) => match self.sign(request.into_body()).await {
                    Ok(certificate) => (StatusCode::OK, certificate),
                    Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
                },
            },
            _ => (StatusCode::NOT_FOUND, b"404 page not found\n".to_vec()),
        };
        let bearer = !authorization.is_empty();
        self.asked.lock().push(Asked { path, node, certificate, bearer, code: code.as_u16() });
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = code;
        response
    }

    /// Checks the node's certificate before the token.
    fn admit(&self, node: &str, authorization: &str, shown: Option<CertificateDer<'static>>) -> Result<()> {
        let Some(certificate) = shown else {
            let (_, jwt) = authorization.split_once(' ').context("authorization failed: no token")?;
            ensure!(jwt == JWT, "authorization failed: the token is not valid");
            return Ok(());
        };
        self.clients.verify_client_cert(&certificate, &[], UnixTime::now())?;
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&certificate)?;
        let common = parsed.subject().iter_common_name().next().context("no name")?.as_str()?;
        let organisation =
            parsed.subject().iter_organization().next().context("no organisation")?.as_str()?;
        ensure!(
            organisation == "system:nodes" && common == format!("system:node:{node}"),
            "the certificate is for {common}, not for {node}"
        );
        Ok(())
    }

    async fn sign(&self, body: Incoming) -> Result<Vec<u8>> {
        let body = Limited::new(body, REQUEST_MAX).collect().await.map_err(anyhow::Error::from_boxed)?;
        let (begun, left) = *self.life.lock();
        let now = SystemTime::now();
        self.authority.sign(&body.to_bytes(), now - begun, now + left)
    }
}

/// Requests a client certificate without naming authorities, and accepts any: the request handler checks it
/// (docs/reference/kubeedge.md#join-routes).
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
