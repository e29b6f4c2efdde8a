//! KubeEdge's shared join token (docs/reference/kubeedge.md#join-token): `<hex SHA-256 of the CA's DER>.<JWT>`, signed
//! with the CA's private key.
//!
//! Any cloudcore with the same CA accepts the tokens of another one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::authority::Authority;
use super::error::BootstrapError;

#[derive(Serialize, Deserialize)]
struct JoinTokenClaims {
    /// Expiry, in Unix seconds.
    exp: u64,
}

/// Why a join token is refused. The texts are sent to the edge.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum TokenError {
    #[error("the join token is malformed: {0}. Copy the whole token; it has four parts separated by dots")]
    Malformed(String),
    #[error(
        "the join token was not signed by this cloud: it belongs to another cluster or to a former certificate authority"
    )]
    Signature,
    #[error("the join token expired {0} seconds ago: get a new one (`tombolo token`, or secret tokensecret)")]
    Expired(u64),
}

/// Creates a token that is valid until `now + life`.
pub(super) fn issue(
    authority: &Authority,
    now: SystemTime,
    life: Duration,
) -> Result<String, BootstrapError> {
    let exp = unix_seconds(now).saturating_add(life.as_secs());
    let key = EncodingKey::from_secret(&authority.pair().key);
    let jwt = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &JoinTokenClaims { exp }, &key)
        .map_err(|error| BootstrapError::Token { reason: error.to_string() })?;
    Ok(format!("{}.{jwt}", authority.hash()))
}

/// Verifies the JWT part of a token and returns its remaining validity.
pub(super) fn verify(authority: &Authority, jwt: &str, now: SystemTime) -> Result<Duration, TokenError> {
    let mut validation = Validation::new(Algorithm::HS256);
    // Expiry is checked below, with the caller's clock.
    validation.validate_exp = false;
    let key = DecodingKey::from_secret(&authority.pair().key);
    let token =
        jsonwebtoken::decode::<JoinTokenClaims>(jwt, &key, &validation).map_err(|error| {
            match error.kind() {
                ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => TokenError::Signature,
                _ => TokenError::Malformed(error.to_string().trim_end_matches('.').to_owned()),
            }
        })?;
    let now = unix_seconds(now);
    match token.claims.exp.checked_sub(now) {
        Some(left) if left > 0 => Ok(Duration::from_secs(left)),
        _ => Err(TokenError::Expired(now.saturating_sub(token.claims.exp))),
    }
}

/// Verifies a whole token, as stored in the Secret.
pub(super) fn verify_whole(
    authority: &Authority,
    token: &str,
    now: SystemTime,
) -> Result<Duration, TokenError> {
    match token.split_once('.') {
        Some((hash, jwt)) if hash == authority.hash() => verify(authority, jwt, now),
        Some(_) => Err(TokenError::Signature),
        None => Err(TokenError::Malformed("it has no dot".to_owned())),
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
