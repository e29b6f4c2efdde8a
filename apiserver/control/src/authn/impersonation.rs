//! Impersonation: acting as another user, by the constrained rules of Kubernetes 1.36 or by the older rule.
//!
//! Constrained modes allow one kind of user for one kind of request: `impersonate:MODE` on the user and
//! `impersonate-on:MODE:VERB` on what is requested. They are tried first; the older verb `impersonate` comes last. If
//! no mode allows it, the refusal of the first mode that applied is returned (facts: kube-apiserver 1.36).

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use tombolo_apicore::auth::{
    ANONYMOUS, AUTHENTICATED_GROUP, Attributes, Authorizer, Identity, UNAUTHENTICATED_GROUP,
};
use tombolo_apicore::names;
use tombolo_apicore::status::ApiError;

use crate::nodes::node_in_user_name;
use tombolo_apicore::accounts;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// Group that constrained impersonation never grants.
const MASTERS: &str = "system:masters";

/// From this number of names on, the right to all names (`*`) is checked before the right to each one.
const MANY: usize = 4;

/// Maximum number of impersonation header values: each costs an authorization check.
const VALUES_MAX: usize = 256;

/// The user that a request impersonates; `None` without impersonation headers.
///
/// # Errors
/// 400 when other headers are given without a user name, or too many.
pub(crate) fn wanted(headers: &HeaderMap) -> Result<Option<Identity>, ApiError> {
    let first = |name: &str| headers.get(name).map(text).filter(|value| !value.is_empty());
    let mut wanted =
        Identity { user: first(USER).unwrap_or_default(), uid: first(UID), ..Identity::default() };
    let mut others = usize::from(wanted.uid.is_some());
    for (name, value) in headers {
        let name = name.as_str();
        if name == GROUP {
            wanted.groups.push(text(value));
        } else if let Some(key) = name.strip_prefix(EXTRA) {
            wanted.extra.entry(unescape(key)).or_default().push(text(value));
        } else {
            continue;
        }
        others += 1;
    }
    if wanted.user.is_empty() {
        let message = "requested groups, uid or extra without impersonating a user name";
        return if others > 0 { Err(ApiError::bad_request(message)) } else { Ok(None) };
    }
    if others > VALUES_MAX {
        return Err(ApiError::bad_request(format!("more than {VALUES_MAX} impersonation headers")));
    }
    Ok(Some(wanted))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Decodes the key of an extra field, which is percent-encoded in the header name. A key with an invalid encoding stays
/// as it is.
fn unescape(key: &str) -> String {
    let is_hex =
        |part: &str| part.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    if !key.split('%').skip(1).all(is_hex) {
        return key.to_owned();
    }
    percent_decode_str(key).decode_utf8_lossy().into_owned()
}

/// The identity that the caller gets.
///
/// # Errors
/// 403 when no mode allows it.
pub(crate) fn impersonate<'a>(
    authorizer: &'a dyn Authorizer,
    caller: &'a Identity,
    wanted: &'a Identity,
    request: &'a Attributes,
) -> BoxFuture<'a, Result<Identity, ApiError>> {
    Box::pin(async move {
        let mut first = None;
        for mode in Mode::ALL.into_iter().filter(|mode| mode.applies(wanted, caller)) {
            let check = Check { authorizer, caller, wanted, mode };
            match check.run(request).await {
                Ok(identity) => return Ok(identity),
                Err(refusal) => first = first.or(Some(refusal)),
            }
        }
        Err(first.unwrap_or_else(|| ApiError::forbidden(request, "impersonation is not allowed")))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

impl Mode {
    const ALL: [Self; 5] =
        [Self::AssociatedNode, Self::ArbitraryNode, Self::ServiceAccount, Self::UserInfo, Self::Legacy];

    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    fn verb(self) -> String {
        if self == Self::Legacy { "impersonate".into() } else { format!("impersonate:{}", self.name()) }
    }

    fn applies(self, wanted: &Identity, caller: &Identity) -> bool {
        let node = node_in_user_name(&wanted.user);
        let account = service_account(&wanted.user);
        let only_name = wanted.uid.is_none() && wanted.groups.is_empty() && wanted.extra.is_empty();
        match self {
            Self::AssociatedNode => only_name && node.is_some() && node == own_node(caller),
            Self::ArbitraryNode => only_name && node.is_some(),
            Self::ServiceAccount => only_name && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }
}

/// The node that the caller, a pod's service account, runs on.
fn own_node(caller: &Identity) -> Option<&str> {
    service_account(&caller.user)?;
    match caller.extra.get("authentication.kubernetes.io/node-name")?.as_slice() {
        [node] => Some(node),
        _ => None,
    }
}

/// Namespace and name in a service account's user name, if both are valid.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = names::dns1123_label(namespace).is_none() && names::dns1123_subdomain(name).is_none();
    valid.then_some((namespace, name))
}

struct Check<'a> {
    authorizer: &'a dyn Authorizer,
    caller: &'a Identity,
    wanted: &'a Identity,
    mode: Mode,
}

impl Check<'_> {
    async fn run(&self, request: &Attributes) -> Result<Identity, ApiError> {
        if self.mode != Mode::Legacy {
            let mut on = request.clone();
            on.identity = self.caller_as_seen();
            on.verb = format!("impersonate-on:{}:{}", self.mode.name(), request.verb);
            self.allowed(&on).await?;
        }
        let mut identity = self.wanted.clone();
        self.check_user(&mut identity).await?;
        if let Some(uid) = &self.wanted.uid {
            self.allowed(&self.asked("authentication.k8s.io", "uids", uid)).await?;
        }
        self.check_groups().await?;
        self.check_extra().await?;
        add_default_group(&mut identity);
        Ok(identity)
    }

    async fn check_user(&self, identity: &mut Identity) -> Result<(), ApiError> {
        let mut asked = self.asked(self.group(), "users", &self.wanted.user);
        if self.mode != Mode::Legacy
            && let Some(node) = node_in_user_name(&self.wanted.user)
        {
            asked.resource = "nodes".into();
            // The right to impersonate one's own node does not depend on its name, so it is checked for `*`.
            asked.name = if self.mode == Mode::AssociatedNode { "*".into() } else { node.to_owned() };
            identity.groups = vec!["system:nodes".into()];
        }
        if let Some((namespace, name)) = service_account(&self.wanted.user) {
            asked.resource = "serviceaccounts".into();
            asked.namespace = namespace.into();
            asked.name = name.into();
            if self.wanted.groups.is_empty() {
                identity.groups = accounts::groups(namespace);
            }
        }
        self.allowed(&asked).await
    }

    async fn check_groups(&self) -> Result<(), ApiError> {
        let groups = &self.wanted.groups;
        let ask = |group: &str| self.asked(self.group(), "groups", group);
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(ApiError::forbidden(
                    &ask(""),
                    "impersonating the empty string group is not allowed",
                ));
            }
            if groups.iter().any(|group| group == MASTERS) {
                let why = "impersonating the system:masters group is not allowed";
                return Err(ApiError::forbidden(&ask(MASTERS), why));
            }
            if groups.len() >= MANY && self.allowed(&ask("*")).await.is_ok() {
                return Ok(());
            }
        }
        for group in groups {
            self.allowed(&ask(group)).await?;
        }
        Ok(())
    }

    async fn check_extra(&self) -> Result<(), ApiError> {
        let extra = &self.wanted.extra;
        let ask = |key: &str, value: &str| {
            let mut asked = self.asked("authentication.k8s.io", "userextras", value);
            asked.subresource = key.to_owned();
            asked
        };
        if self.mode != Mode::Legacy {
            if let Err(why) = valid_extra(extra) {
                return Err(ApiError::forbidden(&ask("", ""), why));
            }
            let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if many && self.allowed(&ask("*", "*")).await.is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.allowed(&ask(key, value)).await?;
            }
        }
        Ok(())
    }

    /// Users and groups moved from the core group to authentication.k8s.io with constrained impersonation.
    fn group(&self) -> &'static str {
        if self.mode == Mode::Legacy { "" } else { "authentication.k8s.io" }
    }

    fn asked(&self, group: &str, resource: &str, name: &str) -> Attributes {
        Attributes {
            identity: self.caller_as_seen(),
            verb: self.mode.verb(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    /// For one's own node, the authorizer gets only the names of the caller's extra fields, not their values.
    fn caller_as_seen(&self) -> Identity {
        let mut caller = self.caller.clone();
        if self.mode == Mode::AssociatedNode {
            let keys = caller.extra.into_keys().collect();
            caller.extra =
                BTreeMap::from([("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)]);
        }
        caller
    }

    async fn allowed(&self, asked: &Attributes) -> Result<(), ApiError> {
        self.authorizer.authorize(asked).await.permit(asked)
    }
}

fn valid_extra(extra: &BTreeMap<String, Vec<String>>) -> Result<(), &'static str> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed");
        }
        let (domain, path) = key.split_once('/').unwrap_or_default();
        let odd = |c: char| !c.is_ascii_alphanumeric() && !"/-._~%!$&'()*+,;=:".contains(c);
        if names::dns1123_subdomain(domain).is_some() || path.is_empty() || path.contains(odd) {
            return Err("impersonating an invalid key in extra is not allowed");
        }
        if key.chars().any(char::is_uppercase) {
            return Err("impersonating a non-lowercase key in extra is not allowed");
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed");
        }
    }
    Ok(())
}

fn add_default_group(identity: &mut Identity) {
    let group = if identity.user == ANONYMOUS {
        UNAUTHENTICATED_GROUP
    } else if identity.in_group(UNAUTHENTICATED_GROUP) {
        return;
    } else {
        AUTHENTICATED_GROUP
    };
    if !identity.in_group(group) {
        identity.groups.push(group.to_owned());
    }
}

#[cfg(test)]
mod tests;
