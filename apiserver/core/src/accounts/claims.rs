//! The claims of a token: JSON Web Tokens as Kubernetes 1.36 issues them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::USER_PREFIX;

/// An object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundObject {
    /// Name of the object.
    pub name: String,
    /// UID of the object; empty for a node that did not exist when the token was issued.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The claim `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaim {
    /// Namespace of the account and of the bound object.
    pub namespace: String,
    /// Node that the bound pod runs on, or that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<BoundObject>,
    /// Pod that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<BoundObject>,
    /// Secret that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<BoundObject>,
    /// The service account.
    pub serviceaccount: BoundObject,
    /// Unix seconds by which a client should have renewed the token; only in extended tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<u64>,
}

/// All claims of a token. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Audiences.
    pub aud: Vec<String>,
    /// Expiry time.
    pub exp: u64,
    /// Issue time.
    pub iat: u64,
    /// Issuer.
    pub iss: String,
    /// Unique ID of the token.
    #[serde(default)]
    pub jti: String,
    /// The account and the objects that the token is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaim,
    /// Start of validity.
    pub nbf: u64,
    /// User name.
    pub sub: String,
}

impl Claims {
    /// Claims of an issuer's token that is valid from `now` (Unix seconds) for `life`. `id` is its unique ID.
    #[must_use]
    pub fn new(
        issuer: &str,
        id: String,
        claim: KubernetesClaim,
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
            sub: format!("{USER_PREFIX}{}:{}", claim.namespace, claim.serviceaccount.name),
            kubernetes: claim,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn claims() -> Claims {
        let claim = KubernetesClaim {
            namespace: "shop".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: BoundObject { name: "till".into(), uid: "1".into() },
            warnafter: None,
        };
        Claims::new("https://issuer", "id".into(), claim, vec!["api".into()], 1000, Duration::from_secs(600))
    }
}
