//! The operations on a kind's paths, as far as clients ask for them.

use serde_json::{Map, Value, json};

use super::path;
use crate::kinds::KindInfo;

/// Adds the paths of a kind.
pub(super) fn add(kind: &KindInfo, paths: &mut Map<String, Value>) {
    let base = path(&kind.resource.group, &kind.resource.version);
    let plural = &kind.resource.name;
    let collection = match kind.namespaced {
        true => format!("/{base}/namespaces/{{namespace}}/{plural}"),
        false => format!("/{base}/{plural}"),
    };
    if kind.namespaced {
        let all = operations(kind, &[("list", "get")], false);
        insert(paths, format!("/{base}/{plural}"), all);
    }
    let many = [("list", "get"), ("create", "post"), ("deletecollection", "delete")];
    insert(paths, collection.clone(), operations(kind, &many, kind.namespaced));
    let one = [("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete")];
    let mut item = operations(kind, &one, kind.namespaced);
    add_parameter(&mut item, path_parameter("name"));
    insert(paths, format!("{collection}/{{name}}"), item);
}

fn insert(paths: &mut Map<String, Value>, path: String, item: Map<String, Value>) {
    if item.keys().any(|key| key != "parameters") {
        paths.insert(path, Value::Object(item));
    }
}

/// The operations of one path: those of the given verbs that the kind has.
fn operations(kind: &KindInfo, verbs: &[(&str, &str)], in_namespace: bool) -> Map<String, Value> {
    let mut item = Map::new();
    for (verb, method) in verbs {
        if kind.verbs.iter().any(|known| &**known == *verb) {
            item.insert((*method).to_owned(), operation(kind, verb));
        }
    }
    if in_namespace {
        add_parameter(&mut item, path_parameter("namespace"));
    }
    item
}

fn operation(kind: &KindInfo, verb: &str) -> Value {
    let query: &[&str] = match verb {
        "create" | "update" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"],
        "list" | "deletecollection" => {
            &["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "watch"]
        }
        _ => &[],
    };
    let action = match verb {
        "create" => "post",
        "update" => "put",
        other => other,
    };
    let mut operation = json!({
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(kind),
    });
    // Left out when there are none: Go's reader of documents keeps no empty list, so that what it reads, writes and
    // reads again would not be the same.
    if !query.is_empty() {
        operation["parameters"] = query.iter().map(|name| query_parameter(name)).collect();
    }
    operation
}

/// `x-kubernetes-group-version-kind` of one kind.
pub(super) fn group_version_kind(kind: &KindInfo) -> Value {
    json!({"group": &*kind.resource.group, "version": &*kind.resource.version, "kind": &*kind.kind})
}

fn query_parameter(name: &str) -> Value {
    let ty = match name {
        "force" | "orphanDependents" | "watch" => "boolean",
        "limit" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}})
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

fn add_parameter(item: &mut Map<String, Value>, parameter: Value) {
    let list = item.entry("parameters").or_insert_with(|| json!([]));
    if let Value::Array(list) = list {
        list.push(parameter);
    }
}
