//! Pods that are being deleted, shortened to the available room. A node can terminate a pod with the few members that
//! say which pod to terminate and when, so at least those are always delivered to it.

use std::cmp::Reverse;

use serde_json::{Map, Value};
use tombolo_proto::inventory::content_hash;
use tombolo_proto::object::{ObjectVersion, SharedObject};

/// Maximum size of the body of a pod that is being deleted, in bytes, when no other pod precedes it. With 110 such pods
/// the other pods still keep their part, whoever deletes them.
pub(super) const ENDING_LEN_MAX: usize = 16 * 1024;

/// Size of a pod that is being deleted when there is no room even for that, in bytes. It takes about as much memory as
/// its entry in the index, and nothing of its node's share.
pub(super) const END_LEN_MAX: usize = 2 * 1024;

/// Members of the metadata that are always kept. The names have a few hundred bytes at most.
const IDENTITY: [&str; 6] =
    ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/// Members of the spec that are always kept.
const PLACE: [&str; 2] = ["nodeName", "terminationGracePeriodSeconds"];

/// Members of the pod that are always kept.
const KIND: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Whether a pod is being deleted.
pub(super) fn is_ending(pod: &Value) -> bool {
    pod.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
}

/// The pod in at most `most` bytes: without its status, which its node has itself, and without the largest other parts.
/// `None` if it is not larger, or not a JSON object.
pub(super) fn shortened(pod: &SharedObject, most: usize) -> Option<SharedObject> {
    if pod.body.len() <= most {
        return None;
    }
    let Ok(Value::Object(mut value)) = serde_json::from_slice(&pod.body) else { return None };
    value.remove("status");
    leave_out(&mut value, most);
    let mut body = Value::from(value).to_string();
    body.shrink_to_fit();
    let version = ObjectVersion { hash: content_hash(body.as_bytes()), ..pod.version.clone() };
    let mut shortened = SharedObject::new(pod.key.clone(), version, body.into(), pod.dependencies.clone());
    shortened.same_since = pod.same_since;
    Some(shortened)
}

/// Removes the largest parts until the text has at most `most` bytes.
fn leave_out(pod: &mut Map<String, Value>, most: usize) {
    let mut len = text_len(pod);
    let mut parts = Vec::new();
    for (of, kept) in [(None, &KIND[..]), (Some("metadata"), &IDENTITY[..]), (Some("spec"), &PLACE[..])] {
        let Some(members) = members_of(pod, of) else { continue };
        let others = members.iter().filter(|(name, _)| !kept.contains(&name.as_str()));
        parts.extend(others.map(|(name, part)| (Reverse(name.len() + text_len(part)), of, name.clone())));
    }
    parts.sort();
    for (Reverse(bytes), of, name) in parts {
        if len <= most {
            return;
        }
        len = len.saturating_sub(bytes);
        if let Some(members) = members_of(pod, of) {
            members.remove(&name);
        }
    }
}

fn members_of<'p>(pod: &'p mut Map<String, Value>, of: Option<&str>) -> Option<&'p mut Map<String, Value>> {
    match of {
        None => Some(pod),
        Some(name) => pod.get_mut(name)?.as_object_mut(),
    }
}

fn text_len(part: &impl serde::Serialize) -> usize {
    serde_json::to_string(part).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_proto::object::ContentHash;
    use tombolo_proto::{CloudRevision, ObjectKey, Uid};

    use super::*;
    use crate::kube::resources;

    fn pod(value: &Value) -> SharedObject {
        let key = ObjectKey::new(resources::pods(), "d", "p");
        let uid = Uid::parse("u").expect("a UID");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        let secret = ObjectKey::new(resources::secrets(), "d", "s");
        SharedObject::new(key, version, value.to_string().into(), vec![secret])
    }

    #[test]
    fn status_is_dropped_first_and_then_the_largest_parts() {
        let large = |kib: usize| "x".repeat(kib * 1024);
        let ends = json!({"metadata": {"name": "p", "deletionTimestamp": "t", "deletionGracePeriodSeconds": 3},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 3}});
        let with = |pointer: &[(&str, &str, usize)]| {
            let mut value = ends.clone();
            for (of, name, kib) in pointer {
                value[of][name] = large(*kib).into();
            }
            value
        };
        let (all, kept) = (
            &[("status", "a", 9), ("metadata", "labels", 3), ("spec", "a", 5), ("spec", "b", 9)],
            [("metadata", "labels", 3), ("spec", "a", 5), ("spec", "b", 9)],
        );
        assert!(shortened(&pod(&with(all)), 64 * 1024).is_none(), "there is room for it");
        for (most, parts) in [(20, &kept[..]), (12, &kept[..2]), (4, &kept[..1]), (1, &[])] {
            let short = shortened(&pod(&with(all)), most * 1024).expect("shortened");
            assert_eq!(
                serde_json::from_slice::<Value>(&short.body).expect("JSON"),
                with(parts),
                "{most} KiB"
            );
            assert!(short.body.len() <= most * 1024);
            assert_eq!(short.version.hash, content_hash(&short.body));
            assert_eq!((short.dependencies.len(), short.same_since), (1, CloudRevision(7)));
        }
    }

    /// Even with the longest possible names the essential members fit.
    #[test]
    fn deletion_notice_of_a_pod_is_small() {
        let name = "n".repeat(253);
        let mut value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": name,
            "uid": name, "creationTimestamp": name, "deletionTimestamp": name,
            "deletionGracePeriodSeconds": i64::MAX}, "spec": {"nodeName": name,
            "terminationGracePeriodSeconds": i64::MAX}});
        for number in 0..1000 {
            value["spec"][number.to_string()] = number.into();
            value["metadata"][number.to_string()] = number.into();
            value[number.to_string()] = number.into();
        }
        let short = shortened(&pod(&value), END_LEN_MAX).expect("shortened");
        assert!(short.body.len() <= END_LEN_MAX, "{}", short.body.len());
        assert!(is_ending(&serde_json::from_slice(&short.body).expect("JSON")));
    }
}
