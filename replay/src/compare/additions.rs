//! What the recorded cluster added by itself to objects that were written.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::frame::Frame;
use crate::transcript::{Event, Transcript};

/// What a cluster added to an object: pointer and value.
pub(crate) type Additions = Vec<(String, Value)>;

/// What the recorded cluster added to each object that an edge inserted, by the object's recorded uid.
pub(crate) type WrittenAdditions = BTreeMap<String, Additions>;

/// What the answers to the inserts of a transcript show beyond the requests.
pub(crate) fn of_writes(transcript: &Transcript) -> WrittenAdditions {
    let mut requests: HashMap<&str, &Frame> = HashMap::new();
    let mut all = WrittenAdditions::new();
    for line in &transcript.lines {
        match &line.event {
            Event::Up(frame) if frame.operation() == "insert" || frame.is_frame("api", "POST") => {
                requests.insert(frame.id(), frame);
            }
            Event::Down(frame) => {
                if let Some(request) = requests.get(frame.parent())
                    && let Some(object) = frame.objects().first()
                {
                    let body = &request.content()["body"];
                    let asked =
                        if request.is_tombolo() && body.is_object() { body } else { request.content() };
                    let mut added = additions(asked, object);
                    added.retain(|(pointer, _)| !matches!(pointer.as_str(), "/kind" | "/apiVersion"));
                    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                    all.entry(uid.to_owned()).or_default().extend(added);
                }
            }
            _ => {}
        }
    }
    all
}

/// What answers to inserts show beyond the request: plugins and controllers of the recorded cluster added it.
pub(crate) fn additions(asked: &Value, made: &Value) -> Additions {
    const SERVERS_OWN: [&str; 6] =
        ["uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "namespace"];
    let mut found = Additions::new();
    collect("", asked, made, &mut found);
    let own = |pointer: &str| SERVERS_OWN.iter().any(|name| pointer == format!("/metadata/{name}"));
    found.retain(|(pointer, _)| !own(pointer));
    found
}

fn collect(place: &str, asked: &Value, made: &Value, found: &mut Additions) {
    if let (Some(asked), Some(made)) = (asked.as_array(), made.as_array())
        && asked.len() == made.len()
    {
        for (index, (asked, made)) in asked.iter().zip(made).enumerate() {
            collect(&format!("{place}/{index}"), asked, made, found);
        }
        return;
    }
    let Some(members) = made.as_object() else {
        if asked.is_null() && !made.is_null() {
            found.push((place.to_owned(), made.clone()));
        }
        return;
    };
    for (name, value) in members {
        let inner = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
        collect(&inner, asked.get(name).unwrap_or(&Value::Null), value, found);
    }
}
