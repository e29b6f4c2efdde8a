//! TLS of the wrapper.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use tombolo_link::tls::{certificates_from_pem, provider};

use super::WrapperError;
use crate::config::WrapperTls;

/// Reads the files. With a CA, clients must show a certificate that it has signed.
pub(super) fn server_config(settings: &WrapperTls) -> Result<rustls::ServerConfig, WrapperError> {
    const CERT: &str = "wrapper.tls.certFile";
    const KEY: &str = "wrapper.tls.keyFile";
    const CA: &str = "wrapper.tls.caFile";
    let provider = provider();
    let chain = certificates_from_pem("certificate", &read(CERT, &settings.cert_file)?)
        .map_err(|error| WrapperError::tls(CERT, &settings.cert_file, error))?;
    let key = PrivateKeyDer::from_pem_slice(&read(KEY, &settings.key_file)?)
        .map_err(|error| WrapperError::tls(KEY, &settings.key_file, error))?;
    let clients = match &settings.ca_file {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            let bad = |error: &dyn ToString| WrapperError::tls(CA, path, error.to_string());
            let mut roots = RootCertStore::empty();
            for ca in certificates_from_pem("CA", &read(CA, path)?).map_err(|error| bad(&error))? {
                roots.add(ca).map_err(|error| bad(&error))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| bad(&error))?
        }
    };
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| WrapperError::tls(CERT, &settings.cert_file, error))?;
    let config = config.with_client_cert_verifier(clients).with_single_cert(chain, key);
    let mut config = config.map_err(|error| WrapperError::tls(KEY, &settings.key_file, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, WrapperError> {
    std::fs::read(path).map_err(|source| WrapperError::File { setting, path: path.into(), source })
}
