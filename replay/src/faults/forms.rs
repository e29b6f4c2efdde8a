//! Alters messages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::frame::{Frame, is_object};

/// Places of the one object of a message.
const PLACES: [&str; 3] = ["/content", "/content/Object", "/content/body"];

/// Alters the object of a message, if it carries exactly one. Returns whether it was altered.
pub(super) fn with_object(frame: &mut Frame, alter: impl Fn(&mut Value) -> bool) -> bool {
    if let Some(mut body) = frame.application_body() {
        let altered = is_object(&body) && alter(&mut body);
        if altered {
            frame.as_json_mut()["content"]["RespBody"] = STANDARD.encode(body.to_string()).into();
        }
        return altered;
    }
    let place = PLACES.into_iter().find(|place| frame.as_json().pointer(place).is_some_and(is_object));
    place.and_then(|place| frame.as_json_mut().pointer_mut(place)).is_some_and(alter)
}

/// Alters the objects of a message: one, or the items of a list. Returns whether one was altered.
pub(super) fn with_objects(frame: &mut Frame, alter: impl Fn(&mut Value) -> bool) -> bool {
    if with_object(frame, &alter) {
        return true;
    }
    let all = |list: &mut Value| {
        let items = list["items"].as_array_mut().into_iter().flatten();
        items.fold(false, |altered, item| alter(item) || altered)
    };
    if let Some(mut body) = frame.application_body().filter(|body| body["items"].is_array()) {
        let altered = all(&mut body);
        frame.as_json_mut()["content"]["RespBody"] = STANDARD.encode(body.to_string()).into();
        return altered;
    }
    match frame.as_json_mut().pointer_mut("/content/body") {
        Some(list) if list["items"].is_array() => all(list),
        _ => false,
    }
}

/// Adds one to a version that is a number.
pub(super) fn add_one(version: &mut Value) -> bool {
    let number = version.as_str().and_then(|text| text.parse::<u64>().ok());
    if let Some(number) = number {
        *version = (number + 1).to_string().into();
    }
    number.is_some()
}

/// Adds one to the version of the object that a message carries, and to that of its header.
pub(super) fn with_next_version(frame: &mut Frame) -> bool {
    let altered =
        with_object(frame, |object| object.pointer_mut("/metadata/resourceVersion").is_some_and(add_one));
    let header = frame.as_json_mut().pointer_mut("/header/resourceversion");
    if altered && let Some(version) = header {
        add_one(version);
    }
    altered
}

/// Leaves out the owners of the objects in a message.
pub(super) fn without_owners(frame: &mut Frame) -> bool {
    with_objects(frame, |object| {
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        let owners = metadata.and_then(|metadata| metadata.remove("ownerReferences"));
        owners.is_some_and(|owners| owners.as_array().is_some_and(|owners| !owners.is_empty()))
    })
}

/// Adds a label to the objects in a message.
pub(super) fn with_wrong_label(frame: &mut Frame) -> bool {
    with_objects(frame, |object| {
        let metadata = object.get_mut("metadata").filter(|metadata| metadata.is_object());
        metadata.map(|metadata| metadata["labels"]["wrong"] = "wrong".into()).is_some()
    })
}

/// A message with another id.
pub(super) fn with_id(frame: &Frame, id: &str) -> Frame {
    let mut frame = frame.clone();
    frame.as_json_mut()["header"]["msg_id"] = id.into();
    frame
}
