//! Compares defaults, ownership and tables with what a real kube-apiserver answered (`data/fixtures`).

mod refusals;
mod updates;

use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::value::{at, text};
use super::*;
use crate::schema::decode::Strict;
use crate::ssa::{self, Writer};

const CREATES: &str = include_str!("../../data/fixtures/creates.jsonl");

/// Fields that the real server allocated or learnt from the request, by kind: taken over before comparing.
const ALLOCATED: &[(&str, &[&str])] = &[
    ("Service", &["spec", "clusterIP"]),
    ("Service", &["spec", "clusterIPs"]),
    ("Service", &["spec", "ipFamilies"]),
    ("Service", &["spec", "ipFamilyPolicy"]),
    ("CertificateSigningRequest", &["spec", "username"]),
    ("CertificateSigningRequest", &["spec", "groups"]),
    ("CertificateSigningRequest", &["spec", "uid"]),
    ("CertificateSigningRequest", &["spec", "extra"]),
    // The time of a volume's last phase change needs a clock, which preparing has not.
    ("PersistentVolume", &["status", "lastPhaseTransitionTime"]),
];

fn creates() -> Vec<Value> {
    CREATES.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kind_of<'a>(kinds: &'a Kinds, object: &Value) -> &'a KindInfo {
    let api_version = text(object, &["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    kinds.by_kind(group, version, text(object, &["kind"])).expect("the kind is built in")
}

/// Objects that were stored before their definition changed are read as the definition has them now.
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

/// Whoever writes an object chooses what its tree takes, and each that is read is brought up to date.
#[test]
fn what_is_brought_up_to_date_is_held_once() {
    if !alone(module_path!(), "what_is_brought_up_to_date_is_held_once") {
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
    // The labels of the second are of another type: it is read once more.
    for stored in [stored("{}"), stored("7")] {
        let growth = Growth::begin();
        let read = thing.read(stored.as_bytes()).unwrap();
        let grown = growth.most() / 1024 / 1024;
        assert_eq!(read["spec"].as_array().map(Vec::len), Some(60_001));
        assert!(grown < 60, "{grown} MiB, and one tree takes 40");
    }
}

fn put(object: &mut Value, path: &[&str], value: Value) {
    let mut place = object;
    for key in path {
        place = &mut place[*key];
    }
    *place = value;
}

/// Runs a manifest through the pipeline of a create, with the clock and the identity of the recorded answer.
fn create(kind: &KindInfo, sent: &Value, stored: &Value) -> Value {
    let decoded = kind.decode(sent.to_string().as_bytes()).unwrap();
    assert_eq!(decoded.strict, Strict::default());
    let mut object = decoded.object;
    kind.default(&mut object);
    for key in ["uid", "creationTimestamp", "resourceVersion"] {
        put(&mut object, &["metadata", key], at(stored, &["metadata", key]).clone());
    }
    let now = text(stored, &["metadata", "creationTimestamp"]).parse().unwrap();
    let writer = Writer { manager: "rec", api_version: kind.api_version(), subresource: "", now };
    ssa::update(kind, None, &mut object, &writer);
    kind.prepare_create(&mut object, Timestamp::UNIX_EPOCH);
    for (_, path) in ALLOCATED.iter().filter(|(of, _)| *of == &*kind.kind) {
        let value = at(stored, path);
        if !value.is_null() {
            put(&mut object, path, value.clone());
        }
    }
    kind.canonical(&mut object);
    object
}

/// The paths at which two values differ, with both values.
fn differences(path: &str, left: &Value, right: &Value, out: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let missing = json!("<absent>");
                let (a, b) = (a.get(key).unwrap_or(&missing), b.get(key).unwrap_or(&missing));
                differences(&format!("{path}.{key}"), a, b, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{index}]"), a, b, out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{path}: ours {a}, real {b}")),
    }
}

#[test]
fn created_objects_equal_those_of_the_real_server() {
    let kinds = Kinds::builtin();
    let mut wrong = Vec::new();
    let recorded = creates();
    assert!(recorded.len() >= 50, "{} recorded creates", recorded.len());
    for one in &recorded {
        let (sent, stored) = (&one["sent"], &one["stored"]);
        let kind = kind_of(&kinds, sent);
        let ours = create(kind, sent, stored);
        let name = format!("{} {}", kind.kind, text(sent, &["metadata", "name"]));
        let mut found = Vec::new();
        differences(&name, &ours, stored, &mut found);
        wrong.extend(found);
        for error in kind.validate_create(&ours) {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn tables_equal_those_of_the_real_server() {
    const TIMES: [&str; 5] = ["Age", "Last Seen", "First Seen", "Duration", "Last Schedule"];
    let kinds = Kinds::builtin();
    let mut wrong = Vec::new();
    for one in creates() {
        let stored = if one["read"].is_object() { &one["read"] } else { &one["stored"] };
        let kind = kind_of(&kinds, stored);
        let columns: Vec<Value> = kind
            .columns()
            .iter()
            .map(|c| json!({"name": c.name, "type": c.r#type, "format": c.format, "priority": c.priority}))
            .collect();
        if json!(columns) != one["table"]["columns"] {
            wrong.push(format!("{}: columns {:?}", kind.kind, one["table"]["columns"]));
        }
        let cells = kind.cells(stored, Timestamp::now());
        let real = one["table"]["cells"][0].as_array().unwrap();
        assert_eq!(cells.len(), real.len(), "{}", kind.kind);
        for ((ours, real), column) in cells.iter().zip(real).zip(kind.columns()) {
            if ours != real && !TIMES.contains(&column.name.as_str()) {
                wrong.push(format!("{} {}: ours {ours}, real {real}", kind.kind, column.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn defaulting_twice_changes_nothing_more() {
    let kinds = Kinds::builtin();
    for one in creates() {
        let kind = kind_of(&kinds, &one["sent"]);
        let mut once = kind.decode_value(one["sent"].clone()).unwrap().object;
        kind.default(&mut once);
        let mut twice = once.clone();
        kind.default(&mut twice);
        assert_eq!(once, twice);
        // What is stored is written back as it was read.
        let mut read = kind.decode_value(one["stored"].clone()).unwrap().object;
        kind.default(&mut read);
        assert_eq!(read, one["stored"]);
    }
}

/// Words of its own go before those that are made; a version that is less stable is no advice.
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
