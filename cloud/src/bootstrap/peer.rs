//! Evaluates a client certificate on the join port: valid, expired, or not from this CA.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use tombolo_link::identity::{self, PeerCertificate};
use tombolo_proto::NodeId;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::BootstrapError;

/// Result of evaluating the certificate of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    /// The peer presented no certificate.
    Anonymous,
    /// A valid certificate of this node.
    Node(NodeId, PeerCertificate),
    /// A certificate of this node that was valid, but expired this long ago.
    Expired(NodeId, PeerCertificate, Duration),
    /// A certificate that proves nothing here, with the reason.
    Unknown(String),
}

/// Evaluates certificates with this cluster's CA.
#[derive(Debug)]
pub(super) struct Judge {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Judge {
    pub(super) fn new(
        authority: CertificateDer<'static>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, BootstrapError> {
        let refused = |reason: String| BootstrapError::Signing { reason };
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| refused(error.to_string()))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self { verifier })
    }

    /// Evaluates the chain that the peer has presented.
    pub(super) fn judge(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Peer {
        let Some((leaf, intermediates)) = chain.split_first() else { return Peer::Anonymous };
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = match end_of(leaf) {
            Ok(end) => end,
            Err(reason) => return Peer::Unknown(reason),
        };
        // For an expired certificate, everything else is checked as of the end of its validity.
        let at = UnixTime::since_unix_epoch(now.min(end));
        if let Err(error) = self.verifier.verify_client_cert(leaf, intermediates, at) {
            return Peer::Unknown(format!("the client certificate is not valid here: {error}"));
        }
        let known = identity::node_of(chain).and_then(|node| Ok((node, identity::certificate_of(chain)?)));
        match known {
            Err(error) => Peer::Unknown(error.to_string()),
            Ok((node, certificate)) if now <= end => Peer::Node(node, certificate),
            Ok((node, certificate)) => Peer::Expired(node, certificate, now.saturating_sub(end)),
        }
    }
}

fn end_of(leaf: &CertificateDer<'_>) -> Result<Duration, String> {
    let (_, certificate) = X509Certificate::from_der(leaf)
        .map_err(|error| format!("the client certificate is unreadable: {error}"))?;
    let end = certificate.validity().not_after.timestamp();
    Ok(Duration::from_secs(u64::try_from(end).unwrap_or(0)))
}
