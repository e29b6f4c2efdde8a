//! Certificates for one run, in a directory that both processes read.

use std::path::Path;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tombolo_link::tls::{ClientTls, Identity, ServerTls, certificates_from_pem, provider};
use tombolo_tests::pki::Authority;

/// Creates a CA, a server certificate for 127.0.0.1 and a node certificate, all P-256.
pub(crate) fn write(dir: &Path) -> anyhow::Result<()> {
    let authority = Authority::new()?;
    std::fs::write(dir.join("ca.pem"), authority.pem())?;
    for (name, (certificate, key)) in [("server", authority.server()?), ("node", authority.node("floor")?)] {
        std::fs::write(dir.join(format!("{name}.pem")), certificate)?;
        std::fs::write(dir.join(format!("{name}.key")), key)?;
    }
    Ok(())
}

fn roots(dir: &Path) -> anyhow::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.pem"))?)?;
    Ok(Arc::new(roots))
}

fn pair(dir: &Path, name: &str) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let certificate = CertificateDer::from_pem_file(dir.join(format!("{name}.pem")))?;
    Ok((vec![certificate], PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key")))?))
}

/// The bare server's configuration: mutual TLS 1.3 without resumption, as in the hub.
pub(crate) fn server(dir: &Path, alpn: &[u8]) -> anyhow::Result<ServerConfig> {
    let clients = WebPkiClientVerifier::builder_with_provider(roots(dir)?, provider()).build()?;
    let (chain, key) = pair(dir, "server")?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![alpn.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The bare client's configuration.
pub(crate) fn client(dir: &Path, alpn: &[u8]) -> anyhow::Result<ClientConfig> {
    let (chain, key) = pair(dir, "node")?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots(dir)?)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The same certificates for `tombolo-link`.
pub(crate) fn link_server(dir: &Path) -> anyhow::Result<ServerTls> {
    let ca = certificates_from_pem("CA", &std::fs::read(dir.join("ca.pem"))?)?;
    let (chain, key) = pair(dir, "server")?;
    Ok(ServerTls::new(Identity::new(chain, key), &ca)?)
}

/// The same certificates for `tombolo-link`.
pub(crate) fn link_client(dir: &Path) -> anyhow::Result<ClientTls> {
    let ca = certificates_from_pem("CA", &std::fs::read(dir.join("ca.pem"))?)?;
    let (chain, key) = pair(dir, "node")?;
    Ok(ClientTls::new(Some(Identity::new(chain, key)), &ca)?)
}
