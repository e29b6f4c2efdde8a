//! Answers that need no call: objects that a pod on the node refers to and that are in memory (design 9.4).

use tombolo_proto::frame::{Reply, ReplyBody, Request, RequestBody};
use tombolo_proto::message::{Message, Operation, ResourceType};
use tombolo_proto::{NodeId, ObjectKey};

use super::{Upstream, fresh_id, now_millis};
use crate::kube::resources;

impl Upstream {
    /// Answers a query for a ConfigMap or Secret from the bytes that deliveries share, at once; none when the node
    /// has no claim to the object, the cache does not know it, or anything else is asked: then
    /// [`answer`](Self::answer) is due, and the rights are the API server's to judge.
    #[must_use]
    pub fn answer_from_memory(&self, node: &NodeId, request: &Request) -> Option<Reply> {
        let Request { id, body: RequestBody::Message(message), caller_token: None, .. } = request else {
            return None;
        };
        let body = ReplyBody::Message(Box::new(self.held_config(node, message)?));
        Some(Reply { id: *id, body })
    }

    fn held_config(&self, node: &NodeId, request: &Message) -> Option<Message> {
        let path = request.route.resource.as_object()?;
        if request.route.operation != Operation::Query {
            return None;
        }
        let resource = match &path.resource_type {
            ResourceType::ConfigMap => resources::configmaps(),
            ResourceType::Secret => resources::secrets(),
            _ => return None,
        };
        let key = ObjectKey::new(resource, path.namespace(), path.name.as_deref()?);
        let object = self.down.held_for(node, &key)?;
        let resource = request.route.resource.clone();
        let reply = request.controller_reply(fresh_id(), now_millis(), resource, object.with_revision()?);
        Some(reply.with_resource_version(&object.version.revision.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};
    use tombolo_proto::message::{Content, Group, MessageId, ObjectPath, Route, Source};
    use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
    use tombolo_proto::{CloudRevision, RequestId, Uid};

    use super::*;
    use crate::edgecontroller::Downstream;
    use crate::edgecontroller::downstream::{Cached, NodeState};

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    /// A secret that a pod on the node `near` refers to, and a pod that refers to something absent.
    fn upstream() -> Upstream {
        let down = Downstream::default();
        let uid = Uid::parse("u").expect("a UID");
        let key = |resource, name| ObjectKey::new(resource, "d", name);
        let (held, absent) = (key(resources::secrets(), "s"), key(resources::configmaps(), "missing"));
        for name in ["near", "far"] {
            let state =
                NodeState { joined: true, registered: Some(uid.clone()), listed: true, significant: None };
            down.nodes.insert(node(name), state);
        }
        let pod = key(resources::pods(), "p");
        down.location.set_pod(&node("near"), &uid, &pod, &[held.clone(), absent.clone()]);
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        let body = r#"{"kind":"Secret","metadata":{"name":"s"}}"#.into();
        let object = SharedObject::new(held.clone(), version, body, Vec::new());
        down.objects.insert(held, Cached::Present(Arc::new(object)));
        down.objects.insert(absent, Cached::Absent(CloudRevision(7)));
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, tower::BoxError>("memory asks nobody".into())
        });
        Upstream::new(kube::Client::new(nobody, "d").into(), Arc::new(down))
    }

    fn request(operation: Operation, kind: ResourceType, name: &str, token: Option<&str>) -> Request {
        let route =
            Route::new(Source::Edged, Group::Meta, operation, ObjectPath::new("d", kind, name).into());
        let id = MessageId::parse("question").expect("an id");
        Request {
            id: RequestId(3),
            timeout: Duration::from_secs(1),
            body: RequestBody::Message(Box::new(Message::new(id, 1, route, Content::null()))),
            caller_token: token.map(str::to_owned),
        }
    }

    #[tokio::test]
    async fn a_reference_is_the_right_to_the_shared_bytes() {
        let request = request(Operation::Query, ResourceType::Secret, "s", None);
        let reply = upstream().answer_from_memory(&node("near"), &request).expect("held");
        let ReplyBody::Message(message) = reply.body else { panic!("a message") };
        assert_eq!((reply.id, message.route.operation.clone()), (RequestId(3), Operation::Response));
        assert_eq!(message.header.parent, Some(MessageId::parse("question").expect("an id")));
        assert_eq!(message.header.resource_version, "7");
        let object: Value = message.content.read().expect("JSON");
        assert_eq!(object, json!({"kind": "Secret", "metadata": {"name": "s", "resourceVersion": "7"}}));
    }

    #[tokio::test]
    async fn everything_else_is_left_to_the_api_server() {
        use {Operation as Op, ResourceType as Type};
        let upstream = upstream();
        for (at, operation, kind, name, token) in [
            ("far", Op::Query, Type::Secret, "s", None),
            ("unknown", Op::Query, Type::Secret, "s", None),
            ("near", Op::Query, Type::Secret, "other", None),
            ("near", Op::Query, Type::ConfigMap, "s", None),
            ("near", Op::Query, Type::ConfigMap, "missing", None),
            ("near", Op::Query, Type::Pod, "s", None),
            ("near", Op::Delete, Type::Secret, "s", None),
            ("near", Op::Query, Type::Secret, "s", Some("token")),
        ] {
            let request = request(operation.clone(), kind.clone(), name, token);
            let reply = upstream.answer_from_memory(&node(at), &request);
            assert!(reply.is_none(), "{at} {operation:?} {kind:?} {name} {token:?}");
        }
    }
}
