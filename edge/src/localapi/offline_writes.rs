//! Writes that this node executes itself when the cloud cannot be reached, because no other client writes the same: its
//! lease, its status, the status of its pods, and events. They follow the rules of the API server, are applied to the
//! objects that this node holds, and are reported to the cloud later. Several writes to one object become one report of
//! the latest state.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tombolo_apicore::backend::{PatchType, WriteBackend, WriteReply, WriteRequest, WriteVerb};
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::patch::strategic_merge_difference;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{
    Expect, Mutation, Revision, Snapshot, Store as ServedStore, StoreError, Stored, Write, WriteStore,
};
use tombolo_apicore::write::LocalWrites;
use tombolo_proto::api_path::path_of;
use tombolo_proto::ids::NodeId;
use tombolo_proto::object::{ObjectKey, Resource};

use super::callers::is_operator;
use crate::paths::{self, LEASE_NAMESPACE};
use crate::store::{Accepted, Call, OfflineWrite, Report, ReportKind, Store, Waiting, WriteError};

/// How often a write is attempted when other reports interfere.
const ATTEMPTS_MAX: usize = 10;

/// The kind of report for a write that this node executes itself, if it is one. Only the user of the node's kubeconfig
/// writes for the node.
pub(super) fn kind(node: &NodeId, request: &WriteRequest) -> Option<ReportKind> {
    let about = &request.attributes;
    if request.options.dry_run || !is_operator(&about.identity) {
        return None;
    }
    // Server-side apply needs the field managers, which are not kept here.
    let changes = match request.verb {
        WriteVerb::Update => true,
        WriteVerb::Patch(patch) => patch != PatchType::Apply,
        _ => false,
    };
    let own = about.name == node.as_str();
    match (&*request.kind.storage.group, &*request.kind.storage.name, about.subresource.as_str()) {
        ("coordination.k8s.io", "leases", "") if changes && own && about.namespace == LEASE_NAMESPACE => {
            Some(ReportKind::Lease)
        }
        ("", "nodes", "status") if changes && own => Some(ReportKind::Status),
        ("", "pods", "status") if changes => Some(ReportKind::Status),
        ("", "events", "") if changes || request.verb == WriteVerb::Create => Some(ReportKind::Event),
        _ => None,
    }
}

/// Executes the node's own writes.
pub(super) struct OwnWrites {
    store: Store,
}

impl OwnWrites {
    pub(super) fn new(store: Store) -> Self {
        Self { store }
    }

    /// Whether a report about the same object waits for the cloud. A write must not overtake it.
    pub(super) fn is_behind(&self, request: &WriteRequest, kind: ReportKind) -> Result<bool, ApiError> {
        let waiting = self.store.waiting(kind, &key(request));
        Ok(waiting.map_err(|error| ApiError::unavailable(error.to_string()))?.is_some())
    }

    /// The renewal time in microseconds since the Unix epoch, if the write only renews the lease. The cloud is then
    /// sent a few bytes instead of the object.
    pub(super) fn renewal(&self, request: &WriteRequest, kind: ReportKind) -> Option<i64> {
        if kind != ReportKind::Lease || request.verb != WriteVerb::Update {
            return None;
        }
        let held = self.store.visible(&key(request)).ok()??;
        let held: Value = serde_json::from_slice(&held.body()).ok()?;
        let new: Value = serde_json::from_slice(&request.body).ok()?;
        let time: Timestamp = new["spec"]["renewTime"].as_str()?.parse().ok()?;
        let same = |part: &str| new.pointer(part) == held.pointer(part);
        let rest = |lease: &Value| {
            let mut spec = lease["spec"].as_object().cloned().unwrap_or_default();
            spec.remove("renewTime");
            spec
        };
        let metadata = ["labels", "annotations", "ownerReferences", "finalizers", "resourceVersion"];
        let unchanged = metadata.iter().all(|part| same(&format!("/metadata/{part}")));
        (unchanged && rest(&new) == rest(&held)).then(|| time.as_microsecond())
    }

    /// Executes a write here. A report of this kind informs the cloud; none if the cloud knows already.
    pub(super) async fn accept(
        &self,
        request: WriteRequest,
        report: Option<ReportKind>,
    ) -> Result<WriteReply, ApiError> {
        let creates = request.verb == WriteVerb::Create;
        let kind = Arc::clone(&request.kind);
        let target = OfflineWriteStore { store: self.store.clone(), kind, report, creates };
        LocalWrites::new(Arc::new(target)).execute(request).await
    }
}

fn key(request: &WriteRequest) -> ObjectKey {
    let about = &request.attributes;
    ObjectKey::new(request.kind.storage.clone(), &about.namespace, &about.name)
}

/// The store as one write of this node sees it.
struct OfflineWriteStore {
    store: Store,
    kind: Arc<KindInfo>,
    report: Option<ReportKind>,
    creates: bool,
}

impl OfflineWriteStore {
    async fn write(&self, mutation: Mutation) -> Result<Arc<Stored>, StoreError> {
        let Mutation { key, expected, write } = mutation;
        let refused = |reason: &str| StoreError::Refused { key: key.clone(), reason: reason.to_owned() };
        let Write::Put { uid, body } = write else {
            return Err(refused("deleting needs a cloud connection"));
        };
        let expected = match expected {
            Expect::Absent => None,
            Expect::Revision(revision) => Some(revision),
            Expect::Present | Expect::Any => return Err(refused("it has no precondition")),
        };
        for _ in 0..ATTEMPTS_MAX {
            let report = self.report.map(|kind| self.report(kind, &key, &body)).transpose()?;
            let (key, uid, body) = (key.clone(), uid.clone(), body.clone());
            let write = OfflineWrite { key: key.clone(), expected, uid, body, report };
            return match self.store.accept(write).await.map_err(|error| unwritten(&key, error))? {
                Accepted::Stored(stored) => Ok(stored),
                Accepted::Conflict(found) => {
                    Err(StoreError::Conflict { key, expected: expected.unwrap_or_default(), found })
                }
                Accepted::Exists => Err(StoreError::AlreadyExists { key }),
                Accepted::Gone => Err(StoreError::NotFound { key }),
                Accepted::Overtaken => continue,
            };
        }
        Err(StoreError::Unavailable { reason: format!("too many concurrent writes to {key}") })
    }

    /// The report to the cloud, and the number of the report that it replaces.
    fn report(
        &self,
        kind: ReportKind,
        key: &ObjectKey,
        body: &[u8],
    ) -> Result<(Report, Option<u64>), StoreError> {
        let unavailable = |error: String| StoreError::Unavailable { reason: error };
        let waiting = self.store.waiting(kind, key).map_err(|error| unavailable(error.to_string()))?;
        let held = self.store.visible(key).map_err(|error| unavailable(error.to_string()))?;
        let new: Value = serde_json::from_slice(body).map_err(|error| unavailable(error.to_string()))?;
        let number = waiting.as_ref().map(|waiting| waiting.number);
        let report = |call: Call, base: Option<String>| {
            (Report { kind, key: key.clone(), call, status: None, base }, number)
        };
        let is_creation = |waiting: &Waiting| waiting.call.method == "POST";
        let Some(held) = held.filter(|_| !waiting.as_ref().is_some_and(is_creation)) else {
            return Ok(report(creation(key, new), None));
        };
        let base = match waiting.and_then(|waiting| waiting.base) {
            Some(base) => base,
            None => part(kind, &serde_json::from_slice(&held.body()).unwrap_or_default()).to_string(),
        };
        let before = serde_json::from_str(&base).unwrap_or_default();
        let difference = strategic_merge_difference(self.kind.schema(), &before, &part(kind, &new));
        Ok(report(change(kind, key, &new, difference), Some(base)))
    }
}

/// The members of an object that a report of this kind covers.
fn part(kind: ReportKind, object: &Value) -> Value {
    let members = object.as_object().cloned().unwrap_or_default();
    let is_part = |name: &str| match kind.member() {
        Some(member) => name == member,
        None => !matches!(name, "apiVersion" | "kind" | "metadata"),
    };
    members.into_iter().filter(|(name, _)| is_part(name)).collect::<Map<_, _>>().into()
}

/// The call that creates an object that the cloud has never seen.
fn creation(key: &ObjectKey, mut object: Value) -> Call {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for member in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(member);
        }
    }
    Call {
        method: "POST".to_owned(),
        path_and_query: path_of(key.resource(), key.namespace(), ""),
        content_type: "application/json".to_owned(),
        body: object.to_string(),
    }
}

/// The call that makes this change to an object.
fn change(kind: ReportKind, key: &ObjectKey, new: &Value, difference: Value) -> Call {
    if kind == ReportKind::Status {
        return Call::patch_status(key, new["metadata"]["uid"].as_str(), difference);
    }
    Call {
        method: "PATCH".to_owned(),
        path_and_query: paths::object(key),
        content_type: PatchType::Strategic.media_type().to_owned(),
        body: difference.to_string(),
    }
}

fn unwritten(key: &ObjectKey, error: WriteError) -> StoreError {
    match error {
        WriteError::Full => StoreError::NotStored { reason: error.to_string() },
        error => StoreError::Unavailable { reason: format!("{key}: {error}") },
    }
}

impl ServedStore for OfflineWriteStore {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        let unavailable =
            |error: crate::store::ReadError| StoreError::Unavailable { reason: error.to_string() };
        let visible = self.store.visible(key).map_err(unavailable)?;
        if visible.is_some() || self.creates {
            return Ok(visible);
        }
        if &*key.resource().name == "pods" {
            // All pods of this node are here.
            return self.store.get(key);
        }
        self.store.single_objects().get(key)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
        self.store.list(resource, namespace)
    }

    fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: Revision,
    ) -> Result<Snapshot, StoreError> {
        self.store.list_at(resource, namespace, revision)
    }

    fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
        self.store.watch(resource, since)
    }

    fn revision(&self) -> Revision {
        self.store.revision()
    }
}

impl WriteStore for OfflineWriteStore {
    fn commit(&self, mutation: Mutation) -> BoxFuture<'_, Result<Arc<Stored>, StoreError>> {
        Box::pin(self.write(mutation))
    }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::auth::{AUTHENTICATED_GROUP, Attributes, Identity};
    use tombolo_apicore::backend::WriteOptions;
    use tombolo_apicore::kinds::Kinds;
    use tombolo_apicore::query::params::Params;

    use super::super::callers::OPERATOR;
    use super::*;

    fn renewal(user: &str) -> WriteRequest {
        let resource = Resource::new("coordination.k8s.io", "v1", "leases");
        let attributes = Attributes {
            identity: Identity::new(user, &[AUTHENTICATED_GROUP]),
            verb: "update".to_owned(),
            namespace: LEASE_NAMESPACE.to_owned(),
            name: "edge-a".to_owned(),
            ..Attributes::default()
        };
        WriteRequest {
            attributes,
            kind: Arc::clone(Kinds::builtin().get(&resource).unwrap()),
            verb: WriteVerb::Update,
            options: WriteOptions::default(),
            may_create: false,
            body: Default::default(),
            content_type: String::new(),
            query: Params::default(),
            path_and_query: String::new(),
            authorization: None,
        }
    }

    #[test]
    fn only_the_kubeconfig_user_writes_for_the_node() {
        let node = NodeId::parse("edge-a").unwrap();
        let said = |user: &str| kind(&node, &renewal(user));
        assert_eq!(said(OPERATOR), Some(ReportKind::Lease));
        for user in ["system:serviceaccount:a:b", "alice", "system:node:edge-a", "system:admin", ""] {
            assert_eq!(said(user), None, "{user}");
        }
    }
}
