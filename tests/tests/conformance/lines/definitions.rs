//! Definitions, their custom resources, their rules, and admission policies; manifests and changes of other kinds that
//! are rejected.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{APPLY, JSON, MERGE, PATCH, STRATEGIC};
use crate::line::Line;

/// One JSON document per line: see [`Written`].
const SCHEMAS: &str = include_str!("schemas.jsonl");
const OBJECTS: &str = include_str!("objects.jsonl");
const RULES: &str = include_str!("rules.jsonl");
const REFUSALS: &str = include_str!("refusals.jsonl");
const CHANGES: &str = include_str!("changes.jsonl");

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A line of the file: a part of a definition that is tried in a dry run, or a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Schema of the field `spec`.
    schema: Option<Value>,
    /// Schema of the whole object.
    root: Option<Value>,
    /// Members of the spec, instead of the usual ones; null removes one.
    spec: Option<Value>,
    /// Method and path; `CRDS` at the beginning of the path stands for the path of definitions.
    ask: Option<String>,
    /// The type of patch: `apply`, `patch` or `strategic`; otherwise it is a merge patch.
    #[serde(rename = "as")]
    form: Option<String>,
    #[serde(default)]
    body: Value,
    /// Repeats the request until it returns this code: earlier writes take effect a moment later.
    until: Option<u16>,
    /// Why the texts of the answers differ.
    differs: Option<String>,
    /// If code, reason or fields differ too: those of the real and of the embedded server.
    verdicts: Option<[String; 2]>,
}

/// One request, and the expectations for its answers.
pub(crate) struct Case {
    pub(crate) line: Line,
    pub(crate) until: Option<u16>,
    pub(crate) differs: Option<String>,
    pub(crate) verdicts: Option<[String; 2]>,
}

/// All of them, in order.
pub(crate) fn cases() -> Vec<Case> {
    [SCHEMAS, OBJECTS, RULES, REFUSALS, CHANGES].iter().flat_map(|file| file.lines()).map(case).collect()
}

/// A line as [`Written`].
pub(crate) fn case(text: &str) -> Case {
    let written: Written = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let (until, differs, verdicts) = (written.until, written.differs.clone(), written.verdicts.clone());
    let (ask, form, body) = request(written);
    let (method, path) = ask.split_once(' ').expect("a request must have a method and a path");
    let path = path.replace("CRDS", DEFINITIONS);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let line = Line::new(&(method, &path, form, &body)).named(text.to_owned());
    Case { line, until, differs, verdicts }
}

fn request(written: Written) -> (String, &'static str, Value) {
    let tried = |root: &Value, spec: Option<&Value>| {
        ("POST CRDS?dryRun=All&fieldManager=m".to_owned(), JSON, definition(root, spec))
    };
    match written {
        Written { schema: Some(schema), .. } => {
            tried(&json!({"type": "object", "properties": {"spec": schema}}), None)
        }
        Written { root: Some(root), .. } => tried(&root, None),
        Written { spec: Some(spec), .. } => tried(&json!({"type": "object"}), Some(&spec)),
        Written { ask, form, body, .. } => {
            let ask = ask.expect("a line must be a part of a definition or a request");
            let form = match form.as_deref() {
                Some("apply") => APPLY,
                Some("patch") => PATCH,
                Some("strategic") => STRATEGIC,
                _ if ask.starts_with("PATCH") => MERGE,
                _ => JSON,
            };
            (ask, form, body)
        }
    }
}

/// The definition in which parts are tried.
fn definition(root: &Value, spec: Option<&Value>) -> Value {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.lines.example"},
        "spec": {
            "group": "lines.example", "scope": "Namespaced",
            "names": {"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": root}}],
        },
    });
    for (key, value) in spec.and_then(Value::as_object).into_iter().flatten() {
        definition["spec"][key] = value.clone();
    }
    if let Value::Object(members) = &mut definition["spec"] {
        members.retain(|_, value| !value.is_null());
    }
    definition
}
