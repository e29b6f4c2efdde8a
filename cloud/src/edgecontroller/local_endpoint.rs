//! The Service `kubernetes` as pods on a KubeEdge edge see it: it points to MetaServer on their own node
//! (docs/reference/kubeedge.md#applications-in-the-cloud).
//!
//! Its slice is recognized by namespace and name, separately for each item of a list. A KubeEdge cloud instead rewrites
//! every slice of a list (docs/reference/kubeedge.md#slices-in-lists).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
use tombolo_proto::{ObjectKey, Resource};

use crate::kube::read_tree;

/// Where MetaServer listens on each node.
const ADDRESS: &str = "127.0.0.1";
const PORT: u16 = 10550;

/// The Service of the API server.
const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// Whether this is the EndpointSlice whose endpoint differs on each node.
#[must_use]
pub(crate) fn concerns(key: &ObjectKey) -> bool {
    key.name() == NAME && key.namespace() == NAMESPACE && is_slices(key.resource())
}

fn is_slices(resource: &Resource) -> bool {
    &*resource.name == "endpointslices" && &*resource.group == "discovery.k8s.io"
}

/// The slice with the local endpoint. `None` when the body is not an object.
#[must_use]
pub(crate) fn local(object: &SharedObject) -> Option<SharedObject> {
    let mut slice: Value = serde_json::from_slice(&object.body).ok()?;
    rewrite(&mut slice);
    let ObjectVersion { uid, revision, hash } = object.version.clone();
    // The content differs from the one sent in other dialects, so the hash must differ.
    let version = ObjectVersion { uid, revision, hash: ContentHash(!hash.0) };
    Some(SharedObject::new(object.key.clone(), version, slice.to_string().into(), Vec::new()))
}

/// The API server's answer about objects of a resource, with the local endpoint in the slice. `None` when the answer
/// does not contain the slice.
#[must_use]
pub(crate) fn in_answer(resource: &Resource, body: &[u8]) -> Option<Vec<u8>> {
    if !is_slices(resource) {
        return None;
    }
    let mut answer: BTreeMap<&str, &RawValue> = serde_json::from_slice(body).ok()?;
    let Some(items) = answer.get("items") else {
        return is_local(body).then(|| rewritten(body)).flatten().map(|slice| slice.get().into());
    };
    let items: Vec<&RawValue> = serde_json::from_str(items.get()).ok()?;
    let index = items.iter().position(|slice| is_local(slice.get().as_bytes()))?;
    // All other slices keep their exact text.
    let slice = rewritten(items[index].get().as_bytes())?;
    let mut items = items;
    items[index] = &slice;
    let items = to_raw_value(&items).ok()?;
    answer.insert("items", &items);
    serde_json::to_vec(&answer).ok()
}

/// Whether a text is the slice of the API server's own Service.
fn is_local(slice: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Slice {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        namespace: String,
    }
    serde_json::from_slice::<Slice>(slice)
        .is_ok_and(|Slice { metadata }| metadata.name == NAME && metadata.namespace == NAMESPACE)
}

fn rewritten(slice: &[u8]) -> Option<Box<RawValue>> {
    let mut slice = read_tree(slice).ok()?;
    rewrite(&mut slice);
    to_raw_value(&slice).ok()
}

/// Replaces the first address of the first endpoint, and the port named `https`.
fn rewrite(slice: &mut Value) {
    if let Some(address) = slice.pointer_mut("/endpoints/0/addresses/0") {
        *address = ADDRESS.into();
    }
    for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port.get("name").and_then(Value::as_str) == Some("https") {
            port["port"] = PORT.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_proto::{CloudRevision, Uid};

    use super::*;

    fn slice(name: &str) -> Value {
        json!({"kind": "EndpointSlice", "metadata": {"namespace": "default", "name": name},
            "endpoints": [{"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.3"]}],
            "ports": [{"name": "https", "port": 6443}, {"name": "other", "port": 1}]})
    }

    #[test]
    fn only_the_slice_of_the_api_server_is_rewritten() {
        let list = json!({"kind": "EndpointSliceList", "items": [slice("shop"), slice("kubernetes")]});
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        let in_answer = |answer: &Value| in_answer(&slices, answer.to_string().as_bytes());
        let answer = in_answer(&list).expect("it is there");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["items"][0], slice("shop"));
        assert_eq!(answer["items"][1]["endpoints"][0]["addresses"], json!(["127.0.0.1"]));
        assert_eq!(answer["items"][1]["endpoints"][1], slice("kubernetes")["endpoints"][1]);
        assert_eq!(answer["items"][1]["ports"][0]["port"], 10550);
        assert_eq!(answer["items"][1]["ports"][1]["port"], 1);
        assert!(in_answer(&slice("kubernetes")).is_some());
        for other in [slice("shop"), json!({}), json!({"kind": "EndpointSliceList", "items": []})] {
            assert_eq!(in_answer(&other), None);
        }
        let pods = Resource::new("", "v1", "pods");
        assert_eq!(super::in_answer(&pods, slice("kubernetes").to_string().as_bytes()), None);
    }

    #[test]
    fn a_watched_slice_keeps_its_version() {
        let key = ObjectKey::new(
            Resource::new("discovery.k8s.io", "v1", "endpointslices"),
            "default",
            "kubernetes",
        );
        let uid = Uid::parse("u").expect("a UID");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        let body = slice("kubernetes").to_string().into();
        let object = SharedObject::new(key.clone(), version.clone(), body, Vec::new());
        let local = local(&object).expect("an object");
        assert!(concerns(&key) && !concerns(&ObjectKey::new(key.resource().clone(), "default", "shop")));
        assert_eq!((local.version.uid, local.version.revision), (version.uid, version.revision));
        let body: Value = serde_json::from_slice(&local.body).expect("JSON");
        assert_eq!(body["endpoints"][0]["addresses"][0], "127.0.0.1");
    }
}
