//! KubeEdge's messages (docs/reference/kubeedge.md#upstream-messages): maps each to an API call, and builds its reply.

use bytes::Bytes;
use http::Method;
use tombolo_proto::message::{
    Content, Group, Message, ObjectPath, Operation, Outcome, ResourcePath, ResourceType, StatusError,
};
use tombolo_proto::{NodeId, ObjectKey};

use super::outcome::{status_of, status_of_failure};
use super::position::Position;
use super::{Upstream, fresh_id, now_millis};
use crate::edgecontroller::written::version_of;
use crate::kube::{
    Answer, ApiCall, CallError, TreeError, is_large, is_object, is_path_segment, path_of, resources,
};

/// The target of a request: checked segments of its resource path.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamespacedName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// The content of a reply, before it is put into a message.
#[derive(Debug)]
pub(super) enum ReplyContent {
    /// `{"Object": .., "Err": ..}`; the flag tells whether the header names the object's version.
    Wrap(Outcome, bool),
    /// The object itself, or an error.
    Object(Outcome),
    /// `"OK"`, with the version of the written object.
    Done(String),
    /// `"OK"` for a report of pods; the listed pods no longer exist.
    DeletedPods(Vec<ObjectKey>),
    /// A bare list of objects.
    List(Content),
    /// A text.
    Text(String),
    /// A sentence that explains the refusal.
    Refused(String),
}

impl Upstream {
    /// The answer, and the reported pods that no longer exist.
    pub(super) async fn answer_message(
        &self,
        node: &NodeId,
        request: Message,
        position: Option<&Position>,
    ) -> (Message, Vec<ObjectKey>) {
        match self.run(node, &request, position).await {
            ReplyContent::DeletedPods(pods) => (reply(&request, ReplyContent::Done(String::new())), pods),
            said => (reply(&request, said), Vec::new()),
        }
    }

    async fn run(&self, node: &NodeId, request: &Message, position: Option<&Position>) -> ReplyContent {
        if request.route.resource == ResourcePath::CaCertificate {
            return self.ca_certificate(node).await;
        }
        let path = match object_of(request) {
            Ok(path) => path,
            Err(sentence) => return ReplyContent::Refused(sentence),
        };
        let (namespace, name) = (path.namespace(), path.name.as_deref().unwrap_or_default());
        let (target, content) = (NamespacedName { namespace, name }, &request.content);
        use {Operation as Op, ResourceType as Type};
        match (&path.resource_type, &request.route.operation) {
            (Type::Node, Op::Insert) => self.create_node(node, target, content).await,
            (Type::Node, Op::Update) => self.update_node(node, target, content).await,
            (Type::Node, Op::Query) => self.read(node, &format!("/api/v1/nodes/{name}")).await,
            (Type::NodeStatus, Op::Insert) => self.ensure_node(node, target, content).await,
            (Type::NodeStatus, Op::Update) => self.update_node_status(node, target, content, position).await,
            (Type::NodePatch, _) => {
                self.patch_status(node, &format!("/api/v1/nodes/{name}/status"), content, position).await
            }
            (Type::PodList, Op::Query) => self.list_pods(node).await,
            (Type::PodPatch, _) => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
                self.patch_status(node, &path, content, position).await
            }
            (Type::PodStatus, Op::Update) => self.update_pod_status(node, target, content, position).await,
            (Type::Pod, Op::Insert) => {
                let path = format!("/api/v1/namespaces/{namespace}/pods");
                self.send(node, Method::POST, &path, content, true).await
            }
            (Type::Pod, Op::Delete) => self.delete_pod(node, target, content).await,
            (Type::Lease, Op::Insert | Op::Update | Op::Query) => self.lease(node, target, request).await,
            (Type::ConfigMap, Op::Query) => {
                self.read(node, &path_of(&resources::configmaps(), namespace, name)).await
            }
            (Type::Secret, Op::Query) => {
                self.read(node, &path_of(&resources::secrets(), namespace, name)).await
            }
            (Type::ServiceAccountToken, Op::Query) => self.token(node, target, content).await,
            (Type::PersistentVolume, Op::Query) => {
                self.read(node, &format!("/api/v1/persistentvolumes/{name}")).await
            }
            (Type::PersistentVolumeClaim, Op::Query) => {
                let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
                self.read(node, &path).await
            }
            (Type::VolumeAttachment, Op::Query) => {
                self.read(node, &format!("/apis/storage.k8s.io/v1/volumeattachments/{name}")).await
            }
            (Type::CertificateSigningRequest, Op::Insert) => {
                let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
                self.send(node, Method::POST, path, content, false).await
            }
            (Type::CertificateSigningRequest, Op::Query) => {
                let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}");
                self.read(node, &path).await
            }
            (Type::RuleStatus, Op::Update) => self.rule_status(node, target, content).await,
            (Type::Event, Op::Insert | Op::Update | Op::Patch) => self.event(node, target, request).await,
            (kind, operation) => ReplyContent::Refused(format!(
                "unknown operation: {:?} of {:?} is not supported",
                operation.as_str(),
                kind.as_str()
            )),
        }
    }

    /// One call as the node.
    pub(super) async fn as_node(&self, node: &NodeId, call: ApiCall) -> Result<Bytes, Box<StatusError>> {
        into_result(self.kube.call_as_edge_node(node, call).await)
    }

    /// Reads one object as the node.
    pub(super) async fn read(&self, node: &NodeId, path: &str) -> ReplyContent {
        ReplyContent::Object(outcome(self.as_node(node, ApiCall::get(path)).await))
    }

    /// Writes the message's object as the node.
    pub(super) async fn send(
        &self,
        node: &NodeId,
        method: Method,
        path: &str,
        content: &Content,
        versioned: bool,
    ) -> ReplyContent {
        let Some(call) = object_call(method, path, content) else {
            return malformed("the content is not an object");
        };
        ReplyContent::Wrap(outcome(self.as_node(node, call).await), versioned)
    }

    /// Applies a strategic merge patch whose text is the message's content.
    async fn patch_status(
        &self,
        node: &NodeId,
        path: &str,
        content: &Content,
        position: Option<&Position>,
    ) -> ReplyContent {
        // The API server accepts `null` as a patch that changes nothing.
        let payload = content.payload();
        if is_large(&payload) {
            return malformed(&format!("invalid patch: {}", TreeError::TooLarge));
        }
        if !is_object(&payload) {
            return malformed("the content is not a patch: expected a JSON object or its text");
        }
        let patch = Bytes::from(payload.into_owned());
        let call = ApiCall::patch(path, STRATEGIC, patch);
        ReplyContent::Wrap(outcome(into_result(self.patch_in_order(node, position, call).await)), true)
    }
}

/// The object that a request concerns. The path must identify one object of the API.
fn object_of(request: &Message) -> Result<&ObjectPath, String> {
    let route = &request.route;
    let is_task = matches!(route.resource, ResourcePath::NodeTask { .. } | ResourcePath::LegacyTask { .. });
    if is_task {
        return Err("this cloud runs no node tasks: the report is discarded".to_owned());
    }
    if route.group == Group::User {
        return Err("this cloud has no router: the message is discarded".to_owned());
    }
    let wire = || route.resource.to_wire();
    let path = route.resource.as_object().ok_or_else(|| format!("resource {:?} names no object", wire()))?;
    let segments = [path.namespace(), path.name.as_deref().unwrap_or_default()];
    if segments.iter().any(|segment| !segment.is_empty() && !is_path_segment(segment)) {
        return Err("namespace and name must be Kubernetes names".to_owned());
    }
    let named_there =
        path.resource_type == ResourceType::CertificateSigningRequest && route.operation == Operation::Insert;
    if segments[1].is_empty() && !named_there && !is_of_many(&path.resource_type) {
        return Err(format!("resource {:?} names no object: it must be NAMESPACE/TYPE/NAME", wire()));
    }
    if segments[0].is_empty() && is_namespaced(&path.resource_type) {
        return Err(format!("resource {:?} lacks the namespace of its object", wire()));
    }
    Ok(path)
}

/// Whether a request can concern all objects of a type.
fn is_of_many(kind: &ResourceType) -> bool {
    matches!(kind, ResourceType::PodStatus | ResourceType::PodList)
}

/// Whether objects of this type exist only in namespaces.
fn is_namespaced(kind: &ResourceType) -> bool {
    use ResourceType as Type;
    matches!(
        kind,
        Type::Pod
            | Type::PodPatch
            | Type::PodStatus
            | Type::ConfigMap
            | Type::Secret
            | Type::ServiceAccountToken
            | Type::PersistentVolumeClaim
            | Type::Event
            | Type::RuleStatus
    )
}

/// A call with the message's object, as its exact text. `None` if the content is not an object.
pub(super) fn object_call(method: Method, path: impl Into<String>, content: &Content) -> Option<ApiCall> {
    let payload = content.payload();
    is_object(&payload).then(|| ApiCall::json_text(method, path, payload.into_owned().into()))
}

/// The answer to a change whose content is unusable.
pub(super) fn malformed(sentence: &str) -> ReplyContent {
    ReplyContent::Wrap(Outcome::Failed(StatusError::new(400, "BadRequest", sentence)), false)
}

/// Content type of Kubernetes' own patches.
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The API server's body, or its refusal.
pub(super) fn into_result(answer: Result<Answer, CallError>) -> Result<Bytes, Box<StatusError>> {
    answer.map_err(|error| Box::new(status_of_failure(&error))).and_then(body_of)
}

/// The body of an answer, or its refusal.
pub(super) fn body_of(answer: Answer) -> Result<Bytes, Box<StatusError>> {
    if answer.is_success() { Ok(answer.body) } else { Err(Box::new(status_of(&answer))) }
}

/// Converts a result to the form of replies.
pub(super) fn outcome(result: Result<Bytes, Box<StatusError>>) -> Outcome {
    match result {
        Err(error) => Outcome::Failed(*error),
        Ok(body) => match Content::from_json(&body) {
            Ok(content) => Outcome::Done(content),
            Err(error) => Outcome::Failed(StatusError::new(500, "InternalError", &error.to_string())),
        },
    }
}

fn reply(request: &Message, said: ReplyContent) -> Message {
    let resource = reply_resource(&request.route.resource);
    let with = |content: Content, revision: &str| {
        request
            .controller_reply(fresh_id(), now_millis(), resource.clone(), content)
            .with_resource_version(revision)
    };
    match said {
        ReplyContent::Wrap(outcome, versioned) => {
            let revision = match &outcome {
                Outcome::Done(object) if versioned => version_of(object.as_json()),
                _ => String::new(),
            };
            with(outcome.to_content(), &revision)
        }
        ReplyContent::Object(Outcome::Done(object)) => {
            let revision = version_of(object.as_json());
            with(object, &revision)
        }
        // A KubeEdge edge stores whatever a response contains as the object, so a failure must be an error message
        // (docs/reference/kubeedge.md#safe-answers).
        ReplyContent::Object(Outcome::Failed(error)) => {
            request.controller_error(fresh_id(), now_millis(), &error.message)
        }
        ReplyContent::Done(revision) => with(Content::ok(), &revision),
        ReplyContent::DeletedPods(_) => with(Content::ok(), ""),
        ReplyContent::List(objects) => with(objects, ""),
        ReplyContent::Text(text) => with(Content::text(&text), ""),
        ReplyContent::Refused(sentence) => request.controller_error(fresh_id(), now_millis(), &sentence),
    }
}

/// Replies to `nodestatus` name the node (docs/reference/kubeedge.md#upstream-messages); all others name the requested
/// resource.
fn reply_resource(resource: &ResourcePath) -> ResourcePath {
    let mut resource = resource.clone();
    if let ResourcePath::Object(object) = &mut resource
        && object.resource_type == ResourceType::NodeStatus
    {
        object.resource_type = ResourceType::Node;
    }
    resource
}
