//! Seeds the ledgers, once.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::Method;
use serde_json::{Value, json};
use tombolo_proto::session::kubeedge::Ledger;
use tombolo_proto::{Epoch, NodeId, Uid};

use super::record::{Given, read};
use super::{API, ObjectSyncError, refused};
use crate::hub::{LedgerError, LedgerStore, Record};
use crate::kube::{ApiCall, Caller, Kube};

/// ConfigMap that marks the import as done: older records of KubeEdge are not read again.
const MARKER: &str = "tombolo-objectsync-import";

/// Maximum number of nodes whose records are collected: as many as one cloudcore serves.
const NODES_MAX: usize = crate::config::NODE_LIMIT_MAX;

/// Maximum number of nodes that are looked up and seeded concurrently.
const SEEDED_AT_ONCE: usize = 16;

/// Seeds the ledger of every node that has none from the records of KubeEdge cloudcore. Does nothing in a cluster
/// without such records, or when it was done before. Must be called before any KubeEdge edge is admitted: an edge with
/// an empty ledger would keep objects that it should not have.
///
/// # Errors
/// [`ObjectSyncError`]; ledgers stored until then stay, and the next start continues from there.
pub(crate) async fn import(
    kube: &Kube,
    ledgers: &dyn LedgerStore,
    namespace: &str,
    epoch: &Epoch,
) -> Result<(), ObjectSyncError> {
    let configmaps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let marker = kube.call(Caller::Own, ApiCall::get(format!("{configmaps}/{MARKER}"))).await?;
    if marker.is_success() {
        tracing::info!(
            marker = format!("{namespace}/{MARKER}"),
            "KubeEdge cloudcore's records are not read again: before migrating from KubeEdge again, delete this \
             ConfigMap and those with label tombolo/ledger"
        );
        return Ok(());
    }
    let mut seeds = Seeds::default();
    let mut served = false;
    for plural in ["objectsyncs", "clusterobjectsyncs"] {
        served |= gather(kube, plural, &mut seeds).await?;
    }
    if !served {
        return Ok(());
    }
    let (nodes, objects) = (seeds.nodes.len(), seeds.objects());
    let seed = |(node, ledger)| async move { seed(kube, ledgers, &node, ledger).await };
    let written = stream::iter(seeds.ledgers(epoch)).map(seed).buffer_unordered(SEEDED_AT_ONCE);
    written.try_collect::<()>().await?;
    tracing::info!(
        nodes,
        objects,
        skipped = seeds.skipped,
        "delivery ledgers seeded from KubeEdge cloudcore's records"
    );
    let marker = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARKER, "namespace": namespace}});
    let answer = kube.call(Caller::Own, ApiCall::json(Method::POST, configmaps.clone(), &marker)).await?;
    match answer.code {
        200..=299 | 409 => Ok(()),
        _ => Err(refused(&configmaps, &answer)),
    }
}

async fn seed(
    kube: &Kube,
    ledgers: &dyn LedgerStore,
    node: &NodeId,
    ledger: Ledger,
) -> Result<(), ObjectSyncError> {
    // KubeEdge forgets a deleted node, too.
    let Some(owner) = uid_of(kube, node).await? else { return Ok(()) };
    let record = Record { holder: "".into(), owner: Some(owner), ledger };
    match ledgers.write(node, None, &record).await {
        // Another replica was faster, or the node already has a ledger.
        Ok(_) | Err(LedgerError::Conflict) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads all pages of one kind; false when the cluster does not have the kind.
async fn gather(kube: &Kube, plural: &str, seeds: &mut Seeds) -> Result<bool, ObjectSyncError> {
    let path = format!("{API}/{plural}");
    match kube.list(Caller::Own, &path, |object| seeds.take(object.value())).await? {
        None => Ok(true),
        Some(answer) if answer.code == 404 => Ok(false),
        Some(answer) => Err(refused(&path, &answer)),
    }
}

/// The Node object's UID; `None` if the node does not exist.
async fn uid_of(kube: &Kube, node: &NodeId) -> Result<Option<Uid>, ObjectSyncError> {
    let path = format!("/api/v1/nodes/{node}");
    let answer = kube.call(Caller::Own, ApiCall::get(&path)).await?;
    match answer.code {
        404 => Ok(None),
        200 => {
            let object = answer.json();
            let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
            Ok(Uid::parse(uid).ok())
        }
        _ => Err(refused(&path, &answer)),
    }
}

/// The collected records, by node.
#[derive(Debug, Default)]
pub(super) struct Seeds {
    nodes: BTreeMap<NodeId, Ledger>,
    /// Number of records that cannot be represented in a ledger.
    pub(super) skipped: usize,
}

impl Seeds {
    pub(super) fn take(&mut self, object: &Value) {
        let Some(Given { node, key, entry }) = read(object) else {
            self.skipped += 1;
            return;
        };
        let room = self.nodes.len() < NODES_MAX || self.nodes.contains_key(&node);
        let mut entry = entry;
        let taken = room && {
            let ledger = self.nodes.entry(node).or_default();
            if ledger.get(&key).is_some_and(|known| known.uid != entry.uid) {
                // Two incarnations of one name: the edge may hold either.
                (entry.uid, entry.revision) = (None, None);
            }
            ledger.insert(key, entry).is_ok()
        };
        if !taken {
            self.skipped += 1;
        }
    }

    fn objects(&self) -> usize {
        self.nodes.values().map(Ledger::len).sum()
    }

    /// The ledgers; their versions belong to this epoch.
    pub(super) fn ledgers(&mut self, epoch: &Epoch) -> Vec<(NodeId, Ledger)> {
        let with_epoch = |(node, mut ledger): (NodeId, Ledger)| {
            ledger.epoch = Some(epoch.clone());
            (node, ledger)
        };
        std::mem::take(&mut self.nodes).into_iter().map(with_epoch).collect()
    }
}
