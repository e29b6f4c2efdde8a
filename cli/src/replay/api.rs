//! Repeats the changes that the recorded Kubernetes API received.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use http::{Method, Request};
use kube::Client;
use kube::core::GroupVersionKind;
use kube::discovery::{self, ApiResource, Scope};
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_replay::{Verb, call_of, is_clusters_own, is_machinery};

use super::allotted::allotted_as;

/// Fields of `metadata` that the API server sets itself.
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

/// How long to wait for the ServiceAccount of a new namespace.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wait between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// How often a change is retried after a conflict with another writer.
const CONFLICTS_MAX: usize = 5;

/// Result of a change.
pub(super) enum Applied {
    /// Every state that the object had; the last is the current one.
    Made(Vec<Value>),
    /// The cluster manages this object itself.
    Kept(Value),
    /// The cluster does not serve this kind.
    Unserved(String),
}

/// An administrator of the run's cluster.
pub(super) struct Administrator {
    client: Client,
    resources: HashMap<GroupVersionKind, (ApiResource, Scope)>,
}

impl Administrator {
    pub(super) fn new(client: Client) -> Self {
        Self { client, resources: HashMap::new() }
    }

    /// Makes one change, unless the cluster manages the object itself or does not serve its kind.
    pub(super) async fn make(&mut self, verb: Verb, object: &Value) -> Result<Applied> {
        if is_machinery(object) {
            return Ok(Applied::Made(Vec::new()));
        }
        if !self.serves(object).await? {
            return Ok(Applied::Unserved(object["kind"].as_str().unwrap_or_default().to_owned()));
        }
        if let Some(kept) = self.kept(object).await? {
            return Ok(Applied::Kept(kept));
        }
        let mut tries = 0;
        loop {
            match self.apply(verb, &placeable(object)).await {
                // Another writer was faster: the replayed node, or a controller.
                Err(error) if tries < CONFLICTS_MAX && is_conflict(&error) => tries += 1,
                made => {
                    if verb != Verb::Delete && object["kind"] == "CustomResourceDefinition" {
                        self.published(object).await?;
                    }
                    return made.map(Applied::Made);
                }
            }
        }
    }

    /// Waits until the kind of a definition is served, because its objects follow.
    async fn published(&self, definition: &Value) -> Result<()> {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
        let versions = spec["versions"].as_array().into_iter().flatten();
        let served =
            versions.filter(|version| version["served"] == true).map(|version| text(&version["name"]));
        let deadline = Instant::now() + PATIENCE;
        for version in served {
            while !self.serves_resource(&group, &version, &plural).await? && Instant::now() < deadline {
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Makes an application's write that nodes are not allowed to make.
    pub(super) async fn in_place_of_the_node(&self, record: &Value) -> Result<Value> {
        let call = call_of(record).with_context(|| format!("{} is not a write", record["Verb"]))?;
        let request = Request::builder().method(call.method).uri(&call.path);
        let request = request.header("content-type", call.content_type).body(call.body)?;
        let made = self.client.request(request).await;
        made.with_context(|| format!("{} {} on behalf of the node", call.method, call.path))
    }

    /// The current object.
    pub(super) async fn present(&mut self, object: &Value) -> Result<Option<Value>> {
        if !self.serves(object).await? {
            return Ok(None);
        }
        let collection = self.collection(object).await?;
        self.get(&format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default())).await
    }

    async fn apply(&mut self, verb: Verb, object: &Value) -> Result<Vec<Value>> {
        let object = &self.with_known_owners(object).await?;
        let collection = self.collection(object).await?;
        let name = object["metadata"]["name"].as_str().context("an object of the transcript has no name")?;
        let path = format!("{collection}/{name}");
        let present = self.get(&path).await?;
        let mut states: Vec<Value> = present.iter().cloned().collect();
        match (verb, present) {
            (Verb::Delete, None) => {}
            (Verb::Delete, Some(_)) => {
                self.delete(&path, 0).await?;
            }
            (_, None) => {
                self.namespace(object).await?;
                self.prerequisites(object).await?;
                states.push(self.create(&collection, object).await?);
                if let Some(grace) = end_of(object) {
                    self.delete(&path, grace).await?;
                    states.extend(self.get(&path).await?);
                }
                self.status(&path, object, &mut states).await?;
            }
            (_, Some(_)) => self.update(&path, object, &mut states).await?,
        }
        Ok(states)
    }

    /// The object, if the cluster manages it itself; `None` if the run has to change it.
    async fn kept(&mut self, object: &Value) -> Result<Option<Value>> {
        if !is_clusters_own(object) {
            return Ok(None);
        }
        self.namespace(object).await?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}", self.collection(object).await?);
        // A new namespace gets these objects after a moment.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let present = self.get(&path).await?;
            if present.is_some() || Instant::now() >= deadline {
                return Ok(present);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Initial objects of a resource in all namespaces of the cluster.
    pub(super) async fn list(&self, group: &str, version: &str, resource: &str) -> Result<Vec<Value>> {
        let base = base(group, version);
        let list = self.call(Method::GET, &format!("{base}/{resource}"), None).await?;
        Ok(list.and_then(|mut list| list["items"].as_array_mut().map(std::mem::take)).unwrap_or_default())
    }

    /// Whether the cluster serves a resource.
    pub(super) async fn serves_resource(&self, group: &str, version: &str, plural: &str) -> Result<bool> {
        let list = self.call(Method::GET, &base(group, version), None).await?;
        let resources = list.as_ref().and_then(|list| list["resources"].as_array()).into_iter().flatten();
        Ok(resources.into_iter().any(|resource| resource["name"] == *plural))
    }

    /// Grants a node the rights that it used in the transcript.
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

    /// The object without owners that do not exist: the garbage collector would delete it because of them.
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
            let Ok(collection) = self.collection(&named).await else { continue };
            let path = format!("{collection}/{}", owner["name"].as_str().unwrap_or_default());
            if self.get(&path).await?.is_some_and(|present| present["metadata"]["uid"] == owner["uid"]) {
                known.push(owner);
            }
        }
        object["metadata"]["ownerReferences"] = if known.is_empty() { Value::Null } else { known.into() };
        Ok(object)
    }

    /// Updates an object to the recorded content: first its deletion, then metadata and spec, then status.
    async fn update(&self, path: &str, object: &Value, states: &mut Vec<Value>) -> Result<()> {
        let present = |states: &[Value]| states.last().cloned().unwrap_or_default();
        if let (Some(grace), None) = (end_of(object), end_of(&present(states))) {
            self.delete(path, grace).await?;
            states.extend(self.get(path).await?);
        }
        if let Some(bound) = self.bind(path, object, &present(states)).await? {
            states.push(bound);
        }
        let current = present(states);
        if bare(&current) != bare(object) {
            let mut wanted = without_servers_own(object);
            wanted["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            wanted["status"] = current["status"].clone();
            let wanted = allotted_as(&current, wanted);
            // Annotations of a Deployment count as a spec change, unless its controller writes them with the status.
            let with_status = object["kind"] == "Deployment"
                && object["metadata"]["generation"] == current["metadata"]["generation"];
            let target = if with_status { &format!("{path}/status") } else { path };
            let replaced = self.call(Method::PUT, target, Some(&wanted)).await?;
            states.push(replaced.with_context(|| format!("{path} was deleted during the change"))?);
        }
        self.status(path, object, states).await
    }

    async fn status(&self, path: &str, object: &Value, states: &mut Vec<Value>) -> Result<()> {
        let Some(current) = states.last().cloned() else { return Ok(()) };
        let wanted = &with_untold(object, &current)["status"];
        if wanted.is_null() || without_nulls(wanted) == without_nulls(&current["status"]) {
            return Ok(());
        }
        let mut changed = current;
        let issued = changed["status"]["certificate"].clone();
        changed["status"] = with_issued(wanted, &issued);
        // An approver of a CertificateSigningRequest does not write the rest of its status, which stays empty until a
        // certificate is issued.
        let parts: &[&str] = match (object["kind"] == "CertificateSigningRequest", &wanted["certificate"]) {
            (true, Value::Null) => &["approval"],
            (true, _) => &["approval", "status"],
            (false, _) => &["status"],
        };
        for part in parts {
            // Resources without this subresource answer 404: their status was already written with the object.
            let answer = self.call(Method::PUT, &format!("{path}/{part}"), Some(&changed)).await?;
            if let Some(written) = &answer {
                changed["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"].clone();
                changed["status"] = with_issued(&changed["status"], &written["status"]["certificate"]);
            }
            states.extend(answer);
        }
        Ok(())
    }

    async fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        let object = allotted_as(&Value::Null, without_servers_own(object));
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.call(Method::POST, collection, Some(&object)).await {
                Ok(created) => return created.with_context(|| format!("{collection} is not served")),
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

    /// Creates the objects that a pod requires, its ServiceAccount and its classes: a transcript need not contain them.
    async fn prerequisites(&self, object: &Value) -> Result<()> {
        if object["kind"] != "Pod" {
            return Ok(());
        }
        let (spec, namespace) = (&object["spec"], &object["metadata"]["namespace"]);
        let named = |name: &str| spec[name].as_str().filter(|name| !name.is_empty());
        let accounts =
            format!("/api/v1/namespaces/{}/serviceaccounts", namespace.as_str().unwrap_or_default());
        // The cluster creates this one in every namespace.
        let account = named("serviceAccountName").filter(|name| *name != "default");
        let account = account.map(|name| (accounts.as_str(), json!({"metadata": {"name": name}})));
        let priority = named("priorityClassName").map(|name| {
            let class =
                json!({"metadata": {"name": name}, "value": spec["priority"].as_i64().unwrap_or_default()});
            ("/apis/scheduling.k8s.io/v1/priorityclasses", class)
        });
        let runtime = named("runtimeClassName").map(|name| {
            let class = json!({"metadata": {"name": name}, "handler": name});
            ("/apis/node.k8s.io/v1/runtimeclasses", class)
        });
        for (collection, wanted) in [account, priority, runtime].into_iter().flatten() {
            let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
            if self.get(&format!("{collection}/{name}")).await?.is_none() {
                // `None` if the cluster does not serve classes; then it requires none.
                self.call(Method::POST, collection, Some(&wanted)).await?;
            }
        }
        Ok(())
    }

    /// Binds a pod if the recorded scheduler bound it: no other write sets its node.
    async fn bind(&self, path: &str, object: &Value, present: &Value) -> Result<Option<Value>> {
        let node =
            |pod: &Value| pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let (None, Some(wanted)) = (node(present), node(object)) else { return Ok(None) };
        if object["kind"] != "Pod" {
            return Ok(None);
        }
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": wanted},
        });
        self.call(Method::POST, &format!("{path}/binding"), Some(&binding)).await?;
        self.get(path).await
    }

    /// The URL path of an object's collection.
    async fn collection(&mut self, object: &Value) -> Result<String> {
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

    /// Whether the cluster serves the object's kind, if the object names one.
    async fn serves(&mut self, object: &Value) -> Result<bool> {
        let named = |name: &str| object[name].as_str().is_some_and(|text| !text.is_empty());
        if !named("kind") || !named("apiVersion") {
            return Ok(false);
        }
        match self.collection(object).await {
            Ok(_) => Ok(true),
            Err(error) => match error.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) if status.code == 404 => Ok(false),
                Some(kube::Error::Discovery(_)) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// `None` for objects that do not exist.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Option<Value>> {
        let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder().method(method.clone()).uri(path);
        let request = request.header("content-type", "application/json").body(bytes)?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Err(Conflict(format!("{method} {path}: {}", status.message)).into())
            }
            Err(kube::Error::Api(status)) => Err(anyhow!("{method} {path}: {}", status.message)),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }
}

/// The status with the certificate that the run cluster's signer issued: it cannot be replaced.
fn with_issued(status: &Value, certificate: &Value) -> Value {
    let mut status = status.clone();
    if !certificate.is_null() {
        status["certificate"] = certificate.clone();
    }
    status
}

/// The object with heartbeats and images of the present Node where the transcript omits them.
fn with_untold(object: &Value, present: &Value) -> Value {
    let mut object = object.clone();
    if object["kind"] != "Node" || object["status"].is_null() {
        return object;
    }
    if object["status"]["images"].is_null() {
        object["status"]["images"] = present["status"]["images"].clone();
    }
    let known = present["status"]["conditions"].as_array();
    let conditions = object["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten().filter(|one| one["lastHeartbeatTime"].is_null()) {
        let same = known.into_iter().flatten().find(|other| other["type"] == condition["type"]);
        if let Some(same) = same {
            condition["lastHeartbeatTime"] = same["lastHeartbeatTime"].clone();
        }
    }
    object
}

/// Whether the answer was a conflict: another version, or another object of this name, exists already.
fn is_conflict(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Conflict>().is_some())
}

/// An answer with code 409.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Conflict(String);

/// The object in a form that an API server accepts. A recorded cloud may have redirected an EndpointSlice to the node's
/// own MetaServer: API servers refuse that loopback address.
fn placeable(object: &Value) -> Value {
    let mut object = object.clone();
    let endpoints = object.get_mut("endpoints").and_then(Value::as_array_mut);
    for address in
        endpoints.into_iter().flatten().filter_map(|endpoint| endpoint["addresses"].as_array_mut()).flatten()
    {
        if address == "127.0.0.1" {
            *address = PLACEHOLDER.into();
        }
    }
    object
}

/// Grace period in seconds of an object that is being deleted; `None` for any other.
fn end_of(object: &Value) -> Option<u64> {
    let metadata = &object["metadata"];
    metadata["deletionTimestamp"]
        .as_str()
        .map(|_| metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0))
}

/// An address reserved for documentation.
const PLACEHOLDER: &str = "192.0.2.1";

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

/// The parts of metadata and spec that writers control.
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
