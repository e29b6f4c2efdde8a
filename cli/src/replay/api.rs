//! Making the changes that the recorded Kubernetes API saw.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use http::{Method, Request};
use kube::Client;
use kube::core::GroupVersionKind;
use kube::discovery::{self, ApiResource, Scope};
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_replay::Verb;

/// What the API server itself sets in `metadata`.
const SERVERS_OWN: [&str; 8] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Kind, namespace (none: every one) and name of objects that controllers of every cluster put right when they are
/// changed.
const CLUSTERS_OWN: [(&str, Option<&str>, &str); 4] = [
    ("ConfigMap", None, "kube-root-ca.crt"),
    ("Service", Some("default"), "kubernetes"),
    ("Endpoints", Some("default"), "kubernetes"),
    ("EndpointSlice", Some("default"), "kubernetes"),
];

/// A new namespace takes a moment to have its ServiceAccount.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wait between two tries.
const RETRY: Duration = Duration::from_millis(100);

/// An administrator of the run's cluster.
pub(super) struct Administrator {
    client: Client,
    resources: HashMap<GroupVersionKind, (ApiResource, Scope)>,
}

impl Administrator {
    pub(super) fn new(client: Client) -> Self {
        Self { client, resources: HashMap::new() }
    }

    /// Makes one change. Gives every state that the object had, the last being the present one.
    pub(super) async fn apply(&mut self, verb: Verb, object: &Value) -> Result<Vec<Value>> {
        let object = &self.with_known_owners(object).await?;
        let place = self.place(object).await?;
        let name = object["metadata"]["name"].as_str().context("an object of the transcript has no name")?;
        let path = format!("{place}/{name}");
        let present = self.get(&path).await?;
        let mut states: Vec<Value> = present.iter().cloned().collect();
        match (verb, present) {
            (Verb::Delete, None) => {}
            (Verb::Delete, Some(_)) => {
                self.delete(&path, 0).await?;
            }
            (_, None) => {
                self.namespace(object).await?;
                states.push(self.create(&place, object).await?);
                self.status(&path, object, &mut states).await?;
            }
            (_, Some(_)) => self.update(&path, object, &mut states).await?,
        }
        Ok(states)
    }

    /// The object as the cluster keeps it by itself; none for an object that is the run's to change.
    pub(super) async fn kept(&mut self, object: &Value) -> Result<Option<Value>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let named = (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
        let kept = CLUSTERS_OWN.iter().any(|(kind, namespace, name)| {
            named.0 == *kind && named.2 == *name && namespace.is_none_or(|namespace| named.1 == namespace)
        });
        if !kept {
            return Ok(None);
        }
        let place = self.place(object).await?;
        self.get(&format!("{place}/{}", named.2)).await
    }

    /// Objects that the cluster has at the beginning, of a resource in all namespaces.
    pub(super) async fn list(&self, group: &str, version: &str, resource: &str) -> Result<Vec<Value>> {
        let base = base(group, version);
        let list = self.call(Method::GET, &format!("{base}/{resource}"), None).await?;
        Ok(list.and_then(|mut list| list["items"].as_array_mut().map(std::mem::take)).unwrap_or_default())
    }

    /// Lets a node do what it did in the transcript.
    pub(super) async fn grant(&mut self, node: &str, rules: &[Value]) -> Result<()> {
        let name = format!("tombolo-replay-{node}");
        let metadata = json!({"name": name});
        let version = "rbac.authorization.k8s.io/v1";
        let role =
            json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": rules});
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": format!("system:node:{node}")}],
        });
        for object in [role, binding] {
            self.apply(Verb::Update, &object).await?;
        }
        Ok(())
    }

    /// The object without owners that do not exist: it would be taken away with them.
    async fn with_known_owners(&mut self, object: &Value) -> Result<Value> {
        let mut object = object.clone();
        let Some(owners) = object["metadata"]["ownerReferences"].as_array().cloned() else {
            return Ok(object);
        };
        let mut known = Vec::new();
        for owner in owners {
            let metadata = json!({"name": owner["name"], "namespace": object["metadata"]["namespace"]});
            let named =
                json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "metadata": metadata});
            // A kind that is not served has no objects.
            let Ok(place) = self.place(&named).await else { continue };
            let path = format!("{place}/{}", owner["name"].as_str().unwrap_or_default());
            if self.get(&path).await?.is_some_and(|present| present["metadata"]["uid"] == owner["uid"]) {
                known.push(owner);
            }
        }
        object["metadata"]["ownerReferences"] = if known.is_empty() { Value::Null } else { known.into() };
        Ok(object)
    }

    /// Brings an object to the recorded content: first its end, then metadata and spec, then its status.
    async fn update(&self, path: &str, object: &Value, states: &mut Vec<Value>) -> Result<()> {
        let present = |states: &[Value]| states.last().cloned().unwrap_or_default();
        let ends = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
        if ends(object) && !ends(&present(states)) {
            let grace = object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
            self.delete(path, grace).await?;
            states.extend(self.get(path).await?);
        }
        let current = present(states);
        if bare(&current) != bare(object) {
            let mut wanted = without_servers_own(object);
            wanted["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            wanted["status"] = current["status"].clone();
            let replaced = self.call(Method::PUT, path, Some(&wanted)).await?;
            states.push(replaced.with_context(|| format!("{path} went while it was changed"))?);
        }
        self.status(path, object, states).await
    }

    async fn status(&self, path: &str, object: &Value, states: &mut Vec<Value>) -> Result<()> {
        let Some(current) = states.last().cloned() else { return Ok(()) };
        let wanted = &object["status"];
        if wanted.is_null() || without_nulls(wanted) == without_nulls(&current["status"]) {
            return Ok(());
        }
        let mut changed = current;
        changed["status"] = wanted.clone();
        // Resources without this subresource answer 404, and have taken the status with the object.
        states.extend(self.call(Method::PUT, &format!("{path}/status"), Some(&changed)).await?);
        Ok(())
    }

    async fn create(&self, place: &str, object: &Value) -> Result<Value> {
        let object = without_servers_own(object);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.call(Method::POST, place, Some(&object)).await {
                Ok(created) => return created.with_context(|| format!("{place} is not served")),
                Err(error)
                    if Instant::now() < deadline && format!("{error:#}").contains("service account") =>
                {
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn delete(&self, path: &str, grace: u64) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace});
        self.call(Method::DELETE, path, Some(&options)).await.map(drop)
    }

    async fn get(&self, path: &str) -> Result<Option<Value>> {
        self.call(Method::GET, path, None).await
    }

    async fn namespace(&self, object: &Value) -> Result<()> {
        let Some(name) = object["metadata"]["namespace"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        if self.get(&format!("/api/v1/namespaces/{name}")).await?.is_none() {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.call(Method::POST, "/api/v1/namespaces", Some(&namespace)).await?;
        }
        Ok(())
    }

    /// The path of an object's collection.
    async fn place(&mut self, object: &Value) -> Result<String> {
        let text = |name: &str| object[name].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let kind = GroupVersionKind::gvk(group, version, text("kind"));
        if !self.resources.contains_key(&kind) {
            let found = discovery::pinned_kind(&self.client, &kind).await;
            let (resource, capabilities) = found.with_context(|| {
                format!("the cluster does not serve {} {}", text("apiVersion"), text("kind"))
            })?;
            self.resources.insert(kind.clone(), (resource, capabilities.scope));
        }
        let (resource, scope) = &self.resources[&kind];
        let base = base(group, version);
        Ok(match scope {
            Scope::Namespaced => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
                format!("{base}/namespaces/{namespace}/{}", resource.plural)
            }
            Scope::Cluster => format!("{base}/{}", resource.plural),
        })
    }

    /// None for what does not exist.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Option<Value>> {
        let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder().method(method.clone()).uri(path);
        let request = request.header("content-type", "application/json").body(bytes)?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) => Err(anyhow!("{method} {path}: {}", status.message)),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }
}

fn base(group: &str, version: &str) -> String {
    match group {
        "" | "core" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}

fn without_servers_own(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        SERVERS_OWN.iter().for_each(|name| drop(metadata.remove(*name)));
    }
    object
}

/// Metadata and spec, as far as a writer decides them.
fn bare(object: &Value) -> Value {
    let mut object = without_servers_own(object);
    if let Some(members) = object.as_object_mut() {
        for name in ["status", "kind", "apiVersion"] {
            members.remove(name);
        }
    }
    without_nulls(&object)
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
