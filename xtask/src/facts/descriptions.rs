//! Records what kube-apiserver's OpenAPI says about built-in types: descriptions, and the allowed values of strings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

/// Types that fields refer to, although the table treats them as scalars.
const SCALARS: [&str; 4] = [
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
];

/// The file as text. Each type has a line with its name and text. Below it, each field has a line that begins with a
/// tab and holds its name, values and text, separated by tabs. Type names are complete, texts are JSON, and values are
/// joined by commas. `-` means any value. Values behind `[]` are those of the items. The text has only types of the
/// table.
pub(super) fn table(types: &BTreeMap<String, Value>, builtin: &str) -> Result<String> {
    let known = |name: &str| {
        let parts: Vec<&str> = name.split('.').collect();
        let short = parts[parts.len().saturating_sub(3)..].join(".");
        builtin
            .lines()
            .any(|line| line.strip_prefix("type ").and_then(|rest| rest.split(' ').next()) == Some(&short))
    };
    let mut out = String::new();
    for (name, schema) in types.iter().filter(|(name, _)| SCALARS.contains(&name.as_str()) || known(name)) {
        writeln!(out, "{name}\t{}", text(schema))?;
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            writeln!(out, "\t{field}\t{}\t{}", values(property), text(property))?;
        }
    }
    Ok(out)
}

fn text(schema: &Value) -> Value {
    schema["description"].as_str().unwrap_or_default().into()
}

fn values(property: &Value) -> String {
    let joined = |list: &Value| {
        let values: Vec<&str> = list.as_array()?.iter().filter_map(Value::as_str).collect();
        (!values.is_empty()).then(|| values.join(","))
    };
    let of_items = || joined(&property["items"]["enum"]).map(|values| format!("[]{values}"));
    joined(&property["enum"]).or_else(of_items).unwrap_or_else(|| "-".to_owned())
}
