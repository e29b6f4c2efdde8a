use serde_json::json;

use super::super::tests::{references, with_schema, with_thing};
use super::*;

fn json_of(kinds: &Kinds) -> Value {
    serde_json::from_slice(&Document::of(kinds).json().concat()).unwrap()
}

/// A published definition of the kind `Thing` with this schema.
fn published(schema: &Value) -> Value {
    json_of(&with_schema(schema))["definitions"]["example.a.v1.Thing"].clone()
}

#[test]
fn every_reference_has_its_definition() {
    let document = json_of(&with_thing());
    assert_eq!(document["swagger"], "2.0");
    let definitions = document["definitions"].as_object().unwrap();
    let mut missing = Vec::new();
    references(&document, &mut |name| {
        if !definitions.contains_key(name) {
            missing.push(name.to_owned());
        }
    });
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(definitions["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
    let patch = &document["paths"]["/apis/a.example/v1/namespaces/{namespace}/things/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-action"], "patch");
}

#[test]
fn changed_definition_rebuilds_only_its_part() {
    let before = with_thing();
    let first = Document::of(&before);
    let other =
        json!({"type": "object", "properties": {"spec": {"type": "object"}, "more": {"type": "string"}}});
    let after = before.with_crd(&super::super::tests::definition(&other)).unwrap();
    let second = Document::of(&after);
    assert!(std::ptr::eq(first.0[0], second.0[0]), "the built-in part is shared");
    assert_ne!(first.hash(), second.hash());
    let gone = after.without_group_resource("a.example", "things");
    assert_eq!(Document::of(&gone).hash(), Document::of(&Kinds::builtin()).hash());
}

#[test]
fn alternatives_and_null_are_left_out() {
    let published = published(&json!({"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "string", "nullable": true},
        "b": {"type": "string", "oneOf": [{"pattern": "x"}, {"pattern": "y"}]},
        "c": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "string"}},
    }}));
    assert_eq!(published["required"], json!(["b"]));
    assert_eq!(published["properties"]["a"], json!({}));
    assert_eq!(published["properties"]["b"], json!({"type": "string"}));
    assert_eq!(published["properties"]["c"], json!({"x-kubernetes-preserve-unknown-fields": true}));
    assert_eq!(
        published["properties"]["metadata"]["$ref"],
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
}

#[test]
fn kind_with_arbitrary_fields_lists_none() {
    let published = published(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object"}}}));
    let kind = json!([{"group": "a.example", "version": "v1", "kind": "Thing"}]);
    assert_eq!(published, json!({"type": "object", "x-kubernetes-group-version-kind": kind}));
}

#[test]
fn an_embedded_object_has_the_fields_of_every_object() {
    let published = published(&json!({"type": "object", "properties": {"template": {
        "type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}));
    let template = &published["properties"]["template"];
    assert_eq!(template["required"], json!(["kind", "apiVersion"]));
    assert_eq!(template["properties"]["kind"]["type"], "string");
}

/// Bytes written by hand from the field numbers of gnostic's message definitions.
#[test]
fn protobuf_follows_the_messages_of_gnostic() {
    let schema =
        json!({"type": "object", "maxLength": 300, "enum": ["a"], "additionalProperties": false, "x-a": 1});
    let document = json!({"swagger": "2.0", "definitions": {"D": schema}});
    let mut wanted = b"\x0a\x032.0".to_vec();
    let members = [
        b"\xaa\x01\x02\x10\x00".as_slice(), // additionalProperties (21), false in field 2
        b"\xa2\x01\x05\x12\x03\"a\"",       // enum (20), YAML in field 2
        b"\x58\xac\x02",                    // maxLength (11), 300
        b"\xb2\x01\x08\x0a\x06object",      // type (22), a list of strings
        b"\xfa\x01\x0a\x0a\x03x-a\x12\x03\x12\x011", // extensions (31), named values
    ]
    .concat();
    let entry = [b"\x0a\x01D\x12".as_slice(), &[members.len() as u8], &members].concat();
    wanted.extend_from_slice(
        &[b"\x4a".as_slice(), &[entry.len() as u8 + 2], b"\x0a", &[entry.len() as u8], &entry].concat(),
    );
    // The order of members is not preserved here, so the bytes are compared as sorted lists.
    let sorted = |mut bytes: Vec<u8>| {
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(sorted(protobuf::document(&document).to_vec()), sorted(wanted));
}
