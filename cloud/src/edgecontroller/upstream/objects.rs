//! The messages that are more than one plain call.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_proto::message::{Content, Message, Operation, Outcome, StatusError, is_passing};
use tombolo_proto::{NodeId, Uid};

use super::message::{STRATEGIC, Said, Target, body_of, malformed, outcome};
use super::{LABEL_PATIENCE, LABEL_RETRY, LEASE_NAMESPACE, TOKEN_PATIENCE, TOKEN_RETRY, Upstream, labels};
use crate::edgecontroller::written::version_of;
use crate::kube::{Answer, ApiCall, CallError, Caller};

impl Upstream {
    /// Registers a node: created in its own name, without the labels that it may not set; those on the allow-list
    /// are then added in ours.
    pub(super) async fn create_node(&self, node: &NodeId, target: Target<'_>, content: &Content) -> Said {
        if target.name != node.as_str() {
            let sentence =
                format!("node {node} cannot register node {:?}: each registers itself", target.name);
            return Said::Wrap(Outcome::Failed(StatusError::new(403, "Forbidden", &sentence)), false);
        }
        let Ok(mut object @ Value::Object(_)) = content.read() else {
            return malformed("the content is no Node object");
        };
        let granted = labels::split(&mut object);
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("name".to_owned(), target.name.into());
        }
        let created = self.register(node, ApiCall::json(Method::POST, "/api/v1/nodes", &object)).await;
        let body = match created.and_then(body_of) {
            Ok(body) if granted.is_empty() => body,
            Ok(body) => self.grant_labels(node, &granted.into(), body).await,
            Err(error) => return Said::Wrap(Outcome::Failed(*error), false),
        };
        self.registered(node, &body);
        Said::Wrap(outcome(Ok(body)), false)
    }

    /// Adds labels in cloudcore's name, and tries again while the API server has too much to do. The node exists by now, so
    /// a failure is logged and the node is what it is: it is an edge node all the same, because it joined through us.
    pub(super) async fn grant_labels(&self, node: &NodeId, granted: &Value, created: Bytes) -> Bytes {
        let patch = json!({"metadata": {"labels": granted}}).to_string();
        let path = format!("/api/v1/nodes/{node}");
        let call = ApiCall::patch(path, "application/merge-patch+json", patch.into());
        let deadline = Instant::now() + LABEL_PATIENCE;
        loop {
            match super::message::into_result(self.kube.call(Caller::OwnFor(node), call.clone()).await) {
                Ok(labelled) => return labelled,
                Err(error) if is_passing(error.code) && Instant::now() < deadline => {
                    tokio::time::sleep(LABEL_RETRY).await;
                }
                Err(error) => {
                    tracing::warn!(%node, error = error.message, "cannot label a new edge node");
                    return created;
                }
            }
        }
    }

    /// Labels and annotations of an existing node.
    pub(super) async fn update_node(&self, node: &NodeId, target: Target<'_>, content: &Content) -> Said {
        let Ok(mut object @ Value::Object(_)) = content.read() else {
            return Said::Refused("the content is no Node object".to_owned());
        };
        labels::split(&mut object);
        let part =
            |name: &str| object.pointer(&format!("/metadata/{name}")).cloned().unwrap_or_else(|| json!({}));
        let patch =
            json!({"metadata": {"labels": part("labels"), "annotations": part("annotations")}}).to_string();
        let path = format!("/api/v1/nodes/{}", target.name);
        done(self.as_node(node, ApiCall::patch(path, STRATEGIC, patch.into())).await)
    }

    /// Registers a node unless it exists.
    pub(super) async fn ensure_node(&self, node: &NodeId, target: Target<'_>, content: &Content) -> Said {
        let path = format!("/api/v1/nodes/{}", target.name);
        match self.as_node(node, ApiCall::get(path)).await {
            Ok(_) => return Said::Done(String::new()),
            Err(error) if error.code != 404 => return Said::Refused(error.message),
            Err(_) => {}
        }
        match self.create_node(node, target, content).await {
            Said::Wrap(Outcome::Done(_), _) => Said::Done(String::new()),
            Said::Wrap(Outcome::Failed(error), _) => Said::Refused(error.message),
            other => other,
        }
    }

    /// Deletes a pod: content is `DeleteOptions`, or the UID alone as older edges send it.
    pub(super) async fn delete_pod(&self, node: &NodeId, target: Target<'_>, content: &Content) -> Said {
        let options = match content.read() {
            Ok(options @ Value::Object(_)) => options,
            _ => match content.as_text() {
                Some(uid) if Uid::parse(&uid).is_ok() => {
                    json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
                }
                _ => return Said::Refused("the content is neither DeleteOptions nor a UID".to_owned()),
            },
        };
        let path = format!("/api/v1/namespaces/{}/pods/{}", target.namespace, target.name);
        match self.as_node(node, ApiCall::json(Method::DELETE, path, &options)).await {
            Ok(_) => Said::Done(String::new()),
            Err(error) if is_settled(&error) => Said::Done(String::new()),
            Err(error) => Said::Refused(error.message),
        }
    }

    pub(super) async fn lease(&self, node: &NodeId, target: Target<'_>, request: &Message) -> Said {
        let namespace = if target.namespace.is_empty() { LEASE_NAMESPACE } else { target.namespace };
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let one = format!("{all}/{}", target.name);
        match request.route.operation {
            Operation::Insert => self.send(node, Method::POST, &all, &request.content, false).await,
            Operation::Update => self.send(node, Method::PUT, &one, &request.content, false).await,
            _ => Said::Wrap(outcome(self.as_node(node, ApiCall::get(one)).await), false),
        }
    }

    /// A token for a pod's service account.
    pub(super) async fn token(&self, node: &NodeId, target: Target<'_>, content: &Content) -> Said {
        let Ok(request @ Value::Object(_)) = content.read() else {
            return Said::Refused("the content is no TokenRequest".to_owned());
        };
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", target.namespace, target.name);
        let call = ApiCall::json(Method::POST, path, &request);
        Said::Object(outcome(super::message::into_result(self.call_for_token(node, call).await)))
    }

    /// A token request as the node. The Node authorizer learns of a new pod a little later than we do, so a refusal is not
    /// believed at once while the pod is known to be here (docs/reference/kubernetes.md#authorizer-lag).
    pub(super) async fn call_for_token(&self, node: &NodeId, call: ApiCall) -> Result<Answer, CallError> {
        let request: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let uid = request.pointer("/spec/boundObjectRef/uid").and_then(Value::as_str);
        let uid = uid.and_then(|uid| Uid::parse(uid).ok());
        let deadline = Instant::now() + TOKEN_PATIENCE;
        loop {
            let result = self.kube.call(Caller::Node(node), call.clone()).await;
            let bound = uid.as_ref().is_some_and(|uid| self.down.is_bound(node, uid));
            let early = matches!(&result, Ok(Answer { code: 403 | 404, .. }));
            if !(early && bound) || Instant::now() >= deadline {
                return result;
            }
            tokio::time::sleep(TOKEN_RETRY).await;
        }
    }

    pub(super) async fn event(&self, node: &NodeId, target: Target<'_>, request: &Message) -> Said {
        let all = format!("/api/v1/namespaces/{}/events", target.namespace);
        let one = format!("{all}/{}", target.name);
        let Ok(content @ Value::Object(_)) = request.content.read() else {
            return Said::Refused("the content is no Event".to_owned());
        };
        let call = match request.route.operation {
            Operation::Insert => ApiCall::json(Method::POST, all, &content),
            Operation::Update => ApiCall::json(Method::PUT, one, &content),
            _ => {
                let Some(patch) = content.get("patchData").and_then(Value::as_str) else {
                    return Said::Refused("the content has no patchData".to_owned());
                };
                ApiCall::patch(one, STRATEGIC, patch.to_owned().into())
            }
        };
        done(self.as_node(node, call).await)
    }
}

pub(super) fn done(result: Result<Bytes, Box<StatusError>>) -> Said {
    match result {
        Ok(body) => Said::Done(version_of(&body)),
        Err(error) => Said::Refused(error.message),
    }
}

/// The object is gone, or another one has its name: nothing is left to do for the one that was meant.
pub(super) fn is_settled(error: &StatusError) -> bool {
    matches!(error.code, 404 | 409)
}
