//! As whom the requests of local clients wait for the cloud, and with which token they are sent.

use tombolo_apicore::auth::{Attributes, Identity, UNAUTHENTICATED_GROUP};
use tombolo_apicore::senders::name_of;

use crate::hub::Caller;

/// User of the kubeconfig that `edgecore kubeconfig` prints.
pub(super) const OPERATOR: &str = "tombolo:edge-operator";

/// Whether this is the user of this node's own kubeconfig, whose requests are sent to the cloud in the node's name.
pub(super) fn is_operator(identity: &Identity) -> bool {
    identity.user == OPERATOR
}

/// The caller as whom the identity's requests wait for the cloud.
pub(super) fn caller(identity: &Identity) -> Caller {
    if is_operator(identity) { Caller::Node } else { Caller::Known(name_of(identity)) }
}

/// The bearer token of a caller that is neither this node nor anonymous. Requests to the cloud use it and nothing else
/// (docs/security.md#requests-of-pods).
pub(super) fn caller_token<'a>(about: &Attributes, authorization: Option<&'a str>) -> Option<&'a str> {
    let identity = &about.identity;
    if is_operator(identity) || identity.in_group(UNAUTHENTICATED_GROUP) {
        return None;
    }
    // A missing token becomes an empty one, which the cloud refuses, so that the request is never sent in the node's
    // name.
    Some(authorization.and_then(bearer).unwrap_or_default())
}

/// The bearer token in a value of the `Authorization` header.
pub(super) fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::auth::AUTHENTICATED_GROUP;

    use super::*;

    #[test]
    fn only_other_callers_are_forwarded_with_their_token() {
        let about = |identity| Attributes { identity, ..Attributes::default() };
        let account = about(Identity::new("system:serviceaccount:a:b", &[AUTHENTICATED_GROUP]));
        assert_eq!(caller_token(&account, Some("Bearer t")), Some("t"));
        assert_eq!(caller_token(&account, None), Some(""), "never as the node");
        let operator = about(Identity::new(OPERATOR, &[AUTHENTICATED_GROUP]));
        assert_eq!(caller_token(&operator, Some("Bearer t")), None);
        assert_eq!(caller_token(&about(Identity::anonymous()), Some("Bearer t")), None);
        for (value, token) in
            [("Bearer  x", Some("x")), ("bearer x", Some("x")), ("Basic x", None), ("Bearer ", None)]
        {
            assert_eq!(bearer(value), token, "{value}");
        }
    }
}
