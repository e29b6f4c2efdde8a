//! The operations on a kind's paths, as far as clients use them.

use serde_json::{Map, Value, json};

use super::dialect::Dialect;
use super::path;
use super::type_names::{group_version_kind, schema_name};
use crate::kinds::KindInfo;

/// Adds the paths of a kind.
pub(super) fn add(kind: &KindInfo, dialect: Dialect, paths: &mut Map<String, Value>) {
    let writer = OperationWriter { kind, dialect };
    let base = path(&kind.resource.group, &kind.resource.version);
    let plural = &kind.resource.name;
    let collection = match kind.namespaced {
        true => format!("/{base}/namespaces/{{namespace}}/{plural}"),
        false => format!("/{base}/{plural}"),
    };
    if kind.namespaced {
        let all = writer.operations(&[("list", "get")], false);
        insert(paths, format!("/{base}/{plural}"), all);
    }
    let many = [("list", "get"), ("create", "post"), ("deletecollection", "delete")];
    insert(paths, collection.clone(), writer.operations(&many, kind.namespaced));
    let one = [("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete")];
    let mut item = writer.operations(&one, kind.namespaced);
    add_parameter(&mut item, writer.path_parameter("name"));
    insert(paths, format!("{collection}/{{name}}"), item);
}

fn insert(paths: &mut Map<String, Value>, path: String, item: Map<String, Value>) {
    if item.keys().any(|key| key != "parameters") {
        paths.insert(path, Value::Object(item));
    }
}

struct OperationWriter<'a> {
    kind: &'a KindInfo,
    dialect: Dialect,
}

impl OperationWriter<'_> {
    /// The operations of one path: the given verbs, if the kind has them.
    fn operations(&self, verbs: &[(&str, &str)], in_namespace: bool) -> Map<String, Value> {
        let mut item = Map::new();
        for (verb, method) in verbs {
            if self.kind.verbs.iter().any(|known| &**known == *verb) {
                item.insert((*method).to_owned(), self.operation(verb));
            }
        }
        if in_namespace {
            add_parameter(&mut item, self.path_parameter("namespace"));
        }
        item
    }

    fn operation(&self, verb: &str) -> Value {
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
            "x-kubernetes-group-version-kind": group_version_kind(self.kind),
        });
        let mut parameters: Vec<Value> = query.iter().map(|name| self.query_parameter(name)).collect();
        if self.dialect == Dialect::V2 {
            self.add_bodies(verb, &mut operation, &mut parameters);
        }
        // Omitted when there are none: Go's reader drops empty lists, so a document that it reads, writes and reads
        // again would differ.
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    /// Adds the request and response bodies in the form of version 2.
    fn add_bodies(&self, verb: &str, operation: &mut Value, parameters: &mut Vec<Value>) {
        let own = self.dialect.reference(&schema_name(self.kind));
        let body = match verb {
            "create" | "update" => own.clone(),
            "patch" => json!({"type": "object"}),
            _ => Value::Null,
        };
        if !body.is_null() {
            parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": body}));
        }
        if matches!(verb, "get" | "create" | "update" | "patch") {
            operation["responses"]["200"]["schema"] = own;
        }
    }

    fn query_parameter(&self, name: &str) -> Value {
        let ty = match name {
            "force" | "orphanDependents" | "watch" => "boolean",
            "limit" | "gracePeriodSeconds" => "integer",
            _ => "string",
        };
        self.parameter(json!({"name": name, "in": "query"}), ty)
    }

    fn path_parameter(&self, name: &str) -> Value {
        self.parameter(json!({"name": name, "in": "path", "required": true}), "string")
    }

    fn parameter(&self, mut parameter: Value, ty: &str) -> Value {
        match self.dialect {
            Dialect::V2 => {
                parameter["type"] = ty.into();
                parameter["uniqueItems"] = true.into();
            }
            Dialect::V3 => parameter["schema"] = json!({"type": ty, "uniqueItems": true}),
        }
        parameter
    }
}

fn add_parameter(item: &mut Map<String, Value>, parameter: Value) {
    let list = item.entry("parameters").or_insert_with(|| json!([]));
    if let Value::Array(list) = list {
        list.push(parameter);
    }
}
