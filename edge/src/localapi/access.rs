//! Who may do what on this machine.

use futures::future::BoxFuture;
use http::{header, request::Parts};
use sha2::{Digest, Sha256};
use tombolo_apiserve::auth::{
    AUTHENTICATED_GROUP, Attributes, Authenticator, Authorizer, BadCredentials, Decision, Identity, Peer,
    UNAUTHENTICATED_GROUP,
};

/// User of the kubeconfig that `edgecore kubeconfig` prints.
const OPERATOR: &str = "tombolo:edge-operator";

/// Takes the token of the kubeconfig, nothing else.
pub(super) struct TokenAuthenticator {
    /// Compared as hashes, so that the time taken tells nothing about the token.
    hash: [u8; 32],
}

impl TokenAuthenticator {
    pub(super) fn new(token: &str) -> Self {
        Self { hash: Sha256::digest(token).into() }
    }

    fn check(&self, request: &Parts) -> Result<Identity, BadCredentials> {
        let bad = |reason: &str| BadCredentials { reason: reason.to_owned() };
        let value = request.headers.get(header::AUTHORIZATION).ok_or_else(|| bad("no credentials"))?;
        let value = value.to_str().map_err(|_| bad("unreadable credentials"))?;
        let token = value.strip_prefix("Bearer ").ok_or_else(|| bad("not a bearer token"))?;
        let found: [u8; 32] = Sha256::digest(token.trim()).into();
        if found != self.hash {
            return Err(bad("not the token of this node's kubeconfig"));
        }
        Ok(Identity::new(OPERATOR, &[AUTHENTICATED_GROUP]))
    }
}

impl Authenticator for TokenAuthenticator {
    fn authenticate<'a>(
        &'a self,
        request: &'a Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        Box::pin(std::future::ready(self.check(request)))
    }
}

/// Everybody is nobody: the plain listener.
pub(super) struct Anonymous;

impl Authenticator for Anonymous {
    fn authenticate<'a>(
        &'a self,
        _: &'a Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        Box::pin(std::future::ready(Ok(Identity::anonymous())))
    }
}

/// The operator may do what the node may do; anonymous readers may read what is no Secret.
pub(super) struct LocalAuthorizer;

impl Authorizer for LocalAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(std::future::ready(decide(attributes)))
    }
}

fn decide(attributes: &Attributes) -> Decision {
    if !attributes.identity.in_group(UNAUTHENTICATED_GROUP) {
        return Decision::Allow;
    }
    let reads = matches!(attributes.verb.as_str(), "get" | "list" | "watch" | "head" | "options");
    if !reads {
        return Decision::Deny("the plain listener is read-only: use the kubeconfig of this node".to_owned());
    }
    if attributes.is_resource && attributes.resource == "secrets" {
        return Decision::Deny(
            "Secrets are not served without encryption: use the kubeconfig of this node".to_owned(),
        );
    }
    Decision::Allow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(identity: Identity, verb: &str, resource: &str) -> Attributes {
        Attributes {
            identity,
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            is_resource: !resource.is_empty(),
            ..Attributes::default()
        }
    }

    #[test]
    fn anonymous_readers_get_no_secrets_and_write_nothing() {
        for (verb, resource, allowed) in [
            ("get", "pods", true),
            ("watch", "configmaps", true),
            ("get", "", true),
            ("get", "secrets", false),
            ("list", "secrets", false),
            ("create", "pods", false),
            ("delete", "configmaps", false),
            ("post", "", false),
        ] {
            let decision = decide(&attributes(Identity::anonymous(), verb, resource));
            assert_eq!(decision == Decision::Allow, allowed, "{verb} {resource}");
            let operator = Identity::new(OPERATOR, &[AUTHENTICATED_GROUP]);
            assert_eq!(decide(&attributes(operator, verb, resource)), Decision::Allow);
        }
    }

    #[test]
    fn only_the_token_opens() {
        let check = |value: Option<&str>| {
            let mut request = http::Request::builder();
            if let Some(value) = value {
                request = request.header("authorization", value);
            }
            TokenAuthenticator::new("right").check(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        assert!(check(Some("Bearer right")));
        for wrong in [None, Some("Bearer wrong"), Some("Basic right"), Some("right"), Some("Bearer ")] {
            assert!(!check(wrong), "{wrong:?}");
        }
    }
}
