//! The agent's API calls as messages of dialect `kubeedge`, and their answers as those of an API server (reference 5).
//!
//! A stock cloud has a message for what a kubelet does and for nothing else: other calls are refused here.

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::message::{
    Content, Group, LocalPath, Message, MessageId, ObjectPath, Operation, Outcome, ResourcePath,
    ResourceType, Route, Source, StatusError,
};

/// How the answer to a message reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `{"Object": .., "Err": ..}`; the code says what success is.
    Wrapped(u16),
    /// The bare object, or an error.
    Bare,
    /// `OK`, or an error.
    Done,
    /// Nobody answers; the object of the call is taken for the answer.
    Unanswered,
}

/// A call as a message. Id and time are the session's to set.
pub(super) fn message_of(call: &ApiRequest) -> Result<(Message, Form), Box<StatusError>> {
    use {Operation as Op, ResourceType as Type};
    let path = call.path_and_query.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (operation, kind, namespace, name, form) = match (call.method.as_str(), parts.as_slice()) {
        ("GET", ["api", "v1", "nodes", name]) => (Op::Query, Type::Node, "", *name, Form::Bare),
        ("POST", ["api", "v1", "nodes"]) => {
            (Op::Insert, Type::Node, "", name_in(&call.body), Form::Wrapped(201))
        }
        ("PATCH", ["api", "v1", "nodes", name]) => (Op::Update, Type::Node, "", *name, Form::Done),
        ("PATCH", ["api", "v1", "nodes", name, "status"]) => {
            (Op::Patch, Type::NodePatch, "", *name, Form::Wrapped(200))
        }
        ("PATCH", ["api", "v1", "namespaces", namespace, "pods", name, "status"]) => {
            (Op::Patch, Type::PodPatch, *namespace, *name, Form::Wrapped(200))
        }
        ("DELETE", ["api", "v1", "namespaces", namespace, "pods", name]) => {
            (Op::Delete, Type::Pod, *namespace, *name, Form::Done)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "configmaps", name]) => {
            (Op::Query, Type::ConfigMap, *namespace, *name, Form::Bare)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "secrets", name]) => {
            (Op::Query, Type::Secret, *namespace, *name, Form::Bare)
        }
        ("GET", ["api", "v1", "namespaces", namespace, "persistentvolumeclaims", name]) => {
            (Op::Query, Type::PersistentVolumeClaim, *namespace, *name, Form::Bare)
        }
        ("GET", ["api", "v1", "persistentvolumes", name]) => {
            (Op::Query, Type::PersistentVolume, "", *name, Form::Bare)
        }
        ("POST", ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) => {
            (Op::Query, Type::ServiceAccountToken, *namespace, *name, Form::Bare)
        }
        ("POST", ["api", "v1", "namespaces", namespace, "events"]) => {
            (Op::Insert, Type::Event, *namespace, name_in(&call.body), Form::Unanswered)
        }
        ("POST", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"]) => {
            (Op::Insert, Type::Lease, *namespace, name_in(&call.body), Form::Wrapped(201))
        }
        ("PUT", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", name]) => {
            (Op::Update, Type::Lease, *namespace, *name, Form::Wrapped(200))
        }
        ("GET", ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", name]) => {
            (Op::Query, Type::Lease, *namespace, *name, Form::Wrapped(200))
        }
        _ => return Err(no_message(call)),
    };
    let content = content(call, operation == Op::Patch)?;
    Ok((message(operation, ObjectPath::new(namespace, kind, name), content), form))
}

/// A message of the agent about an object.
pub(super) fn message(operation: Operation, path: ObjectPath, content: Content) -> Message {
    let resource = ResourcePath::from(LocalPath::Object(path));
    let route = Route::new(Source::Edged, Group::Meta, operation, resource);
    Message::new(MessageId::from_random_bytes([0; 16]), 0, route, content)
}

/// Patches travel as a text that holds JSON (reference 1.2).
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

/// `metadata.name` of an object that is created; empty when it has none.
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

fn no_message(call: &ApiRequest) -> Box<StatusError> {
    let (method, path) = (&call.method, &call.path_and_query);
    let text = format!("the cloud speaks dialect kubeedge, which has no message for {method} {path}");
    Box::new(StatusError::new(501, "NotImplemented", &text))
}

/// The answer of an API server that a reply stands for.
pub(super) fn answer(form: Form, reply: &Message) -> ApiReply {
    match outcome(form, reply) {
        Ok((code, body)) => ApiReply { code, content_type: JSON.to_owned(), body },
        Err(error) => refusal(&error),
    }
}

fn outcome(form: Form, reply: &Message) -> Result<(u16, Bytes), Box<StatusError>> {
    let unclear = |text: &str| Box::new(StatusError::new(503, "ServiceUnavailable", text));
    if reply.route.operation == Operation::Error {
        return Err(unclear(&reply.content.as_text().unwrap_or_default()));
    }
    match form {
        Form::Wrapped(code) => match Outcome::read(&reply.content) {
            Ok(Outcome::Done(object)) => Ok((code, object.as_json().clone())),
            Ok(Outcome::Failed(error)) => Err(Box::new(error)),
            Err(_) => {
                Err(unclear(&reply.content.as_text().unwrap_or("the cloud's answer has no form".into())))
            }
        },
        Form::Bare => match bare_failure(&reply.content) {
            Some(error) => Err(Box::new(error)),
            None if reply.content.is_object() => Ok((200, reply.content.as_json().clone())),
            None => {
                Err(unclear(&reply.content.as_text().unwrap_or("the cloud's answer is no object".into())))
            }
        },
        Form::Done if reply.content.is_ok() => {
            Ok((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string().into()))
        }
        Form::Done => Err(bare_failure(&reply.content).map_or_else(
            || unclear(&reply.content.as_text().unwrap_or("the cloud refuses".into())),
            Box::new,
        )),
        Form::Unanswered => Ok((201, reply.content.as_json().clone())),
    }
}

/// A stock cloud answers a failed query with the bare error where the object should be (reference 5).
fn bare_failure(content: &Content) -> Option<StatusError> {
    let value: Value = content.read().ok()?;
    let object = value.as_object()?;
    match object.get("ErrStatus") {
        Some(status) => serde_json::from_value(status.clone()).ok(),
        None if object.contains_key("metadata") || object.contains_key("status") => None,
        None => Some(StatusError::new(503, "ServiceUnavailable", "the cloud could not ask its API server")),
    }
}

/// A refusal in the form that Kubernetes clients read.
pub(super) fn refusal(error: &StatusError) -> ApiReply {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": error.message, "reason": error.reason, "code": error.code,
    });
    ApiReply { code: error.code, content_type: JSON.to_owned(), body: body.to_string().into() }
}

const JSON: &str = "application/json";

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, path: &str, body: &str) -> ApiRequest {
        ApiRequest {
            method: method.to_owned(),
            path_and_query: path.to_owned(),
            content_type: String::new(),
            accept: String::new(),
            body: body.to_owned().into(),
        }
    }

    fn reply(operation: Operation, content: &str) -> Message {
        let content = Content::from_json(&Bytes::copy_from_slice(content.as_bytes())).expect(content);
        message(operation, ObjectPath::new("d", ResourceType::Pod, "p"), content)
    }

    #[test]
    fn what_a_kubelet_does_has_a_message() {
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
            let (message, _) = message_of(&call(method, path, body)).expect(path);
            assert_eq!(message.route.operation.as_str(), operation, "{method} {path}");
            assert_eq!(message.route.resource.to_wire(), resource, "{method} {path}");
        }
        let (patch, _) =
            message_of(&call("PATCH", "/api/v1/nodes/n/status", "{\"status\":{}}")).expect("a patch");
        assert_eq!(patch.content.as_json(), "\"{\\\"status\\\":{}}\"", "patches are text");
        for (method, path) in [("GET", "/api/v1/pods"), ("GET", "/version"), ("DELETE", "/api/v1/nodes/n")] {
            let error = message_of(&call(method, path, "")).expect_err(path);
            assert!(error.code == 501 && error.message.contains(path), "{error:?}");
        }
    }

    #[test]
    fn replies_read_as_answers_of_an_api_server() {
        let object = r#"{"metadata":{"name":"p"}}"#;
        let gone = r#"{"ErrStatus":{"message":"gone","reason":"NotFound","code":404}}"#;
        let wrapped = |object: &str, error: &str| format!(r#"{{"Object":{object},"Err":{error}}}"#);
        use Operation::{Error, Response};
        for (form, operation, content, code) in [
            (Form::Wrapped(201), Response, wrapped(object, "null"), 201),
            (Form::Wrapped(200), Response, wrapped("{}", gone), 404),
            (Form::Wrapped(200), Response, wrapped("null", "{}"), 500),
            (Form::Wrapped(200), Error, "\"refused\"".to_owned(), 503),
            (Form::Bare, Response, object.to_owned(), 200),
            (Form::Bare, Response, gone.to_owned(), 404),
            (Form::Bare, Response, "{}".to_owned(), 503),
            (Form::Bare, Response, r#"{"Op":"Get","URL":"x","Err":{}}"#.to_owned(), 503),
            (Form::Done, Response, "\"OK\"".to_owned(), 200),
            (Form::Done, Response, gone.to_owned(), 404),
            (Form::Done, Response, "\"no\"".to_owned(), 503),
        ] {
            let answer = answer(form, &reply(operation.clone(), &content));
            assert_eq!(answer.code, code, "{form:?} {operation:?} {content}");
            if code >= 400 {
                let status: Value = serde_json::from_slice(&answer.body).expect("a Status");
                assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
            }
        }
    }
}
