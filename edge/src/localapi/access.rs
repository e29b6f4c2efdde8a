//! Authentication and authorization of the local API.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{header, request::Parts};
use sha2::{Digest, Sha256};
use tombolo_apicore::auth::{
    AUTHENTICATED_GROUP, Attributes, Authenticator, Authorizer, BadCredentials, Decision, Identity, Peer,
    UNAUTHENTICATED_GROUP,
};

use super::bearer_tokens::BearerTokens;
use super::callers::{OPERATOR, bearer, is_operator};

/// Accepts tokens of service accounts, and the kubeconfig's token on listeners that allow it.
pub(super) struct TokenAuthenticator {
    /// Tokens are compared as hashes, so that the timing reveals nothing about them.
    operator: Option<[u8; 32]>,
    tokens: Arc<BearerTokens>,
}

impl TokenAuthenticator {
    /// Accepts tokens of service accounts, and the token of the kubeconfig if one is given.
    pub(super) fn new(operator: Option<&str>, tokens: Arc<BearerTokens>) -> Self {
        Self { operator: operator.map(|token| Sha256::digest(token).into()), tokens }
    }

    async fn check(&self, request: &Parts, peer: &Peer) -> Result<Identity, BadCredentials> {
        let bad = |reason: &str| BadCredentials::Wrong { reason: reason.to_owned() };
        let value = request.headers.get(header::AUTHORIZATION).ok_or_else(|| bad("no credentials"))?;
        let value = value.to_str().map_err(|_| bad("unreadable credentials"))?;
        let token = bearer(value).ok_or_else(|| bad("not a bearer token"))?;
        let found: [u8; 32] = Sha256::digest(token).into();
        if self.operator == Some(found) {
            return Ok(Identity::new(OPERATOR, &[AUTHENTICATED_GROUP]));
        }
        let identity = self.tokens.identify(token, peer.remote.map(|remote| remote.ip())).await?;
        // A cluster must not assign identities that are reserved for this API.
        if is_operator(&identity) || identity.in_group(UNAUTHENTICATED_GROUP) {
            return Err(bad("the cluster returned a user name or group that is reserved for this node"));
        }
        Ok(identity)
    }
}

impl Authenticator for TokenAuthenticator {
    fn authenticate<'a>(
        &'a self,
        request: &'a Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        Box::pin(self.check(request, peer))
    }
}

/// Treats every client as anonymous, on listeners for programs on this machine. A browser is such a program too, so
/// requests of foreign web pages are refused: a page may reach this address through its own host name (DNS rebinding)
/// or from another origin.
pub(crate) struct Anonymous;

impl Authenticator for Anonymous {
    fn authenticate<'a>(
        &'a self,
        request: &'a Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        let header = |name| request.headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = request.uri.authority().map(http::uri::Authority::as_str).or_else(|| header(header::HOST));
        let origin = header(header::ORIGIN).map(|origin| origin.split_once("://").unwrap_or_default().1);
        let elsewhere = [host, origin].into_iter().flatten().find(|host| !is_this_machine(host));
        Box::pin(std::future::ready(match elsewhere {
            None => Ok(Identity::anonymous()),
            Some(host) => Err(BadCredentials::Misdirected {
                reason: format!(
                    "{host:?} is not this machine: name this listener by its address or as localhost"
                ),
            }),
        }))
    }
}

/// Whether an authority names this machine in a way that DNS cannot redirect: by an address, or as `localhost`.
fn is_this_machine(authority: &str) -> bool {
    let named = |host: &str| host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok();
    if authority.is_empty() {
        // A page that hides its origin sends `null`.
        return false;
    }
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(host, _)| host.parse::<Ipv6Addr>().is_ok());
    }
    named(authority.split_once(':').map_or(authority, |(host, _)| host))
}

/// The operator may do what the node may do. Anonymous clients may read everything except Secrets. For service accounts
/// the cluster decides when the request is executed ([`super::account_reads`], or the cloud for writes).
pub(super) struct LocalAuthorizer;

impl Authorizer for LocalAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(std::future::ready(decide(attributes)))
    }
}

fn decide(attributes: &Attributes) -> Decision {
    let identity = &attributes.identity;
    let reads = matches!(attributes.verb.as_str(), "get" | "list" | "watch" | "head" | "options");
    if is_operator(identity) {
        return Decision::Allow;
    }
    if !identity.in_group(UNAUTHENTICATED_GROUP) {
        return account(attributes, reads);
    }
    if !reads {
        return Decision::Deny("the plain listener is read-only: use the kubeconfig of this node".to_owned());
    }
    if attributes.is_resource && attributes.resource == "secrets" {
        return Decision::Deny(
            "Secrets are not served without TLS: use the kubeconfig of this node".to_owned(),
        );
    }
    Decision::Allow
}

/// Denies service accounts everything that is answered here without checking their permissions.
fn account(attributes: &Attributes, reads: bool) -> Decision {
    let public = !attributes.is_resource && reads;
    let object = matches!(attributes.subresource.as_str(), "" | "status" | "scale");
    if public || (attributes.is_resource && (object || !reads)) {
        return Decision::Allow;
    }
    Decision::Deny("this node cannot serve this request to a service account".to_owned())
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

    #[tokio::test]
    async fn requests_from_web_pages_are_refused() {
        let ask = async |headers: &[(&str, &str)]| {
            let mut request = http::Request::get("/api/v1/services");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            Anonymous.authenticate(&parts, &Peer::default()).await.is_ok()
        };
        assert!(ask(&[]).await, "HTTP/1.0 names no host");
        for host in ["127.0.0.1:51006", "localhost:51006", "[::1]:51006", "169.254.20.10", "LOCALHOST"] {
            assert!(ask(&[("host", host)]).await, "{host}");
            assert!(ask(&[("host", host), ("origin", &format!("http://{host}"))]).await, "{host}");
            assert!(!ask(&[("host", host), ("origin", "http://evil.example")]).await, "{host}");
            assert!(!ask(&[("host", host), ("origin", "null")]).await, "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:51006", "localhost.evil.example", "[::1", ""] {
            assert!(!ask(&[("host", host)]).await, "{host}");
        }
    }

    #[test]
    fn anonymous_clients_read_no_secrets_and_cannot_write() {
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
    fn accounts_need_an_explicit_decision() {
        let account = || Identity::new("system:serviceaccount:a:b", &[AUTHENTICATED_GROUP]);
        let ask = |verb: &str, resource: &str, subresource: &str| {
            let asked =
                Attributes { subresource: subresource.to_owned(), ..attributes(account(), verb, resource) };
            decide(&asked) == Decision::Allow
        };
        assert!(ask("get", "pods", "") && ask("list", "secrets", "") && ask("get", "", ""));
        assert!(ask("create", "serviceaccounts", "token"), "the cloud decides");
        assert!(!ask("get", "pods", "log") && !ask("get", "pods", "exec") && !ask("post", "", ""));
    }
}
