//! Writes the ledgers back as records of KubeEdge cloudcore.

use http::Method;
use serde_json::Value;
use tombolo_proto::{NodeId, ObjectKey};

use super::record::{collection, write};
use super::{ObjectSyncError, refused};
use crate::hub::ClusterLedgers;
use crate::kube::{ApiCall, Caller, Kube};

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exported {
    /// Nodes with a ledger.
    pub nodes: usize,
    /// Objects written.
    pub objects: usize,
    /// Entries without a certain incarnation: KubeEdge cannot name them, and sends those objects again.
    pub skipped: usize,
    /// Objects whose record the API server refused, for example because their namespace was deleted.
    pub refused: usize,
    /// The first of these refusals as text: at most [`REFUSALS_TOLD`].
    pub refusals: Vec<String>,
}

/// Maximum number of refusals that are reported individually.
pub const REFUSALS_TOLD: usize = 20;

/// Writes all ledgers of a namespace in KubeEdge cloudcore's form. Existing records get the newer version.
///
/// # Errors
/// [`ObjectSyncError`] when a ledger is damaged or the API server does not answer; records already written stay. An
/// object whose record is refused is counted, and the export continues.
pub async fn export(kube: &Kube, namespace: &str) -> Result<Exported, ObjectSyncError> {
    let ledgers = ClusterLedgers::new(kube.clone(), namespace).all_records().await?;
    let mut exported = Exported { nodes: ledgers.len(), ..Exported::default() };
    for (node, record) in ledgers {
        for (key, entry) in record.ledger.entries() {
            let Some((name, object, status)) = write(&node, key, entry) else {
                exported.skipped += 1;
                continue;
            };
            let (path, _) = collection(key.namespace());
            match put(kube, &path, &name, &object, &status).await {
                Ok(()) => exported.objects += 1,
                Err(error) if is_of_one(&error) => exported.refuse(&node, key, &error),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(exported)
}

impl Exported {
    fn refuse(&mut self, node: &NodeId, key: &ObjectKey, error: &ObjectSyncError) {
        self.refused += 1;
        if self.refusals.len() < REFUSALS_TOLD {
            self.refusals.push(format!("{key} of {node}: {error}"));
        }
    }
}

/// Whether a refusal concerns a single object: its namespace is deleted or being deleted, or the object cannot be
/// recorded.
fn is_of_one(error: &ObjectSyncError) -> bool {
    matches!(error, ObjectSyncError::Refused { code: 403 | 404 | 422, .. })
}

/// Sets the status of a record, which is a subresource, and creates the record if it does not exist. The status comes
/// first, because a namespace that is being deleted accepts changes but no new objects.
async fn put(
    kube: &Kube,
    path: &str,
    name: &str,
    object: &Value,
    status: &Value,
) -> Result<(), ObjectSyncError> {
    if set_status(kube, path, name, status).await? {
        return Ok(());
    }
    let created = kube.call(Caller::Own, ApiCall::json(Method::POST, path, object)).await?;
    if !created.is_success() && created.code != 409 {
        return Err(refused(path, &created));
    }
    match set_status(kube, path, name, status).await? {
        true => Ok(()),
        false => Err(refused(path, &created)),
    }
}

/// False when the record does not exist.
async fn set_status(kube: &Kube, path: &str, name: &str, status: &Value) -> Result<bool, ObjectSyncError> {
    let path = format!("{path}/{name}/status");
    let patch = ApiCall::patch(path.clone(), "application/merge-patch+json", status.to_string().into());
    let patched = kube.call(Caller::Own, patch).await?;
    match patched.code {
        _ if patched.is_success() => Ok(true),
        404 => Ok(false),
        _ => Err(refused(&path, &patched)),
    }
}
