//! Tests of custom kinds.

use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::*;

/// Objects that were stored before their definition changed are read under the current definition.
#[test]
fn stored_custom_objects_follow_their_definition() {
    let definition = |generation: i64, spec: Value| {
        json!({"metadata": {"name": "things.a.example", "generation": generation}, "spec": {
            "group": "a.example", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": spec}},
            }}}],
        }})
    };
    let first = definition(1, json!({"old": {"type": "string"}}));
    let kinds = Kinds::builtin().with_crd(&first).unwrap();
    assert!(kinds.with_crd(&first).unwrap().same(&kinds), "the same definition makes the same kinds");
    let thing = |kinds: &Kinds| kinds.by_kind("a.example", "v1", "Thing").unwrap().clone();
    assert!(thing(&kinds).identical_storage());
    let second = definition(2, json!({"new": {"type": "string", "default": "n"}}));
    let changed = thing(&kinds.with_crd(&second).unwrap());
    assert!(!changed.identical_storage());
    let stored = json!({"kind": "Thing", "apiVersion": "a.example/v1", "metadata": {"name": "a"}, "spec": {"old": "o"}});
    let read = changed.read(stored.to_string().as_bytes()).unwrap();
    assert_eq!(read["spec"], json!({"new": "n"}));
    assert_eq!(read["metadata"]["name"], "a");
}

/// The author of an object determines how much memory its tree takes, and each object that is read is updated to the
/// current definition.
#[test]
fn converted_object_is_in_memory_once() {
    if !alone(module_path!(), "converted_object_is_in_memory_once") {
        return;
    }
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "things.a.example", "generation": 2}, "spec": {
        "group": "a.example", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
    }});
    let kinds = Kinds::builtin().with_crd(&definition).unwrap();
    let thing = kinds.by_kind("a.example", "v1", "Thing").unwrap();
    let parts = r#"{"":0},"#.repeat(60_000);
    let stored = |labels: &str| {
        format!(
            r#"{{"kind":"Thing","apiVersion":"a.example/v1","metadata":{{"name":"a","labels":{labels}}},"spec":[{parts}0]}}"#
        )
    };
    // The labels of the second have another type: it is parsed again.
    for stored in [stored("{}"), stored("7")] {
        let growth = Growth::begin();
        let read = thing.read(stored.as_bytes()).unwrap();
        let grown = growth.most() / 1024 / 1024;
        assert_eq!(read["spec"].as_array().map(Vec::len), Some(60_001));
        assert!(grown < 60, "{grown} MiB, and one tree takes 40");
    }
}

/// A custom text takes precedence over the generated one; a less stable version is not recommended.
#[test]
fn deprecated_versions_name_a_more_stable_one() {
    let version = |name: &str, deprecated: bool, warning: Value| {
        json!({
            "name": name, "served": true, "storage": name == "v2", "deprecated": deprecated,
            "deprecationWarning": warning, "schema": {"openAPIV3Schema": {"type": "object"}},
        })
    };
    let definition = json!({"metadata": {"name": "things.a.example"}, "spec": {
        "group": "a.example", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
        "versions": [
            version("v1beta1", false, Value::Null),
            version("v1alpha1", true, Value::Null),
            version("v1alpha2", true, json!("gone soon")),
            version("v2", true, Value::Null),
        ],
    }});
    let kinds = Kinds::builtin().with_crd(&definition).unwrap();
    let warning =
        |version: &str| kinds.by_kind("a.example", version, "Thing").unwrap().rules().deprecated.as_deref();
    assert_eq!(warning("v1beta1"), None);
    assert_eq!(
        warning("v1alpha1"),
        Some("a.example/v1alpha1 Thing is deprecated; use a.example/v1beta1 Thing")
    );
    assert_eq!(warning("v1alpha2"), Some("gone soon"));
    assert_eq!(warning("v2"), Some("a.example/v2 Thing is deprecated"));
}
