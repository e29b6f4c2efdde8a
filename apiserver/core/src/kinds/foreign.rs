//! Reads the OpenAPI documents of another server for its custom kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

/// The extension that lists the selectable fields.
const FIELDS: &str = "x-kubernetes-selectable-fields";

/// Provides OpenAPI 3.0 documents of groups that another server defines.
pub trait ForeignDocuments: Send + Sync + 'static {
    /// The document of a group and version as JSON; none when it is not available.
    fn document(&self, group: &str, version: &str) -> Option<Arc<[u8]>>;

    /// Fields that selectors may name, of its kinds. This is called whenever the kinds change: an implementation that
    /// caches the result of [`selectable_fields`] need not read documents again.
    fn selectable(&self, group: &str, version: &str) -> SelectableFields {
        self.document(group, version)
            .map(|document| selectable_fields(&document, group, version))
            .unwrap_or_default()
    }
}

/// Paths that field selectors may name, by kind.
pub type SelectableFields = BTreeMap<String, Vec<String>>;

/// The parts of a document that are read; the others, which may be large, are skipped.
#[derive(Deserialize)]
struct OpenApiDocument {
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
    fields: Vec<SelectableField>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    group: String,
    version: String,
    kind: String,
}

#[derive(Deserialize)]
struct SelectableField {
    #[serde(rename = "fieldPath")]
    path: String,
}

/// Fields that selectors may name, of the kinds of a group and version, besides name and namespace. Empty for an
/// unreadable document.
#[must_use]
pub fn selectable_fields(document: &[u8], group: &str, version: &str) -> SelectableFields {
    let mut found = SelectableFields::new();
    // Few kinds have such fields, and documents are long.
    if !document.windows(FIELDS.len()).any(|text| text == FIELDS.as_bytes()) {
        return found;
    }
    let Ok(OpenApiDocument { components }) = serde_json::from_slice(document) else { return found };
    for Declared { kinds, fields } in components.schemas.into_values() {
        let own = kinds.into_iter().find(|named| named.group == group && named.version == version);
        if let (Some(own), false) = (own, fields.is_empty()) {
            found.insert(own.kind, fields.into_iter().map(|field| field.path).collect());
        }
    }
    found
}
