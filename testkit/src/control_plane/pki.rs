//! Keys and certificates of the test control plane.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// Writes `ca`, `server` and `sa` key files into a folder.
pub(super) fn write(folder: &Path) -> Result<()> {
    let save = |name: &str, text: String| fs::write(folder.join(name), text);

    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test-cluster-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    save("ca.crt", ca.pem())?;
    save("ca.key", ca.key().serialize_pem())?;

    let server_key = KeyPair::generate()?;
    let names = ["127.0.0.1", "10.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
    let server = CertificateParams::new(names)?.signed_by(&server_key, &ca)?;
    save("server.crt", server.pem())?;
    save("server.key", server_key.serialize_pem())?;

    let service_accounts = KeyPair::generate()?;
    save("sa.key", service_accounts.serialize_pem())?;
    save("sa.pub", service_accounts.public_key_pem())?;
    Ok(())
}
