//! Answers that need no API call: objects in memory that a pod on the node refers to
//! (docs/security.md#what-a-node-may-do).

use std::sync::Arc;

use tombolo_proto::frame::{Reply, ReplyBody, Request, RequestBody};
use tombolo_proto::message::{Message, Operation, ResourceType};
use tombolo_proto::{NodeId, ObjectKey, RequestId, SharedObject};

use super::{Upstream, fresh_id, now_millis};
use crate::kube::resources;

impl Upstream {
    /// The requested ConfigMap or Secret, from memory. `None` when the node has no claim to the object, the cache does
    /// not know it, or anything else is requested. Then call [`answer`](Self::answer), where the API server authorizes
    /// the request.
    #[must_use]
    pub fn held_in_memory(&self, node: &NodeId, request: &Request) -> Option<Arc<SharedObject>> {
        let Request { body: RequestBody::Message(message), caller_token: None, .. } = request else {
            return None;
        };
        let path = message.route.resource.as_object()?;
        if message.route.operation != Operation::Query {
            return None;
        }
        let resource = match &path.resource_type {
            ResourceType::ConfigMap => resources::configmaps(),
            ResourceType::Secret => resources::secrets(),
            _ => return None,
        };
        let key = ObjectKey::new(resource, path.namespace(), path.name.as_deref()?);
        self.down.held_for(node, &key)
    }
}

/// The answer with such an object, as a message of its own. `None` when the request is not a message, or the object has
/// no place for its version.
#[must_use]
pub fn reply_with(id: RequestId, request: &RequestBody, object: &SharedObject) -> Option<Reply> {
    let RequestBody::Message(request) = request else { return None };
    let resource = request.route.resource.clone();
    let reply = request.controller_reply(fresh_id(), now_millis(), resource, object.with_revision()?);
    let reply: Message = reply.with_resource_version(&object.version.revision.to_string());
    Some(Reply { id, body: ReplyBody::Message(Box::new(reply)) })
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
    use crate::edgecontroller::NodeObjectCache;
    use crate::edgecontroller::node_object_cache::{Cached, NodeState};

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    /// A Secret to which a pod on the node `near` refers, and a pod that refers to an absent object.
    fn upstream() -> Upstream {
        let down = NodeObjectCache::default();
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
    async fn reference_grants_access_to_the_cached_object() {
        let request = request(Operation::Query, ResourceType::Secret, "s", None);
        let object = upstream().held_in_memory(&node("near"), &request).expect("held");
        let reply = reply_with(request.id, &request.body, &object).expect("an object");
        let ReplyBody::Message(message) = reply.body else { panic!("a message") };
        assert_eq!((reply.id, message.route.operation.clone()), (RequestId(3), Operation::Response));
        assert_eq!(message.header.parent, Some(MessageId::parse("question").expect("an id")));
        assert_eq!(message.header.resource_version, "7");
        let object: Value = message.content.read().expect("JSON");
        assert_eq!(object, json!({"kind": "Secret", "metadata": {"name": "s", "resourceVersion": "7"}}));
    }

    #[tokio::test]
    async fn other_reads_are_left_to_the_api_server() {
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
            let object = upstream.held_in_memory(&node(at), &request);
            assert!(object.is_none(), "{at} {operation:?} {kind:?} {name} {token:?}");
        }
    }
}
