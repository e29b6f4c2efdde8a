//! Tokens of ServiceAccounts. They have the form of a JWT, but no signature: only the model knows them. They name a key
//! that the server does not publish, so nobody can verify them without a review.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::clock::text_of;
use super::kinds::KindKey;
use super::object::{self, text};
use super::rights::ApiUser;
use super::state::{IssuedToken, ModelEvent, ModelState};
use super::status::{ApiStatus, FieldProblem};
use super::writes::WriteCall;

/// Audience of the API server itself.
const AUDIENCE: &str = "https://kubernetes.default.svc";

const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST_SECONDS: i64 = 600;

/// The expiration that kubelets ask for, and the one that such a token gets
/// (docs/reference/kubernetes.md#extended-expiration).
const EXTENDED_FROM: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// A token is refused from so many seconds after the deletion time of its pod.
const AFTER_POD: i64 = 60;

/// Answers a TokenRequest.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn request(state: &mut ModelState, call: &WriteCall, mut body: Value) -> Result<Value, ApiStatus> {
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let Some(account) = state.object(&call.kind, namespace, name).cloned() else {
        return Err(ApiStatus::not_found(&call.kind.key, name));
    };
    let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    if seconds < SHORTEST_SECONDS {
        let detail = "may not specify a duration less than 10 minutes";
        let problem = FieldProblem::invalid("spec.expirationSeconds", &seconds.into(), detail);
        return Err(ApiStatus::invalid_request("authentication.k8s.io", "TokenRequest", &problem));
    }
    let audiences: Vec<String> = body["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let pod = bound_pod(state, call, &body["spec"]["boundObjectRef"], &audiences)?;
    let audiences = if audiences.is_empty() { vec![AUDIENCE.to_owned()] } else { audiences };
    let now = state.clock.unix_seconds();
    let of_kubelet = seconds == EXTENDED_FROM && !pod.is_empty() && audiences == [AUDIENCE];
    let lasts = if of_kubelet { EXTENDED_SECONDS } else { seconds };
    let mut user = ApiUser::named(&format!("system:serviceaccount:{namespace}:{name}"));
    object::uid(&account).clone_into(&mut user.uid);
    let issued = IssuedToken {
        user,
        audiences: audiences.clone(),
        until: now + lasts,
        pod,
        account: object::uid(&account).to_owned(),
    };
    let token = issue(state, issued);
    body["spec"]["audiences"] = audiences.into();
    body["spec"]["expirationSeconds"] = seconds.into();
    body["status"] = json!({"token": token, "expirationTimestamp": text_of(now + seconds)});
    Ok(body)
}

/// UID of the pod that a token is bound to; empty when it is bound to none.
fn bound_pod(
    state: &ModelState,
    call: &WriteCall,
    reference: &Value,
    audiences: &[String],
) -> Result<String, ApiStatus> {
    let node = call.user.node();
    if reference["kind"] != "Pod" {
        let why = "node requested token not bound to a pod";
        return match node {
            Some(_) => Err(ApiStatus::forbidden(&call.kind.key, &call.target.name, why)),
            None => Ok(String::new()),
        };
    }
    let (pods, name) = (KindKey::new("", "pods"), text(reference, "/name"));
    let Some(pod) = state.storage.get(&pods, &format!("{}/{name}", call.target.namespace)) else {
        return Err(ApiStatus::not_found(&pods, name));
    };
    let wanted = text(reference, "/uid");
    if !wanted.is_empty() && wanted != object::uid(pod) {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(match node {
            Some(_) => ApiStatus::forbidden(&call.kind.key, &call.target.name, &why),
            None => ApiStatus::conflict(&KindKey::new("", "Pod"), name, &why),
        });
    }
    let unknown = audiences.iter().find(|audience| !mounts(pod, audience));
    if let (Some(node), Some(audience)) = (node, unknown) {
        let why = format!(
            "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request \
             tokens for this audience"
        );
        return Err(ApiStatus::forbidden(&call.kind.key, &call.target.name, &why));
    }
    if text(pod, "/spec/serviceAccountName") != call.target.name {
        let message =
            "cannot bind token for serviceaccount to pod running with different serviceaccount name";
        return Err(ApiStatus::bad_request(message));
    }
    if node.is_some_and(|node| node != text(pod, "/spec/nodeName")) {
        let why = "node requested token bound to a pod scheduled on a different node";
        return Err(ApiStatus::forbidden(&call.kind.key, &call.target.name, why));
    }
    Ok(object::uid(pod).to_owned())
}

/// Whether a volume of a pod asks for tokens of this audience.
fn mounts(pod: &Value, audience: &str) -> bool {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let mut sources =
        volumes.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
    sources.any(|source| source["serviceAccountToken"]["audience"] == audience)
}

/// Makes a token known.
pub(super) fn issue(state: &mut ModelState, issued: IssuedToken) -> String {
    let claims = json!({
        "iss": AUDIENCE, "sub": issued.user.name, "aud": issued.audiences, "exp": issued.until,
        "iat": state.clock.unix_seconds(), "jti": state.dice.uid(),
    });
    let header = encoded(br#"{"alg":"RS256","kid":"model","typ":"JWT"}"#);
    let token = format!("{header}.{}.{}", encoded(claims.to_string().as_bytes()), encoded(b"model"));
    let account = issued.user.name.clone();
    state.tokens.insert(token.clone(), issued);
    state.observers.tell(&ModelEvent::TokenIssued { token: token.clone(), account });
    token
}

/// Base64 for URLs, without padding.
fn encoded(bytes: &[u8]) -> String {
    let text = serde_json::to_value(ByteString(bytes.to_vec())).unwrap_or_default();
    text.as_str().unwrap_or_default().replace('+', "-").replace('/', "_").replace('=', "")
}

/// The owner of a token that is valid now.
pub(super) fn owner(state: &ModelState, token: &str) -> Option<IssuedToken> {
    let issued = state.tokens.get(token)?;
    let now = state.clock.unix_seconds();
    if now >= issued.until {
        return None;
    }
    let exists = |resource: &str, uid: &str| {
        let mut all = state.storage.all(&KindKey::new("", resource));
        all.find(|(_, object)| object::uid(object) == uid).map(|(_, object)| object)
    };
    if !issued.account.is_empty() {
        exists("serviceaccounts", &issued.account)?;
    }
    if !issued.pod.is_empty() {
        let pod = exists("pods", &issued.pod)?;
        let deleted = text(pod, "/metadata/deletionTimestamp");
        let deleted: Option<k8s_openapi::jiff::Timestamp> = deleted.parse().ok();
        if deleted.is_some_and(|deleted| deleted.as_second() + AFTER_POD <= now) {
            return None;
        }
    }
    Some(issued.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::kinds::{KindInfo, built_in};
    use super::super::parse::PathTarget;
    use super::super::rights::RightsTable;
    use super::*;

    fn kind(name: &str) -> KindInfo {
        built_in().find(|kind| kind.kind == name).expect("a kind")
    }

    fn state() -> ModelState {
        let mut state = ModelState::new(1, 1_000_000, RightsTable::default());
        let account = json!({"metadata": {"namespace": "d", "name": "sa", "uid": "a"}});
        state.put(&kind("ServiceAccount"), account, "c");
        let pod = json!({"metadata": {"namespace": "d", "name": "p", "uid": "u"},
            "spec": {"nodeName": "n", "serviceAccountName": "sa"}});
        state.put(&kind("Pod"), pod, "c");
        state
    }

    fn call(user: &str) -> WriteCall {
        let target = PathTarget {
            resource: "serviceaccounts".to_owned(),
            namespace: "d".to_owned(),
            name: "sa".to_owned(),
            subresource: "token".to_owned(),
            ..PathTarget::default()
        };
        let (user, kind) = (ApiUser::named(user), kind("ServiceAccount"));
        WriteCall { user, kind, target, manager: String::new(), dry_run: false }
    }

    fn of_pod(name: &str, uid: &str) -> Value {
        json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": {"kind": "Pod", "name": name, "uid": uid}}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_ends_with_its_pod_and_its_time() {
        let mut state = state();
        let answer = request(&mut state, &call("system:node:n"), of_pod("p", "u")).expect("a token");
        let token = text(&answer, "/status/token").to_owned();
        assert_eq!(answer["status"]["expirationTimestamp"], "1970-01-12T14:46:47Z");
        let name = owner(&state, &token).expect("valid").user.name;
        assert_eq!(name, "system:serviceaccount:d:sa");
        tokio::time::advance(Duration::from_secs(4000)).await;
        assert!(owner(&state, &token).is_some(), "it lasts longer than it says");
        let short = json!({"spec": {"expirationSeconds": 600}});
        let answer = request(&mut state, &call("admin"), short).expect("a token");
        let short = text(&answer, "/status/token").to_owned();
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(owner(&state, &short).is_none() && owner(&state, &token).is_some());
        state.remove(&kind("Pod"), "d", "p", "c");
        assert!(owner(&state, &token).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_gets_tokens_for_its_own_pods_alone() {
        let mut state = state();
        let mut code = |user: &str, body: Value| {
            request(&mut state, &call(user), body).map(|_| ()).map_err(|refused| refused.code)
        };
        assert_eq!(code("system:node:n", of_pod("p", "u")), Ok(()));
        assert_eq!(code("system:node:m", of_pod("p", "u")), Err(403));
        assert_eq!(code("system:node:n", json!({"spec": {}})), Err(403));
        assert_eq!(code("system:node:n", of_pod("p", "other")), Err(403));
        assert_eq!(code("admin", of_pod("p", "other")), Err(409));
        let mut foreign = of_pod("p", "u");
        foreign["spec"]["audiences"] = json!(["x"]);
        assert_eq!(code("system:node:n", foreign.clone()), Err(403));
        assert_eq!(code("admin", foreign), Ok(()));
        assert_eq!(code("system:node:n", of_pod("q", "u")), Err(404));
        assert_eq!(code("admin", json!({"spec": {"expirationSeconds": 60}})), Err(422));
        assert_eq!(code("admin", json!({"spec": {}})), Ok(()));
    }
}
