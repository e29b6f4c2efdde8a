//! The Kubernetes API of a run: what happens in it is told to the oracle, its users carry out the plan, and its
//! controllers complete what users begin.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{ApiActor, ModelApi, ModelConfig, ModelControllers, ModelEvent};
use crate::journal::Journal;
use crate::observation::{ApiWrite, HistoryPosition, ObjectId, Seen};
use crate::plan::{ObjectContent, manifest};

/// Namespace of cloudcore's own objects.
pub(super) const CLOUD_NAMESPACE: &str = "kubeedge";

/// Selectors with which a replica sees every object of a kind that an edge may need: pods that are bound, and
/// ConfigMaps that are no ledger of its own.
const WHOLE: [(&str, &str); 3] =
    [("", ";"), ("pods", ";spec.nodeName!="), ("configmaps", "!tombolo/ledger;")];

/// The kinds whose views the oracle asks about: those that nodes need, and those that clients of plans follow.
const VIEWED: [&str; 6] =
    ["pods", "nodes", "configmaps", "secrets", "services", "endpointslices.discovery.k8s.io"];

/// The rights that every fleet grants its nodes.
const EDGE_NETWORK: &str = include_str!("../../../deploy/cloudcore/30-edge-network.yaml");

/// Interval in which the controllers look.
const CONTROL_INTERVAL: Duration = Duration::from_secs(1);

/// The API server with its users.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) api: ModelApi,
    user: ApiActor,
    controllers: ModelControllers,
}

/// Name of the client of a replica.
pub(super) fn client_of(replica: u32) -> String {
    format!("replica-{replica}")
}

/// Name of the client that a replica uses for local clients of edges.
pub(super) fn bare_client_of(replica: u32) -> String {
    format!("replica-{replica}-bare")
}

impl Cluster {
    pub(super) fn new(seed: u64, journal: &Journal) -> Self {
        let api = ModelApi::new(ModelConfig { seed, ..ModelConfig::default() });
        let told = journal.clone();
        api.observe(move |event| {
            if let Some(seen) = seen(event) {
                told.see(seen);
            }
        });
        let (user, controllers) = (api.actor("user"), api.controllers());
        controllers.create_namespace(CLOUD_NAMESPACE).ok();
        let rights: Vec<Value> =
            serde_saphyr::from_multiple(EDGE_NETWORK).expect("a manifest that is shipped");
        for object in &rights {
            user.create(object).expect("an empty cluster takes them");
        }
        Self { api, user, controllers }
    }

    /// Does what the controllers of a cluster do, for ever.
    pub(super) async fn control(self) {
        loop {
            tokio::time::sleep(CONTROL_INTERVAL).await;
            while self.controllers.collect_garbage() || self.controllers.finish_namespaces() {}
        }
    }

    /// Creates an object, or replaces it. Where the API server does not allow that, because a pod cannot move, the old
    /// one is deleted first.
    pub(super) fn put(&self, object: &ObjectId, content: &ObjectContent) {
        if object.resource == "namespaces" {
            self.controllers.create_namespace(&object.name).ok();
            return;
        }
        let manifest = manifest(object, content);
        if object.resource == "nodes" {
            // A Node is the work of its agent, and users label it.
            let patch = json!({"metadata": {"labels": content.labels, "annotations": manifest["metadata"]["annotations"]}});
            self.user.patch(&path(object), &patch).ok();
            return;
        }
        if self.user.put(&manifest).is_err() && object.resource == "pods" {
            self.recreate(object, content);
        }
    }

    /// Deletes an object at once and creates it anew.
    pub(super) fn recreate(&self, object: &ObjectId, content: &ObjectContent) {
        self.delete(object, 0);
        self.user.create(&manifest(object, content)).ok();
    }

    /// Deletes an object.
    pub(super) fn delete(&self, object: &ObjectId, grace_seconds: u32) {
        let options = json!({"gracePeriodSeconds": grace_seconds});
        self.user.delete(&path(object), &options).ok();
    }

    /// Writes an object without changing what an edge acts on.
    pub(super) fn touch(&self, object: &ObjectId) {
        // Managers of fields reach no edge.
        let manager = format!("{}?fieldManager=touch-{}", path(object), self.api.revision());
        self.user.patch(&manager, &json!({"metadata": {"labels": {}}})).ok();
    }
}

/// The path of an object in the API.
pub(super) fn path(object: &ObjectId) -> String {
    format!("{}/{}", collection(&object.resource, &object.namespace), object.name)
}

/// The path of a kind, in one namespace or (with an empty one) in all.
pub(super) fn collection(resource: &str, namespace: &str) -> String {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let root = match group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    match namespace {
        "" => format!("{root}/{plural}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}"),
    }
}

/// What the oracle is told.
fn seen(event: ModelEvent) -> Option<Seen> {
    Some(match event {
        ModelEvent::Wrote(change) => {
            if std::env::var("DUMP").is_ok_and(|d| {
                d == ObjectId::new(&change.kind.qualified(), &change.namespace, &change.name).to_string()
            }) {
                eprintln!(
                    "WROTE {} {:?} {}",
                    change.revision,
                    crate::oracle::content::version(&change.kind.qualified(), &change.object),
                    change.object.to_string().replace(&"QUJDREVG".repeat(100), "")
                );
            }
            let is_gone = change.what == crate::api::ChangeType::Deleted;
            Seen::Wrote(ApiWrite {
                object: ObjectId::new(&change.kind.qualified(), &change.namespace, &change.name),
                caller: change.caller.clone(),
                position: position(change.era, change.revision),
                body: (!is_gone).then(|| change.object.clone()),
            })
        }
        ModelEvent::Restored { era, revision } => Seen::Restored { position: position(era, revision) },
        ModelEvent::ViewMoved { client, kind, selector, era, revision } => {
            let replica = client.strip_prefix("replica-")?.parse().ok()?;
            let (resource, selector) = (kind.qualified(), selector?);
            VIEWED.contains(&&*resource).then_some(())?;
            let is_whole =
                |(of, whole): &(&str, &str)| (of.is_empty() || *of == resource) && *whole == selector;
            WHOLE.iter().any(is_whole).then_some(())?;
            Seen::ViewMoved { replica, resource, position: position(era, revision) }
        }
        ModelEvent::TokenIssued { token, account } => Seen::TokenIssued { token, account },
    })
}

fn position(era: u64, revision: u64) -> HistoryPosition {
    HistoryPosition { history: u32::try_from(era).unwrap_or(u32::MAX), revision }
}
