//! Keys and certificates of the embedded API server: one certificate authority, the serving certificate, the
//! administrator's client certificate and the key that signs service-account tokens.
//!
//! The folder `<data-dir>/pki` appears complete or not at all: it is filled under another name and renamed. Leaf
//! certificates are renewed, at start and while the server runs, when less than half of their lifetime is left or their
//! names do not match. A certificate and its key are replaced together ([`pair`]).

mod leaf;
mod pair;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rcgen::{BasicConstraints, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tombolo_runtime::files;

pub(super) use leaf::{Leaf, LeafUsage};

use super::datadir::{sync_parent, write_atomic};
use super::error::EmbeddedError;

/// Lifetime of the certificate authority.
const CA_LIFE: Duration = Duration::from_secs(3650 * 86_400);

/// Lifetime of the serving and the administrator's certificates.
const LEAF_LIFE: Duration = Duration::from_secs(365 * 86_400);

/// The validity of certificates starts this long before their creation, for clients whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// A certificate chain and its private key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyedCertificate {
    /// The certificate.
    pub(super) certificate: String,
    /// Its private key, PKCS#8.
    pub(super) key: String,
}

/// Everything in `<data-dir>/pki`.
pub(super) struct Pki {
    folder: PathBuf,
    ca_certificate: String,
    ca_der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    service_address: IpAddr,
    serving: ArcSwap<KeyedCertificate>,
    admin: ArcSwap<KeyedCertificate>,
    /// PEM of the ECDSA P-256 key that signs service-account tokens.
    pub(super) token_key: String,
}

impl Pki {
    /// Reads the folder, or creates it when it does not exist. `service_address` is the cluster address of the
    /// `kubernetes` Service: pods reach the server by it, so the serving certificate names it.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] or [`EmbeddedError::File`] when a file is damaged or cannot be written.
    pub(super) fn open(
        data_dir: &Path,
        service_address: IpAddr,
        now: SystemTime,
    ) -> Result<Self, EmbeddedError> {
        let folder = data_dir.join("pki");
        if !folder.exists() {
            create(&folder, service_address, now)?;
        }
        let pki = Self::load(&folder, service_address)?;
        pki.renew(now)?;
        Ok(pki)
    }

    fn load(folder: &Path, service_address: IpAddr) -> Result<Self, EmbeddedError> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|e| EmbeddedError::file("read", &path, e))
        };
        let secret = |name: &str| {
            let path = folder.join(name);
            let content = files::read_private(&path).and_then(|content| {
                let content = content.ok_or(io::ErrorKind::NotFound)?;
                String::from_utf8(content).map_err(|_| io::ErrorKind::InvalidData.into())
            });
            content.map_err(|e| EmbeddedError::file("read", &path, e))
        };
        let pair = |name: &str| {
            pair::complete(folder, name)?;
            let certificate = read(&format!("{name}.crt"))?;
            Ok::<_, EmbeddedError>(KeyedCertificate { certificate, key: secret(&format!("{name}.key"))? })
        };
        let ca = pair("ca")?;
        let broken =
            |e: &dyn ToString| EmbeddedError::pki(folder.join("ca.crt").display().to_string(), e.to_string());
        let key = KeyPair::from_pem(&ca.key).map_err(|e| broken(&e))?;
        let issuer = Issuer::from_ca_cert_pem(&ca.certificate, key).map_err(|e| broken(&e))?;
        let ca_der = CertificateDer::from_pem_slice(ca.certificate.as_bytes()).map_err(|e| broken(&e))?;
        let (serving, admin) = (pair("apiserver")?, pair("admin")?);
        Ok(Self {
            folder: folder.to_owned(),
            ca_certificate: ca.certificate,
            ca_der,
            issuer,
            service_address,
            serving: ArcSwap::from_pointee(serving),
            admin: ArcSwap::from_pointee(admin),
            token_key: secret("sa.key")?,
        })
    }

    /// Renews leaf certificates that are old, lack the service's address or do not belong to their key. Returns whether
    /// one was renewed.
    ///
    /// # Errors
    /// When one cannot be created or written; the old one stays in use.
    pub(super) fn renew(&self, now: SystemTime) -> Result<bool, EmbeddedError> {
        let is_current = |pair: &KeyedCertificate, address| {
            leaf::is_current(&pair.certificate, now, address) && leaf::fits(&pair.certificate, &pair.key)
        };
        let mut renewed = false;
        if !is_current(&self.serving.load(), Some(self.service_address)) {
            let serving = serving(&self.issuer, self.service_address, now)?;
            pair::replace(&self.folder, "apiserver", &serving)?;
            self.serving.store(Arc::new(serving));
            renewed = true;
        }
        if !is_current(&self.admin.load(), None) {
            let admin = administrator(&self.issuer, now)?;
            pair::replace(&self.folder, "admin", &admin)?;
            self.admin.store(Arc::new(admin));
            renewed = true;
        }
        Ok(renewed)
    }

    /// The API server's own certificate.
    pub(super) fn serving(&self) -> Arc<KeyedCertificate> {
        self.serving.load_full()
    }

    /// Client certificate of `kubernetes-admin` in `system:masters`.
    pub(super) fn admin(&self) -> Arc<KeyedCertificate> {
        self.admin.load_full()
    }

    /// The folder of these files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The certificate authority's certificate, PEM.
    pub(super) fn ca_certificate(&self) -> &str {
        &self.ca_certificate
    }

    /// The certificate authority's certificate, DER.
    pub(super) fn ca_der(&self) -> &CertificateDer<'static> {
        &self.ca_der
    }

    /// Signs a leaf certificate for a public key in DER `SubjectPublicKeyInfo` form.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when the names or the key cannot be encoded.
    pub(super) fn sign(
        &self,
        leaf: &Leaf,
        public_key_der: &[u8],
        now: SystemTime,
    ) -> Result<String, EmbeddedError> {
        leaf.sign(public_key_der, &self.issuer, now)
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

fn create(folder: &Path, address: IpAddr, now: SystemTime) -> Result<(), EmbeddedError> {
    let draft = PathBuf::from(format!("{}.new", folder.display()));
    match fs::remove_dir_all(&draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(EmbeddedError::file("remove", &draft, e));
        }
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(&draft).map_err(|e| EmbeddedError::file("create", &draft, e))?;
    let (ca, issuer) = authority(now)?;
    pair::write(&draft, "ca", &ca)?;
    pair::write(&draft, "apiserver", &serving(&issuer, address, now)?)?;
    pair::write(&draft, "admin", &administrator(&issuer, now)?)?;
    let token_key = KeyPair::generate().map_err(|e| EmbeddedError::pki("service-account key", e))?;
    write_atomic(&draft.join("sa.key"), token_key.serialize_pem().as_bytes(), 0o600)?;
    write_atomic(&draft.join("sa.pub"), token_key.public_key_pem().as_bytes(), 0o644)?;
    fs::rename(&draft, folder)
        .and_then(|()| sync_parent(folder))
        .map_err(|e| EmbeddedError::file("create", folder, e))
}

fn authority(now: SystemTime) -> Result<(KeyedCertificate, Issuer<'static, KeyPair>), EmbeddedError> {
    let mut params = leaf::valid(now, CA_LIFE);
    params.distinguished_name.push(DnType::CommonName, "tombolo-embedded-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let failed = |e: rcgen::Error| EmbeddedError::pki("certificate authority", e);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?.pem();
    let pair = KeyedCertificate { certificate, key: key.serialize_pem() };
    Ok((pair, Issuer::new(params, key)))
}

fn serving(
    issuer: &Issuer<'_, KeyPair>,
    address: IpAddr,
    now: SystemTime,
) -> Result<KeyedCertificate, EmbeddedError> {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let leaf = Leaf {
        common_name: "kube-apiserver".into(),
        dns_names: names
            .into_iter()
            .chain(["kubernetes.default.svc.cluster.local"])
            .map(str::to_owned)
            .collect(),
        addresses: vec![IpAddr::from([127, 0, 0, 1]), std::net::Ipv6Addr::LOCALHOST.into(), address],
        usage: LeafUsage::SERVER,
        life: LEAF_LIFE,
        ..Leaf::default()
    };
    keyed(&leaf, issuer, now)
}

fn administrator(issuer: &Issuer<'_, KeyPair>, now: SystemTime) -> Result<KeyedCertificate, EmbeddedError> {
    let leaf = Leaf {
        common_name: "kubernetes-admin".into(),
        organization: Some("system:masters".into()),
        usage: LeafUsage::CLIENT,
        life: LEAF_LIFE,
        ..Leaf::default()
    };
    keyed(&leaf, issuer, now)
}

fn keyed(
    leaf: &Leaf,
    issuer: &Issuer<'_, KeyPair>,
    now: SystemTime,
) -> Result<KeyedCertificate, EmbeddedError> {
    use rcgen::PublicKeyData as _;

    let key = KeyPair::generate().map_err(|e| EmbeddedError::pki(leaf.common_name.clone(), e))?;
    let certificate = leaf.sign(&key.subject_public_key_info(), issuer, now)?;
    Ok(KeyedCertificate { certificate, key: key.serialize_pem() })
}

#[cfg(test)]
mod tests;
