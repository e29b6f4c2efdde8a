//! Storage of the certificate authority and the server certificate in their Secrets.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{Authority, KeyedCertificate, LEAF_LIFE, belongs, key_pair};
use super::error::BootstrapError;
use super::pem::PemPair;
use super::secrets::{self, SecretData, SecretError, SecretStore};

/// Secret and keys of a certificate and its private key (docs/reference/kubeedge.md#certificates-and-keys).
pub(super) struct CertificateSecret {
    pub(super) secret: &'static str,
    certificate: &'static str,
    key: &'static str,
}

/// The certificate authority.
pub(super) const CA: CertificateSecret =
    CertificateSecret { secret: "casecret", certificate: "cadata", key: "cakeydata" };

/// The server certificate.
pub(super) const SERVER: CertificateSecret =
    CertificateSecret { secret: "tombolo-server", certificate: "cloudcoredata", key: "cloudcorekeydata" };

/// Secret of the join token, and its key.
pub(super) const TOKEN_SECRET: &str = "tokensecret";
pub(super) const TOKEN: &str = "tokendata";

/// The one CA of the cluster: from the operator's files, or the stored one, or a new one that is stored by
/// compare-and-swap. If two replicas start together, one creates the Secret and the other reads it.
pub(super) async fn authority(
    store: &dyn SecretStore,
    files: Option<&PemPair>,
    now: SystemTime,
) -> Result<Authority, BootstrapError> {
    let given = match files {
        Some(files) => given_authority(store, files).await?,
        None => None,
    };
    let found = match given {
        Some(given) => Some(given),
        None => read_pair(store, &CA).await?.transpose()?,
    };
    let stored = match found {
        Some(stored) => stored,
        None => create_or_read(store, Authority::generate(now)?).await?,
    };
    Authority::load(&format!("secret {}", CA.secret), stored)
}

/// The authority of the operator's files, which is also copied to the Secret.
async fn given_authority(
    store: &dyn SecretStore,
    files: &PemPair,
) -> Result<Option<KeyedCertificate>, BootstrapError> {
    let Some(given) = files.read()? else { return Ok(None) };
    // Rejects invalid files before they replace a good authority.
    Authority::load(&files.certificate.display().to_string(), given.clone())?;
    if read_pair(store, &CA).await?.is_some_and(|stored| stored.is_ok_and(|stored| stored != given)) {
        let file = files.certificate.display();
        tracing::warn!(%file, secret = CA.secret, "the certificate authority of the file replaces the stored one");
    }
    secrets::put(store, CA.secret, data(&given, &CA)).await?;
    Ok(Some(given))
}

async fn create_or_read(
    store: &dyn SecretStore,
    candidate: KeyedCertificate,
) -> Result<KeyedCertificate, BootstrapError> {
    match store.create(CA.secret, data(&candidate, &CA)).await {
        Ok(_) => Ok(candidate),
        Err(error @ SecretError::Exists { .. }) => {
            let winner = read_pair(store, &CA).await?;
            winner.ok_or(BootstrapError::Secret(error))?
        }
        Err(error) => Err(error.into()),
    }
}

/// The server certificate of the operator's files, which is also copied to the Secret.
pub(super) async fn given_server_certificate(
    store: &dyn SecretStore,
    files: Option<&PemPair>,
    authority: &Authority,
) -> Result<Option<KeyedCertificate>, BootstrapError> {
    let Some(files) = files else { return Ok(None) };
    let Some(given) = files.read()? else { return Ok(None) };
    if !signed_by(&given, authority) {
        let file = files.certificate.display();
        tracing::warn!(%file, "edges will refuse this certificate: it is not signed by the certificate authority of the nodes");
    }
    if let Err(error) = secrets::put(store, SERVER.secret, data(&given, &SERVER)).await {
        tracing::warn!(%error, "cannot store the server certificate of the operator's files");
    }
    Ok(Some(given))
}

fn signed_by(pair: &KeyedCertificate, authority: &Authority) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(&pair.certificate) else { return false };
    let ca = authority.certificate();
    X509Certificate::from_der(&ca)
        .is_ok_and(|(_, ca)| certificate.verify_signature(Some(ca.public_key())).is_ok())
}

/// The server certificate for these addresses: the stored one while it fits, otherwise a new one.
pub(super) async fn server_certificate(
    store: &dyn SecretStore,
    authority: &Arc<Authority>,
    addresses: &[String],
    now: SystemTime,
) -> Result<KeyedCertificate, BootstrapError> {
    let stored = read_pair(store, &SERVER).await?;
    // A damaged server certificate does no harm: it is created again.
    if let Some(Ok(stored)) = stored
        && fits(&stored, authority, addresses, now)
    {
        return Ok(stored);
    }
    let issued = authority.issue_server(addresses, now)?;
    let written = secrets::put(store, SERVER.secret, data(&issued, &SERVER)).await;
    if let Err(error) = written {
        // It is used anyway; the next start creates another one.
        tracing::warn!(%error, "cannot store the new server certificate");
    }
    Ok(issued)
}

/// Whether a server certificate is from this CA, has exactly these addresses, and more than a third of its lifetime
/// left.
pub(super) fn fits(
    pair: &KeyedCertificate,
    authority: &Authority,
    addresses: &[String],
    now: SystemTime,
) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(&pair.certificate) else { return false };
    let ours = signed_by(pair, authority);
    let keyed = key_pair(&pair.key).is_ok_and(|key| belongs(&certificate, &key));
    ours && keyed && names_of(&certificate) == sorted(addresses) && left(&certificate, now) > LEAF_LIFE / 3
}

fn left(certificate: &X509Certificate<'_>, now: SystemTime) -> Duration {
    let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(end).saturating_sub(now)
}

fn sorted(addresses: &[String]) -> Vec<String> {
    let mut addresses = addresses.to_vec();
    addresses.sort();
    addresses.dedup();
    addresses
}

pub(super) fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|ip| std::net::IpAddr::from(ip).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|ip| std::net::IpAddr::from(ip).to_string()),
        },
        _ => None,
    };
    sorted(&names.value.general_names.iter().filter_map(text).collect::<Vec<_>>())
}

fn data(pair: &KeyedCertificate, names: &CertificateSecret) -> SecretData {
    let entry = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    SecretData::from([entry(names.certificate, &pair.certificate), entry(names.key, &pair.key)])
}

pub(super) type StoredPair = Result<KeyedCertificate, BootstrapError>;

/// `None` when there is no such Secret; an inner error when it exists but is incomplete.
pub(super) async fn read_pair(
    store: &dyn SecretStore,
    names: &CertificateSecret,
) -> Result<Option<StoredPair>, SecretError> {
    let Some(mut stored) = store.get(names.secret).await? else { return Ok(None) };
    let mut take = |field: &str| {
        let value = stored.data.remove(field).filter(|value| !value.is_empty());
        value.ok_or_else(|| BootstrapError::Authority {
            origin: format!("secret {}", names.secret),
            reason: format!("key {field} is missing"),
        })
    };
    let certificate = take(names.certificate);
    let pair =
        certificate.and_then(|certificate| take(names.key).map(|key| KeyedCertificate { certificate, key }));
    Ok(Some(pair))
}
