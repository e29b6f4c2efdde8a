//! Creates, with the objects that the server stored and the table rows that it showed.

use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::schema::decode::Strict;
use tombolo_apicore::ssa::{self, Writer};
use tombolo_apicore::value::{at, text};

use super::{creates, kind_of};

/// Fields that the real server allocated or took from the request, by kind: copied before comparing.
const ALLOCATED: &[(&str, &[&str])] = &[
    ("Service", &["spec", "clusterIP"]),
    ("Service", &["spec", "clusterIPs"]),
    ("Service", &["spec", "ipFamilies"]),
    ("Service", &["spec", "ipFamilyPolicy"]),
    ("CertificateSigningRequest", &["spec", "username"]),
    ("CertificateSigningRequest", &["spec", "groups"]),
    ("CertificateSigningRequest", &["spec", "uid"]),
    ("CertificateSigningRequest", &["spec", "extra"]),
    // The time of a volume's last phase change needs a clock, which the prepare step does not have.
    ("PersistentVolume", &["status", "lastPhaseTransitionTime"]),
];

fn put(object: &mut Value, path: &[&str], value: Value) {
    let mut part = object;
    for key in path {
        part = &mut part[*key];
    }
    *part = value;
}

/// Runs a manifest through a create, with the clock and the identity of the recorded answer.
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
    let kinds = tombolo_catalog::kinds();
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
    let kinds = tombolo_catalog::kinds();
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
fn defaulting_is_idempotent() {
    let kinds = tombolo_catalog::kinds();
    for one in creates() {
        let kind = kind_of(&kinds, &one["sent"]);
        let mut once = kind.decode_value(one["sent"].clone()).unwrap().object;
        kind.default(&mut once);
        let mut twice = once.clone();
        kind.default(&mut twice);
        assert_eq!(once, twice);
        // A stored object is written back as it was read.
        let mut read = kind.decode_value(one["stored"].clone()).unwrap().object;
        kind.default(&mut read);
        assert_eq!(read, one["stored"]);
    }
}
