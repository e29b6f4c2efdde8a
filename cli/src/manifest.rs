//! Manifests: YAML files to Kubernetes objects, applied server-side.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, ApiResource, Scope};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::Instant;

const FIELD_MANAGER: &str = "tombolo-up";

/// Maximum size of a manifest file, in bytes; a larger one is almost certainly a mistake.
const FILE_LEN_MAX: u64 = 32 * 1024 * 1024;

/// How long to wait for effects of earlier documents: a definition is served, a new namespace gets its ServiceAccount.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wait between two attempts.
const RETRY: Duration = Duration::from_millis(200);

/// One object of a manifest, with its position for messages.
#[derive(Debug)]
pub struct Document {
    source: PathBuf,
    number: usize,
    kind: GroupVersionKind,
    object: DynamicObject,
}

/// Reads every object of a YAML file.
///
/// # Errors
/// When the file cannot be read, is not YAML, or a document is not a Kubernetes object; the text names the file, the
/// document and the position.
pub fn read(path: &Path) -> Result<Vec<Document>> {
    let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    if length > FILE_LEN_MAX {
        bail!("{} has {length} bytes; a manifest may have at most {FILE_LEN_MAX}", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let options = serde_saphyr::options! { with_snippet: false };
    let values: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
        .map_err(|error| anyhow!("{} is not YAML: {error}", path.display()))?;
    let present = values.into_iter().enumerate().filter(|(_, value)| !value.is_null());
    present.map(|(index, value)| document(path, index + 1, value)).collect()
}

fn document(path: &Path, number: usize, value: Value) -> Result<Document> {
    let origin = || format!("{}, document {number}", path.display());
    let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (field("apiVersion"), field("kind"));
    if api_version.is_empty() || kind.is_empty() {
        bail!("{}: not a Kubernetes object: apiVersion and kind are required", origin());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = GroupVersionKind::gvk(group, version, &kind);
    let object: DynamicObject =
        serde_json::from_value(value).with_context(|| format!("{}: not a Kubernetes object", origin()))?;
    if object.metadata.name.is_none() {
        bail!("{}: {} has no metadata.name", origin(), kind.kind);
    }
    Ok(Document { source: path.to_owned(), number, kind, object })
}

impl Document {
    /// `Pod quickstart/shop-1`, for progress lines.
    #[must_use]
    pub fn title(&self) -> String {
        let name = self.object.metadata.name.as_deref().unwrap_or_default();
        match &self.object.metadata.namespace {
            Some(namespace) => format!("{} {namespace}/{name}", self.kind.kind),
            None => format!("{} {name}", self.kind.kind),
        }
    }

    /// Applies the object server-side.
    ///
    /// # Errors
    /// The API server's message, with file and document.
    pub async fn apply(&self, client: &Client) -> Result<()> {
        let (resource, scope) = self.served_as(client).await?;
        let namespace = self.object.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<DynamicObject> = match scope {
            Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
            Scope::Cluster => Api::all_with(client.clone(), &resource),
        };
        let name = self.object.metadata.name.as_deref().unwrap_or_default();
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match api.patch(name, &parameters, &Patch::Apply(&self.object)).await {
                Err(error) if lacks_service_account(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY).await;
                }
                outcome => return outcome.map(drop).map_err(|error| self.refused(&error)),
            }
        }
    }

    async fn served_as(&self, client: &Client) -> Result<(ApiResource, Scope)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match discovery::pinned_kind(client, &self.kind).await {
                Ok((resource, capabilities)) => return Ok((resource, capabilities.scope)),
                Err(_) if self.is_custom() && Instant::now() < deadline => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(self.refused(&error)),
            }
        }
    }

    /// Whether the kind comes from a definition. Kubernetes's own kinds exist from the start, so a misspelt one is
    /// refused at once.
    fn is_custom(&self) -> bool {
        self.kind.group.contains('.') && !self.kind.group.ends_with(".k8s.io")
    }

    fn refused(&self, error: &kube::Error) -> anyhow::Error {
        let answer = match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        };
        anyhow!("{}, document {}: {}: {answer}", self.source.display(), self.number, self.title())
    }
}

/// The ServiceAccount admission plugin refuses pods until a controller has created the namespace's account.
fn lacks_service_account(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 403 && status.message.contains("error looking up service account"))
}

#[cfg(test)]
mod tests {
    use super::read;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.yaml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn reads_several_documents_and_passes_over_empty_ones() {
        let (_folder, path) = file(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b, namespace: a}\n",
        );
        let titles: Vec<String> = read(&path).unwrap().iter().map(super::Document::title).collect();
        assert_eq!(titles, ["Namespace a", "Deployment a/b"]);
    }

    #[test]
    fn says_where_a_manifest_is_wrong() {
        let (_folder, path) = file("kind: Pod\nmetadata: {name: a}\n");
        assert!(read(&path).unwrap_err().to_string().contains("document 1: not a Kubernetes object"));
        let (_folder, path) = file("a: [1\nb: 2\n");
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("m.yaml is not YAML"), "{error}");
        let (_folder, path) = file("apiVersion: v1\nkind: Pod\n");
        assert!(read(&path).unwrap_err().to_string().contains("Pod has no metadata.name"));
    }
}
