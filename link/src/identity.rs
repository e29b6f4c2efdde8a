//! Identity of a peer: the node in its verified certificate (docs/security.md#who-is-who).

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use tombolo_proto::NodeId;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use crate::error::IdentityError;

/// Prefix of a node's common name (Kubernetes Node authorization).
pub const NODE_NAME_PREFIX: &str = "system:node:";

/// The organisation of every node (Kubernetes Node authorization).
pub const NODE_GROUP: &str = "system:nodes";

/// Longest serial number, in octets (RFC 5280, section 4.1.2.2).
const SERIAL_LEN_MAX: usize = 20;

/// Serial number of a certificate, unique for its authority. Written in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Serial([u8; SERIAL_LEN_MAX]);

impl Serial {
    /// Takes the number's octets, most significant first.
    fn new(octets: &[u8]) -> Result<Self, IdentityError> {
        let mut serial = [0; SERIAL_LEN_MAX];
        let too_long = || IdentityError::Unreadable("its serial number has more than 20 octets".to_owned());
        let start = SERIAL_LEN_MAX.checked_sub(octets.len()).ok_or_else(too_long)?;
        serial[start..].copy_from_slice(octets);
        Ok(Self(serial))
    }
}

impl From<u64> for Serial {
    fn from(number: u64) -> Self {
        let mut serial = [0; SERIAL_LEN_MAX];
        serial[SERIAL_LEN_MAX - 8..].copy_from_slice(&number.to_be_bytes());
        Self(serial)
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zeros = self.0.iter().take_while(|octet| **octet == 0).count();
        self.0[zeros.min(SERIAL_LEN_MAX - 1)..].iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// Facts of a certificate besides its name, by which it differs from others of the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its serial number.
    pub serial: Serial,
    /// SHA-256 of its public key, as encoded in the certificate (SubjectPublicKeyInfo).
    pub key: [u8; 32],
    /// Start of its validity, in Unix seconds.
    pub issued: u64,
    /// End of its validity, in Unix seconds.
    pub expires: u64,
}

/// Reads the facts of the first certificate of a chain.
///
/// # Errors
/// [`IdentityError`] when there is none or it cannot be read.
pub fn certificate_of(chain: &[CertificateDer<'_>]) -> Result<PeerCertificate, IdentityError> {
    let leaf = chain.first().ok_or(IdentityError::NoCertificate)?;
    let (_, certificate) =
        X509Certificate::from_der(leaf).map_err(|error| IdentityError::Unreadable(error.to_string()))?;
    let hash = digest(&SHA256, certificate.public_key().raw);
    let key = hash.as_ref().try_into().map_err(|_| IdentityError::Unreadable("SHA-256".to_owned()))?;
    let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
    let validity = certificate.validity();
    Ok(PeerCertificate {
        serial: Serial::new(&certificate.serial.to_bytes_be())?,
        key,
        issued: seconds(validity.not_before.timestamp()),
        expires: seconds(validity.not_after.timestamp()),
    })
}

/// Reads the node from a chain whose signature TLS has verified: exactly one common name `system:node:<name>` and the
/// organisation `system:nodes` in the first certificate.
///
/// # Errors
/// [`IdentityError`] when there is no certificate or its subject has another form.
pub fn node_of(chain: &[CertificateDer<'_>]) -> Result<NodeId, IdentityError> {
    let leaf = chain.first().ok_or(IdentityError::NoCertificate)?;
    let (rest, certificate) =
        X509Certificate::from_der(leaf).map_err(|error| IdentityError::Unreadable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(IdentityError::Unreadable("bytes follow the certificate".to_owned()));
    }
    node_of_subject(certificate.subject())
}

fn node_of_subject(subject: &X509Name<'_>) -> Result<NodeId, IdentityError> {
    let refuse = |rule| IdentityError::Subject { subject: subject.to_string(), rule };
    let mut common_names = subject.iter_common_name().map(x509_parser::x509::AttributeTypeAndValue::as_str);
    let (Some(Ok(name)), None) = (common_names.next(), common_names.next()) else {
        return Err(refuse("must have exactly one common name"));
    };
    let in_group = subject.iter_organization().any(|group| group.as_str() == Ok(NODE_GROUP));
    if !in_group {
        return Err(refuse("must have the organisation system:nodes"));
    }
    let node = name.strip_prefix(NODE_NAME_PREFIX);
    let node = node.ok_or_else(|| refuse("must have a common name that starts with system:node:"))?;
    NodeId::parse(node).map_err(|_| refuse("must name a node: a lower-case DNS-1123 subdomain"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(subject: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn reads_the_node_and_refuses_other_subjects() {
        let (name, group) = (DnType::CommonName, DnType::OrganizationName);
        let good = certificate(&[(group.clone(), "system:nodes"), (name.clone(), "system:node:edge-1.shop")]);
        assert_eq!(node_of(&[good]).unwrap().as_str(), "edge-1.shop");

        let cases: [(&[(DnType, &str)], &str); 5] = [
            (&[(group.clone(), "system:nodes")], "exactly one common name"),
            (&[(name.clone(), "system:node:a")], "organisation system:nodes"),
            (&[(group.clone(), "system:masters"), (name.clone(), "system:node:a")], "organisation"),
            (&[(group.clone(), "system:nodes"), (name.clone(), "kubelet")], "starts with system:node:"),
            (&[(group.clone(), "system:nodes"), (name.clone(), "system:node:A/../b")], "DNS-1123"),
        ];
        for (subject, expected) in cases {
            let error = node_of(&[certificate(subject)]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }

    #[test]
    fn certificates_of_one_node_are_distinguished() {
        let subject = [(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:a")];
        let facts = |der| certificate_of(&[der]).unwrap();
        let (one, other) = (facts(certificate(&subject)), facts(certificate(&subject)));
        assert_ne!((one.key, one.serial), (other.key, other.serial));
        assert!(one.issued < one.expires);
        assert!(certificate_of(&[]).is_err());
    }

    #[test]
    fn serial_numbers_are_written_as_tools_write_them() {
        let written = |octets: &[u8]| Serial::new(octets).unwrap().to_string();
        assert_eq!(written(&[]), "00");
        assert_eq!(written(&[0, 0x0a, 0xb0]), "0ab0");
        assert_eq!(written(&[0xff; 20]), "ff".repeat(20));
        assert_eq!(Serial::from(0x0102).to_string(), "0102");
        assert!(Serial::new(&[1; 21]).unwrap_err().to_string().contains("more than 20 octets"));
    }

    #[test]
    fn refuses_invalid_certificates() {
        assert_eq!(node_of(&[]).unwrap_err(), IdentityError::NoCertificate);
        let garbage = CertificateDer::from(vec![0x30, 0x03, 0x01, 0x02, 0x03]);
        assert!(matches!(node_of(&[garbage]).unwrap_err(), IdentityError::Unreadable(_)));
        let mut tail = certificate(&[(DnType::CommonName, "system:node:a")]).to_vec();
        tail.push(0);
        assert!(matches!(node_of(&[tail.into()]).unwrap_err(), IdentityError::Unreadable(_)));
    }
}
