//! One HTTPS request to the join endpoints.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::FusedFuture;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tombolo_link::tls::provider;
use tombolo_runtime::time::http_date;

use super::Identity;
use super::clock::WallClock;
use crate::config::{ConfigError, host_and_port};

/// Time for one request, from the connection to the last byte.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest answer, in bytes (docs/reference/kubeedge.md#join-procedure).
const ANSWER_LEN_MAX: usize = 1024 * 1024;

/// A request and its endpoint.
pub(super) struct Ask<'a> {
    /// `HOST:PORT`.
    pub(super) endpoint: &'a str,
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The response.
pub(super) struct FetchResponse {
    pub(super) code: StatusCode,
    /// The `Date` header: the cloud's clock.
    pub(super) date: Option<SystemTime>,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum FetchError {
    /// No whole answer came in time.
    #[error("{0} did not answer within {time} s", time = REQUEST_TIMEOUT.as_secs())]
    TimedOut(String),
    /// The endpoint is not an address.
    #[error(transparent)]
    Endpoint(#[from] ConfigError),
    /// The endpoint's host cannot be verified.
    #[error("{0:?} is not a host name")]
    HostName(String),
    /// The connection or its handshake failed.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The exchange of messages failed.
    #[error(transparent)]
    Exchange(#[from] hyper::Error),
    /// The answer is too long, or broke off.
    #[error("{0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl FetchError {
    /// What is wrong with the server's certificate, if that ended the handshake.
    pub(super) fn certificate_error(&self) -> Option<&CertificateError> {
        let Self::Connection(error) = self else { return None };
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(error) => Some(error),
            _ => None,
        }
    }
}

/// TLS without verification of the server. Only for `/ca.crt`, whose hash is checked before it is used
/// (docs/security.md, first exception).
pub(super) fn unverified() -> Result<ClientConfig, rustls::Error> {
    let provider = provider();
    let verifier = Arc::new(AnyServer(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// TLS that verifies the server against the cloud's CA with this clock, and presents the node's certificate, if any.
pub(super) fn verified(
    ca: &CertificateDer<'static>,
    identity: Option<&Identity>,
    clock: &WallClock,
) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    let config = ClientConfig::builder_with_details(provider(), Arc::new(clock.clone()))
        .with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots);
    match identity {
        Some(identity) => config.with_client_auth_cert(
            vec![identity.certificate.clone()],
            PrivateKeyDer::Pkcs8(identity.key.clone_key()),
        ),
        None => Ok(config.with_no_client_auth()),
    }
}

/// Sends one request and reads the whole answer.
///
/// # Errors
/// [`FetchError`] when there is no whole answer.
pub(super) async fn fetch(tls: ClientConfig, ask: Ask<'_>) -> Result<FetchResponse, FetchError> {
    let endpoint = ask.endpoint.to_owned();
    let work = tokio::time::timeout(REQUEST_TIMEOUT, exchange(tls, ask));
    work.await.unwrap_or_else(|_| Err(FetchError::TimedOut(endpoint)))
}

async fn exchange(tls: ClientConfig, ask: Ask<'_>) -> Result<FetchResponse, FetchError> {
    let (host, port) = host_and_port("cloud.join", ask.endpoint)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| FetchError::HostName(host.to_owned()))?;
    let stream = TcpStream::connect((host, port)).await?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    send(stream, ask).await
}

/// Sends one request without encryption.
#[cfg(test)]
pub(super) async fn send_plain(ask: Ask<'_>) -> Result<FetchResponse, FetchError> {
    send(TcpStream::connect(ask.endpoint).await?, ask).await
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ask: Ask<'_>,
) -> Result<FetchResponse, FetchError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder().method(ask.method).uri(ask.path).header(header::HOST, ask.endpoint);
    if let Some(headers) = request.headers_mut() {
        headers.extend(ask.headers);
    }
    let request = request.body(Full::new(ask.body))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_LEN_MAX).collect().await.map_err(FetchError::Body)?;
        let date = parts.headers.get(header::DATE).and_then(|date| http_date(date.to_str().ok()?));
        Ok::<_, FetchError>(FetchResponse { code: parts.status, date, body: body.to_bytes() })
    };
    // The connection must be driven while the answer is awaited; it is dropped once the answer is complete.
    let mut connection = pin!(connection.fuse());
    let mut answer = pin!(answer);
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            // A peer may close the connection right after its answer, which is then ready without waiting.
            ended = &mut connection, if !connection.is_terminated() => if let Err(error) = ended {
                return Err(error.into());
            },
        }
    }
}

#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
