//! Service accounts: their identity for authorizers, the claims of their tokens, and whether a token is still valid
//! (Kubernetes: bound service account tokens). The caller, which holds the objects, says whether they still exist.

mod claims;
mod keys;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::auth::{AUTHENTICATED_GROUP, Identity};

pub use claims::{BoundObject, Claims, KubernetesClaim};
pub use keys::{KeySet, Unverified};

/// Allowed clock difference. It is also how long an object stays valid after its deletion was requested (as in
/// kube-apiserver).
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Prefix of the user name of every service account.
pub const USER_PREFIX: &str = "system:serviceaccount:";

/// Prefix of the keys of [`Identity::extra`] that authentication sets.
const EXTRA: &str = "authentication.kubernetes.io/";

/// The groups of every service account of a namespace.
#[must_use]
pub fn groups(namespace: &str) -> Vec<String> {
    let own = format!("system:serviceaccounts:{namespace}");
    vec!["system:serviceaccounts".into(), own, AUTHENTICATED_GROUP.into()]
}

/// The identity behind verified claims.
#[must_use]
pub fn identity(claims: &Claims) -> Identity {
    let claim = &claims.kubernetes;
    let mut extra = BTreeMap::new();
    let mut note = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
        }
    };
    if !claims.jti.is_empty() {
        note("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &claim.pod {
        note("pod-name", &pod.name);
        note("pod-uid", &pod.uid);
    }
    if let Some(node) = &claim.node {
        note("node-name", &node.name);
        note("node-uid", &node.uid);
    }
    Identity {
        user: format!("{USER_PREFIX}{}:{}", claim.namespace, claim.serviceaccount.name),
        uid: Some(claim.serviceaccount.uid.clone()),
        groups: groups(&claim.namespace),
        extra,
    }
}

/// Checks that a token is within its validity period at `now` (Unix seconds).
///
/// # Errors
/// The reason, for the log and for token reviews.
pub fn check_times(claims: &Claims, now: u64) -> Result<(), String> {
    if claims.exp < now.saturating_sub(LEEWAY.as_secs()) {
        return Err("service account token has expired".into());
    }
    if claims.nbf > now.saturating_add(LEEWAY.as_secs()) {
        return Err("service account token is not valid yet".into());
    }
    Ok(())
}

/// The current state of an object that a token is bound to.
#[derive(Debug, Clone, Copy)]
pub struct Living<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.deletionTimestamp`; empty while no deletion was requested.
    pub deletion_timestamp: &'a str,
}

/// Checks at `now` (Unix seconds) that a token's object is still the one it was bound to. `found` is none when the
/// object does not exist.
///
/// # Errors
/// What happened to the object, for the log and for token reviews.
pub fn check_bound(
    plural: &str,
    bound: &BoundObject,
    found: Option<Living<'_>>,
    now: u64,
) -> Result<(), String> {
    let invalidated =
        |why: &str| format!("service account token has been invalidated: {plural} {:?} {why}", bound.name);
    let Some(Living { uid, deletion_timestamp }) = found else { return Err(invalidated("is gone")) };
    if uid != bound.uid {
        return Err(format!("{plural} UID ({uid}) does not match claim ({})", bound.uid));
    }
    let deleted: Option<Timestamp> = deletion_timestamp.parse().ok();
    let deleted = deleted.and_then(|time| u64::try_from(time.as_second()).ok());
    if deleted.is_some_and(|deleted| deleted < now.saturating_sub(LEEWAY.as_secs())) {
        return Err(invalidated("was deleted"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn an_identity_names_account_pod_and_node() {
        let bound = |name: &str| Some(BoundObject { name: name.into(), uid: format!("{name}-uid") });
        let mut claims = claims::tests::claims();
        claims.kubernetes.pod = bound("p");
        claims.kubernetes.node = bound("n");
        let identity = identity(&claims);
        assert_eq!(identity.user, "system:serviceaccount:shop:till");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"];
        assert_eq!(identity.groups, groups);
        assert_eq!(identity.extra["authentication.kubernetes.io/node-name"], ["n"]);
        assert_eq!(identity.extra["authentication.kubernetes.io/pod-uid"], ["p-uid"]);
    }

    #[test]
    fn token_is_valid_in_its_time_plus_a_minute() {
        let claims = Claims { exp: NOW + 600, nbf: NOW, ..claims::tests::claims() };
        for (now, good) in [(NOW - 60, true), (NOW - 61, false), (NOW + 660, true), (NOW + 661, false)] {
            assert_eq!(check_times(&claims, now).is_ok(), good, "{now}");
        }
    }

    #[test]
    fn token_ends_when_its_object_is_gone_replaced_or_long_deleted() {
        let bound = BoundObject { name: "p".into(), uid: "u".into() };
        let check = |found, now| check_bound("pods", &bound, found, now);
        let living = |uid, deletion_timestamp| Some(Living { uid, deletion_timestamp });
        assert!(check(living("u", ""), NOW).is_ok());
        let deleted = living("u", "2023-11-14T22:13:20Z");
        assert!(check(deleted, NOW + 60).is_ok(), "a minute of grace");
        assert!(check(deleted, NOW + 61).unwrap_err().contains("deleted"));
        assert!(check(None, NOW).unwrap_err().contains("gone"));
        assert!(check(living("v", ""), NOW).unwrap_err().contains("UID"));
    }
}
