//! Warnings about Secrets.

use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use tombolo_apicore::value::text;

/// Warns of a TLS Secret whose certificate and key a server cannot use.
pub(super) fn check(secret: &Value, warnings: &mut Vec<String>) {
    if text(secret, &["type"]) == "kubernetes.io/tls" {
        warnings.extend(key_pair(secret).err().map(str::to_owned));
    }
}

/// Whether the data of a Secret is a valid certificate and key, with the messages of Go's `crypto/tls`.
fn key_pair(secret: &Value) -> Result<(), &'static str> {
    let part = |name: &str| {
        use base64::Engine as _;
        let text = secret["data"][name].as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
    };
    let (certificate, key) = (part("tls.crt"), part("tls.key"));
    if CertificateDer::from_pem_slice(&certificate).is_err() {
        return Err(match PrivateKeyDer::from_pem_slice(&certificate) {
            Ok(_) => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM \
                 inputs may have been switched"
            }
            Err(_) => "tls: failed to find any PEM data in certificate input",
        });
    }
    match PrivateKeyDer::from_pem_slice(&key) {
        Ok(_) => Ok(()),
        Err(pem::Error::NoItemsFound) if CertificateDer::from_pem_slice(&key).is_ok() => {
            Err("tls: found a certificate rather than a key in the PEM for the private key")
        }
        Err(_) => Err("tls: failed to find any PEM data in key input"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_for_servers_need_a_certificate_and_a_key() {
        let warned = |secret: Value| {
            let mut warnings = Vec::new();
            check(&secret, &mut warnings);
            warnings
        };
        let server = |data: Value| warned(json!({"type": "kubernetes.io/tls", "data": data}));
        let certificate = ["tls: failed to find any PEM data in certificate input"];
        assert_eq!(server(json!({})), certificate);
        assert_eq!(server(json!({"tls.crt": "AAAA", "tls.key": ""})), certificate);
        assert!(warned(json!({"type": "Opaque"})).is_empty());
    }
}
