//! What a token says: JSON Web Tokens with the claims of Kubernetes 1.36.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::USER_PREFIX;

/// An object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Its name.
    pub name: String,
    /// Its incarnation; absent for a node that did not exist when the token was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The claim `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Namespace of the account and of what the token is bound to.
    pub namespace: String,
    /// Node that the bound pod runs on, or that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Bound>,
    /// Pod that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Bound>,
    /// Secret that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Bound>,
    /// The account.
    pub serviceaccount: Bound,
    /// When a client should have asked for a new token, in Unix seconds; only in extended tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<u64>,
}

/// All claims. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// For whom.
    pub aud: Vec<String>,
    /// Not valid from then on.
    pub exp: u64,
    /// Made then.
    pub iat: u64,
    /// By whom.
    pub iss: String,
    /// Unique name of the token.
    #[serde(default)]
    pub jti: String,
    /// What it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub place: Place,
    /// Not valid before.
    pub nbf: u64,
    /// User name.
    pub sub: String,
}

impl Claims {
    /// Claims of an issuer's token that is valid from `now` (Unix seconds) for `life`. `id` is its unique name.
    #[must_use]
    pub fn new(
        issuer: &str,
        id: String,
        place: Place,
        audiences: Vec<String>,
        now: u64,
        life: Duration,
    ) -> Self {
        Self {
            aud: audiences,
            exp: now.saturating_add(life.as_secs()),
            iat: now,
            iss: issuer.to_owned(),
            jti: id,
            nbf: now,
            sub: format!("{USER_PREFIX}{}:{}", place.namespace, place.serviceaccount.name),
            place,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn claims() -> Claims {
        let place = Place {
            namespace: "shop".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: Bound { name: "till".into(), uid: "1".into() },
            warnafter: None,
        };
        Claims::new("https://issuer", "id".into(), place, vec!["api".into()], 1000, Duration::from_secs(600))
    }
}
