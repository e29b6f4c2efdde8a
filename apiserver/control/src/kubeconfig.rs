//! The administrator's kubeconfig.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::datadir::write_atomic;
use super::error::EmbeddedError;
use super::pki::Pki;

/// Name of the cluster, the user and the context in the file.
const NAME: &str = "tombolo";

/// Writes `<data-dir>/kubeconfig`, readable by its owner only: it holds the administrator's key.
///
/// # Errors
/// [`EmbeddedError::File`] when it cannot be written.
pub(super) fn write(data_dir: &Path, address: SocketAddr, pki: &Pki) -> Result<PathBuf, EmbeddedError> {
    let admin = pki.admin();
    let encode = |text: &str| STANDARD.encode(text);
    // JSON is valid YAML, so every client can read it.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {
            "server": format!("https://{address}"),
            "certificate-authority-data": encode(pki.ca_certificate()),
        }}],
        "users": [{"name": NAME, "user": {
            "client-certificate-data": encode(&admin.certificate),
            "client-key-data": encode(&admin.key),
        }}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    });
    let path = data_dir.join("kubeconfig");
    write_atomic(&path, format!("{config:#}\n").as_bytes(), 0o600)?;
    Ok(path)
}
