//! What an edge should hold, read from the API server, against what its local API lists.
//!
//! Shares nothing with the sessions, the index or the store: it reads pods as plain JSON and follows every name of a
//! ConfigMap or Secret in them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

/// `Kind namespace/name`.
type Title = String;

/// What both sides must agree on: UID and everything that a pod's containers can see.
pub type Holdings = BTreeMap<Title, Value>;

/// Annotation of `kubectl apply`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
        collect(&pod.data["spec"], &namespace, &mut references);
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

/// What an edge's local API lists.
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

/// First difference of two sides, in words; none when they agree.
#[must_use]
pub fn difference(expected: &Holdings, listed: &Holdings) -> Option<String> {
    for (title, wanted) in expected {
        match listed.get(title) {
            None => return Some(format!("{title} is missing")),
            Some(held) if held["uid"] != wanted["uid"] => {
                return Some(format!("{title} has uid {} and should have {}", held["uid"], wanted["uid"]));
            }
            Some(held) if held != wanted => return Some(format!("{title} is another version")),
            Some(_) => {}
        }
    }
    let surplus = listed.keys().find(|title| !expected.contains_key(*title));
    surplus.map(|title| format!("{title} should not be there"))
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

/// Adds an object of one side.
///
/// # Errors
/// When its time of deletion cannot be written.
pub fn hold(holdings: &mut Holdings, kind: &str, object: &DynamicObject) -> Result<()> {
    let metadata = &object.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let content = object.data.as_object().cloned().unwrap_or_default();
    // Reports of the edge itself travel up, bookkeeping of the API server stays there.
    let content: Map<String, Value> = content.into_iter().filter(|(field, _)| field != "status").collect();
    let seen = json!({
        "uid": metadata.uid,
        "labels": metadata.labels,
        "annotations": metadata.annotations.as_ref().map(without_bookkeeping),
        "deletionTimestamp": metadata.deletion_timestamp.as_ref().map(serde_json::to_value).transpose()?,
        "content": content,
    });
    holdings.insert(format!("{kind} {namespace}/{name}"), seen);
    Ok(())
}

/// Annotations without the copy of the object that `kubectl apply` keeps there; none when nothing is left.
fn without_bookkeeping(annotations: &BTreeMap<String, String>) -> Option<BTreeMap<&str, &str>> {
    let all = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let kept: BTreeMap<_, _> = all.filter(|(key, _)| *key != LAST_APPLIED).collect();
    (!kept.is_empty()).then_some(kept)
}

/// Every ConfigMap and Secret that a piece of a pod's spec names, wherever it stands.
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
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::{Holdings, collect, difference};

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
            ],
        });
        let mut found = BTreeSet::new();
        collect(&spec, "ns", &mut found);
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
        assert!(difference(&side("1", 1), &side("1", 2)).unwrap().contains("another version"));
        assert!(difference(&side("1", 1), &Holdings::new()).unwrap().contains("missing"));
        assert!(difference(&Holdings::new(), &side("1", 1)).unwrap().contains("should not"));
    }
}
