//! Creates certificate requests and parses certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tombolo_proto::ids::NodeId;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::IdentityError;

/// A new key and its certificate signing request.
pub(super) struct Request {
    pub(super) key: PrivatePkcs8KeyDer<'static>,
    pub(super) csr: Vec<u8>,
    public_key: Vec<u8>,
}

/// Creates a key (ECDSA P-256) and requests the name that the Kubernetes Node authorizer expects.
pub(super) fn request(node: &NodeId) -> Result<Request, rcgen::Error> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, common_name(node));
    let csr = params.serialize_request(&pair)?.der().to_vec();
    let key = PrivatePkcs8KeyDer::from(pair.serialize_der());
    Ok(Request { key, csr, public_key: rcgen::PublicKeyData::subject_public_key_info(&pair) })
}

impl Request {
    /// Checks that a certificate answers this request: it has the key and the node's name, and is signed by that CA.
    pub(super) fn answered_by(
        &self,
        der: &CertificateDer<'_>,
        ca: &CertificateDer<'_>,
        node: &NodeId,
    ) -> Result<(), String> {
        belongs_to(der, node)?;
        let certificate = parse(der)?;
        if certificate.public_key().raw != self.public_key {
            return Err("the certificate is for another key".to_owned());
        }
        let ca = parse(ca)?;
        certificate
            .verify_signature(Some(ca.public_key()))
            .map_err(|_| "the certificate is not signed by the cloud's CA".to_owned())
    }
}

/// Checks that a certificate names this node.
pub(super) fn belongs_to(der: &CertificateDer<'_>, node: &NodeId) -> Result<(), String> {
    let certificate = parse(der)?;
    let found = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let expected = common_name(node);
    if found == Some(expected.as_str()) {
        return Ok(());
    }
    Err(format!("the certificate is for {}, not for {expected}", found.unwrap_or("no name")))
}

/// When a certificate begins and ceases to be valid.
pub(super) fn validity(der: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), IdentityError> {
    let unusable = |problem| IdentityError::Unusable { what: "the node's certificate".to_owned(), problem };
    let certificate = parse(der).map_err(unusable)?;
    let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = certificate.validity();
    Ok((time(validity.not_before.timestamp()), time(validity.not_after.timestamp())))
}

/// DER as PEM text.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII, so every byte is a character boundary.
        let (line, next) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = next;
    }
    pem + &format!("-----END {label}-----\n")
}

fn common_name(node: &NodeId) -> String {
    format!("system:node:{node}")
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| format!("not a certificate: {error}"))?;
    Ok(certificate)
}
