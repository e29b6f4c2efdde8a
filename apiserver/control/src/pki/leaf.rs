//! Leaf certificates: their content and their signing.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SerialNumber, SubjectPublicKeyInfo, date_time_ymd,
};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::CLOCK_SKEW;
use crate::error::EmbeddedError;

/// What a leaf's key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeafUsage {
    /// TLS server.
    pub(crate) server: bool,
    /// TLS client.
    pub(crate) client: bool,
    /// RSA key exchange, which kubelets with RSA keys request.
    pub(crate) key_encipherment: bool,
}

impl LeafUsage {
    /// TLS server only.
    pub(crate) const SERVER: Self = Self { server: true, client: false, key_encipherment: true };
    /// TLS client only.
    pub(crate) const CLIENT: Self = Self { server: false, client: true, key_encipherment: true };
}

/// The content of a leaf certificate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaf {
    /// Subject common name: the user name of a client.
    pub(crate) common_name: String,
    /// Subject organization: the group of a client.
    pub(crate) organization: Option<String>,
    /// DNS names.
    pub(crate) dns_names: Vec<String>,
    /// IP addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Key usages.
    pub(crate) usage: LeafUsage,
    /// How long it is valid, from now on.
    pub(crate) life: Duration,
}

impl Leaf {
    pub(super) fn sign(
        &self,
        public_key_der: &[u8],
        issuer: &Issuer<'_, KeyPair>,
        now: SystemTime,
    ) -> Result<String, EmbeddedError> {
        let failed = |e: rcgen::Error| EmbeddedError::pki(format!("certificate of {}", self.common_name), e);
        let key = SubjectPublicKeyInfo::from_der(public_key_der).map_err(failed)?;
        let certificate = self.params(now).map_err(failed)?.signed_by(&key, issuer).map_err(failed)?;
        Ok(certificate.pem())
    }

    fn params(&self, now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
        let mut subject = DistinguishedName::new();
        if let Some(organization) = &self.organization {
            subject.push(DnType::OrganizationName, organization.as_str());
        }
        subject.push(DnType::CommonName, self.common_name.as_str());
        let mut names = Vec::with_capacity(self.dns_names.len() + self.addresses.len());
        for name in &self.dns_names {
            names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        names.extend(self.addresses.iter().copied().map(SanType::IpAddress));
        let mut params = valid(now, self.life);
        params.distinguished_name = subject;
        params.subject_alt_names = names;
        params.serial_number = Some(random_serial());
        params.use_authority_key_identifier_extension = true;
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        if self.usage.key_encipherment {
            params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        if self.usage.server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.usage.client {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        Ok(params)
    }
}

/// Parameters of a certificate that is valid from shortly before `now` for `life`.
pub(super) fn valid(now: SystemTime, life: Duration) -> CertificateParams {
    let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.not_before = epoch + unix.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + unix + life;
    params
}

/// A random serial number (the CA/Browser Forum requires 64 random bits), positive and without a leading zero byte (RFC
/// 5280 4.1.2.2).
fn random_serial() -> SerialNumber {
    let mut bytes = *uuid::Uuid::new_v4().as_bytes();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// Whether a certificate belongs to a key.
pub(super) fn fits(pem: &str, key: &str) -> bool {
    use rcgen::PublicKeyData as _;

    let Ok((_, block)) = parse_x509_pem(pem.as_bytes()) else { return false };
    let Ok(certificate) = block.parse_x509() else { return false };
    let key = KeyPair::from_pem(key);
    key.is_ok_and(|key| key.subject_public_key_info() == certificate.public_key().raw)
}

/// Whether a leaf has more than half of its lifetime left and, if `address` is given, contains it.
pub(super) fn is_current(pem: &str, now: SystemTime, address: Option<IpAddr>) -> bool {
    let Ok((_, block)) = parse_x509_pem(pem.as_bytes()) else { return false };
    let Ok(certificate) = block.parse_x509() else { return false };
    let now = i64::try_from(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
    let (start, end) =
        (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let fresh = start <= now && end.saturating_sub(now) > end.saturating_sub(start) / 2;
    let names = |address: IpAddr| {
        let octets = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        alternatives.is_some_and(|san| {
            san.value
                .general_names
                .iter()
                .any(|name| matches!(name, GeneralName::IPAddress(ip) if *ip == octets))
        })
    };
    fresh && address.is_none_or(names)
}
