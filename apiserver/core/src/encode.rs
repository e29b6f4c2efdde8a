//! Objects, lists and watch events as JSON text, in the form that the client asked for.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::accept::Form;
use crate::body::Part;
use crate::kinds::KindInfo;
use crate::query::params::Params;
use crate::raw;
use crate::revision::Revision;
use crate::status::ApiError;
use crate::stored::Stored;
use crate::tree;
use crate::value::to_bytes;

/// Maximum size in bytes of the tree of an object for which a Table shows all cells. For larger ones it shows only the
/// cells that need just the name and the age. An EndpointSlice of 1,000 endpoints takes five million bytes.
pub const ROW_TREE_MAX: usize = 8 * 1024 * 1024;

/// What the rows of a Table contain besides their cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Include {
    /// `includeObject=None`.
    Nothing,
    /// `includeObject=Metadata`, the default.
    Metadata,
    /// `includeObject=Object`.
    Object,
}

/// Encodes the objects of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<'a> {
    /// The kind, as served.
    pub kind: &'a KindInfo,
    /// The form of the answer.
    pub form: Form,
    /// What Table rows contain.
    pub include: Include,
}

impl<'a> Encoder<'a> {
    /// Reads `includeObject` for Tables.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn new(kind: &'a KindInfo, form: Form, params: &Params) -> Result<Self, ApiError> {
        let include = match (form, params.text("includeObject")) {
            (Form::Table(_), Some("None")) => Include::Nothing,
            (Form::Table(_), Some("Object")) => Include::Object,
            (Form::Table(_), Some(other)) if other != "Metadata" => {
                let rule = "must be 'Metadata', 'Object', 'None', or empty";
                return Err(ApiError::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: {rule}"
                )));
            }
            _ => Include::Metadata,
        };
        Ok(Self { kind, form, include })
    }

    /// Refuses a form that does not exist for what is to be shown.
    ///
    /// # Errors
    /// 406 for the metadata of a list requested as that of one object, and vice versa.
    pub fn check_form(&self, is_list: bool) -> Result<(), ApiError> {
        let Form::Misfit(form) = self.form else { return Ok(()) };
        let (what, kind) =
            if is_list { ("is a list", &self.kind.list_kind) } else { ("is not a list", &self.kind.kind) };
        // kube-apiserver's message names the Go type.
        let group = match &*self.kind.resource.group {
            "" | "events.k8s.io" => "core",
            group => group.split('.').next().unwrap_or_default(),
        };
        let shown = match (self.kind.custom, is_list) {
            (true, true) => "unstructured.UnstructuredList".to_owned(),
            (true, false) => "unstructured.Unstructured".to_owned(),
            (false, _) => format!("{group}.{kind}"),
        };
        Err(ApiError::not_acceptable(format!(
            "you requested {form}, but the requested object {what} (*{shown})"
        )))
    }

    /// Bytes of stored objects that must be parsed before they can be shown.
    pub(crate) fn read_len(&self, items: &[Arc<Stored>]) -> usize {
        let is_read = matches!(self.form, Form::Table(_)) || !self.kind.identical_storage();
        if is_read { items.iter().map(|item| item.body_len()).sum() } else { 0 }
    }

    /// Bytes of the largest tree among these objects, where objects are parsed before they are shown. One is read after
    /// the other, and rows of Tables have [a limit of their own](ROW_TREE_MAX).
    pub(crate) fn tree_bytes(&self, items: &[Arc<Stored>]) -> usize {
        let is_text = matches!(self.form, Form::Metadata(_)) || self.kind.identical_storage();
        let bytes = |item: &Arc<Stored>| match self.is_renamed_only(item) {
            true => 0,
            false => tree::tree_bytes(&item.body()),
        };
        if is_text { 0 } else { items.iter().map(bytes).max().unwrap_or_default() }
    }

    /// Whether the served version differs from the stored one only in its name.
    fn is_renamed_only(&self, stored: &Stored) -> bool {
        self.kind.custom && !self.kind.outlives_writes() && stored.layout().is_some()
    }

    /// A stored object in the served version.
    #[must_use]
    pub fn served(&self, stored: &Stored) -> Bytes {
        let body = stored.body();
        if self.kind.identical_storage() {
            return body;
        }
        // Versions of a custom kind differ only in their name.
        if let Some(layout) = stored.layout().filter(|_| self.is_renamed_only(stored)) {
            let head = json!({"kind": &*self.kind.kind, "apiVersion": self.kind.api_version()});
            let mut text = raw::object_text(&head).to_vec();
            text.pop();
            text.push(b',');
            text.extend_from_slice(&body[layout.rest()..]);
            return text.into();
        }
        self.kind.read(&body).map_or(body, |object| raw::object_text(&object))
    }

    /// Encodes one stored object.
    #[must_use]
    pub fn object(&self, stored: &Stored) -> Bytes {
        match self.form {
            Form::Metadata(version) => metadata_of(stored, version),
            _ => self.shown(&self.served(stored)),
        }
    }

    /// Encodes one object that is already in the served version.
    #[must_use]
    pub fn shown(&self, body: &Bytes) -> Bytes {
        match self.form {
            Form::Metadata(version) => metadata_only(body, version),
            Form::Table(version) => {
                let revision = raw::revision(body);
                self.table(version, std::slice::from_ref(body), ListMeta::at(revision), true)
            }
            _ => body.clone(),
        }
    }

    /// Encodes a whole list that is already in the served version.
    #[must_use]
    pub fn shown_list(&self, body: &Bytes) -> Bytes {
        #[derive(Deserialize)]
        struct ItemList<'a> {
            metadata: ListMeta,
            #[serde(borrow)]
            items: Vec<&'a RawValue>,
        }
        let parsed: Result<ItemList<'_>, _> = serde_json::from_slice(body);
        let (Ok(ItemList { metadata, items }), true) = (parsed, self.form != Form::Object) else {
            return body.clone();
        };
        let bodies = items.iter().map(|item| Bytes::copy_from_slice(item.get().as_bytes()));
        match self.form {
            Form::Table(version) => self.table(version, &bodies.collect::<Vec<_>>(), metadata, true),
            Form::Metadata(version) => {
                let items = bodies.map(|body| RawValue::from_string(metadata_text(&body, version)).ok());
                to_bytes(&json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": format!("meta.k8s.io/{version}"),
                    "metadata": metadata,
                    "items": items.collect::<Vec<_>>(),
                }))
            }
            _ => body.clone(),
        }
    }

    /// Encodes the object of a watch event. Watches send the columns of Tables only once.
    #[must_use]
    pub fn event(&self, stored: &Stored, columns: bool) -> Bytes {
        let Form::Table(version) = self.form else { return self.object(stored) };
        let meta = ListMeta::at(stored.revision.to_string());
        self.table(version, &[self.served(stored)], meta, columns)
    }

    /// Encodes a list, as pieces of JSON text.
    #[must_use]
    pub fn list(&self, items: &[Arc<Stored>], mut meta: ListMeta) -> Vec<Part> {
        let (kind, api_version) = match self.form {
            Form::Table(version) => {
                let served: Vec<Bytes> = items.iter().map(|item| self.served(item)).collect();
                return vec![self.table(version, &served, meta, true).into()];
            }
            Form::Metadata(version) => {
                ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}"))
            }
            _ => (self.kind.list_kind.to_string(), self.kind.api_version()),
        };
        if self.kind.custom && self.form == Form::Object {
            // Lists of custom resources have no Go type that would omit an empty token.
            meta.continue_token.get_or_insert_default();
        }
        let head = json!({"kind": kind, "apiVersion": api_version, "metadata": meta});
        let mut head = raw::object_text(&head).to_vec();
        head.pop();
        if items.is_empty() && matches!(self.form, Form::Metadata(_)) {
            // kube-apiserver writes null here instead of an empty list.
            head.extend_from_slice(b",\"items\":null}");
            return vec![Bytes::from(head).into()];
        }
        head.extend_from_slice(b",\"items\":[");
        let mut parts = Vec::with_capacity(items.len() * 2 + 2);
        parts.push(Bytes::from(head).into());
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                parts.push(Bytes::from_static(b",").into());
            }
            match self.form {
                Form::Metadata(version) => parts.push(metadata_of(item, version).into()),
                _ if self.kind.custom && self.kind.identical_storage() => {
                    parts.push(Part::Stored { object: Arc::clone(item), from: 0 });
                }
                _ if self.kind.custom => parts.push(self.served(item).into()),
                _ => self.untyped(item, &mut parts),
            }
        }
        parts.push(Bytes::from_static(b"]}").into());
        parts
    }

    /// An item of a list of a built-in kind, which its Go type writes without kind and apiVersion.
    fn untyped(&self, item: &Arc<Stored>, parts: &mut Vec<Part>) {
        match item.layout().filter(|_| self.kind.identical_storage()) {
            Some(layout) => {
                parts.push(Bytes::from_static(b"{").into());
                parts.push(Part::Stored { object: Arc::clone(item), from: layout.rest() });
            }
            None => {
                let served = self.served(item);
                parts.push(raw::without_type(&served).unwrap_or(served).into());
            }
        }
    }

    /// A Table of objects in the served version.
    fn table(&self, version: &str, bodies: &[Bytes], meta: ListMeta, columns: bool) -> Bytes {
        let now = Timestamp::now();
        let rows: Vec<TableRow<'_>> = bodies.iter().map(|body| self.row(body, version, now)).collect();
        let definitions = if columns { self.columns() } else { Value::Null };
        let table = TableBody {
            kind: "Table",
            api_version: format!("meta.k8s.io/{version}"),
            metadata: meta,
            column_definitions: definitions,
            rows,
        };
        serde_json::to_vec(&table).map(Bytes::from).unwrap_or_default()
    }

    fn columns(&self) -> Value {
        let definition = |column: &crate::kinds::Column| {
            json!({
                "name": column.name,
                "type": column.r#type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        };
        self.kind.columns().iter().map(definition).collect()
    }

    fn row<'b>(&self, body: &'b Bytes, version: &str, now: Timestamp) -> TableRow<'b> {
        let parsed = match tree::tree_bytes(body) > ROW_TREE_MAX {
            true => named(body),
            false => serde_json::from_slice(body).unwrap_or_default(),
        };
        let object = match self.include {
            Include::Nothing => None,
            Include::Metadata => {
                RawValue::from_string(metadata_text(body, version)).ok().map(RowObject::Owned)
            }
            Include::Object => serde_json::from_slice(body).ok().map(RowObject::Borrowed),
        };
        TableRow { cells: self.kind.cells(&parsed, now), object }
    }

    /// The object of a bookmark: a kind, a revision, and possibly the annotation that ends the initial events.
    #[must_use]
    pub fn bookmark(&self, revision: Revision, initial_events_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = match self.form {
            Form::Object | Form::Misfit(_) | Form::Discovery => {
                (self.kind.kind.to_string(), self.kind.api_version())
            }
            Form::Metadata(version) | Form::Table(version) => {
                ("PartialObjectMetadata".to_owned(), format!("meta.k8s.io/{version}"))
            }
        };
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        let Form::Table(version) = self.form else { return to_bytes(&object) };
        let cells: Vec<&str> = self.kind.columns().iter().map(|_| "").collect();
        to_bytes(&json!({
            "kind": "Table",
            "apiVersion": format!("meta.k8s.io/{version}"),
            "metadata": {"resourceVersion": revision.to_string()},
            "columnDefinitions": null,
            "rows": [{"cells": cells, "object": object}],
        }))
    }
}

/// `metadata` of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    /// Revision of the list; empty in the Table of objects that are not stored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Token for the next page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub continue_token: Option<String>,
    /// Number of objects on later pages, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<usize>,
}

impl ListMeta {
    fn at(resource_version: String) -> Self {
        Self { resource_version, ..Self::default() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TableBody<'a> {
    kind: &'static str,
    api_version: String,
    metadata: ListMeta,
    column_definitions: Value,
    rows: Vec<TableRow<'a>>,
}

#[derive(Serialize)]
struct TableRow<'a> {
    cells: Vec<Value>,
    /// Null when the client wants only the cells.
    object: Option<RowObject<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RowObject<'a> {
    Borrowed(&'a RawValue),
    Owned(Box<RawValue>),
}

/// Reads only the name and the age of an object.
fn named(body: &[u8]) -> Value {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: ItemMetadata,
    }
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ItemMetadata {
        name: Option<String>,
        namespace: Option<String>,
        creation_timestamp: Option<String>,
    }
    let Object { metadata } = serde_json::from_slice(body).unwrap_or_default();
    json!({"metadata": metadata})
}

fn metadata_only(body: &[u8], version: &str) -> Bytes {
    metadata_text(body, version).into()
}

/// The metadata of a stored object, which is the same in all versions of a kind.
fn metadata_of(stored: &Stored, version: &str) -> Bytes {
    let Some(layout) = stored.layout() else { return metadata_only(&stored.body(), version) };
    let mut text = metadata_head(version).into_bytes();
    text.extend_from_slice(layout.metadata(&stored.body()));
    text.push(b'}');
    text.into()
}

fn metadata_head(version: &str) -> String {
    format!("{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":")
}

fn metadata_text(body: &[u8], version: &str) -> String {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    let object: Option<Object<'_>> = serde_json::from_slice(body).ok();
    let metadata = object.and_then(|object| object.metadata).map_or("{}", RawValue::get);
    format!("{}{metadata}}}", metadata_head(version))
}

#[cfg(test)]
mod tests;
