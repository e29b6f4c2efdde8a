//! `serviceaccounts/token`: signs a token for an account, bound to a pod, a secret or a node.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apicore::accounts::{BoundObject, Claims, KubernetesClaim};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::status::{ApiError, Cause};
use tombolo_proto::object::Resource;

use super::{ActionResult, boxed};
use crate::admission::node_restriction;
use crate::admission::service_account::TOKEN_SECONDS;
use crate::authn::now;
use crate::authn::tokens::{ISSUER, TokenKey};
use crate::objects::{Objects, StoredObject, core, items, member, text, timestamp};

/// API group of the request's kind.
const GROUP: &str = "authentication.k8s.io";

/// Default lifetime of a token, in seconds.
const DEFAULT_SECONDS: i64 = 3600;

/// Shortest lifetime, in seconds.
const MIN_SECONDS: i64 = 600;

/// Longest lifetime, in seconds.
const MAX_SECONDS: i64 = 1 << 32;

/// Lifetime of the token that a kubelet requests for a pod: a year, so that pods survive a missed renewal
/// (docs/reference/kubernetes.md#extended-expiration).
const EXTENDED_SECONDS: i64 = 365 * 86_400;

/// Signs tokens.
pub(crate) struct Tokens {
    /// Where accounts and bound objects are.
    pub(crate) objects: Objects,
    /// Signs.
    pub(crate) key: Arc<TokenKey>,
}

impl Endpoint for Tokens {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, ActionResult> {
        boxed(async move { self.issue(&request.attributes, request.body) })
    }
}

impl Tokens {
    fn issue(&self, asked: &Attributes, mut body: Value) -> ActionResult {
        let (namespace, name) = (asked.namespace.as_str(), asked.name.as_str());
        for (field, own) in [("name", name), ("namespace", namespace)] {
            let given = text(&body, &format!("/metadata/{field}"));
            if !given.is_empty() && given != own {
                let why =
                    format!("Invalid value: {given:?}: must match the service account {field} if specified");
                return Err(invalid(name, &format!("metadata.{field}"), &why));
            }
        }
        let account = self.objects.get(core("serviceaccounts"), namespace, name);
        let account = account.ok_or_else(|| ApiError::not_found("", "serviceaccounts", name))?;
        let given = text(&body, "/metadata/uid");
        if !given.is_empty() && given != account.uid.as_str() {
            let why = format!(
                "the UID in the token request ({given}) does not match the UID of the service account ({})",
                account.uid
            );
            return Err(ApiError::conflict(GROUP, "TokenRequest", name, &why));
        }
        let seconds = life(&body)?;
        node_restriction::admit_token(&self.objects, asked, &body)?;
        let mut claim = self.claim(&account, &body)?;
        let audiences = audiences(&body);
        let made = now();
        let own_audience = audiences.iter().all(|audience| audience == ISSUER);
        let mut signed_seconds = seconds;
        if claim.pod.is_some() && seconds == TOKEN_SECONDS && own_audience {
            claim.warnafter = Some(made.as_secs().saturating_add(seconds.unsigned_abs()));
            signed_seconds = EXTENDED_SECONDS;
        }
        let life = Duration::from_secs(signed_seconds.unsigned_abs());
        let id = uuid::Uuid::new_v4().to_string();
        let claims = Claims::new(ISSUER, id, claim, audiences.clone(), made.as_secs(), life);
        let token = self
            .key
            .sign(&claims)
            .map_err(|e| ApiError::internal(format!("failed to generate token: {e}")))?;
        answer(&mut body, &account, seconds, &audiences);
        let expires =
            jiff::Timestamp::from_second(i64::try_from(made.as_secs()).unwrap_or(i64::MAX) + seconds);
        let expires = expires.map_err(|e| ApiError::internal(e.to_string()))?;
        body["status"] = json!({"token": token, "expirationTimestamp": timestamp(expires)});
        Ok((StatusCode::CREATED, body))
    }

    /// The objects that the token is bound to.
    fn claim(&self, account: &StoredObject, body: &Value) -> Result<KubernetesClaim, ApiError> {
        let mut claim = KubernetesClaim {
            namespace: account.key.namespace().to_owned(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: bound(account),
            warnafter: None,
        };
        let Some(reference) = body.pointer("/spec/boundObjectRef").filter(|reference| reference.is_object())
        else {
            return Ok(claim);
        };
        let (kind, version) = (text(reference, "/kind"), text(reference, "/apiVersion"));
        match (version, kind) {
            ("v1" | "", "Pod") => {
                let pod = self.bound_object(core("pods"), &claim.namespace, reference)?;
                if pod.text("/spec/serviceAccountName") != account.key.name() {
                    return Err(ApiError::bad_request(format!(
                        "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                        account.key.name()
                    )));
                }
                claim.node = self.node_of(&pod);
                claim.pod = Some(bound(&pod));
            }
            ("v1" | "", "Secret") => {
                let secret = self.bound_object(core("secrets"), &claim.namespace, reference)?;
                claim.secret = Some(bound(&secret));
            }
            ("v1" | "", "Node") => {
                claim.node = Some(bound(&self.bound_object(core("nodes"), "", reference)?));
            }
            _ => {
                let why = format!("cannot bind token to object of type {version}, Kind={kind}");
                return Err(ApiError::bad_request(why));
            }
        }
        Ok(claim)
    }

    fn bound_object(
        &self,
        resource: Resource,
        namespace: &str,
        reference: &Value,
    ) -> Result<StoredObject, ApiError> {
        let (name, uid) = (text(reference, "/name"), text(reference, "/uid"));
        let plural = resource.name.to_string();
        let object = self.objects.get(resource, namespace, name);
        let object = object.ok_or_else(|| ApiError::not_found("", &plural, name))?;
        if uid.is_empty() || uid == object.uid.as_str() {
            return Ok(object);
        }
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        Err(ApiError::conflict("", text(reference, "/kind"), name, &why))
    }

    /// The node that a pod is bound to; without a UID when the node does not exist yet.
    fn node_of(&self, pod: &StoredObject) -> Option<BoundObject> {
        let name = Some(pod.text("/spec/nodeName")).filter(|name| !name.is_empty())?;
        let node = self.objects.get(core("nodes"), "", name);
        Some(
            node.map_or_else(
                || BoundObject { name: name.to_owned(), uid: String::new() },
                |node| bound(&node),
            ),
        )
    }
}

fn bound(object: &StoredObject) -> BoundObject {
    BoundObject { name: object.key.name().to_owned(), uid: object.uid.to_string() }
}

fn life(body: &Value) -> Result<i64, ApiError> {
    let seconds = body.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(seconds);
    };
    Err(invalid("", "spec.expirationSeconds", &format!("Invalid value: {seconds}: {why}")))
}

fn audiences(body: &Value) -> Vec<String> {
    let given: Vec<String> =
        items(body, "/spec/audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if given.is_empty() { vec![ISSUER.to_owned()] } else { given }
}

/// Completes the response with defaults. A kubelet behind a KubeEdge edge omits version and kind in its request, and
/// its edge reads them from the response.
fn answer(body: &mut Value, account: &StoredObject, seconds: i64, audiences: &[String]) {
    body["apiVersion"] = "authentication.k8s.io/v1".into();
    body["kind"] = "TokenRequest".into();
    let metadata = member(body, "metadata");
    metadata.insert("name".into(), json!(account.key.name()));
    metadata.insert("namespace".into(), json!(account.key.namespace()));
    metadata.insert("uid".into(), json!(account.uid.as_str()));
    metadata.insert("creationTimestamp".into(), json!(timestamp(jiff::Timestamp::now())));
    let spec = member(body, "spec");
    spec.insert("audiences".into(), json!(audiences));
    spec.insert("expirationSeconds".into(), json!(seconds));
    spec.entry("boundObjectRef").or_insert(Value::Null);
}

fn invalid(name: &str, field: &str, why: &str) -> ApiError {
    ApiError::invalid(GROUP, "TokenRequest", name, vec![Cause::new("FieldValueInvalid", field, why)])
}

#[cfg(test)]
mod tests;
