use serde_json::{Value, json};

use super::*;

fn document_of(kinds: &Kinds, group: &str, version: &str) -> Value {
    serde_json::from_slice(&document(kinds, group, version).unwrap()).unwrap()
}

pub(super) fn with_thing() -> Kinds {
    with_schema(&json!({
        "type": "object", "properties": {"spec": {"type": "object", "description": "what is wanted"}},
    }))
}

/// The built-in kinds and a kind `Thing` of `a.example/v1` with this schema.
pub(super) fn with_schema(schema: &Value) -> Kinds {
    Kinds::builtin().with_crd(&definition(schema)).unwrap()
}

pub(super) fn definition(schema: &Value) -> Value {
    json!({"metadata": {"name": "things.a.example"}, "spec": {
        "group": "a.example", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
    }})
}

/// client-go reads a document, writes it and reads it again without a difference: empty lists and maps would be lost,
/// except those that are defaults.
#[test]
fn documents_have_no_empty_lists_and_maps() {
    fn empty(value: &Value, path: &str, found: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(key, child)| (key.clone(), child)).collect(),
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, child)| (at.to_string(), child)).collect()
            }
            _ => return,
        };
        if children.is_empty() && !path.ends_with("/default") {
            found.push(path.to_owned());
        }
        for (key, child) in children {
            empty(child, &format!("{path}/{key}"), found);
        }
    }
    let kinds = with_thing();
    let mut found = Vec::new();
    for (group, version) in [("a.example", "v1"), ("apiextensions.k8s.io", "v1"), ("apps", "v1"), ("", "v1")]
    {
        empty(&document_of(&kinds, group, version), &format!("{group}/{version}"), &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// kubectl looks for this before it lets the server validate fields.
#[test]
fn patch_operations_take_field_validation() {
    let document = document_of(&Kinds::builtin(), "apps", "v1");
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"));
}

/// Client-side apply reads these.
#[test]
fn lists_carry_their_merge_keys() {
    let document = document_of(&Kinds::builtin(), "apps", "v1");
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let volumes = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    let kinds = &schemas["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"];
    assert_eq!(kinds, &json!([{"group": "apps", "version": "v1", "kind": "Deployment"}]));
}

#[test]
fn every_reference_has_its_schema() {
    let kinds = with_thing();
    for (group, version) in group_versions(&kinds) {
        let document = document_of(&kinds, &group, &version);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut missing = Vec::new();
        references(&document, &mut |name| {
            if !schemas.contains_key(name) {
                missing.push(name.to_owned());
            }
        });
        assert!(missing.is_empty(), "{group}/{version}: {missing:?}");
        assert!(schemas.values().all(Value::is_object), "{group}/{version}");
    }
}

pub(super) fn references(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                visit(name.rsplit('/').next().unwrap());
            }
            map.values().for_each(|value| references(value, visit));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, visit)),
        _ => {}
    }
}

#[test]
fn custom_kinds_come_and_go_with_their_definition() {
    let kinds = with_thing();
    let document = document_of(&kinds, "a.example", "v1");
    let schema = &document["components"]["schemas"]["example.a.v1.Thing"];
    assert_eq!(schema["properties"]["spec"]["description"], "what is wanted");
    let before = Kinds::builtin();
    assert!(super::document(&before, "a.example", "v1").is_none());
    assert!(index(&kinds)["paths"]["apis/a.example/v1"].is_object());
    let gone = kinds.without_group_resource("a.example", "things");
    assert!(index(&gone)["paths"]["apis/a.example/v1"].is_null());
}

#[test]
fn hashes_change_with_content_only() {
    let before = Kinds::builtin();
    let core = hash(&before, "", "v1");
    let after = with_thing();
    assert_eq!(core, hash(&after, "", "v1"));
    assert!(hash(&before, "a.example", "v1").is_none());
    assert_eq!(hash(&after, "a.example", "v1").unwrap().len(), 64);
}
