//! Client certificates. The TLS layer accepts every certificate whose key the peer has, and the chain is checked here.
//! An untrusted certificate thus leads to a 401, which clients understand, and not to a broken connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest as _, Sha256};
use tombolo_apicore::auth::{AUTHENTICATED_GROUP, Identity};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::error::EmbeddedError;

/// Maximum number of cached certificates, whose chain is not checked again. The cache is cleared when it is full.
const KNOWN_MAX: usize = 4096;

/// Turns certificates into identities: the common name is the user, the organizations are the groups (Kubernetes: X.509
/// client certificates).
pub(crate) struct Certificates {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Verified certificates by hash, with the Unix second at which their validity ends.
    known: Mutex<HashMap<[u8; 32], (Identity, u64)>>,
}

impl Certificates {
    /// Trusts one certificate authority.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when the authority's certificate cannot be used.
    pub(crate) fn new(
        ca: &CertificateDer<'static>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, EmbeddedError> {
        let failed = |e: &dyn fmt::Display| EmbeddedError::pki("certificate authority", e);
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).map_err(|e| failed(&e))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().map_err(|e| failed(&e))?;
        Ok(Self { verifier, known: Mutex::default() })
    }

    /// The identity of a chain, leaf first, at `now` (since the Unix epoch); `None` when the leaf has no common name.
    ///
    /// # Errors
    /// Why the chain is not trusted, for the log.
    pub(crate) fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        now: Duration,
    ) -> Result<Option<Identity>, String> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Err("no certificate".into()) };
        let hash: [u8; 32] = Sha256::digest(leaf).into();
        if let Some((identity, end)) = self.known.lock().get(&hash)
            && now.as_secs() <= *end
        {
            return Ok(Some(identity.clone()));
        }
        let verified = self.verifier.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(now));
        verified.map_err(|e| format!("client certificate: {e}"))?;
        let Some((identity, end)) = subject(leaf, hash) else { return Ok(None) };
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(hash, (identity.clone(), end));
        Ok(Some(identity))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

fn subject(leaf: &CertificateDer<'_>, hash: [u8; 32]) -> Option<(Identity, u64)> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let user =
        certificate.subject().iter_common_name().next()?.as_str().ok().filter(|user| !user.is_empty())?;
    let organizations = certificate.subject().iter_organization().filter_map(|name| name.as_str().ok());
    let mut groups: Vec<String> = organizations.map(str::to_owned).collect();
    if !groups.iter().any(|group| group == AUTHENTICATED_GROUP) {
        groups.push(AUTHENTICATED_GROUP.to_owned());
    }
    let mut identity = Identity { user: user.to_owned(), groups, ..Identity::default() };
    let credential = format!("X509SHA256={}", hex::encode(hash));
    identity.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![credential]);
    let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some((identity, end))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::{SystemTime, UNIX_EPOCH};

    use rcgen::{KeyPair, PublicKeyData as _};
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::pki::{Leaf, LeafUsage, Pki};

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::aws_lc_rs::default_provider())
    }

    fn pki(now: SystemTime) -> Pki {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), IpAddr::from([10, 0, 0, 1]), now).unwrap()
    }

    fn node_certificate(pki: &Pki, usage: LeafUsage, now: SystemTime) -> CertificateDer<'static> {
        let leaf = Leaf {
            common_name: "system:node:a".into(),
            organization: Some("system:nodes".into()),
            usage,
            life: Duration::from_secs(3600),
            ..Leaf::default()
        };
        let key = KeyPair::generate().unwrap();
        let pem = pki.sign(&leaf, &key.subject_public_key_info(), now).unwrap();
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    #[test]
    fn a_certificate_is_a_user_with_groups_while_it_is_valid() {
        let now = SystemTime::now();
        let unix = now.duration_since(UNIX_EPOCH).unwrap();
        let pki = pki(now);
        let certificates = Certificates::new(pki.ca_der(), provider()).unwrap();
        let chain = [node_certificate(&pki, LeafUsage::CLIENT, now)];
        for _ in 0..2 {
            let identity = certificates.identify(&chain, unix).unwrap().unwrap();
            assert_eq!(identity.user, "system:node:a");
            assert_eq!(identity.groups, ["system:nodes", "system:authenticated"]);
        }
        let later = unix + Duration::from_secs(3601);
        assert!(certificates.identify(&chain, later).unwrap_err().contains("expired"), "also when known");
    }

    #[test]
    fn foreign_and_server_certificates_are_refused() {
        let now = SystemTime::now();
        let unix = now.duration_since(UNIX_EPOCH).unwrap();
        let own = pki(now);
        let certificates = Certificates::new(own.ca_der(), provider()).unwrap();
        let foreign = node_certificate(&pki(now), LeafUsage::CLIENT, now);
        assert!(certificates.identify(&[foreign], unix).is_err());
        let server = node_certificate(&own, LeafUsage::SERVER, now);
        assert!(certificates.identify(&[server], unix).is_err());
        let garbage = CertificateDer::from(vec![1, 2, 3]);
        assert!(certificates.identify(&[garbage], unix).is_err());
    }
}
