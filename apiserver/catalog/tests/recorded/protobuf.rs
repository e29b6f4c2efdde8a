//! Requests of kubectl in protobuf, and objects that Go encoded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use tombolo_apicore::kinds::{KindInfo, Kinds};
use tombolo_apicore::protobuf::{Expected, MEDIA_TYPE, Typed, to_json};
use tombolo_apicore::schema::decode::Strict;
use tombolo_proto::object::Resource;

use super::{creates, kind_of, lines};

/// Requests of kubectl, with the real server's answers.
const KUBECTL: &str = include_str!("../../../fixtures/protobuf-kubectl.jsonl");

/// The objects of the creates as Go's serializer writes them.
const CREATES_PROTOBUF: &str = include_str!("../../../fixtures/protobuf-creates.jsonl");

/// Fields of Services that a server allocates.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

fn bytes(body: &Value) -> Vec<u8> {
    STANDARD.decode(body.as_str().unwrap()).unwrap()
}

/// The object in the body of a request.
fn parse(bytes: &[u8], expected: Expected<'_>, kinds: &Kinds) -> Value {
    let typed = Typed { media_type: MEDIA_TYPE.into(), bytes: bytes.to_vec().into() };
    serde_json::from_slice(&to_json(typed, expected, kinds).unwrap().bytes).unwrap()
}

fn named<'a>(kinds: &'a Kinds, group: &str, version: &str, plural: &str) -> &'a KindInfo {
    kinds.get(&Resource::new(group, version, plural)).unwrap()
}

/// The object as a server stores it before it allocates anything.
fn completed(kind: &KindInfo, value: Value) -> Value {
    let decoded = kind.decode_value(value).unwrap();
    assert_eq!(decoded.strict, Strict::default());
    let mut object = decoded.object;
    kind.default(&mut object);
    object
}

#[test]
fn objects_encoded_by_go_equal_their_json() {
    let kinds = tombolo_catalog::kinds();
    let (texts, encoded) = (creates(), lines(CREATES_PROTOBUF));
    assert_eq!(texts.len(), encoded.len());
    for (text, encoded) in texts.iter().zip(&encoded) {
        for form in ["sent", "stored"] {
            let kind = kind_of(&kinds, &text[form]);
            let ours = parse(&bytes(&encoded[form]), Expected::Object(kind, ""), &kinds);
            let expected = completed(kind, text[form].clone());
            assert_eq!(completed(kind, ours), expected, "{form} {}", kind.kind);
        }
    }
}

#[test]
fn kubectl_bodies_become_the_objects_of_the_real_server() {
    let kinds = tombolo_catalog::kinds();
    let recorded = lines(KUBECTL);
    assert!(recorded.len() >= 30, "{} recorded bodies", recorded.len());
    for one in &recorded {
        let mut expected = one["answer"].clone();
        let (kind, subresource) = match one["path"].as_str().unwrap().ends_with("/token") {
            true => (named(&kinds, "", "v1", "serviceaccounts"), "token"),
            false => (kind_of(&kinds, &expected), ""),
        };
        let mut ours = parse(&bytes(&one["body"]), Expected::Object(kind, subresource), &kinds);
        if kind.verbs.iter().any(|verb| &**verb == "get") && subresource.is_empty() {
            ours = completed(kind, ours);
            kind.prepare_create(&mut ours, Timestamp::UNIX_EPOCH);
            kind.canonical(&mut ours);
            [&mut ours, &mut expected].into_iter().for_each(without_allocated);
        } else {
            [&mut ours, &mut expected].into_iter().for_each(question);
        }
        assert_eq!(ours, expected, "{}", one["command"]);
    }
}

/// Removes fields that a server allocates, takes from the path or derives from a uid.
fn without_allocated(object: &mut Value) {
    let kind = object["kind"].clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| !["uid", "creationTimestamp", "namespace"].contains(&key.as_str()));
    if kind == "Job" {
        metadata.remove("labels");
    }
    let Some(spec) = object["spec"].as_object_mut() else { return };
    if kind == "Service" {
        spec.retain(|key, _| !ALLOCATED.contains(&key.as_str()));
        for port in spec["ports"].as_array_mut().unwrap() {
            port.as_object_mut().unwrap().remove("nodePort");
        }
    }
    if kind == "Job" {
        spec.remove("selector");
        spec["template"]["metadata"].as_object_mut().unwrap().remove("labels");
    }
}

/// Keeps only the request of a kind that is never stored: the rest is the server's answer.
fn question(object: &mut Value) {
    let root = object.as_object_mut().unwrap();
    root.retain(|key, _| ["apiVersion", "kind", "spec"].contains(&key.as_str()));
    let rules = root["kind"] == "SelfSubjectRulesReview";
    if let Some(spec) = root.get_mut("spec").and_then(Value::as_object_mut) {
        // The real server's answer about rules does not repeat the namespace.
        spec.retain(|key, value| !(value.is_null() || rules && key == "namespace"));
    }
}
