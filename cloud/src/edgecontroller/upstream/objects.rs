//! Messages that take more than one plain call.

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tombolo_proto::message::{Content, Message, Operation, Outcome, StatusError, is_passing};
use tombolo_proto::{NodeId, Uid};

use super::message::{NamespacedName, ReplyContent, STRATEGIC, body_of, malformed, object_call, outcome};
use super::{LABEL_PATIENCE, LABEL_RETRY, LEASE_NAMESPACE, TOKEN_PATIENCE, TOKEN_RETRY, Upstream, labels};
use crate::edgecontroller::written::version_of;
use crate::kube::{Answer, ApiCall, CallError, Caller, TreeError, read_tree};

impl Upstream {
    /// Registers a node. Its Node is created as the node, without the labels that a node may not set. Labels on the
    /// allow-list are then added as cloudcore.
    pub(super) async fn create_node(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        if target.name != node.as_str() {
            let sentence =
                format!("node {node} cannot register node {:?}: a node registers only itself", target.name);
            return ReplyContent::Wrap(Outcome::Failed(StatusError::new(403, "Forbidden", &sentence)), false);
        }
        let (call, granted) = match creation(target, content) {
            Ok(creation) => creation,
            Err(sentence) => return malformed(&sentence),
        };
        let created = self.register(node, call).await;
        let body = match created.and_then(body_of) {
            Ok(body) if granted.is_empty() => body,
            Ok(body) => self.grant_labels(node, &granted.into(), body).await,
            Err(error) => return ReplyContent::Wrap(Outcome::Failed(*error), false),
        };
        self.registered(node, &body);
        ReplyContent::Wrap(outcome(Ok(body)), false)
    }

    /// Adds labels as cloudcore, and retries while the API server is overloaded. The node exists by now, so a failure
    /// is only logged. The node is still an edge node, because it joined through us.
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

    /// Updates labels and annotations of an existing node.
    pub(super) async fn update_node(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        match change(target, content) {
            Ok(call) => done(self.as_node(node, call).await),
            Err(sentence) => ReplyContent::Refused(sentence),
        }
    }

    /// Registers a node unless it exists.
    pub(super) async fn ensure_node(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        let path = format!("/api/v1/nodes/{}", target.name);
        match self.as_node(node, ApiCall::get(path)).await {
            Ok(_) => return ReplyContent::Done(String::new()),
            Err(error) if error.code != 404 => return ReplyContent::Refused(error.message),
            Err(_) => {}
        }
        match self.create_node(node, target, content).await {
            ReplyContent::Wrap(Outcome::Done(_), _) => ReplyContent::Done(String::new()),
            ReplyContent::Wrap(Outcome::Failed(error), _) => ReplyContent::Refused(error.message),
            other => other,
        }
    }

    /// Deletes a pod. The content is `DeleteOptions`, or only the UID, as older edges send it.
    pub(super) async fn delete_pod(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        let path = format!("/api/v1/namespaces/{}/pods/{}", target.namespace, target.name);
        let call = match object_call(Method::DELETE, path.as_str(), content) {
            Some(call) => call,
            None => match content.as_text() {
                Some(uid) if Uid::parse(&uid).is_ok() => {
                    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                    ApiCall::json(Method::DELETE, path, &options)
                }
                _ => {
                    return ReplyContent::Refused(
                        "the content is neither DeleteOptions nor a UID".to_owned(),
                    );
                }
            },
        };
        match self.as_node(node, call).await {
            Ok(_) => ReplyContent::Done(String::new()),
            Err(error) if is_settled(&error) => ReplyContent::Done(String::new()),
            Err(error) => ReplyContent::Refused(error.message),
        }
    }

    pub(super) async fn lease(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        request: &Message,
    ) -> ReplyContent {
        let namespace = if target.namespace.is_empty() { LEASE_NAMESPACE } else { target.namespace };
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let one = format!("{all}/{}", target.name);
        match request.route.operation {
            Operation::Insert => self.send(node, Method::POST, &all, &request.content, false).await,
            Operation::Update => self.send(node, Method::PUT, &one, &request.content, false).await,
            _ => ReplyContent::Wrap(outcome(self.as_node(node, ApiCall::get(one)).await), false),
        }
    }

    /// Requests a token for a pod's service account.
    pub(super) async fn token(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", target.namespace, target.name);
        let Some(call) = object_call(Method::POST, path, content) else {
            return ReplyContent::Refused("the content is not a TokenRequest".to_owned());
        };
        ReplyContent::Object(outcome(super::message::into_result(self.call_for_token(node, call).await)))
    }

    /// Requests a token as the node. The Node authorizer learns of a new pod a little later than cloudcore. So while
    /// the pod is known to be on this node, a refusal is retried for a while
    /// (docs/reference/kubernetes.md#authorizer-lag).
    pub(super) async fn call_for_token(&self, node: &NodeId, call: ApiCall) -> Result<Answer, CallError> {
        let uid = bound_uid(&call.body);
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

    pub(super) async fn event(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        request: &Message,
    ) -> ReplyContent {
        let all = format!("/api/v1/namespaces/{}/events", target.namespace);
        let one = format!("{all}/{}", target.name);
        let call = match request.route.operation {
            Operation::Insert => object_call(Method::POST, all, &request.content),
            Operation::Update => object_call(Method::PUT, one, &request.content),
            _ => match request.content.read::<EventPatch>() {
                Ok(EventPatch { patch_data }) => Some(ApiCall::patch(one, STRATEGIC, patch_data.into())),
                Err(_) => return ReplyContent::Refused("the content has no patchData".to_owned()),
            },
        };
        match call {
            Some(call) => done(self.as_node(node, call).await),
            None => ReplyContent::Refused("the content is not an Event".to_owned()),
        }
    }
}

/// A change of an Event (docs/reference/kubeedge.md#upstream-messages).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventPatch {
    patch_data: String,
}

/// A Node as a node writes it. Its parsed tree is dropped before any wait.
fn node_of(content: &Content) -> Result<Value, String> {
    match read_tree(&content.payload()) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Err(error @ TreeError::TooLarge) => Err(format!("the content is not a usable Node object: {error}")),
        Ok(_) | Err(TreeError::NotJson(_)) => Err("the content is not a Node object".to_owned()),
    }
}

/// The call that creates a node's Node without the labels that a node may not set, and the labels granted to it.
fn creation(target: NamespacedName<'_>, content: &Content) -> Result<(ApiCall, Map<String, Value>), String> {
    let mut object = node_of(content)?;
    let granted = labels::split(&mut object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".to_owned(), target.name.into());
    }
    Ok((ApiCall::json(Method::POST, "/api/v1/nodes", &object), granted))
}

/// The call that changes the labels and annotations of a Node.
fn change(target: NamespacedName<'_>, content: &Content) -> Result<ApiCall, String> {
    let mut object = node_of(content)?;
    labels::split(&mut object);
    let mut part = |name: &str| match object.pointer_mut(&format!("/metadata/{name}")) {
        Some(part) => part.take(),
        None => json!({}),
    };
    let patch = json!({"metadata": {"labels": part("labels"), "annotations": part("annotations")}});
    let path = format!("/api/v1/nodes/{}", target.name);
    Ok(ApiCall::patch(path, STRATEGIC, patch.to_string().into()))
}

/// UID of the pod that a TokenRequest is bound to.
fn bound_uid(request: &[u8]) -> Option<Uid> {
    #[derive(Deserialize)]
    struct TokenRequest {
        spec: Spec,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        bound_object_ref: BoundReference,
    }
    #[derive(Deserialize)]
    struct BoundReference {
        uid: String,
    }
    let request: TokenRequest = serde_json::from_slice(request).ok()?;
    Uid::parse(&request.spec.bound_object_ref.uid).ok()
}

pub(super) fn done(result: Result<Bytes, Box<StatusError>>) -> ReplyContent {
    match result {
        Ok(body) => ReplyContent::Done(version_of(&body)),
        Err(error) => ReplyContent::Refused(error.message),
    }
}

/// The object was deleted, or another one has its name: nothing is left to do for the intended one.
pub(super) fn is_settled(error: &StatusError) -> bool {
    matches!(error.code, 404 | 409)
}
