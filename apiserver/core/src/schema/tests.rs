use std::sync::LazyLock;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::field_error::FieldError;
use crate::kinds::Kinds;
use crate::schema::types::SchemaPosition;

/// Loaded once: property tests need it a few hundred times.
static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::builtin);

fn compile(schema: &Value) -> Result<Schema, Vec<FieldError>> {
    crd::compile(schema, "schema", KINDS.builtin_types())
}

fn decode_as(schema: &Schema, value: Value) -> Result<decode::Decoded, decode::DecodeError> {
    let target = decode::DecodeTarget { api_version: "a.example/v1", version: "v1", kind: "Thing", schema };
    decode::decode_value(&target, value)
}

#[test]
fn rules_that_cannot_be_evaluated_refuse_the_definition() {
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-validations": [{"rule": "self.a > 1", "message": "too small"}],
        "properties": {"a": {"type": "integer"}},
    }}});
    let errors = compile(&schema).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].field, "schema.properties[spec].x-kubernetes-validations[0].rule");
    assert!(errors[0].detail.contains("does not evaluate CEL rules"));
}

#[test]
fn unknown_fields_are_pruned_unless_they_are_preserved() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "known": {"type": "string"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"typed": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        "embedded": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true},
    }}}}))
    .unwrap();
    let value = json!({"apiVersion": "a.example/v1", "kind": "Thing", "metadata": {"name": "x", "odd": 1}, "spec": {
        "known": "k", "unknown": 1,
        "open": {"free": {"deep": 1}, "typed": {"a": "1", "b": "2"}},
        "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "odd": 1}, "spec": {"any": 1}},
    }});
    let decoded = decode_as(&schema, value).unwrap();
    assert_eq!(
        decoded.object["spec"],
        json!({
            "known": "k",
            "open": {"free": {"deep": 1}, "typed": {"a": "1"}},
            "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {"any": 1}},
        })
    );
    assert_eq!(
        decoded.strict.warnings().collect::<Vec<_>>(),
        [
            "unknown field \"metadata.odd\"",
            "unknown field \"spec.open.typed.b\"",
            "unknown field \"spec.unknown\"",
            "unknown field \"spec.embedded.metadata.odd\"",
        ]
    );
}

#[test]
fn defaults_replace_absent_values_and_invalid_nulls() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
        "a": {"type": "string", "default": "x"},
        "n": {"type": "string", "default": "y", "nullable": true},
        "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "integer", "default": 1}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"q": {"type": "boolean", "default": true}}}},
    }}}}))
    .unwrap();
    let mut value = json!({"spec": {"a": null, "n": null, "list": [{}, {"p": 2}], "map": {"k": {}}}});
    default::default(SchemaPosition(Some(schema.cursor())), &mut value, default::Nulls::Removed);
    assert_eq!(
        value,
        json!({"spec": {"a": "x", "n": null, "list": [{"p": 1}, {"p": 2}], "map": {"k": {"q": true}}}})
    );
    let mut empty = json!({});
    default::default(SchemaPosition(Some(schema.cursor())), &mut empty, default::Nulls::Removed);
    assert_eq!(empty, json!({"spec": {"a": "x", "n": "y"}}));
}

#[test]
fn alternatives_and_embedded_objects_are_checked() {
    let schema = compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "all": {"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 4}], "not": {"enum": [3]}},
        "object": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }}}}))
    .unwrap();
    let cases = [
        (json!({"port": 1}), None),
        (json!({"port": "http"}), None),
        (json!({"port": true}), Some("spec.port")),
        (json!({"all": 2}), None),
        // Errors of alternatives name no field, and come after those of rules that must all hold.
        (json!({"all": 1}), Some("spec.all")),
        (json!({"all": 5}), Some("spec.all")),
        (json!({"all": 3}), Some("<nil>")),
        (json!({"object": {"apiVersion": "a/b/c", "kind": "Pod"}}), Some("spec.object.apiVersion")),
        (json!({"object": {"apiVersion": "v1", "kind": "p_d"}}), Some("spec.object.kind")),
        (json!({"object": {"apiVersion": "v1", "kind": "Pod"}}), None),
        (json!({"object": {"kind": "Pod"}}), Some("spec.object.apiVersion")),
        (json!({"object": {"apiVersion": "v1", "kind": "Pod", "metadata": 1}}), Some("spec.object.metadata")),
    ];
    for (spec, field) in cases {
        let errors = check::check(SchemaPosition(Some(schema.cursor())), &json!({"spec": spec}), None);
        assert_eq!(errors.first().map(|error| error.field.as_str()), field, "{spec}");
    }
}

/// The messages of kube-apiserver 1.36.
#[test]
fn alternatives_have_the_messages_of_the_real_server() {
    let schema = compile(&json!({"type": "object", "properties": {
        "any": {"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 1}]},
        "all": {"type": "integer", "allOf": [{"minimum": 10}, {"maximum": 12}]},
        "one": {"type": "integer", "oneOf": [{"minimum": 10}, {"minimum": 5}]},
        "names": {"type": "string", "enum": ["a", "b"]},
    }}))
    .unwrap();
    let below = "should be greater than or equal to 10";
    let cases = [
        (
            json!({"any": 5}),
            vec![
                "<nil>: Invalid value: \"\": \"any\" must validate at least one schema (anyOf)".to_owned(),
                format!("any: Invalid value: 5: any in body {below}"),
            ],
        ),
        (
            json!({"all": 5}),
            vec![
                format!("all: Invalid value: 5: all in body {below}"),
                "<nil>: Invalid value: \"\": \"all\" must validate all the schemas (allOf)".to_owned(),
            ],
        ),
        (
            json!({"one": 11}),
            vec![
                "<nil>: Invalid value: \"\": \"one\" must validate one and only one schema (oneOf). Found 2 valid \
                 alternatives"
                    .to_owned(),
            ],
        ),
        (
            json!({"names": 1}),
            vec![
                "names: Invalid value: \"integer\": names in body must be of type string: \"integer\"".to_owned(),
                "names: Unsupported value: 1: supported values: \"a\", \"b\"".to_owned(),
            ],
        ),
    ];
    for (value, wanted) in cases {
        let errors = check::check(SchemaPosition(Some(schema.cursor())), &value, None);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, wanted, "{value}");
    }
}

#[test]
fn nulls_that_a_type_does_not_allow_are_removed() {
    let schema = compile(&json!({"type": "object", "properties": {
        "plain": {"type": "string"},
        "nullable": {"type": "string", "nullable": true},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    }}))
    .unwrap();
    let mut value =
        json!({"plain": null, "nullable": null, "free": {"a": null}, "map": {"a": null, "b": "c"}});
    let mut applied = value.clone();
    default::default(SchemaPosition(Some(schema.cursor())), &mut applied, default::Nulls::Kept);
    assert_eq!(applied, value, "but for what an apply leaves");
    default::default(SchemaPosition(Some(schema.cursor())), &mut value, default::Nulls::Removed);
    assert_eq!(value, json!({"nullable": null, "free": {"a": null}, "map": {"b": "c"}}));
}

/// Values that existed before a definition became stricter stay valid, and may change only to valid ones.
#[test]
fn unchanged_invalid_values_do_not_fail_an_update() {
    let schema = compile(&json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 3},
        "nested": {"type": "object", "required": ["must"], "properties": {"count": {"type": "integer", "minimum": 5}}},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "integer"}, "name": {"type": "string", "enum": ["a"]}}}},
        "plain": {"type": "array", "items": {"type": "string", "maxLength": 3}},
    }}))
    .unwrap();
    let old = json!({"name": "longer", "nested": {"count": 1}, "plain": ["longer"],
        "ports": [{"id": 1, "name": "z"}, {"id": 2, "name": "a"}]});
    let cases: [(Value, &[&str]); 5] = [
        (json!({"other": 1, "name": "longer", "nested": {"count": 1}, "plain": ["longer"]}), &[]),
        (json!({"name": "other"}), &["name"]),
        (json!({"nested": {"count": 1, "more": 1}}), &["nested.must"]),
        (json!({"ports": [{"id": 2, "name": "y"}, {"id": 1, "name": "z"}]}), &["ports[0].name"]),
        // Items of a list without keys have no counterpart in the old object.
        (json!({"plain": ["longer", "x"]}), &["plain[0]"]),
    ];
    for (new, wanted) in cases {
        let errors = check::check(SchemaPosition(Some(schema.cursor())), &new, Some(&old));
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, wanted, "{new}");
    }
}

#[test]
fn fields_are_reported_once_and_in_the_order_of_the_document() {
    let kind = KINDS.by_kind("", "v1", "ConfigMap").unwrap();
    let body = br#"{"zzz":{"a":1,"a":1},"odd":1,"odd":2,"data":{"b":"","b":"","a":"1"},"data":{"a":"2"},"data":{"a":"2"}}"#;
    let decoded = kind.decode(body).unwrap();
    let found = [
        "unknown field \"zzz\"",
        "unknown field \"odd\"",
        "duplicate field \"data.b\"",
        "duplicate field \"data\"",
    ];
    assert_eq!(decoded.strict.warnings().collect::<Vec<_>>(), found);
    assert_eq!(decoded.object["data"], json!({"a": "2", "b": ""}));
}

#[test]
fn numbers_of_custom_objects_are_kept_as_in_go() {
    let schema = compile(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).unwrap();
    // The number as sent, and as stored.
    let numbers = [
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854776000"),
        ("18446744073709551615", "1.8446744073709552e+19"),
        ("-9223372036854775809", "-9.223372036854776e+18"),
        ("1234567890123456789.0", "1234567890123456800"),
        ("1e19", "10000000000000000000"),
        ("2.0", "2"),
        ("-0.0", "0"),
        ("1.5", "1.5"),
    ];
    for (sent, kept) in numbers {
        let body = format!(r#"{{"apiVersion":"a.example/v1","kind":"Thing","n":{sent}}}"#);
        let mut object = serde_json::from_str(&body).unwrap();
        // Twice, because stored objects are read again.
        for _ in 0..2 {
            object = decode_as(&schema, object).unwrap().object;
            assert_eq!(object["n"].to_string(), kept, "{sent}");
        }
    }
}

#[test]
fn deep_bodies_are_refused() {
    let kind = KINDS.by_kind("", "v1", "ConfigMap").unwrap();
    let body = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let object = format!("{{\"kind\":\"ConfigMap\",\"metadata\":{{\"x\":{body}}}}}");
    assert!(kind.decode(object.as_bytes()).is_err());
    let mut value = json!(1);
    for _ in 0..DEPTH_MAX + 10 {
        value = json!({"a": value});
    }
    assert!(kind.decode_value(value).is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z0-9=:/.-]{0,12}".prop_map(Value::from),
        Just(json!("2026-01-01T00:00:00Z")),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((field_name(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Names that types and schemas use, so that walks go deep.
fn field_name() -> impl Strategy<Value = String> {
    const NAMES: [&str; 26] = [
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "finalizers",
        "managedFields",
        "containers",
        "template",
        "volumes",
        "ports",
        "resources",
        "limits",
        "type",
        "properties",
        "items",
        "default",
        "required",
        "enum",
        "oneOf",
        "not",
        "pattern",
        "additionalProperties",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "nullable",
    ];
    prop_oneof![prop::sample::select(&NAMES[..]).prop_map(str::to_owned), "[a-z]{1,4}"]
}

proptest! {
    #[test]
    fn arbitrary_objects_never_panic(value in any_json(), other in any_json()) {
        for (group, kind) in [("", "Pod"), ("apps", "Deployment"), ("", "Service"), ("batch", "Job"), ("", "Node"),
            ("apiextensions.k8s.io", "CustomResourceDefinition")] {
            let kind = KINDS.by_kind(group, "v1", kind).unwrap();
            let wrapped = json!({"metadata": value, "spec": other, "status": value});
            for body in [value.clone(), wrapped] {
                let Ok(mut decoded) = kind.decode_value(body) else { continue };
                kind.default(&mut decoded.object);
                let mut old = decoded.object.clone();
                kind.prepare_create(&mut old, Timestamp::UNIX_EPOCH);
                let _ = kind.validate_create(&old);
                let mut new = decoded.object;
                kind.prepare_update(&mut new, &old, "", Timestamp::UNIX_EPOCH);
                let _ = kind.validate_update(&new, &old, "");
                let _ = kind.cells(&new, jiff::Timestamp::UNIX_EPOCH);
            }
        }
    }

    #[test]
    fn arbitrary_schemas_and_values_never_panic(schema in any_json(), value in any_json()) {
        let spec = json!({"type": "object", "properties": {"spec": schema}});
        if let Ok(schema) = compile(&spec)
            && let Ok(mut decoded) = decode_as(&schema, json!({"spec": value}))
        {
            default::default(SchemaPosition(Some(schema.cursor())), &mut decoded.object, default::Nulls::Removed);
            let _ = check::check(SchemaPosition(Some(schema.cursor())), &decoded.object, None);
        }
    }

    #[test]
    fn decoding_and_default_are_idempotent(value in any_json()) {
        let kind = KINDS.by_kind("", "v1", "Pod").unwrap();
        let Ok(mut once) = kind.decode_value(json!({"spec": value})) else { return Ok(()) };
        kind.default(&mut once.object);
        let mut twice = kind.decode_value(once.object.clone()).unwrap();
        prop_assert!(twice.strict.is_empty());
        kind.default(&mut twice.object);
        prop_assert_eq!(once.object, twice.object);
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = KINDS.by_kind("", "v1", "Pod").unwrap().decode(&body);
    }
}
