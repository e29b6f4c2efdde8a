//! Keeps status writes of a node in the order in which the node made them, whichever cloudcore replica receives them.
//!
//! A patch that waits, here or in the API server, may outlive its connection. By the time it runs, the node may have
//! reported newer state through another replica. So the patch names the version of the object that was known when the
//! patch was received, and the API server refuses it if the object was written since.
//!
//! After such a conflict the patch is retried on the present object in two cases. First, if the status is exactly the
//! one known then, heartbeats included: others wrote the object beside its status, as controllers taint a Node and
//! users delete a pod. Second, if no kubelet has reported the pod yet: there is nothing newer to overwrite. If nothing
//! was known of the object, the present version must be older than something that was known. In all other cases the
//! node, if still connected, gets the conflict and reports again.
//!
//! The same applies to reports of older edges, from which cloudcore builds patches itself, and to calls of MetaServer.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tombolo_apicore::query::path::{Target, target};
use tombolo_proto::frame::{Request, RequestBody};
use tombolo_proto::message::{Message, ResourceType, StatusError};
use tombolo_proto::session::kubeedge::{Application, Up};
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Resource};

use super::Upstream;
use super::application::{take_record, written_at};
use super::member::with_member;
use super::position::Position;
use crate::edgecontroller::written::{Known, Order, StatusHash, is_acknowledged};
use crate::kube::{Answer, ApiCall, CallError, Caller, path_of, query_value, resources};
use crate::turns::{Queued, Turn};

/// Status code of a write that names an outdated version.
const CONFLICT: u16 = 409;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

/// How often a patch is retried because others wrote beside the status. Beyond that, permanent writers win.
const REPEATS_MAX: usize = 5;

/// Reports of one node about one object run one after the other, and so do those whose content names the objects.
pub(super) type ReportQueueKey = (NodeId, Option<ObjectKey>);

/// A request, and what was known when it arrived.
#[derive(Debug)]
pub struct Received {
    pub(super) request: Request,
    pub(super) position: Option<Position>,
    /// Its position behind the node's earlier reports of the same object.
    queued: Option<Queued<ReportQueueKey>>,
    /// The record of a MetaServer request, taken out of the content of its message.
    pub(super) record: Option<Result<Application, String>>,
}

impl Received {
    /// The request.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Waits until the node's earlier reports of the same object are answered or abandoned. Called before other waits.
    pub(super) async fn turn(
        &mut self,
        patience: Duration,
    ) -> Result<Option<Turn<ReportQueueKey>>, CallError> {
        let Some(queued) = self.queued.take() else { return Ok(None) };
        let turn = tokio::time::timeout(patience, queued.turn()).await;
        turn.map_err(|_| CallError::TimedOut(patience))
    }
}

impl Upstream {
    /// Accepts a request of a node, before it waits for anything.
    #[must_use]
    pub fn receive(&self, node: &NodeId, mut request: Request) -> Received {
        let is_own = request.caller_token.is_none();
        let record = match &mut request.body {
            RequestBody::Message(message) if is_own && Up::is_application(message) => {
                Some(take_record(message))
            }
            RequestBody::Message(_) | RequestBody::Api(_) => None,
        };
        let written = match (&request.body, &record) {
            _ if !is_own => None,
            (_, Some(record)) => {
                let path = record.as_ref().ok().and_then(written_at);
                path.as_deref().and_then(written_by_call).map(Some)
            }
            (RequestBody::Message(message), None) => written_by_message(message),
            (RequestBody::Api(call), None) if ["PATCH", "PUT"].contains(&&*call.method) => {
                written_by_call(&call.path_and_query).map(Some)
            }
            (RequestBody::Api(_), None) => None,
        };
        let queued = written.as_ref().map(|key| self.lines.queue((node.clone(), key.clone()), 1));
        let position = written.map(|key| Position {
            about: key.map(|key| (key.clone(), self.down.known(&key))),
            seen: self.down.seen(),
            order: self.down.received(),
        });
        Received { request, position, queued, record }
    }

    /// Checks whether a status may overwrite the present object. If not, the next report may.
    ///
    /// # Errors
    /// The conflict.
    pub(super) async fn may_follow(
        &self,
        node: &NodeId,
        position: Option<&Position>,
        key: &ObjectKey,
        object: &[u8],
    ) -> Result<(), Box<StatusError>> {
        let Some(position) = position else { return Ok(()) };
        if self.is_older(node, position, (key, object), self.known_to(position, key)).await {
            return Ok(());
        }
        self.note_written(key, Known::of(object), None);
        let sentence = format!("{key} was written after this report arrived: report the current state");
        Err(Box::new(StatusError::new(CONFLICT, "Conflict", &sentence)))
    }

    /// What a report knows of an object: what was known when it arrived, and what the node's earlier reports have
    /// written since.
    fn known_to(&self, position: &Position, key: &ObjectKey) -> Known {
        let known = position.known(key);
        match self.down.written_before(key, position.order) {
            Some(written) => Known { revision: written.revision.max(known.revision), ..written },
            None => known,
        }
    }

    /// Whether the present object, as far as its status is concerned, existed already when the report with this
    /// knowledge arrived.
    async fn is_older(
        &self,
        node: &NodeId,
        position: &Position,
        (key, object): (&ObjectKey, &[u8]),
        known: Known,
    ) -> bool {
        let there = Known::of(object);
        let then = known.revision.unwrap_or(position.seen);
        let Some(revision) = there.revision else { return false };
        if revision <= then || is_unreported(key, object) {
            return true;
        }
        // A watch shows versions but not the status: the first reports to a cloudcore meet an unknown version.
        there.status.is_some()
            && (there.status == known.status || there.status == self.status_at(node, key, then).await)
    }

    /// The status that an object had when this revision was the newest. `None` when the API server does not return it;
    /// it remembers only a few minutes.
    async fn status_at(&self, node: &NodeId, key: &ObjectKey, revision: CloudRevision) -> Option<StatusHash> {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(borrow)]
            items: [&'a RawValue; 1],
        }
        if revision == CloudRevision(0) {
            return None;
        }
        let all = path_of(key.resource(), key.namespace(), "");
        let name = query_value(key.name());
        let query = format!(
            "fieldSelector=metadata.name%3D{name}&resourceVersion={revision}&resourceVersionMatch=Exact"
        );
        let call = ApiCall::get(format!("{all}?{query}"));
        let answer = self.kube.call(Caller::OwnFor(node), call).await.ok().filter(Answer::is_success)?;
        let list: List<'_> = serde_json::from_slice(&answer.body).ok()?;
        Known::of(list.items[0].get().as_bytes()).status
    }

    /// Runs a patch of a status as the node, on the version that was known when the patch was received. The report about
    /// a pod that is no longer the node's must end, so its refusal says that the pod is gone.
    pub(super) async fn patch_in_order(
        &self,
        node: &NodeId,
        position: Option<&Position>,
        call: ApiCall,
    ) -> Result<Answer, CallError> {
        let about = position.and_then(|position| Some((position, &position.about.as_ref()?.0)));
        let Some(((position, key), names_version)) = about.zip(naming(&call)) else {
            return self.kube.call_as_edge_node(node, call).await;
        };
        let answer = self.patch_on_version(node, (position, key), (call, names_version)).await?;
        let may_be_gone =
            *key.resource() == resources::pods() && [FORBIDDEN, CONFLICT].contains(&answer.code);
        if may_be_gone && !self.is_at(node, key).await? {
            let sentence = format!("pods {:?} not found", key.name());
            return Ok(Answer::refusal_of(&StatusError::new(NOT_FOUND, "NotFound", &sentence)));
        }
        Ok(answer)
    }

    /// Whether a pod of this name is bound to the node, as far as cloudcore itself can read it. The API server tells a node
    /// nothing of a pod that was deleted, or whose name another node's pod has.
    async fn is_at(&self, node: &NodeId, pod: &ObjectKey) -> Result<bool, CallError> {
        let found = self.kube.call(Caller::OwnFor(node), ApiCall::get(path_to(pod))).await?;
        let found_at = found.json();
        let found_at = found_at.pointer("/spec/nodeName").and_then(serde_json::Value::as_str);
        Ok(match found.code {
            NOT_FOUND => false,
            200..300 => found_at == Some(node.as_str()),
            _ => true,
        })
    }

    async fn patch_on_version(
        &self,
        node: &NodeId,
        (position, key): (&Position, &ObjectKey),
        (call, names_version): (ApiCall, Naming),
    ) -> Result<Answer, CallError> {
        let mut known = self.known_to(position, key);
        if known.revision.is_none() && names_version(&call.body, CloudRevision(0)).is_some() {
            let there = self.kube.call_as_edge_node(node, ApiCall::get(path_to(key))).await?;
            if !there.is_success() {
                return Ok(there);
            }
            if let Err(conflict) = self.may_follow(node, Some(position), key, &there.body).await {
                return Ok(Answer::refusal_of(&conflict));
            }
            known = Known::of(&there.body);
        }
        let mut repeats = 0;
        loop {
            let body = known.revision.and_then(|revision| names_version(&call.body, revision));
            let conditional = body.is_some();
            let patch = ApiCall { body: body.unwrap_or_else(|| call.body.clone()), ..call.clone() };
            let answer = self.kube.call(Caller::Node(node), patch).await?;
            if answer.is_success() {
                self.note_written(key, Known::of(&answer.body), Some(position.order));
            }
            if answer.code != CONFLICT || !conditional {
                return Ok(answer);
            }
            // Later reports know the object that was there before them.
            let object = self.present(node, key).await;
            let there = Known::of(&object);
            self.note_written(key, there, None);
            // If the version is unchanged, it is a different conflict: one of field ownership.
            let beside = there.revision > known.revision
                && repeats < REPEATS_MAX
                && self.is_older(node, position, (key, &object[..]), known).await;
            if !beside {
                return Ok(answer);
            }
            (known, repeats) = (there, repeats + 1);
        }
    }

    /// Records the Node of a node that has registered.
    pub(super) fn registered(&self, node: &NodeId, object: &[u8]) {
        let key = ObjectKey::new(resources::nodes(), "", node.as_str());
        self.note_written(&key, Known::of(object), None);
    }

    pub(super) fn note_written(&self, key: &ObjectKey, known: Known, report: Option<Order>) {
        if known.revision.is_some() {
            self.down.written(key, known, report);
        }
    }

    /// The object as it is now; empty if it cannot be read.
    async fn present(&self, node: &NodeId, key: &ObjectKey) -> Bytes {
        self.as_node(node, ApiCall::get(path_to(key))).await.unwrap_or_default()
    }
}

fn path_to(key: &ObjectKey) -> String {
    path_of(key.resource(), key.namespace(), key.name())
}

/// Whether this is a pod that no kubelet has reported yet. A Node has a status from its registration on.
fn is_unreported(key: &ObjectKey, object: &[u8]) -> bool {
    *key.resource() == resources::pods() && is_acknowledged(object) == Some(false)
}

/// The object whose status a message writes. `Some(None)` if the content names the objects; `None` if it writes none.
fn written_by_message(message: &Message) -> Option<Option<ObjectKey>> {
    let path = message.route.resource.as_object()?;
    let (resource, namespace) = match path.resource_type {
        ResourceType::NodePatch | ResourceType::NodeStatus => (resources::nodes(), ""),
        ResourceType::PodPatch | ResourceType::PodStatus => (resources::pods(), path.namespace()),
        _ => return None,
    };
    let name = path.name.as_deref().filter(|name| !name.is_empty());
    Some(name.map(|name| ObjectKey::new(resource, namespace, name)))
}

/// The object whose status a call writes.
fn written_by_call(path_and_query: &str) -> Option<ObjectKey> {
    let Target::Resource(path) = target(path_and_query.split('?').next()?) else { return None };
    let resource = Resource::new(&path.group, &path.version, &path.resource);
    let is_reported = resource == resources::nodes() || resource == resources::pods();
    let name = path.name.filter(|_| is_reported && path.subresource.as_deref() == Some("status"))?;
    Some(ObjectKey::new(resource, path.namespace.as_deref().unwrap_or_default(), &name))
}

/// Adds the version on which it is made to a patch or a replacing object. `None` when it already names one, or cannot
/// be read.
type Naming = fn(&[u8], CloudRevision) -> Option<Bytes>;

/// How a call can name a version; `None` when it overwrites nothing. Content of server-side apply is mostly JSON. Other
/// YAML is not parsed here, because that would take many times its size.
fn naming(call: &ApiCall) -> Option<Naming> {
    let is = |kind| call.method == Method::PATCH && call.content_type.contains(kind);
    match () {
        () if call.method == Method::PUT && call.content_type.contains("json") => Some(object_on_version),
        () if is("json-patch+json") => Some(operations_on_version),
        () if is("merge-patch+json") || is("apply-patch+yaml") => Some(object_on_version),
        () => None,
    }
}

/// An operation of a JSON patch (RFC 6902), as far as it may concern the version.
#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow, default)]
    from: Option<Cow<'a, str>>,
}

/// Maximum number of operations in one patch that an API server accepts.
const OPERATIONS_MAX: usize = 10_000;

/// Operations of which the first sets the version in the object, as a merge does: the API server treats an update of
/// another version as a conflict. A failing `test` could not be told from one of the client's own.
fn operations_on_version(patch: &[u8], revision: CloudRevision) -> Option<Bytes> {
    let mut operations: Vec<&RawValue> = serde_json::from_slice(patch).ok()?;
    if operations.len() >= OPERATIONS_MAX {
        return None;
    }
    for operation in &operations {
        let operation: Operation<'_> = serde_json::from_str(operation.get()).ok()?;
        let pointers = [Some(operation.path), operation.from];
        let of_version =
            |pointer: &Cow<'_, str>| ["", "/metadata", "/metadata/resourceVersion"].contains(&&**pointer);
        if pointers.iter().flatten().any(of_version) {
            return None;
        }
    }
    let version = json!({"op": "add", "path": "/metadata/resourceVersion", "value": revision.to_string()});
    let version = to_raw_value(&version).ok()?;
    operations.insert(0, &version);
    serde_json::to_vec(&operations).ok().map(Bytes::from)
}

/// An object that is merged, applied or stored in place of another one, with the version added.
fn object_on_version(patch: &[u8], revision: CloudRevision) -> Option<Bytes> {
    let (changed, before) =
        with_member(patch, &["metadata", "resourceVersion"], &format!("\"{revision}\"")).ok()?;
    // The API server treats none of these as a version.
    let is_none = |version: &RawValue| ["null", r#""""#, r#""0""#].contains(&version.get());
    before.is_none_or(is_none).then_some(changed)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tombolo_testkit::{Growth, alone};

    use super::*;

    #[test]
    fn patch_gets_the_version_unless_it_names_one() {
        let on = |patch: &Value| object_on_version(patch.to_string().as_bytes(), CloudRevision(7));
        for (patch, expected) in [
            (json!({"status": {"a": 1}}), json!({"status": {"a": 1}, "metadata": {"resourceVersion": "7"}})),
            (json!({"metadata": {"uid": "u"}}), json!({"metadata": {"uid": "u", "resourceVersion": "7"}})),
        ] {
            let changed: Value = serde_json::from_slice(&on(&patch).expect("changed")).expect("JSON");
            assert_eq!(changed, expected);
        }
        for none in [json!(null), json!(""), json!("0")] {
            let changed = on(&json!({"metadata": {"resourceVersion": none}})).expect("changed");
            assert_eq!(changed, r#"{"metadata":{"resourceVersion":"7"}}"#, "{none}");
        }
        assert_eq!(on(&json!({"metadata": {"resourceVersion": "3"}})), None);
        assert_eq!(on(&json!([{"op": "add"}])), None);
        assert_eq!(on(&json!({"metadata": 7})), None);
        let exact = object_on_version(br#"{"status":{"n":12345678901234567890123}}"#, CloudRevision(7))
            .expect("changed");
        assert!(String::from_utf8_lossy(&exact).contains("12345678901234567890123"));
    }

    #[test]
    fn patch_with_many_names_takes_a_few_times_its_text() {
        if !alone(module_path!(), "patch_with_many_names_takes_a_few_times_its_text") {
            return;
        }
        let many: String = (1_000_000..1_500_000).map(|number| format!("\"{number}\":0,")).collect();
        for patch in [format!(r#"{{{many}"a":0}}"#), format!(r#"{{"metadata":{{{many}"a":0}}}}"#)] {
            let growth = Growth::begin();
            let changed = object_on_version(patch.as_bytes(), CloudRevision(7)).expect("changed");
            let times = growth.most() / patch.len();
            assert!(times < 4, "{times} times");
            let member = changed.len() - patch.len();
            assert!((20..60).contains(&member), "{member} bytes more");
        }
    }

    #[test]
    fn json_patch_names_the_version_unless_it_already_does() {
        let call = |content_type: &str| ApiCall::patch("/api/v1/nodes/n/status", content_type, Bytes::new());
        let names = naming(&call("application/json-patch+json")).expect("a patch");
        let on = |patch: &Value| names(patch.to_string().as_bytes(), CloudRevision(7));
        let own = json!({"op": "test", "path": "/status/a", "value": 1});
        let changed: Value = serde_json::from_slice(&on(&json!([own])).expect("changed")).expect("JSON");
        let first = json!({"op": "add", "path": "/metadata/resourceVersion", "value": "7"});
        assert_eq!(changed, json!([first, own]));
        for path in ["/metadata/resourceVersion", "/metadata", ""] {
            assert_eq!(on(&json!([own, {"op": "replace", "path": path, "value": {}}])), None, "{path}");
        }
        for odd in [json!({}), json!([7]), json!([{"op": "remove"}])] {
            assert_eq!(on(&odd), None, "{odd}");
        }
        let applied = naming(&call("application/apply-patch+yaml; charset=utf-8")).expect("a patch");
        let changed = applied(br#"{"status":{}}"#, CloudRevision(7)).expect("changed");
        assert_eq!(changed, r#"{"metadata":{"resourceVersion":"7"},"status":{}}"#);
        assert_eq!(applied(b"status: {}", CloudRevision(7)), None, "YAML stays as it is");
        assert!(naming(&call("application/json")).is_none());
        let put = ApiCall::json(Method::PUT, "/api/v1/nodes/n/status", &json!({}));
        let names = naming(&put).expect("an object that replaced another one");
        assert_eq!(
            names(&put.body, CloudRevision(7)).expect("changed"),
            r#"{"metadata":{"resourceVersion":"7"}}"#
        );
    }

    #[test]
    fn only_status_writes_of_nodes_and_pods_are_ordered() {
        let names = |path: &str| written_by_call(path).map(|key| key.to_string());
        assert_eq!(names("/api/v1/nodes/n/status").as_deref(), Some("v1/nodes/n"));
        assert_eq!(names("/api/v1/namespaces/d/pods/p/status?x=y").as_deref(), Some("v1/pods/d/p"));
        for path in [
            "/api/v1/nodes/n",
            "/api/v1/namespaces/d/pods/p",
            "/apis/apps/v1/namespaces/d/deployments/a/status",
            "/x",
        ] {
            assert_eq!(names(path), None, "{path}");
        }
    }
}
