//! ConfigMaps and Secrets that do not exist and that no pod requires: a KubeEdge edge gets an empty object in their
//! place.
//!
//! Its kubelet skips a missing optional source on the answer "not found". This channel cannot carry that answer: every
//! failure reaches the kubelet as a plain error, so the pod would never start
//! (docs/reference/kubeedge.md#safe-answers). Under a KubeEdge cloud such pods start because the error itself is stored
//! as an object without data.

use serde_json::{Value, json};
use tombolo_proto::frame::{Reply, ReplyBody, RequestBody};
use tombolo_proto::message::{Content, Message, Operation, ResourceType};
use tombolo_proto::session::Lookup;
use tombolo_proto::{NodeId, ObjectKey, references};

use super::{Answered, Received, Upstream, fresh_id, now_millis};
use crate::edgecontroller::NodeObjectCache;
use crate::kube::resources;

impl Upstream {
    /// [`answer`](Self::answer) for a KubeEdge edge.
    pub async fn answer_kubeedge(&self, node: &NodeId, received: Received) -> Answered {
        let request = received.request();
        let id = request.id;
        let asked = match (&request.body, &request.caller_token) {
            (RequestBody::Message(message), None) if self.enabled => config_asked_for(message),
            _ => None,
        };
        // A request for a ConfigMap or Secret has no content, so the copy is small.
        let asked = asked.map(|key| (key, request.body.clone()));
        let empty = || {
            let (key, RequestBody::Message(question)) = asked.as_ref()? else { return None };
            let answer = self.empty_in_place_of(node, key, question)?;
            Some(Reply { id, body: ReplyBody::Message(Box::new(answer)) })
        };
        if let Some(reply) = empty() {
            return Answered { reply, deleted_pods: Vec::new() };
        }
        let mut answered = self.answer(node, received).await;
        // The index may have learned of the absence meanwhile: it reads when the pod arrives, as the edge does.
        let failed = matches!(&answered.reply.body,
            ReplyBody::Message(answer) if answer.route.operation == Operation::Error);
        if failed && let Some(reply) = empty() {
            answered.reply = reply;
        }
        answered
    }

    fn empty_in_place_of(&self, node: &NodeId, key: &ObjectKey, question: &Message) -> Option<Message> {
        let absent = matches!(self.down.lookup(node, key), Lookup::Absent) || references::is_never_there(key);
        if !absent || !self.down.is_optional(node, key) {
            return None;
        }
        let kind = if *key.resource() == resources::secrets() { "Secret" } else { "ConfigMap" };
        let metadata = json!({"name": key.name(), "namespace": key.namespace()});
        let empty = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
        let content = Content::from_value(&empty).ok()?;
        let resource = question.route.resource.clone();
        Some(question.controller_reply(fresh_id(), now_millis(), resource, content))
    }
}

impl NodeObjectCache {
    /// Whether at least one pod on the node refers to this ConfigMap or Secret, and all such pods start without it.
    #[must_use]
    pub fn is_optional(&self, node: &NodeId, key: &ObjectKey) -> bool {
        let pods = match references::is_never_there(key) {
            // References with such a name are not recorded, so every pod that could have one is checked.
            true => self.location.pods_in(node, key.namespace()),
            false => self.location.pods_that_need(node, key),
        };
        !pods.is_empty() && pods.iter().all(|pod| self.starts_without(pod, key))
    }

    fn starts_without(&self, pod: &ObjectKey, key: &ObjectKey) -> bool {
        let Some(pod) = self.present(pod) else { return false };
        let spec: Result<Value, _> = serde_json::from_slice(&pod.body);
        spec.is_ok_and(|spec| references::starts_without(pod.key.namespace(), &spec, key))
    }
}

/// The ConfigMap or Secret that a message requests.
fn config_asked_for(message: &Message) -> Option<ObjectKey> {
    let path = message.route.resource.as_object()?;
    let resource = match (&path.resource_type, &message.route.operation) {
        (ResourceType::ConfigMap, Operation::Query) => resources::configmaps(),
        (ResourceType::Secret, Operation::Query) => resources::secrets(),
        _ => return None,
    };
    Some(ObjectKey::new(resource, path.namespace(), path.name.as_deref()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tombolo_proto::frame::Request;
    use tombolo_proto::message::{Group, MessageId, ObjectPath, Route, Source};
    use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
    use tombolo_proto::{CloudRevision, RequestId, Uid};

    use super::*;
    use crate::edgecontroller::node_object_cache::{Cached, NodeState};

    fn node() -> NodeId {
        NodeId::parse("edge1").expect("a name")
    }

    /// Pods on the node, and a ConfigMap `c` that does not exist.
    fn upstream(pods: &[Value]) -> Upstream {
        let (down, node) = (NodeObjectCache::default(), node());
        let uid = |text: &str| Uid::parse(text).expect("a UID");
        let state = NodeState { joined: true, registered: Some(uid("n")), listed: true, significant: None };
        down.nodes.insert(node.clone(), state);
        for (number, spec) in pods.iter().enumerate() {
            let body = json!({"spec": spec});
            let key = ObjectKey::new(resources::pods(), "d", &format!("p{number}"));
            let version =
                ObjectVersion { uid: uid(key.name()), revision: CloudRevision(1), hash: ContentHash(1) };
            let references = references::of_pod("d", &body);
            down.location.set_pod(&node, &version.uid, &key, &references);
            let object = SharedObject::new(key.clone(), version, body.to_string().into(), references);
            down.objects.insert(key, Cached::Present(Arc::new(object)));
        }
        let missing = ObjectKey::new(resources::configmaps(), "d", "c");
        down.objects.insert(missing, Cached::Absent(CloudRevision(1)));
        let refuses = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            let status =
                r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404,"message":"none"}"#;
            let body = kube::client::Body::from(status.as_bytes().to_vec());
            let answer = http::Response::builder().status(404).body(body).expect("an answer");
            Ok::<_, tower::BoxError>(answer)
        });
        Upstream::new(kube::Client::new(refuses, "d").into(), Arc::new(down))
    }

    async fn ask(name: &str, pods: &[Value]) -> Message {
        let path = ObjectPath::new("d", ResourceType::ConfigMap, name);
        let route = Route::new(Source::Edged, Group::Meta, Operation::Query, path.into());
        let message = Message::new(MessageId::parse("q").expect("an id"), 1, route, Content::null());
        let request = Request {
            id: RequestId(3),
            timeout: Duration::from_secs(1),
            body: RequestBody::Message(Box::new(message)),
            caller_token: None,
        };
        let upstream = upstream(pods);
        let received = upstream.receive(&node(), request);
        let ReplyBody::Message(reply) = upstream.answer_kubeedge(&node(), received).await.reply.body else {
            panic!("a message is answered by one");
        };
        *reply
    }

    fn volume(name: &str, optional: bool) -> Value {
        json!({"volumes": [{"name": "v", "configMap": {"name": name, "optional": optional}}]})
    }

    /// A name that does not exist, and names that no object can have.
    const ABSENT: [&str; 4] = ["c", "C", "a b", "-"];

    #[tokio::test]
    async fn unneeded_absent_object_is_answered_as_empty() {
        for name in ABSENT {
            let reply = ask(name, &[volume(name, true)]).await;
            assert_eq!(reply.route.operation, Operation::Response, "{name}");
            assert_eq!(reply.header.resource_version, "");
            let object: Value = reply.content.read().expect("JSON");
            let metadata = json!({"name": name, "namespace": "d"});
            assert_eq!(object, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
        }
    }

    #[tokio::test]
    async fn absent_object_that_a_pod_needs_is_an_error() {
        for name in ABSENT {
            let volume = |optional| volume(name, optional);
            for pods in [&[volume(true), volume(false)][..], &[volume(false)], &[]] {
                assert_eq!(ask(name, pods).await.route.operation, Operation::Error, "{name}: {pods:?}");
            }
        }
    }
}
