//! Kinds defined by a CustomResourceDefinition.

pub mod definition;
pub(crate) mod discovered;
pub(super) mod finalizers;
pub(super) mod replicas;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tombolo_proto::object::Resource;

use super::jsonpath::JsonPath;
use super::rules::Rules;
use super::strategy::NoStrategy;
use super::{Column, KindInfo, ScalePaths, SubresourceInfo, columns};
use crate::field_error::FieldError;
use crate::kinds::order::stability;
use crate::kinds::part::LazyPart;
use crate::schema::Schema;
use crate::schema::types::Types;
use crate::value::{at, items, text};

/// What a definition adds to its kinds.
#[derive(Debug)]
pub(crate) struct Custom {
    /// Paths of the columns after the name, with their types.
    cells: Vec<(JsonPath, String)>,
    /// Selectable fields by name.
    selectable: Vec<(String, JsonPath)>,
    /// The structural schema as written in the definition, for OpenAPI.
    pub(crate) openapi: Value,
    /// The part of the OpenAPI 2.0 document for this kind.
    pub(crate) swagger: LazyPart,
    /// The definition was changed since its creation: stored objects may have been written under another schema.
    pub(crate) revised: bool,
    /// The fingerprint of the definition.
    pub(crate) fingerprint: Fingerprint,
}

/// Equal for definitions that produce the same kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Hash of the specification, and whether it is the first one.
    pub(crate) content: [u8; 32],
    /// The definition is being deleted: no objects are created any more.
    pub(crate) terminating: bool,
}

impl Fingerprint {
    pub(crate) fn of(definition: &Value) -> Self {
        let read = json!([definition["spec"], is_revised(definition)]);
        let conditions = items(definition, &["status", "conditions"]);
        let terminating = |condition: &Value| {
            text(condition, &["type"]) == "Terminating" && text(condition, &["status"]) == "True"
        };
        Self {
            content: Sha256::digest(read.to_string()).into(),
            terminating: conditions.iter().any(terminating),
        }
    }
}

impl Custom {
    /// Paths that field selectors may name, besides name and namespace.
    pub(crate) fn selectable_fields(&self) -> impl Iterator<Item = &str> {
        self.selectable.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut row = vec![json!(text(object, &["metadata", "name"]))];
        row.extend(self.cells.iter().map(|(path, ty)| cell(path.first(object), ty, now)));
        row
    }

    pub(crate) fn field_value(&self, object: &Value, field: &str) -> Option<String> {
        match field {
            "metadata.name" | "metadata.namespace" => {
                let key = field.trim_start_matches("metadata.");
                Some(text(object, &["metadata", key]).to_owned())
            }
            _ => {
                let (_, path) = self.selectable.iter().find(|(name, _)| name == field)?;
                Some(match path.first(object) {
                    Some(Value::String(text)) => text.clone(),
                    Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
                    _ => String::new(),
                })
            }
        }
    }
}

/// One cell; a value that does not fit the column's type leaves it empty.
fn cell(value: Option<&Value>, ty: &str, now: Timestamp) -> Value {
    match (ty, value) {
        (_, None) => Value::Null,
        ("string", Some(Value::String(text))) => json!(text),
        ("string", Some(Value::Null)) => json!("<none>"),
        ("string", Some(other)) => json!(other.to_string()),
        ("date", Some(Value::String(text))) => match text.parse::<Timestamp>() {
            Ok(_) => json!(columns::age(text, now)),
            Err(_) => json!("<invalid>"),
        },
        ("integer", Some(Value::Number(number))) => {
            number.as_i64().map_or_else(|| json!(number.as_f64().map(f64::trunc)), |n| json!(n))
        }
        ("number", Some(value @ Value::Number(_))) | ("boolean", Some(value @ Value::Bool(_))) => {
            value.clone()
        }
        _ => Value::Null,
    }
}

/// The kinds of every served version.
///
/// # Errors
/// What is wrong with the definition.
pub(crate) fn compile(
    definition: &Value,
    fingerprint: Fingerprint,
    stored: Option<&str>,
    builtin: &Types,
) -> Result<Vec<KindInfo>, Vec<FieldError>> {
    let errors = definition::check_with(definition, builtin, false);
    if !errors.is_empty() {
        return Err(errors);
    }
    let spec = &definition["spec"];
    let versions = items(spec, &["versions"]);
    let named = versions.iter().find(|version| version["storage"] == true);
    let stored = stored.or_else(|| named.and_then(|version| version["name"].as_str())).unwrap_or_default();
    let storage = Resource::new(text(spec, &["group"]), stored, text(spec, &["names", "plural"]));
    let common = Common { storage, revised: is_revised(definition), fingerprint };
    let mut kinds = Vec::new();
    for (index, version) in versions.iter().enumerate().filter(|(_, version)| version["served"] == true) {
        let path = definition::schema_path(versions, index);
        let openapi = at(version, &["schema", "openAPIV3Schema"]);
        let schema = crate::schema::crd::compile(openapi, &path, builtin)?;
        kinds.push(kind(spec, version, &common, schema));
    }
    Ok(kinds)
}

/// The warning of a deprecated version. Unless the definition has its own text, it recommends the most stable version
/// that is served and not deprecated, if that is more stable.
fn deprecation(spec: &Value, version: &Value) -> Option<Box<str>> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(own) = version["deprecationWarning"].as_str() {
        return Some(own.into());
    }
    let (group, kind, name) =
        (text(spec, &["group"]), text(spec, &["names", "kind"]), text(version, &["name"]));
    let others = items(spec, &["versions"]).iter();
    let fit = others.filter(|other| other["served"] == true && other["deprecated"] != true);
    let best = fit.map(|other| text(other, &["name"])).max_by_key(|other| stability(other));
    let instead = match best.filter(|other| stability(other) > stability(name)) {
        Some(other) => format!("; use {group}/{other} {kind}"),
        None => String::new(),
    };
    Some(format!("{group}/{name} {kind} is deprecated{instead}").into())
}

/// What all versions of a definition have in common.
struct Common {
    storage: Resource,
    revised: bool,
    fingerprint: Fingerprint,
}

/// The generation counts changes of the specification; that of a new definition is 1.
fn is_revised(definition: &Value) -> bool {
    at(definition, &["metadata", "generation"]).as_i64().is_some_and(|generation| generation > 1)
}

fn kind(spec: &Value, version: &Value, common: &Common, schema: Schema) -> KindInfo {
    let storage = &common.storage;
    let names = &spec["names"];
    let name = |key: &str| -> Arc<str> { text(names, &[key]).into() };
    let list = |key: &str| items(names, &[key]).iter().filter_map(Value::as_str).map(Arc::from).collect();
    let resource = Resource::new(&storage.group, text(version, &["name"]), &storage.name);
    let kind: Arc<str> = name("kind");
    let (columns, cells) = columns_of(version);
    let selectable = items(version, &["selectableFields"]).iter().filter_map(|field| {
        let path = text(field, &["jsonPath"]);
        Some((path.trim_start_matches('.').to_owned(), JsonPath::parse(path).ok()?))
    });
    let subresources = subresources(version, &resource, &kind);
    let names_of: Vec<&str> = subresources.iter().map(|subresource| &*subresource.name).collect();
    let deprecated = deprecation(spec, version);
    let rules = Arc::new(Rules { deprecated, ..Rules::custom(&names_of) });
    KindInfo {
        storage: storage.clone(),
        list_kind: match text(names, &["listKind"]) {
            "" => format!("{kind}List").into(),
            list_kind => list_kind.into(),
        },
        singular: match text(names, &["singular"]) {
            "" => kind.to_lowercase().into(),
            singular => singular.into(),
        },
        namespaced: text(spec, &["scope"]) == "Namespaced",
        short_names: list("shortNames"),
        categories: list("categories"),
        verbs: words(&["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]),
        subresources,
        scale: scale(version),
        custom: true,
        rules,
        schema,
        columns,
        strategy: &NoStrategy,
        definition: Some(Custom {
            cells,
            selectable: selectable.collect(),
            openapi: at(version, &["schema", "openAPIV3Schema"]).clone(),
            swagger: LazyPart::default(),
            revised: common.revised,
            fingerprint: common.fingerprint,
        }),
        kind,
        resource,
    }
}

fn words(words: &[&str]) -> Vec<Arc<str>> {
    words.iter().map(|word| Arc::from(*word)).collect()
}

fn subresources(version: &Value, resource: &Resource, kind: &Arc<str>) -> Vec<SubresourceInfo> {
    let declared = &version["subresources"];
    let verbs = || words(&["get", "patch", "update"]);
    let mut list = Vec::new();
    if declared["status"].is_object() {
        list.push(SubresourceInfo {
            name: "status".into(),
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: kind.clone(),
            verbs: verbs(),
        });
    }
    if declared["scale"].is_object() {
        list.push(SubresourceInfo {
            name: "scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs: verbs(),
        });
    }
    list
}

fn scale(version: &Value) -> Option<ScalePaths> {
    let scale = at(version, &["subresources", "scale"]);
    let path = |key: &str| -> Option<Arc<str>> {
        let path = text(scale, &[key]).trim_start_matches('.');
        (!path.is_empty()).then(|| path.into())
    };
    Some(ScalePaths {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        label_selector: path("labelSelectorPath"),
    })
}

type Cells = Vec<(JsonPath, String)>;

fn columns_of(version: &Value) -> (Vec<Column>, Cells) {
    let column = |name: &str, ty: &str, format: &str, priority: i32, description: &str| Column {
        name: name.to_owned(),
        r#type: ty.to_owned(),
        format: format.to_owned(),
        priority,
        description: description.to_owned().into(),
    };
    let (of_name, of_age) = columns::common_descriptions();
    let age = json!([
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": of_age}
    ]);
    let declared = match items(version, &["additionalPrinterColumns"]) {
        [] => items(&age, &[]),
        declared => declared,
    };
    let mut columns = vec![column("Name", "string", "name", 0, &of_name)];
    let mut cells = Vec::new();
    for one in declared {
        let Ok(path) = JsonPath::parse(text(one, &["jsonPath"])) else { continue };
        let ty = text(one, &["type"]);
        let format = text(one, &["format"]);
        let description = match text(one, &["description"]) {
            "" => &format!(
                "Custom resource definition column (in JSONPath format): {}",
                text(one, &["jsonPath"])
            ),
            written => written,
        };
        let priority = one["priority"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or_default();
        columns.push(column(text(one, &["name"]), ty, format, priority, description));
        cells.push((path, ty.to_owned()));
    }
    (columns, cells)
}
