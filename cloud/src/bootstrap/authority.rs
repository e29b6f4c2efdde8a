//! The certificate authority of nodes and of the hub itself (docs/reference/kubeedge.md#certificates-and-keys).

use std::time::{Duration, SystemTime};

use aws_lc_rs::encoding::{AsBigEndian, AsDer, EcPrivateKeyBin, EcPrivateKeyRfc5915Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivateSec1KeyDer};
use sha2::{Digest, Sha256};
use tombolo_link::identity::{NODE_GROUP, NODE_NAME_PREFIX};
use tombolo_proto::NodeId;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::BootstrapError;
use crate::attestation::Attester;

/// Name of the CA and of the server, as in KubeEdge.
const NAME: &str = "KubeEdge";

const DAY: Duration = Duration::from_secs(86_400);

/// Lifetime of the CA, as in KubeEdge.
const CA_LIFE: Duration = DAY.saturating_mul(364 * 100);

/// Serial number of the CA, as in KubeEdge.
const CA_SERIAL: u64 = 1024;

/// Lifetime of server certificates, and of node certificates unless configured otherwise.
pub(super) const LEAF_LIFE: Duration = DAY.saturating_mul(365);

/// Certificates are backdated by this time, for peers whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate and its private key, both in DER. The key is in SEC 1 form, as KubeEdge stores it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KeyedCertificate {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// The CA, ready to sign.
pub(super) struct Authority {
    pair: KeyedCertificate,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("hash", &self.hash()).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates a new CA, without storing it.
    pub(super) fn generate(now: SystemTime) -> Result<KeyedCertificate, BootstrapError> {
        let (key_pair, key) = generate_key()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, NAME)]);
        params.serial_number = Some(CA_SERIAL.into());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        valid(&mut params, now, CA_LIFE);
        let certificate = params.self_signed(&key_pair).map_err(BootstrapError::signing)?;
        Ok(KeyedCertificate { certificate: certificate.der().to_vec(), key })
    }

    /// Loads a CA. `origin` names its source.
    ///
    /// # Errors
    /// [`BootstrapError::Authority`] when it is damaged, is not a CA, or the key does not match.
    pub(super) fn load(origin: &str, pair: KeyedCertificate) -> Result<Self, BootstrapError> {
        let bad = |reason: String| BootstrapError::Authority { origin: origin.to_owned(), reason };
        let key = key_pair(&pair.key).map_err(bad)?;
        let (_, certificate) = X509Certificate::from_der(&pair.certificate)
            .map_err(|error| bad(format!("the certificate is damaged: {error}")))?;
        if !certificate.is_ca() {
            return Err(bad("the certificate is not a CA certificate".to_owned()));
        }
        if !belongs(&certificate, &key) {
            return Err(bad("the private key does not match the certificate".to_owned()));
        }
        let der = CertificateDer::from(pair.certificate.clone());
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| bad(error.to_string()))?;
        Ok(Self { pair, issuer })
    }

    /// Certificate and key as they are stored.
    pub(super) fn pair(&self) -> &KeyedCertificate {
        &self.pair
    }

    /// The certificate, DER.
    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.pair.certificate.clone())
    }

    /// Hex SHA-256 of the certificate's DER, which is the first part of a join token.
    pub(super) fn hash(&self) -> String {
        hex::encode(Sha256::digest(&self.pair.certificate))
    }

    /// An attester with a separate key. The key is derived from the number of the private key, so it does not depend on
    /// the form in which that key is stored.
    ///
    /// # Errors
    /// [`BootstrapError::Signing`] when the cryptography library of this machine does not work.
    pub(super) fn attester(&self) -> Result<Attester, BootstrapError> {
        let signing = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let key =
            EcdsaKeyPair::from_private_key_der(signing, &self.pair.key).map_err(BootstrapError::signing)?;
        let secret: EcPrivateKeyBin<'_> = key.private_key().as_be_bytes().map_err(BootstrapError::signing)?;
        Attester::new(secret.as_ref()).map_err(BootstrapError::signing)
    }

    /// Signs a node's certificate with this lifetime. It contains only the node's name, whatever the request asks for.
    ///
    /// # Errors
    /// [`BootstrapError::Signing`] when the key cannot be certified.
    pub(super) fn sign_node(
        &self,
        node: &NodeId,
        public_key: &[u8],
        now: SystemTime,
        life: Duration,
    ) -> Result<Vec<u8>, BootstrapError> {
        let common_name = format!("{NODE_NAME_PREFIX}{node}");
        let subject = [(DnType::OrganizationName, NODE_GROUP), (DnType::CommonName, common_name.as_str())];
        let params = leaf(&subject, ExtendedKeyUsagePurpose::ClientAuth, now, life);
        let public_key = SubjectPublicKeyInfo::from_der(public_key).map_err(BootstrapError::signing)?;
        let signed = params.signed_by(&public_key, &self.issuer).map_err(BootstrapError::signing)?;
        Ok(signed.der().to_vec())
    }

    /// Creates a server certificate for these host names and addresses.
    ///
    /// # Errors
    /// [`BootstrapError::Address`] when one of them is neither a host name nor an IP address.
    pub(super) fn issue_server(
        &self,
        addresses: &[String],
        now: SystemTime,
    ) -> Result<KeyedCertificate, BootstrapError> {
        let (key_pair, key) = generate_key()?;
        let subject = [(DnType::OrganizationName, NAME), (DnType::CommonName, NAME)];
        let mut params = leaf(&subject, ExtendedKeyUsagePurpose::ServerAuth, now, LEAF_LIFE);
        let names = CertificateParams::new(addresses).map_err(|error| BootstrapError::Address {
            addresses: addresses.join(", "),
            reason: error.to_string(),
        })?;
        params.subject_alt_names = names.subject_alt_names;
        let signed = params.signed_by(&key_pair, &self.issuer).map_err(BootstrapError::signing)?;
        Ok(KeyedCertificate { certificate: signed.der().to_vec(), key })
    }
}

fn leaf(
    subject: &[(DnType, &str)],
    usage: ExtendedKeyUsagePurpose,
    now: SystemTime,
    life: Duration,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(subject);
    // 63 bits, so that every parser reads a positive number.
    params.serial_number = Some(SerialNumber::from_slice(&(rand::random::<u64>() >> 1).to_be_bytes()));
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    valid(&mut params, now, life);
    params
}

fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    parts.iter().for_each(|(kind, value)| name.push(kind.clone(), *value));
    name
}

fn valid(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    params.not_before = now.checked_sub(CLOCK_SKEW).unwrap_or(now).into();
    params.not_after = now.checked_add(life).unwrap_or(now).into();
}

fn generate_key() -> Result<(KeyPair, Vec<u8>), BootstrapError> {
    let unspecified = |_| BootstrapError::Signing { reason: "cannot generate a P-256 key".to_owned() };
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(unspecified)?;
    let der: EcPrivateKeyRfc5915Der<'_> = key.private_key().as_der().map_err(unspecified)?;
    let der = der.as_ref().to_vec();
    let pair = key_pair(&der).map_err(|reason| BootstrapError::Signing { reason })?;
    Ok((pair, der))
}

/// Parses a P-256 key in SEC 1 or PKCS #8 form.
pub(super) fn key_pair(der: &[u8]) -> Result<KeyPair, String> {
    let key = private_key(der)?;
    KeyPair::from_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)
        .map_err(|error| format!("the private key is not an ECDSA P-256 key: {error}"))
}

/// Detects the form of a private key; KubeEdge writes SEC 1.
pub(super) fn private_key(der: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::try_from(der.to_vec())
        .or_else(|_| Ok::<_, String>(PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der.to_vec()))))
}

/// Whether the certificate belongs to this key.
pub(super) fn belongs(certificate: &X509Certificate<'_>, key: &KeyPair) -> bool {
    certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
}
