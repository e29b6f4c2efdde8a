//! Certificates and keys in files of an operator (docs/reference/kubeedge.md#certificates-and-keys: files take
//! precedence over Secrets).

use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tombolo_runtime::files;

use super::authority::KeyedCertificate;
use super::error::BootstrapError;

/// Files of the authority and of the hub's own certificate. Without a file, the Secret is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateFiles {
    /// The certificate authority of nodes.
    pub authority: Option<PemPair>,
    /// The hub's certificate. It is used as it is, and never renewed by cloudcore.
    pub server: Option<PemPair>,
}

/// A PEM certificate and the PEM file of its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemPair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl PemPair {
    /// Reads the pair. `None` when neither file exists, as in a setup that only uses Secrets.
    ///
    /// # Errors
    /// [`BootstrapError`] when one of the two is missing, or a file is unreadable or not PEM.
    pub(super) fn read(&self) -> Result<Option<KeyedCertificate>, BootstrapError> {
        let (certificate, key) = (content(&self.certificate)?, content(&self.key)?);
        let (certificate, key) = match (certificate, key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (None, _) => return Err(missing(&self.certificate, &self.key)),
            (_, None) => return Err(missing(&self.key, &self.certificate)),
        };
        let certificate = CertificateDer::from_pem_slice(&certificate)
            .map_err(|error| unusable(&self.certificate, format!("not a PEM certificate: {error}")))?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| unusable(&self.key, format!("not a PEM private key: {error}")))?;
        Ok(Some(KeyedCertificate { certificate: certificate.to_vec(), key: key.secret_der().to_vec() }))
    }
}

fn content(path: &Path) -> Result<Option<Vec<u8>>, BootstrapError> {
    files::read_if_there(path).map_err(|source| BootstrapError::File { path: path.to_owned(), source })
}

fn missing(path: &Path, other: &Path) -> BootstrapError {
    unusable(path, format!("missing, but {} exists; provide both files or neither", other.display()))
}

fn unusable(path: &Path, reason: String) -> BootstrapError {
    BootstrapError::Pem { path: path.to_owned(), reason }
}
