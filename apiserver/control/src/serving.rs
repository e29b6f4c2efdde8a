//! TLS of the server. Its certificate is replaced while the server runs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::error::EmbeddedError;
use super::kubeconfig;
use super::pki::{KeyedCertificate, Pki};
use tombolo_apicore::any_certificate::AnyCertificate;

/// How often the certificates are checked. They are renewed at half of their lifetime, so there is time for many tries.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);

/// The certificate for new connections.
pub(super) struct Serving {
    provider: Arc<CryptoProvider>,
    current: ArcSwap<CertifiedKey>,
}

impl Serving {
    /// Starts with the current certificate.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when it cannot be used.
    pub(super) fn new(pki: &Pki, provider: &Arc<CryptoProvider>) -> Result<Arc<Self>, EmbeddedError> {
        let current = ArcSwap::from(certified(pki, provider)?);
        Ok(Arc::new(Self { provider: Arc::clone(provider), current }))
    }

    /// The certificate for new connections, DER.
    #[cfg(test)]
    pub(super) fn certificate(&self) -> Vec<u8> {
        self.current.load().cert.first().map(|certificate| certificate.to_vec()).unwrap_or_default()
    }

    /// The TLS configuration for connections.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when the provider has no usable protocol version.
    pub(super) fn config(self: &Arc<Self>) -> Result<Arc<rustls::ServerConfig>, EmbeddedError> {
        let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(Arc::new(AnyCertificate::new(&self.provider)));
        let mut config = config.with_cert_resolver(Arc::clone(self) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

/// Renews the certificates of a running server.
pub(super) struct Renewal {
    pub(super) pki: Arc<Pki>,
    pub(super) serving: Arc<Serving>,
    pub(super) data_dir: PathBuf,
    pub(super) address: SocketAddr,
    /// The certificate for connections, and the one in the kubeconfig.
    shown: Mutex<[Arc<KeyedCertificate>; 2]>,
}

impl Renewal {
    /// Starts with the certificates of the server's start.
    pub(super) fn new(pki: Arc<Pki>, serving: Arc<Serving>, data_dir: PathBuf, address: SocketAddr) -> Self {
        let shown = Mutex::new([pki.serving(), pki.admin()]);
        Self { pki, serving, data_dir, address, shown }
    }

    /// Checks the certificates until the server stops.
    pub(super) async fn run(self) {
        let mut look = tokio::time::interval(RENEWAL_INTERVAL);
        loop {
            look.tick().await;
            match self.renew(SystemTime::now()) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!("the certificates of the server and its administrator were renewed");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the certificates; the old ones stay in use; retrying later");
                }
            }
        }
    }

    /// Renews old certificates. Returns whether any was renewed.
    ///
    /// # Errors
    /// [`EmbeddedError`] when a file could not be created or written.
    pub(super) fn renew(&self, now: SystemTime) -> Result<bool, EmbeddedError> {
        let renewed = self.pki.renew(now);
        // One of the two may have been renewed even if the other one failed.
        let (mut shown, current) = (self.shown.lock(), [self.pki.serving(), self.pki.admin()]);
        if shown[0] != current[0] {
            self.serving.current.store(certified(&self.pki, &self.serving.provider)?);
        }
        if shown[1] != current[1] {
            kubeconfig::write(&self.data_dir, self.address, &self.pki)?;
        }
        *shown = current;
        renewed
    }
}

fn certified(pki: &Pki, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, EmbeddedError> {
    let serving = pki.serving();
    let chain = CertificateDer::pem_slice_iter(serving.certificate.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).map_err(|error| failed(&error))?;
    CertifiedKey::from_der(chain, key, provider).map(Arc::new).map_err(|error| failed(&error))
}

fn failed(error: &dyn fmt::Display) -> EmbeddedError {
    EmbeddedError::pki("serving certificate", error)
}
