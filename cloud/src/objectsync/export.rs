//! Writing the ledgers back.

use http::Method;
use serde_json::Value;

use super::record::{collection, write};
use super::{ObjectSyncError, refused};
use crate::hub::ClusterLedgers;
use crate::kube::{ApiCall, Caller, Kube};

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    /// Nodes with a ledger.
    pub nodes: usize,
    /// Objects written.
    pub objects: usize,
    /// Entries whose incarnation is not certain: stock cannot name them, and sends those objects again.
    pub skipped: usize,
}

/// Writes every ledger of a namespace as stock cloudcore keeps it. Existing records get the newer version.
///
/// # Errors
/// [`ObjectSyncError`]: a ledger is damaged, or the API server refuses; what was written stays.
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
            put(kube, &path, &name, &object, &status).await?;
            exported.objects += 1;
        }
    }
    Ok(exported)
}

/// Creates one unless it is there, and sets its status, which is a resource of its own.
async fn put(
    kube: &Kube,
    path: &str,
    name: &str,
    object: &Value,
    status: &Value,
) -> Result<(), ObjectSyncError> {
    let created = kube.call(Caller::Own, ApiCall::json(Method::POST, path, object)).await?;
    if !created.is_success() && created.code != 409 {
        return Err(refused(path, &created));
    }
    let path = format!("{path}/{name}/status");
    let patch = ApiCall::patch(path.clone(), "application/merge-patch+json", status.to_string().into());
    let patched = kube.call(Caller::Own, patch).await?;
    if patched.is_success() { Ok(()) } else { Err(refused(&path, &patched)) }
}
