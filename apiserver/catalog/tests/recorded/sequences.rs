//! Sequences of writes by several managers, each with its answer.

use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::patch;
use tombolo_apicore::ssa::{ApplyError, Writer, apply, conflict_causes, update};
use tombolo_apicore::value::{at, items, text};

use super::{causes, with_definition};

const SEQUENCES: &str = include_str!("../../../fixtures/sequences.jsonl");

/// One recorded write.
struct Step<'a> {
    kind: &'a KindInfo,
    live: Option<&'a Value>,
    recorded: &'a Value,
}

/// An answer: the object, or the code, message and causes of a refusal.
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
                // Fields that a server allocates are taken from the recording.
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
            false => Err((422, String::new(), causes(&errors))),
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

/// Removes what depends on the clock and the store.
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

#[test]
fn sequences_of_writes_end_as_on_the_real_server() {
    let kinds = with_definition();
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

/// The real server lists causes in random order.
fn sorted(causes: &Value) -> Vec<String> {
    let mut texts: Vec<String> = items(causes, &[]).iter().map(Value::to_string).collect();
    texts.sort();
    texts
}
