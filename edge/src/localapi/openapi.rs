//! The kept OpenAPI documents of custom kinds, and the selectable fields that they declare.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tombolo_apicore::openapi::{ForeignDocuments, SelectableFields, selectable_fields};

use super::documents::Documents;

/// Path of the index; the documents are below it.
pub(super) use tombolo_proto::documents::OPENAPI_PATH as OPENAPI;

/// The kept documents.
pub(super) struct Kept {
    documents: Documents,
    /// Selectable fields by path. They are cached because documents are large and the fields are needed each time the
    /// kinds change.
    selectable: Mutex<BTreeMap<String, SelectableFields>>,
}

/// The path of a document as in the index.
pub(super) fn path(group: &str, version: &str) -> String {
    format!("apis/{group}/{version}")
}

impl Kept {
    pub(super) fn new(documents: Documents) -> Arc<Self> {
        Arc::new(Self { documents, selectable: Mutex::default() })
    }

    /// Keeps a document. Returns whether it has changed.
    ///
    /// # Errors
    /// Why it cannot be kept, as text.
    pub(super) async fn keep(&self, path: &str, body: Bytes) -> Result<bool, String> {
        let changed = self.documents.keep(&format!("{OPENAPI}/{path}"), body).await?;
        if changed {
            self.selectable.lock().remove(path);
        }
        Ok(changed)
    }

    /// Forgets the fields of documents whose kinds no longer exist.
    pub(super) fn retain(&self, paths: &[String]) {
        self.selectable.lock().retain(|path, _| paths.contains(path));
    }
}

impl ForeignDocuments for Kept {
    fn document(&self, group: &str, version: &str) -> Option<Arc<[u8]>> {
        let kept = self.documents.kept(&format!("{OPENAPI}/{}", path(group, version))).ok()??;
        Some(Arc::from(&*kept))
    }

    fn selectable(&self, group: &str, version: &str) -> SelectableFields {
        let key = path(group, version);
        // Held while a document is read, so that fields of an old document are not inserted after a new one is kept.
        let mut known = self.selectable.lock();
        if let Some(found) = known.get(&key) {
            return found.clone();
        }
        let Some(document) = self.document(group, version) else { return SelectableFields::new() };
        let found = selectable_fields(&document, group, version);
        known.insert(key, found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hub::{HubHandle, SharedHub};
    use crate::identity::WallClock;
    use crate::store::Store;

    fn document(field: &str) -> Bytes {
        let named = json!([{"group": "example.com", "version": "v1", "kind": "Widget"}]);
        let fields = json!([{"fieldPath": field}]);
        let schema =
            json!({"x-kubernetes-group-version-kind": named, "x-kubernetes-selectable-fields": fields});
        json!({"components": {"schemas": {"com.example.v1.Widget": schema}}}).to_string().into()
    }

    #[tokio::test]
    async fn document_is_parsed_once_per_version() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap().store;
        let documents =
            Documents { store, hub: SharedHub::new(HubHandle::new().0), clock: WallClock::system() };
        let kept = Kept::new(documents.clone());
        let key = path("example.com", "v1");
        let fields = || kept.selectable("example.com", "v1").remove("Widget").unwrap_or_default();
        assert_eq!(fields(), [] as [&str; 0], "no state is kept");
        assert_eq!(kept.keep(&key, document("spec.a")).await, Ok(true));
        assert_eq!(fields(), ["spec.a"]);
        // Changes the document without notice: reading it again would show the change.
        documents.keep(&format!("{OPENAPI}/{key}"), document("spec.b")).await.unwrap();
        assert_eq!(fields(), ["spec.a"], "it is not read again");
        assert_eq!(kept.keep(&key, document("spec.c")).await, Ok(true));
        assert_eq!(fields(), ["spec.c"]);
        documents.keep(&format!("{OPENAPI}/{key}"), document("spec.d")).await.unwrap();
        kept.retain(&[]);
        assert_eq!(fields(), ["spec.d"], "no state is kept for kinds that no longer exist");
    }
}
