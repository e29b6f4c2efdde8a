//! Translates the agent's API calls to messages of dialect `kubeedge`, and their answers to those of an API server
//! (docs/reference/kubeedge.md#upstream-messages).
//!
//! A KubeEdge cloud has messages for the calls of a kubelet. Every other call is sent as a MetaServer record.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tombolo_apicore::query::path::decode;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::ids::NodeId;
use tombolo_proto::limits::REQUEST_TIMEOUT_MAX;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourceType, Route, Source,
    StatusError,
};
use tombolo_proto::session::kubeedge::{Kinds, Shape, completed, resource_of};

use super::application;

/// The form of the answer to a call: the shape of the message's answer, and the status code of a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    shape: Shape,
    code: u16,
}

impl Form {
    /// The form of the answer to this message.
    pub(super) fn of(message: &Message) -> Self {
        let shape = Shape::of(message);
        let creates = match shape {
            Shape::Application => application::creates(message),
            _ => message.route.operation == Operation::Insert,
        };
        Self { shape, code: if creates { 201 } else { 200 } }
    }

    /// Whether the cloud answers at all.
    pub(super) fn is_answered(self) -> bool {
        self.shape != Shape::Silent
    }

    /// How long a KubeEdge edge waits for such an answer. A cloud without a dynamic controller does not answer records
    /// (docs/reference/kubeedge.md#application-messages).
    pub(super) fn patience(self) -> Duration {
        match self.shape {
            Shape::Application => application::PATIENCE,
            _ => REQUEST_TIMEOUT_MAX,
        }
    }
}

/// A call as a message. The session sets ID and time. A call without a message of its own is sent as a MetaServer
/// record, which can hold almost any call (docs/reference/kubeedge.md#metaserver).
///
/// # Errors
/// When neither a message nor a record can express the call.
pub(super) fn message_of(call: &ApiRequest, node: &NodeId) -> Result<Message, Box<StatusError>> {
    use {Operation as Op, ResourceType as Type};
    let path = decode(call.path_and_query.split('?').next().unwrap_or_default());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (operation, kind, namespace, name) = match (call.method.as_str(), parts.as_slice()) {
        ("GET", ["api", "v1", "nodes", name]) => (Op::Query, Type::Node, "", *name),
        ("POST", ["api", "v1", "nodes"]) => (Op::Insert, Type::Node, "", name_in(&call.body)),
        ("PATCH", ["api", "v1", "nodes", name]) => (Op::Update, Type::Node, "", *name),
        ("PATCH", ["api", "v1", "nodes", name, "status"]) => (Op::Patch, Type::NodePatch, "", *name),
        ("PATCH", ["api", "v1", "namespaces", namespace, "pods", name, "status"]) => {
            (Op::Patch, Type::PodPatch, *namespace, *name)
        }
        ("DELETE", ["api", "v1", "namespaces", namespace, "pods", name]) => {
            (Op::Delete, Type::Pod, *namespace, *name)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "configmaps", name]) => {
            (Op::Query, Type::ConfigMap, *namespace, *name)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "secrets", name]) => {
            (Op::Query, Type::Secret, *namespace, *name)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "persistentvolumeclaims", name]) => {
            (Op::Query, Type::PersistentVolumeClaim, *namespace, *name)
        }
        ("GET", ["api", "v1", "persistentvolumes", name]) => (Op::Query, Type::PersistentVolume, "", *name),
        ("POST", ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) => {
            (Op::Query, Type::ServiceAccountToken, *namespace, *name)
        }
        ("POST", ["api", "v1", "namespaces", namespace, "events"]) => {
            (Op::Insert, Type::Event, *namespace, name_in(&call.body))
        }
        ("POST", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"]) => {
            (Op::Insert, Type::Lease, *namespace, name_in(&call.body))
        }
        ("PUT", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", name]) => {
            (Op::Update, Type::Lease, *namespace, *name)
        }
        ("GET", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", name]) => {
            (Op::Query, Type::Lease, *namespace, *name)
        }
        _ => return application::message_of(call, node),
    };
    let content = content(call, operation == Op::Patch)?;
    Ok(message(operation, ObjectPath::new(namespace, kind, name), content))
}

/// Creates a message of the agent about an object.
pub(super) fn message(operation: Operation, path: ObjectPath, content: Content) -> Message {
    let route = Route::new(Source::Edged, Group::Meta, operation, path.into());
    Message::new(MessageId::from_random_bytes([0; 16]), 0, route, content)
}

/// Patches are sent as a string that holds JSON (docs/reference/kubeedge.md#content).
fn content(call: &ApiRequest, patch: bool) -> Result<Content, Box<StatusError>> {
    let bad =
        |error: &dyn std::fmt::Display| Box::new(StatusError::new(400, "BadRequest", &error.to_string()));
    if call.body.is_empty() {
        return Ok(Content::null());
    }
    if patch {
        return Ok(Content::text(std::str::from_utf8(&call.body).map_err(|error| bad(&error))?));
    }
    Content::from_json(&call.body).map_err(|error| bad(&error))
}

/// `metadata.name` of an object to create; empty if it has none.
fn name_in(body: &[u8]) -> &str {
    #[derive(serde::Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Metadata<'a> {
        name: &'a str,
    }
    serde_json::from_slice::<Object<'_>>(body).map(|object| object.metadata.name).unwrap_or_default()
}

/// Translates a reply to the answer of an API server. `kinds` are the known kinds of the cluster.
pub(super) fn answer(kinds: &Kinds, form: Form, reply: &Message) -> ApiReply {
    match outcome(kinds, form, reply) {
        Ok((code, body)) => ApiReply { code, content_type: JSON.to_owned(), body },
        Err(error) => ApiReply::refusal(&error),
    }
}

fn outcome(kinds: &Kinds, form: Form, reply: &Message) -> Result<(u16, Bytes), Box<StatusError>> {
    let unclear = |text: &str| Box::new(StatusError::new(503, "ServiceUnavailable", text));
    if reply.route.operation == Operation::Error {
        return Err(unclear(&reply.content.as_text().unwrap_or_default()));
    }
    let sentence =
        |otherwise: &'static str| unclear(&reply.content.as_text().unwrap_or(Cow::Borrowed(otherwise)));
    let word = reply.route.resource.as_object().map(|path| match &path.resource_type {
        ResourceType::PodPatch | ResourceType::PodStatus => ResourceType::Pod,
        ResourceType::NodePatch => ResourceType::Node,
        word => word.clone(),
    });
    let resource = word.and_then(|word| resource_of(&word));
    // Objects that a KubeEdge cloud builds itself lack kind and apiVersion.
    let object = |content: &Content| {
        let body = content.as_json();
        (
            form.code,
            resource.as_ref().map_or_else(|| body.clone(), |resource| completed(kinds, resource, body)),
        )
    };
    match form.shape {
        Shape::Wrap { .. } => match Outcome::read(&reply.content) {
            Ok(Outcome::Done(done)) => Ok(object(&done)),
            Ok(Outcome::Failed(error)) => Err(Box::new(error)),
            Err(_) => Err(sentence("the cloud's answer is malformed")),
        },
        Shape::Object => match bare_failure(&reply.content) {
            Some(error) => Err(Box::new(error)),
            None if reply.content.is_object() => Ok(object(&reply.content)),
            None => Err(sentence("the cloud's answer is not an object")),
        },
        Shape::Done if reply.content.is_ok() => Ok((200, application::success())),
        Shape::Done => {
            Err(bare_failure(&reply.content).map_or_else(|| sentence("the cloud refuses"), Box::new))
        }
        Shape::Application => application::outcome(kinds, &reply.content).map(|body| (form.code, body)),
        Shape::Silent => Ok(object(&reply.content)),
        Shape::List | Shape::CaCertificate | Shape::WatchSync | Shape::ServiceBus | Shape::Unknown => {
            Err(sentence("the cloud's answer has an unexpected form"))
        }
    }
}

/// A KubeEdge cloud answers a failed query with the bare error where the object should be
/// (docs/reference/kubeedge.md#upstream-messages).
fn bare_failure(content: &Content) -> Option<StatusError> {
    let value: Value = content.read().ok()?;
    let object = value.as_object()?;
    match object.get("ErrStatus") {
        Some(status) => serde_json::from_value(status.clone()).ok(),
        None if object.contains_key("metadata") || object.contains_key("status") => None,
        None => Some(StatusError::new(503, "ServiceUnavailable", "the cloud could not reach its API server")),
    }
}

const JSON: &str = "application/json";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(method: &str, path: &str, body: &str) -> ApiRequest {
        ApiRequest { body: body.to_owned().into(), ..ApiRequest::new(method, path) }
    }

    fn node() -> NodeId {
        NodeId::parse("n").expect("a node")
    }

    fn reply(operation: Operation, content: &str) -> Message {
        let content = Content::from_json(&Bytes::copy_from_slice(content.as_bytes())).expect(content);
        message(operation, ObjectPath::new("d", ResourceType::Pod, "p"), content)
    }

    #[test]
    fn every_kubelet_call_has_a_message() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let named = r#"{"metadata":{"name":"n"}}"#;
        for (method, path, body, operation, resource) in [
            ("GET", "/api/v1/nodes/n", "", "query", "null/node/n"),
            ("POST", "/api/v1/nodes", named, "insert", "null/node/n"),
            ("PATCH", "/api/v1/nodes/n", named, "update", "null/node/n"),
            ("PATCH", "/api/v1/nodes/n/status", "{}", "patch", "null/nodepatch/n"),
            ("PATCH", "/api/v1/namespaces/d/pods/p/status", "{}", "patch", "d/podpatch/p"),
            ("DELETE", "/api/v1/namespaces/d/pods/p", "{}", "delete", "d/pod/p"),
            ("GET", "/api/v1/namespaces/d/configmaps/c", "", "query", "d/configmap/c"),
            ("GET", "/api/v1/namespaces/d/secrets/s?x=y", "", "query", "d/secret/s"),
            ("GET", "/api/v1/namespaces/d/secrets/a%20b", "", "query", "d/secret/a b"),
            (
                "POST",
                "/api/v1/namespaces/d/serviceaccounts/a/token",
                "{}",
                "query",
                "d/serviceaccounttoken/a",
            ),
            ("POST", lease, named, "insert", "kube-node-lease/lease/n"),
            ("POST", "/api/v1/namespaces/d/events", named, "insert", "d/event/n"),
        ] {
            let message = message_of(&call(method, path, body), &node()).expect(path);
            assert_eq!(message.route.operation.as_str(), operation, "{method} {path}");
            assert_eq!(message.route.resource.to_wire(), resource, "{method} {path}");
        }
        let patch = call("PATCH", "/api/v1/nodes/n/status", "{\"status\":{}}");
        let patch = message_of(&patch, &node()).expect("a patch");
        assert_eq!(patch.content.as_json(), "\"{\\\"status\\\":{}}\"", "patches are text");
    }

    /// Fields that Go's typed encoders leave out are filled in, both on disk and in the answer to the client.
    #[tokio::test]
    async fn typed_objects_are_stored_and_answered_with_their_kind() {
        use tombolo_apicore::store::Store as _;
        use tombolo_proto::ids::{CloudRevision, Epoch, SubscriptionId, Uid};
        use tombolo_proto::kubeedge;
        use tombolo_proto::session::kubeedge::Down;

        use crate::store::{Delivery, FaultyDisk, LogBounds, Sealer, Store, Welcome};

        let frame = json!({
            "header": {"msg_id": "m", "timestamp": 1, "resourceversion": "77"},
            "route": {
                "source": "dynamiccontroller", "group": "resource", "operation": "insert",
                "resource": "default/configmap/app",
            },
            "content": {
                "metadata": {"name": "app", "namespace": "default", "uid": "u", "resourceVersion": "77", "creationTimestamp": null},
                "data": null,
            },
        });
        let message = kubeedge::decode(&frame.to_string().into()).expect("a message");
        let told = Down::of(&Kinds::default(), message);
        let Down::Deliver(message, change) = told else { panic!("{told:?}") };
        let disk = Box::new(FaultyDisk::new(71));
        let store = Store::open_on(disk, Sealer::new(&[9; 32]), LogBounds::default()).expect("a store").store;
        let epoch = Epoch { cluster: Uid::parse("kubeedge").expect("a UID"), generation: 0 };
        let welcome = Welcome { epoch: epoch.clone(), resumed: false, trim_version: 0 };
        store.welcome(welcome).await.expect("written");
        let key = change.key().clone();
        let stored = store
            .apply(vec![Delivery { subscription: SubscriptionId::NODE, change }])
            .await
            .expect("written");
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        store.caught_up(SubscriptionId::NODE, epoch, CloudRevision(77)).await.expect("written");
        let held = store.get(&key).expect("readable").expect("there");
        let held: Value = serde_json::from_slice(&held.body()).expect("JSON");
        assert_eq!((&held["kind"], &held["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
        let form = Form { shape: Shape::Object, code: 200 };
        let answered: Value =
            serde_json::from_slice(&answer(&Kinds::default(), form, &message).body).expect("JSON");
        assert_eq!((&answered["kind"], &answered["data"]), (&json!("ConfigMap"), &Value::Null));
    }

    #[test]
    fn replies_read_as_answers_of_an_api_server() {
        let object = r#"{"metadata":{"name":"p"}}"#;
        let gone = r#"{"ErrStatus":{"message":"gone","reason":"NotFound","code":404}}"#;
        let wrapped = |object: &str, error: &str| format!(r#"{{"Object":{object},"Err":{error}}}"#);
        use Operation::{Error, Response};
        let changed = |code| Form { shape: Shape::Wrap { empty_object: true }, code };
        let [read, done] = [Shape::Object, Shape::Done].map(|shape| Form { shape, code: 200 });
        for (form, operation, content, code) in [
            (changed(201), Response, wrapped(object, "null"), 201),
            (changed(200), Response, wrapped("{}", gone), 404),
            (changed(200), Response, wrapped("null", "{}"), 500),
            (changed(200), Error, "\"refused\"".to_owned(), 503),
            (read, Response, object.to_owned(), 200),
            (read, Response, gone.to_owned(), 404),
            (read, Response, "{}".to_owned(), 503),
            (read, Response, r#"{"Op":"Get","URL":"x","Err":{}}"#.to_owned(), 503),
            (done, Response, "\"OK\"".to_owned(), 200),
            (done, Response, gone.to_owned(), 404),
            (done, Response, "\"no\"".to_owned(), 503),
        ] {
            let answer = answer(&Kinds::default(), form, &reply(operation.clone(), &content));
            assert_eq!(answer.code, code, "{form:?} {operation:?} {content}");
            if code >= 400 {
                let status: Value = serde_json::from_slice(&answer.body).expect("a Status");
                assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
            }
        }
    }
}
