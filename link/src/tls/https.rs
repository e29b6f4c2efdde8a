//! TLS for listeners that serve HTTP to local programs: the Kubernetes APIs of a node.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;

use super::reload::{CertificateSlot, ClientCheck};
use super::{Identity, provider, without_resumption};
use crate::HTTP_ALPN;
use crate::error::TlsError;

/// Protocols offered to clients: HTTP/2, and the one that every client speaks.
const ALPN: [&[u8]; 2] = [b"h2", HTTP_ALPN];

/// The certificate of a listener, and the CAs of its clients if it requests certificates. Both can be replaced while
/// it serves. Clones share them.
#[derive(Debug, Clone)]
pub struct HttpsTls {
    provider: Arc<CryptoProvider>,
    certificate: Arc<CertificateSlot>,
    /// None: no certificates are requested from clients.
    clients: Option<Arc<ClientCheck>>,
}

impl HttpsTls {
    /// Serves with this certificate. With CAs, every client must present a certificate that one of them has signed.
    ///
    /// # Errors
    /// [`TlsError::Key`] when the key does not fit, [`TlsError::NoRoots`] when no CA certificate is usable.
    pub fn new(identity: Identity, client_cas: Option<&[CertificateDer<'static>]>) -> Result<Self, TlsError> {
        let provider = provider();
        let certificate = Arc::new(CertificateSlot::holding(identity.certify(&provider)?));
        let clients = client_cas.map(|cas| ClientCheck::new(cas, &provider)).transpose()?.map(Arc::new);
        Ok(Self { provider, certificate, clients })
    }

    /// Serves another certificate from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::Key`] when the key does not fit; the old one stays.
    pub fn replace_identity(&self, identity: Identity) -> Result<(), TlsError> {
        self.certificate.replace(Some(identity.certify(&self.provider)?));
        Ok(())
    }

    /// Accepts clients of other CAs from the next handshake on. Whether clients must present certificates was decided
    /// at the start.
    ///
    /// # Errors
    /// [`TlsError::NoRoots`] when none is usable; the old ones stay.
    pub fn replace_client_cas(&self, client_cas: &[CertificateDer<'static>]) -> Result<(), TlsError> {
        self.clients.as_ref().map_or(Ok(()), |clients| clients.replace(client_cas, &self.provider))
    }

    /// The configuration of the listener: HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// [`TlsError::Config`] when rustls refuses the settings.
    pub fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Config(error.to_string()))?;
        let config = config.with_client_cert_verifier(match &self.clients {
            Some(clients) => Arc::clone(clients) as _,
            None => WebPkiClientVerifier::no_client_auth(),
        });
        let config = config.with_cert_resolver(Arc::clone(&self.certificate) as _);
        Ok(Arc::new(without_resumption(config, &ALPN)))
    }
}
