//! The certificate authority as files, for a cloudcore without a cluster (docs/operations.md#without-a-cluster).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tombolo_runtime::files;

use super::authority::KeyedCertificate;
use super::error::BootstrapError;

/// The hub's CA in the key folder; the embedded API server keeps its own `ca.crt` beside it.
const CERTIFICATE: &str = "hub-ca.crt";
const KEY: &str = "hub-ca.key";

/// `<data-dir>/pki`.
#[derive(Debug, Clone)]
pub(super) struct KeyFolder(pub(super) PathBuf);

impl fmt::Display for KeyFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl KeyFolder {
    /// Reads what is there; `stored` is the CA of the Secret, when there is one.
    ///
    /// # Errors
    /// [`BootstrapError`] when one of the two files is missing, unreadable or no PEM. The key of `stored` alone is no
    /// error: a crash between the two writes has left it, and they are made again.
    pub(super) fn read(
        &self,
        stored: Option<&KeyedCertificate>,
    ) -> Result<Option<KeyedCertificate>, BootstrapError> {
        let bad = |reason: String| BootstrapError::Authority { origin: self.to_string(), reason };
        let certificate = self
            .file(CERTIFICATE, files::read_if_there)?
            .map(|pem| CertificateDer::from_pem_slice(&pem))
            .transpose();
        let certificate =
            certificate.map_err(|error| bad(format!("{CERTIFICATE} is no PEM certificate: {error}")))?;
        let key =
            self.file(KEY, files::read_private)?.map(|pem| PrivateKeyDer::from_pem_slice(&pem)).transpose();
        let key = key.map_err(|error| bad(format!("{KEY} is no PEM private key: {error}")))?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => {
                let (certificate, key) = (certificate.to_vec(), key.secret_der().to_vec());
                Ok(Some(KeyedCertificate { certificate, key }))
            }
            (Some(_), None) => Err(bad(format!("{KEY} is missing beside {CERTIFICATE}"))),
            (None, Some(key)) if stored.is_some_and(|stored| stored.key == key.secret_der()) => Ok(None),
            (None, Some(_)) => Err(bad(format!("{CERTIFICATE} is missing beside {KEY}"))),
        }
    }

    /// Writes the pair, the key first: after a crash in between [`Self::read`] asks for both again.
    ///
    /// # Errors
    /// [`BootstrapError::File`].
    pub(super) fn write(&self, pair: &KeyedCertificate) -> Result<(), BootstrapError> {
        let failed =
            |path: &Path, source| BootstrapError::File { action: "write", path: path.into(), source };
        files::private_folder(&self.0).map_err(|source| failed(&self.0, source))?;
        for (name, label, der) in
            [(KEY, "EC PRIVATE KEY", &pair.key), (CERTIFICATE, "CERTIFICATE", &pair.certificate)]
        {
            let path = self.0.join(name);
            files::replace(&path, pem(label, der).as_bytes(), files::PRIVATE)
                .map_err(|source| failed(&path, source))?;
        }
        Ok(())
    }

    fn file(
        &self,
        name: &str,
        read: fn(&Path) -> io::Result<Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>, BootstrapError> {
        let path = self.0.join(name);
        read(&path).map_err(|source| BootstrapError::File { action: "read", path, source })
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}
