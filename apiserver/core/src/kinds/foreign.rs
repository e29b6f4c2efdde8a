//! What the OpenAPI documents of another server tell about its custom kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

/// The extension with the fields that field selectors may name.
const FIELDS: &str = "x-kubernetes-selectable-fields";

/// Has OpenAPI 3.0 documents of groups that another server defines.
pub trait ForeignDocuments: Send + Sync + 'static {
    /// The document of a group and version as JSON; none when it is not here.
    fn document(&self, group: &str, version: &str) -> Option<Arc<[u8]>>;

    /// What field selectors may name of its kinds. It is asked for whenever the kinds change: who keeps what
    /// [`selectable_fields`] has found saves reading documents again.
    fn selectable(&self, group: &str, version: &str) -> SelectableFields {
        self.document(group, version)
            .map(|document| selectable_fields(&document, group, version))
            .unwrap_or_default()
    }
}

/// Paths that field selectors may name, by kind.
pub type SelectableFields = BTreeMap<String, Vec<String>>;

/// The parts that are read; the others, which may be large, are passed over.
#[derive(Deserialize)]
struct Document {
    components: Components,
}

#[derive(Deserialize)]
struct Components {
    schemas: BTreeMap<String, Declared>,
}

#[derive(Deserialize)]
struct Declared {
    #[serde(default, rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<Named>,
    #[serde(default, rename = "x-kubernetes-selectable-fields")]
    fields: Vec<Field>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    group: String,
    version: String,
    kind: String,
}

#[derive(Deserialize)]
struct Field {
    #[serde(rename = "fieldPath")]
    path: String,
}

/// What field selectors may name of the kinds of a group and version, beside name and namespace. Of a document that cannot be
/// understood, nothing.
#[must_use]
pub fn selectable_fields(document: &[u8], group: &str, version: &str) -> SelectableFields {
    let mut found = SelectableFields::new();
    // Few kinds have such fields, and documents are long.
    if !document.windows(FIELDS.len()).any(|text| text == FIELDS.as_bytes()) {
        return found;
    }
    let Ok(Document { components }) = serde_json::from_slice(document) else { return found };
    for Declared { kinds, fields } in components.schemas.into_values() {
        let own = kinds.into_iter().find(|named| named.group == group && named.version == version);
        if let (Some(own), false) = (own, fields.is_empty()) {
            found.insert(own.kind, fields.into_iter().map(|field| field.path).collect());
        }
    }
    found
}
