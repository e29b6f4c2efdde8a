//! Service-account tokens: JSON Web Tokens with the claims of Kubernetes 1.36, signed with ES256.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, PublicKeyData as _};
use sha2::{Digest as _, Sha256};
use tombolo_apicore::accounts::{Claims, KeySet};

use crate::error::EmbeddedError;

/// Issuer of the tokens, and the audience that the API server itself accepts (the defaults of kubeadm).
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Signs and reads tokens.
#[derive(Debug)]
pub(crate) struct TokenKey {
    sign: EncodingKey,
    verify: KeySet,
    header: Header,
    /// The issuer's JSON Web Key Set.
    key_set: serde_json::Value,
}

impl TokenKey {
    /// Reads an ECDSA P-256 key in PKCS#8 PEM.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when it is not such a key.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, EmbeddedError> {
        let failed = |e: &dyn std::fmt::Display| EmbeddedError::pki("service-account key", e);
        let pair = KeyPair::from_pem(pem).map_err(|e| failed(&e))?;
        let sign = EncodingKey::from_ec_pem(pem.as_bytes()).map_err(|e| failed(&e))?;
        let mut header = Header::new(Algorithm::ES256);
        // Kubernetes uses the hash of the key's DER form as its ID, and writes no `typ`.
        header.kid = Some(URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info())));
        header.typ = None;
        let (x, y) = match pair.public_key_raw() {
            [0x04, point @ ..] if point.len() == 64 => point.split_at(32),
            _ => return Err(failed(&"not an uncompressed P-256 point")),
        };
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let key_set = serde_json::json!({"keys": [
            {"use": "sig", "kty": "EC", "kid": header.kid, "crv": "P-256", "alg": "ES256", "x": x, "y": y},
        ]});
        let verify = KeySet::of(ISSUER.to_owned(), key_set.to_string().as_bytes()).map_err(|e| failed(&e))?;
        Ok(Self { sign, verify, header, key_set })
    }

    /// Signs claims.
    ///
    /// # Errors
    /// When the cryptographic library fails.
    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, jsonwebtoken::errors::Error> {
        jsonwebtoken::encode(&self.header, claims, &self.sign)
    }

    /// The claims of a token with a valid signature and issuer. Times and audience are not checked.
    pub(crate) fn read(&self, token: &str) -> Option<Claims> {
        self.verify.verify(token).ok()
    }

    /// The issuer's JSON Web Key Set (`/openid/v1/jwks`).
    pub(crate) fn key_set(&self) -> serde_json::Value {
        self.key_set.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tombolo_apicore::accounts::{BoundObject, KubernetesClaim};

    use super::*;

    fn key() -> TokenKey {
        TokenKey::from_pem(&KeyPair::generate().unwrap().serialize_pem()).unwrap()
    }

    #[test]
    fn a_token_reads_back_only_with_its_own_key_and_issuer() {
        let key_ = key();
        let claim = KubernetesClaim {
            namespace: "shop".into(),
            node: None,
            pod: Some(BoundObject { name: "p".into(), uid: "1".into() }),
            secret: None,
            serviceaccount: BoundObject { name: "till".into(), uid: "2".into() },
            warnafter: None,
        };
        let claims =
            Claims::new(ISSUER, "id".into(), claim, vec![ISSUER.into()], 1_000, Duration::from_secs(60));
        let token = key_.sign(&claims).unwrap();
        assert_eq!(key_.read(&token).as_ref(), Some(&claims));
        assert_eq!(key().read(&token), None, "another key");
        let foreign = Claims { iss: "https://elsewhere".into(), ..claims };
        assert_eq!(key_.read(&key_.sign(&foreign).unwrap()), None, "another issuer");
        assert_eq!(key_.read("not.a.token"), None);
    }
}
