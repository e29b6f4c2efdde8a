//! Service-account tokens: JSON Web Tokens with the claims of Kubernetes 1.36, signed with ES256.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{KeyPair, PublicKeyData as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::embedded::error::EmbeddedError;

/// Issuer of the tokens, and the audience that the API server itself accepts (the defaults of kubeadm).
pub(in crate::embedded) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Longest token that is looked at, in bytes.
const TOKEN_LEN_MAX: usize = 16 * 1024;

/// An object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::embedded) struct Bound {
    /// Its name.
    pub(in crate::embedded) name: String,
    /// Its incarnation; absent for a node that did not exist when the token was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(in crate::embedded) uid: String,
}

/// The claim `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::embedded) struct Place {
    /// Namespace of the account and of what the token is bound to.
    pub(in crate::embedded) namespace: String,
    /// Node that the bound pod runs on, or that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::embedded) node: Option<Bound>,
    /// Pod that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::embedded) pod: Option<Bound>,
    /// Secret that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::embedded) secret: Option<Bound>,
    /// The account.
    pub(in crate::embedded) serviceaccount: Bound,
    /// When a client should have asked for a new token, in Unix seconds; only in extended tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::embedded) warnafter: Option<u64>,
}

/// All claims. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::embedded) struct Claims {
    /// For whom.
    pub(in crate::embedded) aud: Vec<String>,
    /// Not valid from then on.
    pub(in crate::embedded) exp: u64,
    /// Made then.
    pub(in crate::embedded) iat: u64,
    /// By whom: [`ISSUER`].
    pub(in crate::embedded) iss: String,
    /// Unique name of the token.
    pub(in crate::embedded) jti: String,
    /// What it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub(in crate::embedded) place: Place,
    /// Not valid before.
    pub(in crate::embedded) nbf: u64,
    /// User name.
    pub(in crate::embedded) sub: String,
}

impl Claims {
    /// Claims of a token that is valid from `now` (Unix seconds) for `life`.
    pub(in crate::embedded) fn new(place: Place, audiences: Vec<String>, now: u64, life: Duration) -> Self {
        Self {
            aud: audiences,
            exp: now.saturating_add(life.as_secs()),
            iat: now,
            iss: ISSUER.to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            nbf: now,
            sub: format!("system:serviceaccount:{}:{}", place.namespace, place.serviceaccount.name),
            place,
        }
    }
}

/// Signs and reads tokens.
#[derive(Debug)]
pub(in crate::embedded) struct TokenKey {
    sign: EncodingKey,
    verify: DecodingKey,
    header: Header,
    /// Coordinates of the public point, base64url: the JSON Web Key of the issuer's discovery document.
    point: (String, String),
}

impl TokenKey {
    /// Reads an ECDSA P-256 key in PKCS#8 PEM.
    ///
    /// # Errors
    /// [`EmbeddedError::Pki`] when it is none.
    pub(in crate::embedded) fn from_pem(pem: &str) -> Result<Self, EmbeddedError> {
        let failed = |e: &dyn std::fmt::Display| EmbeddedError::pki("service-account key", e);
        let pair = KeyPair::from_pem(pem).map_err(|e| failed(&e))?;
        let sign = EncodingKey::from_ec_pem(pem.as_bytes()).map_err(|e| failed(&e))?;
        let verify = DecodingKey::from_ec_pem(pair.public_key_pem().as_bytes()).map_err(|e| failed(&e))?;
        let mut header = Header::new(Algorithm::ES256);
        // Kubernetes names its keys by the hash of their DER form, and writes no `typ`.
        header.kid = Some(URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info())));
        header.typ = None;
        let (x, y) = match pair.public_key_raw() {
            [0x04, point @ ..] if point.len() == 64 => point.split_at(32),
            _ => return Err(failed(&"not an uncompressed P-256 point")),
        };
        let point = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        Ok(Self { sign, verify, header, point })
    }

    /// Signs claims.
    ///
    /// # Errors
    /// When the cryptographic library fails.
    pub(in crate::embedded) fn sign(&self, claims: &Claims) -> Result<String, jsonwebtoken::errors::Error> {
        jsonwebtoken::encode(&self.header, claims, &self.sign)
    }

    /// The claims of a token whose signature and issuer are right. Times and audience are not looked at.
    pub(in crate::embedded) fn read(&self, token: &str) -> Option<Claims> {
        if token.len() > TOKEN_LEN_MAX {
            return None;
        }
        let mut validation = Validation::new(Algorithm::ES256);
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["iss", "sub"]);
        jsonwebtoken::decode(token, &self.verify, &validation).ok().map(|data| data.claims)
    }

    /// The issuer's JSON Web Key Set (`/openid/v1/jwks`).
    pub(in crate::embedded) fn key_set(&self) -> serde_json::Value {
        let (x, y) = &self.point;
        serde_json::json!({"keys": [
            {"use": "sig", "kty": "EC", "kid": self.header.kid, "crv": "P-256", "alg": "ES256", "x": x, "y": y},
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> TokenKey {
        TokenKey::from_pem(&KeyPair::generate().unwrap().serialize_pem()).unwrap()
    }

    fn claims() -> Claims {
        let place = Place {
            namespace: "shop".into(),
            node: None,
            pod: Some(Bound { name: "p".into(), uid: "1".into() }),
            secret: None,
            serviceaccount: Bound { name: "till".into(), uid: "2".into() },
            warnafter: None,
        };
        Claims::new(place, vec![ISSUER.into()], 1_000, Duration::from_secs(60))
    }

    #[test]
    fn a_token_reads_back_only_with_its_own_key_and_issuer() {
        let key_ = key();
        let claims = claims();
        let token = key_.sign(&claims).unwrap();
        assert_eq!(key_.read(&token).as_ref(), Some(&claims));
        assert_eq!(key().read(&token), None, "another key");
        let foreign = Claims { iss: "https://elsewhere".into(), ..claims };
        assert_eq!(key_.read(&key_.sign(&foreign).unwrap()), None, "another issuer");
        assert_eq!(key_.read("not.a.token"), None);
        assert_eq!(key_.read(&"a".repeat(TOKEN_LEN_MAX + 1)), None);
    }

    #[test]
    fn unsigned_and_changed_tokens_are_refused() {
        let key = key();
        let token = key.sign(&claims()).unwrap();
        let mut parts: Vec<&str> = token.split('.').collect();
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(key.read(&format!("{none}.{}.", parts[1])), None);
        let mut other = claims();
        other.sub = "system:serviceaccount:kube-system:root".into();
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
        parts[1] = &payload;
        assert_eq!(key.read(&parts.join(".")), None);
    }
}
