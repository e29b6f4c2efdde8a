//! Compares what an edge should hold, read from the API server, with what its local API lists.
//!
//! Shares no code with the sessions, the index or the store: it reads pods as plain JSON and follows every ConfigMap or
//! Secret name in them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use tombolo_proto::is_dns_subdomain;

/// `Kind namespace/name`.
type Title = String;

/// What both sides must agree on: UID, metadata and content, without fields that only one side keeps.
pub type Holdings = BTreeMap<Title, Value>;

const KINDS: [(&str, &str); 3] = [("Pod", "pods"), ("ConfigMap", "configmaps"), ("Secret", "secrets")];

/// What a node should hold according to the API server.
///
/// # Errors
/// When the API server does not answer.
pub async fn expected(client: &Client, node: &str) -> Result<Holdings> {
    let mut holdings = Holdings::new();
    let mut references = BTreeSet::new();
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    for pod in api(client, "Pod", None).list(&of_node).await.context("list pods")? {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        references.extend(references_of(&pod.data["spec"], &namespace));
        hold(&mut holdings, "Pod", &pod)?;
    }
    for (kind, namespace, name) in references {
        let found = api(client, kind, Some(&namespace)).get_opt(&name).await;
        if let Some(object) = found.with_context(|| format!("get {kind} {namespace}/{name}"))? {
            hold(&mut holdings, kind, &object)?;
        }
    }
    Ok(holdings)
}

/// Objects that an edge's local API lists.
///
/// # Errors
/// When the local API does not answer.
pub async fn listed(client: &Client) -> Result<Holdings> {
    let mut holdings = Holdings::new();
    for (kind, plural) in KINDS {
        let list = api(client, kind, None).list(&ListParams::default()).await;
        for object in list.with_context(|| format!("list {plural} at the edge"))? {
            hold(&mut holdings, kind, &object)?;
        }
    }
    Ok(holdings)
}

/// First difference between the sides, as text; `None` if they agree.
#[must_use]
pub fn difference(expected: &Holdings, listed: &Holdings) -> Option<String> {
    for (title, wanted) in expected {
        match listed.get(title) {
            None => return Some(format!("{title} is missing")),
            Some(held) if held["uid"] != wanted["uid"] => {
                return Some(format!("{title} has uid {} and should have {}", held["uid"], wanted["uid"]));
            }
            Some(held) if held != wanted && !is_amended(title, wanted, held) => {
                return Some(format!("{title} has other metadata or content"));
            }
            Some(_) => {}
        }
    }
    let surplus = listed.keys().find(|title| !expected.contains_key(*title));
    surplus.map(|title| format!("{title} should not be there"))
}

/// Whether the edge only added its local API's CA to the ConfigMap of trusted CAs for pods.
fn is_amended(title: &str, wanted: &Value, held: &Value) -> bool {
    let trusted = |side: &Value| side["content"]["data"]["ca.crt"].as_str().unwrap_or_default().to_owned();
    if !title.starts_with("ConfigMap ") || !title.ends_with("/kube-root-ca.crt") {
        return false;
    }
    let (wanted_ca, mut held) = (trusted(wanted), held.clone());
    if wanted_ca.is_empty() || !trusted(&held).starts_with(&wanted_ca) {
        return false;
    }
    held["content"]["data"]["ca.crt"] = wanted_ca.into();
    held == *wanted
}

fn api(client: &Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let plural = KINDS.iter().find(|(name, _)| *name == kind).map_or("", |(_, plural)| plural);
    let resource = ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Metadata that may differ: the API server's bookkeeping, which is not sent to edges, and the revision, which an edge
/// counts itself.
const NOT_COMPARED: [&str; 3] = ["resourceVersion", "managedFields", "selfLink"];

/// Annotation in which `kubectl apply` keeps a second copy of the object; it is not sent to edges either.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Adds an object to one side.
///
/// # Errors
/// When its metadata cannot be written as JSON.
pub fn hold(holdings: &mut Holdings, kind: &str, object: &DynamicObject) -> Result<()> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let content = object.data.as_object().cloned().unwrap_or_default();
    // Status is skipped: the edge reports its own, and the API server's bookkeeping is not sent.
    let content: Map<String, Value> = content.into_iter().filter(|(field, _)| field != "status").collect();
    let seen = json!({
        "uid": object.metadata.uid,
        "metadata": compared(kind, serde_json::to_value(&object.metadata)?),
        "content": content,
    });
    holdings.insert(format!("{kind} {namespace}/{name}"), seen);
    Ok(())
}

/// The compared part of an object's metadata.
fn compared(kind: &str, mut metadata: Value) -> Value {
    let Some(fields) = metadata.as_object_mut() else { return metadata };
    fields.retain(|field, _| !NOT_COMPARED.contains(&field.as_str()));
    if kind == "Pod" {
        // Servers differ in whether a status update increments it, and no edge uses it.
        fields.remove("generation");
    }
    if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    // To Kubernetes, an empty map equals an absent one.
    fields.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
    metadata
}

/// Every ConfigMap and Secret that a pod's spec names, if the name is valid. API servers store invalid names too, but
/// these refer to nothing: a request for one is not answered.
fn references_of(spec: &Value, namespace: &str) -> BTreeSet<(&'static str, String, String)> {
    let mut found = BTreeSet::new();
    collect(spec, namespace, &mut found);
    found.retain(|(_, _, name)| is_dns_subdomain(name));
    found
}

/// Adds every ConfigMap and Secret that a part of a pod's spec names, at any depth.
fn collect(part: &Value, namespace: &str, found: &mut BTreeSet<(&'static str, String, String)>) {
    match part {
        Value::Array(items) => items.iter().for_each(|item| collect(item, namespace, found)),
        Value::Object(fields) => {
            for (field, value) in fields {
                if let Some((kind, name)) = reference(field, value) {
                    found.insert((kind, namespace.to_owned(), name));
                }
                if field == "imagePullSecrets" {
                    let names =
                        value.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str());
                    found.extend(names.map(|name| ("Secret", namespace.to_owned(), name.to_owned())));
                }
                collect(value, namespace, found);
            }
        }
        _ => {}
    }
}

fn reference(field: &str, value: &Value) -> Option<(&'static str, String)> {
    let named = || value["name"].as_str().map(str::to_owned);
    match field {
        "configMap" | "configMapRef" | "configMapKeyRef" => Some(("ConfigMap", named()?)),
        "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => Some(("Secret", named()?)),
        "secretName" => Some(("Secret", value.as_str()?.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Holdings, difference, hold, references_of};

    #[test]
    fn follows_every_kind_of_reference() {
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "init", "key": "k"}}}]}],
            "containers": [{"envFrom": [{"configMapRef": {"name": "env"}}]}],
            "volumes": [
                {"secret": {"secretName": "volume"}},
                {"configMap": {"name": "files"}},
                {"projected": {"sources": [{"secret": {"name": "part"}}, {"configMap": {"name": "part"}}]}},
                {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                {"secret": {"secretName": "a/b"}},
                {"secret": {"secretName": "a b"}},
                {"configMap": {"name": "ünicode"}},
                {"configMap": {"name": "n".repeat(254)}},
            ],
        });
        let found = references_of(&spec, "ns");
        let names: Vec<String> = found.iter().map(|(kind, _, name)| format!("{kind}/{name}")).collect();
        let wanted = [
            "ConfigMap/env",
            "ConfigMap/files",
            "ConfigMap/part",
            "Secret/csi",
            "Secret/init",
            "Secret/part",
            "Secret/pull",
            "Secret/volume",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn names_the_first_difference() {
        let side =
            |uid: &str, data: i32| Holdings::from([("Pod a/b".into(), json!({"uid": uid, "content": data}))]);
        assert_eq!(difference(&side("1", 1), &side("1", 1)), None);
        assert!(difference(&side("1", 1), &side("2", 1)).unwrap().contains("uid"));
        assert!(difference(&side("1", 1), &side("1", 2)).unwrap().contains("other metadata or content"));
        assert!(difference(&side("1", 1), &Holdings::new()).unwrap().contains("missing"));
        assert!(difference(&Holdings::new(), &side("1", 1)).unwrap().contains("should not"));
    }

    #[test]
    fn a_ca_that_an_edge_has_added_is_no_difference() {
        let side = |name: &str, trusted: &str| {
            let content = json!({"data": {"ca.crt": trusted}});
            Holdings::from([(format!("ConfigMap a/{name}"), json!({"uid": "1", "content": content}))])
        };
        let differ = |name: &str, expected: &str, listed: &str| {
            difference(&side(name, expected), &side(name, listed)).is_some()
        };
        assert!(!differ("kube-root-ca.crt", "one\n", "one\ntwo\n"));
        assert!(differ("kube-root-ca.crt", "one\n", "two\n"));
        assert!(differ("kube-root-ca.crt", "", "two\n"), "what is missing in the cloud");
        assert!(differ("other", "one\n", "one\ntwo\n"));
    }

    fn held(kind: &str, metadata: &serde_json::Value) -> Holdings {
        let object = serde_json::from_value(json!({"metadata": metadata, "data": {"k": "v"}})).unwrap();
        let mut holdings = Holdings::new();
        hold(&mut holdings, kind, &object).unwrap();
        holdings
    }

    #[test]
    fn every_sent_part_of_the_metadata_is_compared() {
        let cloud = json!({
            "name": "m", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "70",
            "annotations": {"colour": "red"}, "labels": {"tier": "front"}, "finalizers": ["example.com/wait"],
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "o"}],
        });
        for (field, other) in [
            ("annotations", json!({"colour": "blue"})),
            ("annotations", json!({})),
            ("labels", json!({"tier": "back"})),
            ("finalizers", json!([])),
            ("ownerReferences", json!([])),
            ("deletionTimestamp", json!("2026-01-02T03:04:06Z")),
            ("creationTimestamp", json!("2026-01-02T03:04:06Z")),
            ("generation", json!(2)),
        ] {
            let mut edge = cloud.clone();
            edge[field] = other;
            let said = difference(&held("ConfigMap", &cloud), &held("ConfigMap", &edge)).unwrap_or_default();
            assert!(said.contains("other metadata or content"), "{field}: {said}");
        }
    }

    #[test]
    fn fields_only_the_api_server_keeps_are_no_difference() {
        let edge = json!({"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "3"});
        let cloud = json!({
            "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "70", "generation": 4,
            "managedFields": [{"manager": "kubectl"}], "selfLink": "/x", "labels": {},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        });
        assert_eq!(difference(&held("Pod", &cloud), &held("Pod", &edge)), None);
    }
}
