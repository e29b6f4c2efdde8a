//! One object under several versions: Events of two groups are the same objects, and objects of a definition are the
//! same in all its versions.

use serde_json::Value;

use super::kinds::{KindInfo, KindKey};

/// Fields of an Event in `events.k8s.io`, and in the core group, in which Events are stored.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
];

fn is_other_event(kind: &KindInfo) -> bool {
    kind.key.group == "events.k8s.io"
}

/// Where the objects of a kind are stored.
pub(super) fn stored_key(kind: &KindInfo) -> KindKey {
    if is_other_event(kind) { KindKey::new("", "events") } else { kind.key.clone() }
}

/// An object of this kind as it is stored.
pub(super) fn to_stored(kind: &KindInfo, mut object: Value) -> Value {
    if is_other_event(kind) {
        rename(&mut object, |(served, stored)| (served, stored));
        object["apiVersion"] = "v1".into();
    }
    object
}

/// A stored object as it is served under this kind.
pub(super) fn to_served(kind: &KindInfo, mut object: Value) -> Value {
    if is_other_event(kind) {
        rename(&mut object, |(served, stored)| (stored, served));
    }
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.clone().into();
    object
}

fn rename(
    object: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(members) = object.as_object_mut() else { return };
    for pair in EVENT_FIELDS {
        let (from, to) = direction(pair);
        if let Some(value) = members.remove(from) {
            members.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::built_in;
    use super::*;

    #[test]
    fn events_of_both_groups_are_one() {
        let kinds: Vec<KindInfo> = built_in().filter(|kind| kind.kind == "Event").collect();
        let (core, other) = (&kinds[0], &kinds[1]);
        assert_eq!(stored_key(core), stored_key(other));
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"name": "x"}, "reason": "r",
        });
        let stored = to_stored(other, event.clone());
        assert_eq!((&stored["message"], &stored["involvedObject"]["name"]), (&json!("n"), &json!("x")));
        assert_eq!(to_served(core, stored.clone())["apiVersion"], "v1");
        assert_eq!(to_served(other, stored), event);
    }
}
