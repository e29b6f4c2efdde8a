//! Certificates of a test, and TLS servers that have them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tombolo_link::tls::provider;
use tombolo_runtime::files;

/// Parameters of a node's certificate.
#[must_use]
pub fn node_params(node: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// A certificate with these parameters and its new key, PEM.
///
/// # Errors
/// When the library fails.
pub fn issue(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

/// A certificate authority of the test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Generates a key and a self-signed certificate.
    ///
    /// # Errors
    /// When the library fails.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "KubeEdge");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The serial number of KubeEdge (docs/reference/kubeedge.md#certificates-and-keys).
        params.serial_number = Some(1024_u64.into());
        params.key_usages = vec![
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Its certificate, DER.
    #[must_use]
    pub fn der(&self) -> &CertificateDer<'static> {
        self.0.der()
    }

    /// Its certificate, PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key of a server on 127.0.0.1, PEM.
    ///
    /// # Errors
    /// When the library fails.
    pub fn server(&self) -> Result<(String, String)> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        issue(&params, &self.0)
    }

    /// Certificate and key of a node, PEM.
    ///
    /// # Errors
    /// When the library fails.
    pub fn node(&self, node: &str) -> Result<(String, String)> {
        issue(&node_params(node), &self.0)
    }

    /// Signs a request (PKCS#10, DER) as KubeEdge does: with its names and its key, for client authentication
    /// (docs/reference/kubeedge.md#certificates-and-keys). Returns the certificate, DER.
    ///
    /// # Errors
    /// When it is not a signing request.
    pub fn sign(&self, request: &[u8], begin: SystemTime, end: SystemTime) -> Result<Vec<u8>> {
        let request = CertificateSigningRequestDer::from(request);
        let mut request = CertificateSigningRequestParams::from_der(&request)?;
        (request.params.not_before, request.params.not_after) = (begin.into(), end.into());
        request.params.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(request.signed_by(&self.0)?.der().to_vec())
    }

    /// Writes the identity of a node into its data folder, as joining does.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn enlist(&self, node: &str, data_dir: &Path) -> Result<()> {
        let (certificate, key) = self.node(node)?;
        let folder = data_dir.join("pki");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("ca.crt"), self.pem())?;
        Ok(files::replace(&folder.join("node.pem"), (key + &certificate).as_bytes(), files::PRIVATE)?)
    }

    /// Verifies client certificates that it has signed.
    ///
    /// # Errors
    /// When the library fails.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der().clone())?;
        Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?)
    }

    /// Serves on a port of 127.0.0.1, with a certificate of its own, until the returned set is dropped. Connections
    /// that are open then go on.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn serve_tls<F>(
        &self,
        clients: Arc<dyn ClientCertVerifier>,
        serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(SocketAddr, JoinSet<()>)>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (certificate, key) = self.server()?;
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, mut tasks) = (listener.local_addr()?, JoinSet::new());
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handshake, serve) = (acceptor.accept(stream), serve.clone());
                tokio::spawn(async move {
                    if let Err(error) = async { serve(handshake.await?).await }.await {
                        tracing::info!(%error, "connection ended");
                    }
                });
            }
        });
        Ok((address, tasks))
    }
}
