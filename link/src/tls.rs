//! Certificates of both sides, and the TLS configurations made from them.
//!
//! Everything is passed in memory and can be replaced while running: a renewed certificate or a rotated CA takes
//! effect with the next handshake, on WebSocket and QUIC alike. Sessions are never resumed: a resumed session would
//! skip the check of a certificate that has expired or whose CA was withdrawn since.

mod https;
mod reload;

use std::fmt;
use std::sync::Arc;

use ::aws_lc_rs::hmac;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConfig, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsError;
use crate::{HTTP_ALPN, QUIC_ALPN};
use reload::{CertificateSlot, ClientCheck, ServerCheck};

pub use https::HttpsTls;

/// TLS 1.2 suites for KubeEdge peers (docs/reference/kubeedge.md#tls); TLS 1.3 suites are always on.
const TLS12_SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// The only cryptography provider (`docs/decisions/0002-tls-provider.md`), with the TLS 1.2 suites of KubeEdge peers.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.version() == &TLS13 || TLS12_SUITES.contains(&suite.suite()));
    Arc::new(provider)
}

/// A certificate chain and its private key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not appear in any log.
        f.debug_struct("Identity").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

impl Identity {
    /// An identity from DER: the certificate itself first, then its issuers.
    #[must_use]
    pub fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }

    /// An identity from PEM texts (PKCS #8, PKCS #1 or SEC 1 keys).
    ///
    /// # Errors
    /// [`TlsError::Pem`] when a text holds no certificate or no key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = certificates_from_pem("certificate chain", chain)?;
        let bad_key = |error: rustls_pki_types::pem::Error| TlsError::Pem {
            what: "private key",
            reason: error.to_string(),
        };
        Ok(Self { chain, key: PrivateKeyDer::from_pem_slice(key).map_err(bad_key)? })
    }

    /// Derived from the private key by a one-way function, so it reveals nothing about the key.
    fn restart_secret(&self) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.key.secret_der());
        let tag = hmac::sign(&key, b"tombolo quic connections across restarts");
        let mut secret = [0; 32];
        secret.copy_from_slice(tag.as_ref());
        secret
    }

    fn certify(self, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain, self.key, provider).map_err(TlsError::Key)
    }
}

/// Reads all certificates of a PEM text. `what` names the input in errors.
///
/// # Errors
/// [`TlsError::Pem`] when the text is damaged or holds no certificate.
pub fn certificates_from_pem(
    what: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = parsed.map_err(|error| TlsError::Pem { what, reason: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::Pem { what, reason: "holds no certificate".to_owned() });
    }
    Ok(found)
}

/// The hub's side: its certificate, and the CAs that sign nodes. Clones share both.
#[derive(Debug, Clone)]
pub struct ServerTls {
    provider: Arc<CryptoProvider>,
    certificate: Arc<CertificateSlot>,
    clients: Arc<ClientCheck>,
    restart_secret: [u8; 32],
}

impl ServerTls {
    /// The hub's certificate and the CAs of client certificates.
    ///
    /// # Errors
    /// [`TlsError`] when the key does not fit or no CA certificate is usable.
    pub fn new(identity: Identity, client_cas: &[CertificateDer<'static>]) -> Result<Self, TlsError> {
        let provider = provider();
        let restart_secret = identity.restart_secret();
        let certificate = CertificateSlot::holding(identity.certify(&provider)?);
        let clients = ClientCheck::new(client_cas, &provider)?;
        Ok(Self { certificate: Arc::new(certificate), clients: Arc::new(clients), provider, restart_secret })
    }

    /// A secret that is the same after a restart of the hub, as long as it uses the same key.
    pub(crate) fn restart_secret(&self) -> [u8; 32] {
        self.restart_secret
    }

    /// Presents another certificate from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::Key`] when the key does not fit; the old one stays.
    pub fn replace_identity(&self, identity: Identity) -> Result<(), TlsError> {
        self.certificate.replace(Some(identity.certify(&self.provider)?));
        Ok(())
    }

    /// Accepts clients of other CAs from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::NoRoots`] when none is usable; the old ones stay.
    pub fn replace_client_cas(&self, client_cas: &[CertificateDer<'static>]) -> Result<(), TlsError> {
        self.clients.replace(client_cas, &self.provider)
    }

    /// The certificate as a resolver, for other listeners of the process (the join port) that must follow its
    /// renewals.
    #[must_use]
    pub fn certificate_resolver(&self) -> Arc<dyn ResolvesServerCert> {
        self.certificate.clone()
    }

    /// For the WebSocket listener: client certificate required, HTTP/1.1 only; TLS 1.2 only for KubeEdge peers.
    pub(crate) fn websocket(&self, kubeedge_peers: bool) -> Result<Arc<ServerConfig>, TlsError> {
        let versions: &[_] = if kubeedge_peers { &[&TLS13, &TLS12] } else { &[&TLS13] };
        self.build(versions, HTTP_ALPN).map(Arc::new)
    }

    /// For the QUIC listener: client certificate required, our ALPN only.
    pub(crate) fn quic(&self) -> Result<Arc<QuicServerConfig>, TlsError> {
        let config = self.build(&[&TLS13], QUIC_ALPN)?;
        let config = QuicServerConfig::try_from(config).map_err(|e| TlsError::Config(e.to_string()))?;
        Ok(Arc::new(config))
    }

    fn build(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[u8],
    ) -> Result<ServerConfig, TlsError> {
        let config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(versions)
            .map_err(|error| TlsError::Config(error.to_string()))?
            .with_client_cert_verifier(self.clients.clone())
            .with_cert_resolver(self.certificate.clone());
        Ok(without_resumption(config, &[alpn]))
    }
}

/// Disables resumption, so that every connection presents and checks certificates anew.
fn without_resumption(mut config: ServerConfig, alpn: &[&[u8]]) -> ServerConfig {
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// The edge's side: the CAs that sign hubs, and the node's certificate. Clones share both.
#[derive(Debug, Clone)]
pub struct ClientTls {
    provider: Arc<CryptoProvider>,
    certificate: Arc<CertificateSlot>,
    servers: Arc<ServerCheck>,
}

impl ClientTls {
    /// The CAs of hubs and the node's certificate.
    ///
    /// # Errors
    /// [`TlsError`] when the key does not fit or no CA certificate is usable.
    pub fn new(identity: Option<Identity>, server_cas: &[CertificateDer<'static>]) -> Result<Self, TlsError> {
        let provider = provider();
        let certified = identity.map(|identity| identity.certify(&provider)).transpose()?;
        let certificate = CertificateSlot::default();
        certificate.replace(certified);
        let servers = ServerCheck::new(server_cas, &provider)?;
        Ok(Self { certificate: Arc::new(certificate), servers: Arc::new(servers), provider })
    }

    /// Presents another certificate from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::Key`] when the key does not fit; the old one stays.
    pub fn replace_identity(&self, identity: Identity) -> Result<(), TlsError> {
        self.certificate.replace(Some(identity.certify(&self.provider)?));
        Ok(())
    }

    /// Trusts hubs of other CAs from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::NoRoots`] when none is usable; the old ones stay.
    pub fn replace_server_cas(&self, server_cas: &[CertificateDer<'static>]) -> Result<(), TlsError> {
        self.servers.replace(server_cas, &self.provider)
    }

    /// For WebSocket: TLS 1.3 only, HTTP/1.1 only.
    ///
    /// # Errors
    /// [`TlsError::Config`] when rustls refuses the settings.
    pub fn websocket(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.build(HTTP_ALPN).map(Arc::new)
    }

    /// For QUIC: our ALPN only.
    pub(crate) fn quic(&self) -> Result<Arc<QuicClientConfig>, TlsError> {
        let config = self.build(QUIC_ALPN)?;
        let config = QuicClientConfig::try_from(config).map_err(|e| TlsError::Config(e.to_string()))?;
        Ok(Arc::new(config))
    }

    fn build(&self, alpn: &[u8]) -> Result<ClientConfig, TlsError> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Config(error.to_string()))?
            // "Dangerous" is rustls's word for any custom verifier; this one leaves every decision to rustls's webpki
            // verifier and only makes its roots replaceable.
            .dangerous()
            .with_custom_certificate_verifier(self.servers.clone())
            .with_client_cert_resolver(self.certificate.clone());
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }
}
