//! The keys of a cluster's token issuer, and verification of tokens with them.

use jsonwebtoken::jwk::{Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, errors::ErrorKind};
use serde::Deserialize;
use thiserror::Error;

use super::Claims;

/// Longest token that is read, in bytes.
const TOKEN_LEN_MAX: usize = 16 * 1024;

/// Maximum number of keys of one issuer. The API server publishes one for each of its key flags.
const KEYS_MAX: usize = 64;

/// Signature algorithms of service account tokens (Kubernetes). ES512 is missing because the library does not implement
/// it.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::ES384];

/// Why a token could not be verified.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unverified {
    /// It is not a token of this kind, or its signature is wrong.
    #[error("invalid bearer token")]
    Invalid,
    /// It was issued by another issuer.
    #[error("the token is of another issuer")]
    OtherIssuer,
    /// Its signing key is not known here.
    #[error("the token is signed with a key that is not known")]
    UnknownKey,
}

/// Verifies tokens.
pub struct KeySet {
    issuer: String,
    keys: Vec<VerificationKey>,
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySet").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl KeySet {
    /// Reads the two documents that an issuer publishes: its configuration (OpenID Connect discovery) and its JSON Web
    /// Key Set. Keys of types that service account tokens never use are left out.
    ///
    /// # Errors
    /// What is wrong with the documents.
    pub fn parse(configuration: &[u8], keys: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Configuration {
            issuer: String,
        }
        let Configuration { issuer } =
            serde_json::from_slice(configuration).map_err(|error| format!("configuration: {error}"))?;
        Self::of(issuer, keys)
    }

    /// The key set of an issuer.
    ///
    /// # Errors
    /// What is wrong with the document.
    pub fn of(issuer: String, keys: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Raw {
            keys: Vec<serde_json::Value>,
        }
        let Raw { keys } = serde_json::from_slice(keys).map_err(|error| format!("key set: {error}"))?;
        // One unreadable key must not hide the others.
        let known =
            keys.into_iter().filter_map(|key| VerificationKey::of(&serde_json::from_value(key).ok()?));
        Ok(Self { issuer, keys: known.take(KEYS_MAX).collect() })
    }

    /// The issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The claims of a token whose signature and issuer are valid. Times, audience and bound objects are not checked.
    ///
    /// # Errors
    /// [`Unverified`] says what could not be verified.
    pub fn verify(&self, token: &str) -> Result<Claims, Unverified> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(Unverified::Invalid);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| Unverified::Invalid)?;
        let mut fitting = self.keys.iter().filter(|key| key.fits(&header)).peekable();
        if fitting.peek().is_none() {
            let known = ALGORITHMS.contains(&header.alg);
            return Err(if known { Unverified::UnknownKey } else { Unverified::Invalid });
        }
        let mut problem = Unverified::Invalid;
        for key in fitting {
            let mut validation = Validation::new(key.algorithm);
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.set_issuer(&[&self.issuer]);
            validation.set_required_spec_claims(&["iss", "sub"]);
            match jsonwebtoken::decode(token, &key.key, &validation) {
                Ok(data) => return Ok(data.claims),
                Err(error) if matches!(error.kind(), ErrorKind::InvalidIssuer) => {
                    problem = Unverified::OtherIssuer;
                }
                Err(_) => {}
            }
        }
        Err(problem)
    }
}

impl VerificationKey {
    fn of(jwk: &Jwk) -> Option<Self> {
        let algorithm = match jwk.common.key_algorithm? {
            KeyAlgorithm::RS256 => Algorithm::RS256,
            KeyAlgorithm::ES256 => Algorithm::ES256,
            KeyAlgorithm::ES384 => Algorithm::ES384,
            _ => return None,
        };
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { id: jwk.common.key_id.clone(), algorithm, key })
    }

    fn fits(&self, header: &Header) -> bool {
        self.algorithm == header.alg && (header.kid.is_none() || header.kid == self.id)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jsonwebtoken::EncodingKey;
    use rcgen::KeyPair;
    use serde_json::{Value, json};

    use super::super::claims::tests::claims;
    use super::*;

    struct Issuer(KeyPair);

    impl Issuer {
        fn new() -> Self {
            Self(KeyPair::generate().unwrap())
        }

        fn key(&self, id: &str) -> Value {
            let (x, y) = self.0.public_key_raw()[1..].split_at(32);
            let text = |bytes| URL_SAFE_NO_PAD.encode(bytes);
            json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": text(x), "y": text(y)})
        }

        fn sign(&self, id: &str, claims: &Claims) -> String {
            let mut header = Header::new(Algorithm::ES256);
            header.kid = Some(id.to_owned());
            let key = EncodingKey::from_ec_pem(self.0.serialize_pem().as_bytes()).unwrap();
            jsonwebtoken::encode(&header, claims, &key).unwrap()
        }
    }

    fn key_set(keys: &[Value]) -> KeySet {
        let configuration = json!({"issuer": "https://issuer", "jwks_uri": "x"}).to_string();
        KeySet::parse(configuration.as_bytes(), json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_token_is_read_with_the_key_that_it_names() {
        let (old, new) = (Issuer::new(), Issuer::new());
        let strange = json!({"kty": "unheard-of", "kid": "x"});
        let keys = key_set(&[strange, old.key("old"), new.key("new")]);
        for (issuer, id) in [(&old, "old"), (&new, "new")] {
            assert_eq!(keys.verify(&issuer.sign(id, &claims())), Ok(claims()));
        }
        assert_eq!(keys.verify(&new.sign("old", &claims())), Err(Unverified::Invalid));
        assert_eq!(keys.verify(&new.sign("newest", &claims())), Err(Unverified::UnknownKey));
        let foreign = Claims { iss: "https://elsewhere".into(), ..claims() };
        assert_eq!(keys.verify(&new.sign("new", &foreign)), Err(Unverified::OtherIssuer));
    }

    #[test]
    fn unsigned_changed_and_overlong_tokens_are_refused() {
        let issuer = Issuer::new();
        let keys = key_set(&[issuer.key("k")]);
        let token = issuer.sign("k", &claims());
        let mut parts: Vec<&str> = token.split('.').collect();
        for alg in ["none", "HS256"] {
            let header = URL_SAFE_NO_PAD.encode(json!({"alg": alg, "kid": "k"}).to_string());
            let unsigned = format!("{header}.{}.", parts[1]);
            assert_eq!(keys.verify(&unsigned), Err(Unverified::Invalid), "{alg}");
        }
        let other = Claims { sub: "system:serviceaccount:kube-system:root".into(), ..claims() };
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
        parts[1] = &payload;
        assert_eq!(keys.verify(&parts.join(".")), Err(Unverified::Invalid));
        assert_eq!(keys.verify(&"a".repeat(TOKEN_LEN_MAX + 1)), Err(Unverified::Invalid));
        assert_eq!(keys.verify("not.a.token"), Err(Unverified::Invalid));
    }

    #[test]
    fn documents_that_cannot_be_read_are_named() {
        assert!(KeySet::parse(b"{}", b"{\"keys\":[]}").unwrap_err().starts_with("configuration"));
        assert!(KeySet::parse(b"{\"issuer\":\"i\"}", b"[]").unwrap_err().starts_with("key set"));
    }
}
