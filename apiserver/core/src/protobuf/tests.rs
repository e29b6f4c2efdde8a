use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::json;
use tombolo_proto::object::Resource;

use super::*;
use crate::schema::types::Shape;

/// Objects in JSON, and the same objects encoded by Go's serializer.
const CREATES: &str = include_str!("../../../fixtures/creates.jsonl");
const CREATES_PROTOBUF: &str = include_str!("../../../fixtures/protobuf-creates.jsonl");

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(body: &Value) -> Vec<u8> {
    STANDARD.decode(body.as_str().unwrap()).unwrap()
}

fn kind_of<'a>(kinds: &'a Kinds, object: &Value) -> &'a KindInfo {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    kinds.by_kind(group, version, object["kind"].as_str().unwrap()).unwrap()
}

fn named<'a>(kinds: &'a Kinds, group: &str, version: &str, plural: &str) -> &'a KindInfo {
    kinds.get(&Resource::new(group, version, plural)).unwrap()
}

/// Encodes fields `(number, value)` of wire type 2.
fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let one = |(number, value): &(u8, &[u8])| {
        let length = u8::try_from(value.len()).ok().filter(|length| *length < 0x80).unwrap();
        [&[number << 3 | 2, length], *value].concat()
    };
    fields.iter().flat_map(one).collect()
}

/// A body of an object.
fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let types = message(&[(1, api_version.as_bytes()), (2, kind.as_bytes())]);
    [MAGIC, &message(&[(1, &types), (2, raw)])].concat()
}

#[test]
fn any_values_of_the_wire_forms_are_read() {
    let kinds = Kinds::builtin();
    // A message in two pieces, an empty time, an unknown field, and a map entry without a value.
    let name = message(&[(1, b"m"), (8, b""), (15, b"x")]);
    let labels = message(&[(11, &message(&[(1, b"k")]))]);
    let map = named(&kinds, "", "v1", "configmaps");
    let raw = message(&[(1, &name), (1, &labels)]);
    let map = parse(&body("v1", "ConfigMap", &raw), Expected::Object(map, ""), &kinds).unwrap();
    assert_eq!(map["metadata"], json!({"name": "m", "labels": {"k": ""}}));
    // Unions of JSON schemas with other types.
    let text = |ty: &str| message(&[(5, ty.as_bytes())]);
    let list_of_schemas = message(&[(2, &text("a")), (2, &text("b"))]);
    assert_eq!(schema(&kinds, 24, &list_of_schemas)["items"], json!([{"type": "a"}, {"type": "b"}]));
    assert_eq!(schema(&kinds, 24, &message(&[(1, &text("a"))]))["items"], json!({"type": "a"}));
    assert_eq!(schema(&kinds, 30, &[8, 1])["additionalProperties"], json!(true));
    assert_eq!(schema(&kinds, 30, &[8, 0])["additionalProperties"], json!(false));
    assert_eq!(
        schema(&kinds, 30, &[&[8, 1][..], &message(&[(2, &text("a"))])].concat())["additionalProperties"],
        json!({"type": "a"})
    );
    let names = message(&[(1, b"x"), (2, &message(&[(2, b"y"), (2, b"z")]))]);
    assert_eq!(schema(&kinds, 32, &names)["dependencies"], json!({"x": ["y", "z"]}));
    assert_eq!(schema(&kinds, 8, &message(&[(1, b"{\"a\":[1]}")]))["default"], json!({"a": [1]}));
}

/// A JSON schema of a definition with one field.
fn schema(kinds: &Kinds, number: u8, value: &[u8]) -> Value {
    let tag = [number << 3 | 2 | 0x80, number >> 4];
    let raw = [&tag, &[u8::try_from(value.len()).unwrap()][..], value].concat();
    let schema = kinds.builtin_type("apiextensions.v1.JSONSchemaProps").unwrap();
    Value::Object(object(&schema, &raw).unwrap())
}

#[test]
fn options_of_a_deletion_are_read_for_every_kind() {
    let kinds = Kinds::builtin();
    for api_version in ["v1", "apps/v1", ""] {
        // Grace period 0, a UID that must match, propagation policy.
        let raw = [&[8, 0][..], &message(&[(2, &message(&[(1, b"u")])), (4, b"Foreground")])].concat();
        let typed =
            Typed { media_type: MEDIA_TYPE.into(), bytes: body(api_version, "DeleteOptions", &raw).into() };
        let json = to_json(typed, Expected::DeleteOptions, &kinds).unwrap();
        assert_eq!(json.media_type, "application/json");
        let options: Value = serde_json::from_slice(&json.bytes).unwrap();
        assert_eq!(options["gracePeriodSeconds"], 0);
        assert_eq!(options["preconditions"], json!({"uid": "u"}));
        assert_eq!(options["propagationPolicy"], "Foreground");
    }
    let none = Typed { media_type: MEDIA_TYPE.into(), bytes: Bytes::new() };
    assert!(to_json(none, Expected::DeleteOptions, &kinds).unwrap().bytes.is_empty());
}

#[test]
fn every_kind_that_is_written_has_a_protobuf_form() {
    // Streams and proxies have no objects as bodies.
    const STREAMS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];
    let kinds = Kinds::builtin();
    let mut objects = 0;
    for kind in kinds.iter() {
        let below = kind.subresources.iter().map(|subresource| &*subresource.name);
        for name in below.chain([""]).filter(|name| !STREAMS.contains(name) && *name != "log") {
            let target = ExpectedMessage::of(Expected::Object(kind, name), &kinds);
            let target = target.unwrap_or_else(|| panic!("{} {name}", kind.kind));
            let Shape::Struct(shape) = &target.schema.cursor().node().shape else { panic!("{}", kind.kind) };
            for field in shape.fields.iter().filter(|f| !["apiVersion", "kind"].contains(&f.name.as_ref())) {
                assert!(field.wire.is_some(), "{} {}", target.kind, field.name);
            }
            objects += 1;
        }
    }
    assert!(objects > 100, "{objects}");
    let pods = named(&kinds, "", "v1", "pods");
    let raw = message(&[(1, &message(&[(1, b"p")])), (2, &[8, 5])]);
    let eviction = parse(&body("policy/v1", "Eviction", &raw), Expected::Object(pods, "eviction"), &kinds);
    let expected = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 5}});
    assert_eq!(eviction.unwrap(), expected);
}

#[test]
fn protobuf_of_another_object_is_refused() {
    let kinds = Kinds::builtin();
    let map = named(&kinds, "", "v1", "configmaps");
    let deep = (0..300).fold(Vec::new(), |inner: Vec<u8>, _| {
        let length = inner.len();
        let length = [(length as u8 & 0x7f) | 0x80, (length >> 7) as u8];
        // JSONSchemaProps.not
        [&[28 << 3 & 0x7f | 2 | 0x80, 28 >> 4][..], &length, &inner].concat()
    });
    let schema = kinds.builtin_type("apiextensions.v1.JSONSchemaProps").unwrap();
    let too_deep = object(&schema, &deep).unwrap_err();
    assert!(too_deep.to_string().contains("deeper than 128"), "{too_deep}");
    for (bytes, expected) in [
        (Vec::new(), "(must be of type ConfigMap): empty data"),
        (MAGIC.to_vec(), "empty body"),
        (b"{}".to_vec(), "expected prefix"),
        (b"k8s\0\x0a\x7f".to_vec(), "(must be of type ConfigMap): unexpected end"),
        (b"k8s\0\x0b".to_vec(), "illegal wire type 3"),
        (b"k8s\0\x02\x00".to_vec(), "illegal field number 0"),
        ([&b"k8s\0\x08"[..], &[0xff; 11]].concat(), "integer overflow"),
        (b"k8s\0\x1a\x04gzip".to_vec(), "content encoding"),
        (body("v1", "Secret", b""), "Secret in version \"v1\" cannot be handled as a ConfigMap"),
        (body("apps/v1", "ConfigMap", b""), "does not match the expected API version (v1)"),
        (body("v1", "ConfigMap", &[8, 1]), "field metadata: wrong wire type"),
        (
            body("v1", "ConfigMap", &message(&[(1, &message(&[(1, &[0xff])]))])),
            "field metadata.name: text that is not UTF-8",
        ),
    ] {
        let error = parse(&bytes, Expected::Object(map, ""), &kinds).unwrap_err();
        assert_eq!(error.code.as_u16(), 400, "{bytes:?}");
        assert!(error.message.contains(expected), "{expected}: {}", error.message);
    }
}

#[test]
fn custom_kinds_have_no_protobuf_form() {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tills.apps.example"}, "spec": {"group": "apps.example", "scope": "Namespaced",
        "names": {"plural": "tills", "singular": "till", "kind": "Deployment", "listKind": "TillList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let kinds = Kinds::builtin().with_crd(&definition).unwrap();
    let kind = named(&kinds, "apps.example", "v1", "tills");
    let error = parse(&body("apps.example/v1", "Deployment", b""), Expected::Object(kind, ""), &kinds);
    assert_eq!(error.unwrap_err().code.as_u16(), 415);
    let garbage = || Typed { media_type: "application/cbor".into(), bytes: Bytes::from_static(b"x") };
    let refused = |kind| object_to_json(garbage(), Expected::Object(kind, ""), &kinds);
    let error = refused(named(&kinds, "", "v1", "configmaps")).unwrap_err();
    assert!(
        error.message.ends_with("application/yaml, application/vnd.kubernetes.protobuf"),
        "{}",
        error.message
    );
    assert!(refused(kind).is_ok(), "a reader of text refuses it, without naming protobuf");
    let json = Typed { media_type: "application/json".into(), bytes: Bytes::from_static(b"{}") };
    assert_eq!(to_json(json, Expected::Object(kind, ""), &kinds).unwrap().bytes, "{}");
}

/// Recorded bodies, to be damaged by the test.
fn recorded() -> Vec<(Value, Vec<u8>)> {
    let encoded = lines(CREATES_PROTOBUF);
    lines(CREATES).into_iter().zip(encoded).map(|(o, e)| (o["stored"].clone(), bytes(&e["stored"]))).collect()
}

proptest! {
    #[test]
    fn arbitrary_messages_are_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..200), which in any::<prop::sample::Index>()) {
        let kinds = Kinds::builtin();
        let all: Vec<_> = kinds.iter().collect();
        let kind = which.get(&all);
        let _ = parse(&raw, Expected::Object(kind, ""), &kinds);
        let _ = object(kind.schema(), &raw);
    }

    #[test]
    fn damaged_objects_are_read_or_refused(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let kinds = Kinds::builtin();
        let all = recorded();
        let (object, mut bytes) = which.get(&all).clone();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() * 2));
        let kind = kind_of(&kinds, &object);
        if let Ok(value) = parse(&bytes, Expected::Object(kind, ""), &kinds) {
            // The result has the types of a JSON body: it passes through the same decoder, which can refuse only the
            // text of a quantity, a string in protobuf.
            if let Err(error) = kind.decode_value(value) {
                let error = error.to_string();
                prop_assert!(error.contains("quantities must match"), "{error}");
            }
        }
    }
}

/// Two bytes of a message create a part of an object that takes many times as much memory.
#[test]
fn protobuf_message_that_would_expand_too_much_is_refused() {
    let kinds = Kinds::builtin();
    let pod = named(&kinds, "", "v1", "pods");
    let read = |containers: usize| {
        let spec = [2 << 3 | 2, 0].repeat(containers);
        let mut raw = vec![2 << 3 | 2];
        let mut length = spec.len();
        while length >= 0x80 {
            raw.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        raw.push(u8::try_from(length).unwrap());
        raw.extend(spec);
        object(pod.schema(), &raw)
    };
    let small = read(1_000).unwrap();
    assert_eq!(small["spec"]["containers"].as_array().map(Vec::len), Some(1_000));
    let refused = read(1_200_000).map(drop).unwrap_err();
    assert!(refused.to_string().contains("more parts than are read here"), "{refused}");
}
