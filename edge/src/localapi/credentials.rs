//! The local API's own CA, its serving certificate, and the kubeconfig.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tombolo_link::tls::Identity as TlsIdentity;
use tombolo_proto::ids::NodeId;

use super::{LocalApiError, certificate};
use crate::identity::IdentityError;
use tombolo_runtime::files;

/// The kubeconfig of the local API, in the data folder.
pub(crate) const KUBECONFIG_FILE: &str = "kubeconfig";

/// Folder of the files, in the data folder.
const FOLDER: &str = "pki";
/// Key and certificate of the local CA.
const CA_FILE: &str = "local-ca.pem";
/// The token of the kubeconfig.
const TOKEN_FILE: &str = "local-token";

/// Shortest token that is accepted, in characters, since the file may have been edited: 128 bits as hexadecimal digits.
const TOKEN_LEN_MIN: usize = 32;

/// The host names and addresses of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SubjectAltNames {
    pub(super) hosts: Vec<String>,
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl SubjectAltNames {
    /// The names of the Service `default/kubernetes` in a cluster with this domain, those of this machine, and the
    /// given addresses.
    pub(super) fn new(domain: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let service = "kubernetes.default.svc";
        let hosts = ["localhost", "kubernetes", "kubernetes.default", service].map(str::to_owned);
        let full = format!("{service}.{}", domain.trim_matches('.'));
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let addresses = addresses.into_iter().filter(|address| !address.is_unspecified());
        Self {
            hosts: hosts.into_iter().chain([full]).collect(),
            addresses: addresses.chain(loopback).collect(),
        }
    }
}

/// The CA and the token of the local API.
pub(crate) struct LocalCredentials {
    ca_key: KeyPair,
    ca_pem: String,
    token: String,
}

impl LocalCredentials {
    /// Reads the credentials of a data folder, or creates them.
    pub(crate) fn load(data_dir: &Path) -> Result<Self, LocalApiError> {
        let folder = data_dir.join(FOLDER);
        files::private_folder(&folder).map_err(|source| io(&folder, source))?;
        let pair = load_or_make(&folder.join(CA_FILE), make_ca)?;
        let token = load_or_make(&folder.join(TOKEN_FILE), || {
            let mut token = [0; 32];
            aws_lc_rs::rand::fill(&mut token).map_err(|_| certificate("cannot generate random numbers"))?;
            Ok(hex::encode(token))
        })?;
        let token = token.trim().to_owned();
        if token.len() < TOKEN_LEN_MIN {
            return Err(damaged(&folder.join(TOKEN_FILE), "it is too short to be a token"));
        }
        let broken = |problem: &dyn std::fmt::Display| damaged(&folder.join(CA_FILE), problem);
        let ca_key = KeyPair::from_pem(&pair).map_err(|error| broken(&error))?;
        let begin = pair.find("-----BEGIN CERTIFICATE").ok_or_else(|| broken(&"it has no certificate"))?;
        let ca_pem = pair[begin..].to_owned();
        Issuer::from_ca_cert_pem(&ca_pem, &ca_key).map_err(|error| broken(&error))?;
        Ok(Self { ca_key, ca_pem, token })
    }

    /// The token of the kubeconfig.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The certificate of the CA, PEM.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Issues a certificate for these names and addresses with a new key.
    pub(super) fn certify(&self, names: &SubjectAltNames) -> Result<TlsIdentity, LocalApiError> {
        let issuer = Issuer::from_ca_cert_pem(&self.ca_pem, &self.ca_key).map_err(certificate)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate)?;
        let mut params = CertificateParams::new(names.hosts.clone()).map_err(certificate)?;
        params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name.push(DnType::CommonName, "tombolo local API");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
        let leaf = params.signed_by(&key, &issuer).map_err(certificate)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(TlsIdentity::new(vec![leaf.der().clone()], key))
    }

    /// The kubeconfig for a local API at `address`.
    pub(crate) fn kubeconfig(&self, node: &NodeId, address: SocketAddr) -> String {
        let host = on_this_machine(address);
        let name = node.as_str();
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {
                "server": format!("https://{host}"),
                "certificate-authority-data": STANDARD.encode(&self.ca_pem),
            }}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        });
        // JSON is valid YAML, and every reader of kubeconfigs accepts it. It is indented for people.
        serde_json::to_string_pretty(&config).unwrap_or_default() + "\n"
    }

    /// Writes the kubeconfig into the data folder (mode 0600).
    pub(crate) fn write_kubeconfig(
        &self,
        data_dir: &Path,
        node: &NodeId,
        address: SocketAddr,
    ) -> Result<(), LocalApiError> {
        let path = data_dir.join(KUBECONFIG_FILE);
        let text = self.kubeconfig(node, address);
        files::replace(&path, text.as_bytes(), files::PRIVATE).map_err(|source| io(&path, source))
    }
}

/// The address at which programs on this machine reach a listener.
pub(crate) fn on_this_machine(listener: SocketAddr) -> SocketAddr {
    match listener.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listener.port()),
        _ => listener,
    }
}

fn make_ca() -> Result<String, LocalApiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "tombolo local CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    // The long validity keeps a wrong clock from locking out programs on this machine.
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
    let ca = params.self_signed(&key).map_err(certificate)?;
    Ok(key.serialize_pem() + &ca.pem())
}

fn load_or_make(
    path: &Path,
    make: impl FnOnce() -> Result<String, LocalApiError>,
) -> Result<String, LocalApiError> {
    let read = || -> Result<Option<String>, LocalApiError> {
        let content = files::read_private(path).map_err(|source| io(path, source))?;
        let text = content.map(String::from_utf8).transpose();
        text.map_err(|_| damaged(path, "it is not text"))
    };
    if let Some(content) = read()? {
        return Ok(content);
    }
    let content = make()?;
    // `edgecore kubeconfig` may create the file at the same time as the first start of the agent: one of them wins.
    if files::create(path, content.as_bytes(), files::PRIVATE).map_err(|source| io(path, source))? {
        return Ok(content);
    }
    read()?.ok_or_else(|| io(path, std::io::ErrorKind::NotFound.into()))
}

fn damaged(path: &Path, problem: impl std::fmt::Display) -> LocalApiError {
    LocalApiError::Damaged { path: path.into(), problem: problem.to_string() }
}

fn io(path: &Path, source: std::io::Error) -> LocalApiError {
    LocalApiError::Credentials(IdentityError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_damaged_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let made = LocalCredentials::load(folder.path()).unwrap();
        assert_eq!(LocalCredentials::load(folder.path()).unwrap().token(), made.token());
        for (file, content) in [(TOKEN_FILE, ""), (TOKEN_FILE, "x\n"), (CA_FILE, "-----BEGIN"), (CA_FILE, "")]
        {
            let path = folder.path().join(FOLDER).join(file);
            let whole = std::fs::read(&path).unwrap();
            files::replace(&path, content.as_bytes(), files::PRIVATE).unwrap();
            let error = LocalCredentials::load(folder.path()).err().expect("it is refused").to_string();
            assert!(
                error.contains(&path.display().to_string()) && error.contains("remove the file"),
                "{error}"
            );
            files::replace(&path, &whole, files::PRIVATE).unwrap();
        }
    }
}
