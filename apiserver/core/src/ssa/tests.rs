//! Replays sequences of writes that a real kube-apiserver answered (`data/fixtures/sequences.jsonl`).

use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::kinds::Kinds;
use crate::kinds::value::{at, items, text};
use crate::patch;

const SEQUENCES: &str = include_str!("../../data/fixtures/sequences.jsonl");
const CREATES: &str = include_str!("../../data/fixtures/creates.jsonl");

/// One write that was recorded.
struct Step<'a> {
    kind: &'a KindInfo,
    live: Option<&'a Value>,
    recorded: &'a Value,
}

/// An answer: the object, or the code, the message and the causes of a refusal.
type Answer = Result<Value, (u16, String, Value)>;

impl Step<'_> {
    fn run(&self) -> Answer {
        let step = self.recorded;
        let (op, body, sub) = (text(step, &["op"]), &step["body"], text(step, &["subresource"]));
        let writer = Writer {
            manager: text(step, &["manager"]),
            api_version: self.kind.api_version(),
            subresource: sub,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let patched = |error: patch::PatchError| (error.code(), error.to_string(), Value::Null);
        let live = self.live.cloned().unwrap_or_default();
        let merged = match op {
            "create" | "update" => body.clone(),
            "merge" => patch::merge_patch(&live, body).map_err(patched)?,
            "strategic" => patch::strategic_merge_patch(self.kind.schema(), &live, body).map_err(patched)?,
            "json" => patch::json_patch(&live, body.to_string().as_bytes()).map_err(patched)?,
            _ => apply(self.kind, self.live, body, &writer, step["force"] == true)
                .map_err(|error| refusal(&error))?,
        };
        let decoded = self.kind.decode_value(merged).map_err(|e| (400, e.to_string(), Value::Null))?;
        if !decoded.strict.is_empty() {
            return Err((422, String::new(), Value::Null));
        }
        let mut new = decoded.object;
        if new["metadata"]["namespace"].is_null() {
            new["metadata"]["namespace"] = "default".into();
        }
        self.kind.default(&mut new);
        if op != "apply" {
            update(self.kind, self.live, &mut new, &writer);
        }
        self.prepare(&mut new, sub)
    }

    fn prepare(&self, new: &mut Value, sub: &str) -> Answer {
        match self.live {
            Some(live) => self.kind.prepare_update(new, live, sub, Timestamp::UNIX_EPOCH),
            None => {
                // What a server allocates comes from the recording.
                for path in [
                    &["metadata", "uid"][..],
                    &["metadata", "creationTimestamp"],
                    &["metadata", "resourceVersion"],
                    &["spec", "clusterIP"],
                    &["spec", "clusterIPs"],
                    &["spec", "ipFamilies"],
                    &["spec", "ipFamilyPolicy"],
                ] {
                    let value = at(&self.recorded["object"], path);
                    if !value.is_null() {
                        new[path[0]][path[1]] = value.clone();
                    }
                }
                self.kind.prepare_create(new, Timestamp::UNIX_EPOCH);
            }
        }
        let errors = match self.live {
            Some(live) => self.kind.validate_update(new, live, sub).errors,
            None => self.kind.validate_create(new),
        };
        match errors.is_empty() {
            true => Ok(new.clone()),
            false => Err((422, String::new(), crate::kinds::error::causes(&errors))),
        }
    }
}

fn refusal(error: &ApplyError) -> (u16, String, Value) {
    match error {
        ApplyError::Conflict(conflicts) => (409, error.to_string(), conflict_causes(conflicts)),
        ApplyError::BadRequest(message) => (400, message.clone(), Value::Null),
        ApplyError::Invalid(message) => (500, message.clone(), Value::Null),
    }
}

/// Without what depends on the clock and the store.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        let mut entries: Vec<Value> =
            metadata.remove("managedFields").map_or(Vec::new(), |list| items(&list, &[]).to_vec());
        for entry in &mut entries {
            // The order depends on times as well.
            entry["time"] = entry["time"].is_string().into();
        }
        entries.sort_by_key(Value::to_string);
        metadata.insert("managedFields".into(), entries.into());
    }
    object
}

fn kinds() -> Kinds {
    let definition = CREATES
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|one| one["sent"]["kind"] == "CustomResourceDefinition");
    Kinds::builtin().with_crd(&definition.unwrap()["stored"]).unwrap()
}

#[test]
fn sequences_of_writes_end_as_on_the_real_server() {
    let kinds = kinds();
    let mut wrong = Vec::new();
    let mut steps = 0;
    for line in SEQUENCES.lines() {
        let sequence: Value = serde_json::from_str(line).unwrap();
        let first = &sequence["steps"][0]["body"];
        let api_version = text(first, &["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = kinds.by_kind(group, version, text(first, &["kind"])).unwrap();
        let mut live: Option<Value> = None;
        for (index, recorded) in items(&sequence, &["steps"]).iter().enumerate() {
            steps += 1;
            let name = format!(
                "{} #{index} ({} by {})",
                text(&sequence, &["name"]),
                text(recorded, &["op"]),
                text(recorded, &["manager"])
            );
            let answer = Step { kind, live: live.as_ref(), recorded }.run();
            compare_answer(&name, answer, recorded, &mut wrong);
            if recorded["object"].is_object() {
                live = Some(recorded["object"].clone());
            }
        }
    }
    assert!(steps >= 45, "{steps} recorded steps");
    assert!(wrong.is_empty(), "{} of {steps} steps differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn compare_answer(name: &str, answer: Answer, recorded: &Value, wrong: &mut Vec<String>) {
    match answer {
        Ok(object) => {
            let (ours, real) = (comparable(&object), comparable(&recorded["object"]));
            if ours != real {
                wrong.push(format!("{name}\n   ours {ours}\n   real {real}"));
            }
        }
        Err((code, message, causes)) => {
            if json!(code) != recorded["code"] {
                wrong.push(format!(
                    "{name}: {code} {message}, real {} {}",
                    recorded["code"], recorded["message"]
                ));
            } else if matches!(code, 409 | 500)
                && (message != text(recorded, &["message"])
                    || (code == 409 && sorted(&causes) != sorted(&recorded["causes"])))
            {
                wrong.push(format!(
                    "{name}\n   ours {message} {causes}\n   real {} {}",
                    recorded["message"], recorded["causes"]
                ));
            }
        }
    }
}

/// The real server lists causes in no order.
fn sorted(causes: &Value) -> Vec<String> {
    let mut texts: Vec<String> = items(causes, &[]).iter().map(Value::to_string).collect();
    texts.sort();
    texts
}

#[test]
fn many_writers_are_put_together() {
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
fn malformed_ownership_is_as_good_as_none() {
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
fn what_lies_deep_is_held_once() {
    if !alone(module_path!(), "what_lies_deep_is_held_once") {
        return;
    }
    let deep = |bottom: &str| -> Value {
        let text = format!("{}{bottom}{}", r#"{"a":"#.repeat(100), "}".repeat(100));
        serde_json::from_str(&text).unwrap()
    };
    let live = deep(&format!(r#"{{"b":[{}0]}}"#, r#"{"":0},"#.repeat(10_000)));
    let applied = deep(r#"{"c":1}"#);
    let growth = Growth::begin();
    let merged = walk::merge(Place(None), Some(&live), &applied).unwrap();
    let grown = growth.most() / 1024 / 1024;
    assert!(grown < 64, "{grown} MiB");
    assert_eq!(merged, patch::merge_patch(&live, &applied).unwrap());
}
