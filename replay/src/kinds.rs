//! Finds the kinds, beside the ones built into Kubernetes, that a transcript defines: by definitions in its API lines,
//! or by an edge's discovery request.

use serde_json::Value;
use tombolo_proto::session::kubeedge::Kinds;

use crate::transcript::{Event, Transcript};

/// Kind of the objects that define others.
const DEFINITION: &str = "CustomResourceDefinition";

/// The kinds that a transcript defines.
pub(crate) fn of(transcript: &Transcript) -> Kinds {
    let mut kinds = Kinds::default();
    for line in &transcript.lines {
        match &line.event {
            Event::Api(_, object) if object["kind"] == DEFINITION => defined(&mut kinds, object),
            Event::Down(frame) => {
                if let Some(body) = frame.application_body().filter(|body| body["kind"] == "APIResourceList")
                {
                    discovered(&mut kinds, &body);
                }
            }
            Event::Up(_) | Event::Api(..) => {}
        }
    }
    kinds
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn defined(kinds: &mut Kinds, definition: &Value) {
    let [group, plural, kind] =
        ["/spec/group", "/spec/names/plural", "/spec/names/kind"].map(|pointer| text(definition, pointer));
    for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
        if version["served"] == true {
            kinds.add(group, text(version, "/name"), plural, kind);
        }
    }
}

fn discovered(kinds: &mut Kinds, list: &Value) {
    let Some((group, version)) = text(list, "/groupVersion").split_once('/') else { return };
    for resource in list["resources"].as_array().into_iter().flatten() {
        let plural = text(resource, "/name");
        if !plural.contains('/') {
            kinds.add(group, version, plural, text(resource, "/kind"));
        }
    }
}

/// Whether the API lines define a resource, `plural.group`.
pub(crate) fn defines(transcript: &Transcript, name: &str) -> bool {
    transcript.lines.iter().any(|line| match &line.event {
        Event::Api(_, object) => object["kind"] == DEFINITION && object["metadata"]["name"] == name,
        _ => false,
    })
}
