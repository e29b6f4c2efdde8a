//! Tests of field ownership without recordings.

use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::kinds::Kinds;
use crate::patch;
use crate::value::{items, text};

#[test]
fn many_field_managers_are_merged() {
    let kinds = Kinds::builtin();
    let kind = kinds.by_kind("", "v1", "ConfigMap").unwrap();
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {}});
    let mut live = None;
    for number in 0..15 {
        object["data"][format!("k{number}")] = "1".into();
        let name = format!("w{number}");
        let now = Timestamp::from_second(number).unwrap();
        let writer = Writer { manager: &name, api_version: "v1".into(), subresource: "", now };
        update(kind, live.as_ref(), &mut object, &writer);
        live = Some(object.clone());
    }
    let managers: Vec<&str> = items(&object, &["metadata", "managedFields"])
        .iter()
        .map(|entry| text(entry, &["manager"]))
        .collect();
    assert_eq!(managers.len(), 10);
    assert!(managers.contains(&"ancient-changes") && managers.contains(&"w14") && !managers.contains(&"w0"));
}

#[test]
fn malformed_ownership_is_ignored() {
    for fields in [
        json!("x"),
        json!([{"operation": "Fly"}]),
        json!([{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"q:x": {}}}]),
        json!([{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"k:[": {}}}]),
    ] {
        assert!(Managers::decode(&fields).is_empty(), "{fields}");
    }
}

#[test]
fn merge_holds_deeply_nested_values_once() {
    if !alone(module_path!(), "merge_holds_deeply_nested_values_once") {
        return;
    }
    let deep = |bottom: &str| -> Value {
        let text = format!("{}{bottom}{}", r#"{"a":"#.repeat(100), "}".repeat(100));
        serde_json::from_str(&text).unwrap()
    };
    let live = deep(&format!(r#"{{"b":[{}0]}}"#, r#"{"":0},"#.repeat(10_000)));
    let applied = deep(r#"{"c":1}"#);
    let growth = Growth::begin();
    let merged = walk::merge(SchemaPosition(None), Some(&live), &applied).unwrap();
    let grown = growth.most() / 1024 / 1024;
    assert!(grown < 64, "{grown} MiB");
    assert_eq!(merged, patch::merge_patch(&live, &applied).unwrap());
}
