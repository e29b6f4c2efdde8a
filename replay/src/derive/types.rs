//! Members that the recorded cloud's types do not know: its typed controllers lose them, its dynamic client does not.
//!
//! A KubeEdge cloud is built against one version of Kubernetes and meets newer ones. For example, its informers lose
//! `status.terminatingReplicas` of a Deployment in 1.36, while a list that an application requested contains it. Both
//! are the same version.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::frame::{Frame, Key};
use crate::transcript::{Event, Line, Transcript, Verb};

/// Uid and version of an object.
type Version = (String, String);

/// The transcript with typed objects completed to what the cluster had, as far as the transcript shows it. A member is
/// added if no object of the kind from the cloud's types has it, and an untyped object of the same version does.
pub(super) fn completed(transcript: &Transcript) -> Transcript {
    let mut transcript = transcript.clone();
    let whole: HashMap<Version, Value> = transcript.lines.iter().flat_map(untyped).collect();
    let known: HashSet<(String, String)> = transcript
        .lines
        .iter()
        .filter_map(typed)
        .flat_map(Frame::objects)
        .flat_map(|object| members(&object))
        .collect();
    for line in &mut transcript.lines {
        let Some(frame) = typed(line) else { continue };
        let [object] = &frame.objects()[..] else { continue };
        let Some(whole) = whole.get(&version(object)) else { continue };
        let kind = Key::of_object(object).kind;
        let mut forgotten = Vec::new();
        missing("", object, whole, &mut forgotten);
        forgotten.retain(|(pointer, value)| {
            let says = !value.is_null() && value.as_object().is_none_or(|members| !members.is_empty());
            says && !known.contains(&(kind.clone(), anywhere(pointer)))
        });
        if let Event::Down(frame) = &mut line.event
            && !forgotten.is_empty()
        {
            transcript.forgotten += 1;
            forgotten.into_iter().for_each(|(pointer, value)| put(frame, &pointer, value));
        }
    }
    transcript
}

/// The frame of a line whose object comes from a typed client of a KubeEdge cloud.
fn typed(line: &Line) -> Option<&Frame> {
    match &line.event {
        Event::Down(frame) if !frame.is_tombolo() && frame.operation() != "applicationResponse" => {
            Some(frame)
        }
        _ => None,
    }
}

/// The untyped objects of a line: as the cluster has them.
fn untyped(line: &Line) -> Vec<(Version, Value)> {
    let objects = match &line.event {
        Event::Down(frame) if frame.operation() == "applicationResponse" => frame.objects(),
        Event::Api(verb, object) if *verb != Verb::Delete => vec![object.clone()],
        _ => Vec::new(),
    };
    let named = objects.into_iter().map(|object| (version(&object), object));
    named.filter(|((uid, revision), _)| !uid.is_empty() && !revision.is_empty()).collect()
}

fn version(object: &Value) -> Version {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

/// Kind and pointers of all members of an object.
fn members(object: &Value) -> Vec<(String, String)> {
    let (kind, mut pointers) = (Key::of_object(object).kind, Vec::new());
    collect("", object, &mut pointers);
    pointers.into_iter().map(|pointer| (kind.clone(), pointer)).collect()
}

fn collect(pointer: &str, value: &Value, pointers: &mut Vec<String>) {
    pointers.push(anywhere(pointer));
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| collect(&inside(pointer, name), value, pointers));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(&inside(pointer, "0"), item, pointers)),
        _ => {}
    }
}

/// The members that the whole object has and the typed one lacks, by pointer.
fn missing(pointer: &str, typed: &Value, whole: &Value, found: &mut Vec<(String, Value)>) {
    match (typed, whole) {
        (Value::Object(known), Value::Object(all)) => {
            for (name, value) in all {
                let inner = inside(pointer, name);
                match known.get(name).filter(|known| !known.is_null()) {
                    Some(known) => missing(&inner, known, value, found),
                    None => found.push((inner, value.clone())),
                }
            }
        }
        (Value::Array(known), Value::Array(all)) if known.len() == all.len() => {
            let pairs = known.iter().zip(all).enumerate();
            pairs.for_each(|(index, (known, all))| missing(&format!("{pointer}/{index}"), known, all, found));
        }
        _ => {}
    }
}

fn inside(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// A pointer with every list index replaced, so that it matches any entry.
fn anywhere(pointer: &str) -> String {
    let is_index = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = pointer.split('/').map(|part| if is_index(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Adds a member to the object of a frame.
fn put(frame: &mut Frame, pointer: &str, value: Value) {
    let content = &mut frame.as_json_mut()["content"];
    let wrapped = content.get("Err").is_some() && content.get("Object").is_some();
    let object = if wrapped { &mut content["Object"] } else { content };
    let Some((around, name)) = pointer.rsplit_once('/') else { return };
    if let Some(members) = object.pointer_mut(around).and_then(Value::as_object_mut) {
        members.insert(name.replace("~1", "/").replace("~0", "~"), value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(status: &Value) -> Value {
        let metadata =
            json!({"name": "d", "namespace": "default", "uid": "u", "resourceVersion": "5", "labels": {}});
        json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata, "status": status})
    }

    fn transcript(typed: &Value, whole: &Value) -> Transcript {
        use base64::Engine;
        let body = base64::engine::general_purpose::STANDARD.encode(whole.to_string());
        let push = json!({"header": {"msg_id": "a", "resourceversion": "5"}, "content": typed,
            "route": {"source": "dynamiccontroller", "group": "resource", "operation": "insert",
                "resource": "default/deployment/d"}});
        let answer = json!({"header": {"msg_id": "b", "parent_msg_id": "q"}, "content": {"RespBody": body, "Verb": "get"},
            "route": {"source": "dynamiccontroller", "group": "resource", "operation": "applicationResponse",
                "resource": "ignore/Application/ignore"}});
        let lines = [json!({"node": "n"}), line(&push), line(&answer)].map(|line| line.to_string());
        Transcript::parse(&lines.join("\n")).expect("a transcript")
    }

    fn line(frame: &Value) -> Value {
        json!({"at_us": 1, "conn": 1, "dir": "down", "frame": frame})
    }

    /// Returns the completed typed object, and how many objects were completed.
    fn after(typed: &Value, whole: &Value) -> (Value, usize) {
        let done = completed(&transcript(typed, whole));
        let Event::Down(frame) = &done.lines[0].event else { panic!("the push") };
        (frame.content().clone(), done.forgotten)
    }

    #[test]
    fn fields_unknown_to_the_cloud_types_are_added() {
        let typed =
            deployment(&json!({"replicas": 1, "conditions": [{"type": "A", "at": null}, {"type": "B"}]}));
        let whole = deployment(&json!({"replicas": 1, "terminatingReplicas": 0,
            "conditions": [{"type": "A", "seen": 1}, {"type": "B", "seen": 1}]}));
        let (object, count) = after(&typed, &whole);
        assert_eq!(object["status"]["terminatingReplicas"], 0);
        assert_eq!(object["status"]["conditions"][1], json!({"type": "B", "seen": 1}));
        assert_eq!(count, 1);
    }

    #[test]
    fn missing_known_fields_are_a_difference() {
        for (typed, whole) in [
            // Another entry of the list has the member.
            (
                json!({"conditions": [{"type": "A", "seen": 1}, {"type": "B"}]}),
                json!({"conditions": [{"type": "A", "seen": 1}, {"type": "B", "seen": 1}]}),
            ),
            // The value differs, or is empty.
            (json!({"replicas": 1}), json!({"replicas": 2})),
            (json!({"replicas": 1}), json!({"replicas": 1, "nothing": {}, "none": null})),
        ] {
            let (typed, whole) = (deployment(&typed), deployment(&whole));
            assert_eq!(after(&typed, &whole), (typed.clone(), 0), "{whole}");
        }
    }
}
