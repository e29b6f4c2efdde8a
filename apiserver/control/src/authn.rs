//! Authentication by client certificates of the embedded authority, by service-account tokens that it issued, and by an
//! optional fixed administrator's token. Requests without credentials are `system:anonymous`.

pub(super) mod accounts;
pub(super) mod certificates;
pub(super) mod impersonation;
pub(super) mod tokens;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tombolo_apicore::accounts::Claims;
use tombolo_apicore::auth::{AUTHENTICATED_GROUP, Authenticator, BadCredentials, Identity, Peer};

use self::certificates::Certificates;
use self::tokens::{ISSUER, TokenKey};
use super::objects::Objects;

/// Maximum number of cached tokens, whose signature is not checked again. The cache is cleared when it is full.
const KNOWN_TOKENS_MAX: usize = 4096;

/// Authenticates requests.
pub(super) struct Authentication {
    certificates: Certificates,
    tokens: Arc<TokenKey>,
    objects: Objects,
    /// SHA-256 of the fixed administrator's token. Comparing hashes leaks nothing about the token.
    admin: Option<[u8; 32]>,
    known: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl Authentication {
    /// Combines the authentication methods.
    pub(super) fn new(
        certificates: Certificates,
        tokens: Arc<TokenKey>,
        objects: Objects,
        admin_token: Option<&str>,
    ) -> Self {
        let admin = admin_token.map(|token| Sha256::digest(token).into());
        Self { certificates, tokens, objects, admin, known: Mutex::default() }
    }

    /// The identity of a bearer token, and the token's audiences.
    ///
    /// # Errors
    /// What is wrong with the token.
    pub(super) fn identify_token(&self, token: &str) -> Result<(Identity, Vec<String>), String> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if self.admin == Some(hash) {
            let identity = Identity::new("admin", &["system:masters", AUTHENTICATED_GROUP]);
            return Ok((identity, vec![ISSUER.to_owned()]));
        }
        let known = self.known.lock().get(&hash).cloned();
        let claims = match known {
            Some(claims) => claims,
            None => {
                let claims = Arc::new(self.tokens.read(token).ok_or("invalid bearer token")?);
                let mut known = self.known.lock();
                if known.len() >= KNOWN_TOKENS_MAX {
                    known.clear();
                }
                known.insert(hash, Arc::clone(&claims));
                claims
            }
        };
        let identity = accounts::identify(&claims, &self.objects, now().as_secs())?;
        Ok((identity, claims.aud.clone()))
    }

    /// Tries the authentication methods in the order of kube-apiserver. If one method refuses its credentials, the
    /// others are still tried. A request with only invalid credentials is an error, not anonymous.
    fn identify(&self, request: &http::request::Parts, peer: &Peer) -> Result<Identity, String> {
        let by_certificate = self.identify_certificate(peer);
        if let Ok(Some(identity)) = by_certificate {
            return Ok(identity);
        }
        match (by_certificate, self.identify_bearer(request)) {
            (_, Ok(Some(identity))) => Ok(identity),
            (Err(certificate), Err(token)) => Err(format!("{certificate}; {token}")),
            (Err(why), Ok(None)) | (_, Err(why)) => Err(why),
            (Ok(_), Ok(None)) => Ok(Identity::anonymous()),
        }
    }

    /// The identity of the client certificate, if there is one with a common name.
    fn identify_certificate(&self, peer: &Peer) -> Result<Option<Identity>, String> {
        match peer.certificates.as_slice() {
            [] => Ok(None),
            chain => self.certificates.identify(chain, now()),
        }
    }

    /// The identity of the bearer token, if there is one. Other authorization schemes are ignored.
    fn identify_bearer(&self, request: &http::request::Parts) -> Result<Option<Identity>, String> {
        let Some(header) = request.headers.get(AUTHORIZATION) else { return Ok(None) };
        let header = header.to_str().map_err(|_| "the Authorization header is not text")?;
        let mut words = header.trim().splitn(3, ' ');
        let (scheme, token) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Ok(None);
        }
        let (identity, audiences) = self.identify_token(token)?;
        if audiences.iter().any(|audience| audience == ISSUER) {
            return Ok(Some(identity));
        }
        Err(format!("token audiences {audiences:?} is invalid for the target audiences [{ISSUER:?}]"))
    }
}

impl Authenticator for Authentication {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        let result = self.identify(request, peer).map_err(|reason| BadCredentials::Wrong { reason });
        Box::pin(std::future::ready(result))
    }
}

/// Time since the Unix epoch.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
