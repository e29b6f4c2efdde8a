//! The controllers of the application grid, in a cloudcore on both API servers and alone: the rows of
//! docs/reference/superedge.md#rows that need a server.

mod alone;
mod definitions;
mod leading;
mod ownership;
mod rights;
mod scale;
mod superedge;
mod unions;
mod units;

use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};
use tombolo_testkit::wait_for_value;
use tombolo_tests::world::{Api as ApiKind, DEADLINE, Transport, World};

/// A world whose cloudcore runs the grid controllers.
pub(crate) struct Grids {
    pub(crate) world: World,
    pub(crate) client: Client,
}

impl Grids {
    pub(crate) async fn start(api: ApiKind) -> Self {
        Self::start_with(api, json!({})).await
    }

    /// Like [`Self::start`], with these settings of the controllers.
    pub(crate) async fn start_with(api: ApiKind, mut settings: Value) -> Self {
        settings["enable"] = true.into();
        let settings = json!({"grids": settings});
        let world = World::start_with(api, Transport::WebSocket, settings).await.unwrap();
        let client = world.client().await.unwrap();
        Self { world, client }
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = match kind {
            "Deployment" | "StatefulSet" => ("apps", "v1"),
            "Service" | "Node" | "Event" => ("", "v1"),
            "CustomResourceDefinition" => ("apiextensions.k8s.io", "v1"),
            _ => ("superedge.io", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match kind {
            "Node" | "CustomResourceDefinition" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), "default", &resource),
        }
    }

    pub(crate) async fn node(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: Value = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        self.create("Node", json!({"metadata": {"name": name, "labels": labels}})).await;
    }

    pub(crate) async fn create(&self, kind: &str, mut object: Value) -> Value {
        let api_version = match kind {
            "Node" | "Service" => "v1",
            "Deployment" | "StatefulSet" => "apps/v1",
            _ => "superedge.io/v1",
        };
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        // A definition may just have been established.
        let what = format!("{kind} to be created");
        let made = wait_for_value(&what, DEADLINE, || async {
            self.api(kind).create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
        });
        serde_json::to_value(made.await).unwrap()
    }

    pub(crate) async fn patch(&self, kind: &str, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.api(kind).patch(name, &PatchParams::apply("a-user"), &patch).await.unwrap();
    }

    pub(crate) async fn get(&self, kind: &str, name: &str) -> Value {
        let found = self.api(kind).get_opt(name).await.unwrap();
        found.map_or(Value::Null, |object| serde_json::to_value(object).unwrap())
    }

    /// Waits until an object passes a check, and returns it.
    pub(crate) async fn until(&self, kind: &str, name: &str, check: impl Fn(&Value) -> bool) -> Value {
        wait_for_value(&format!("{kind} {name}"), DEADLINE, || async {
            let found = self.get(kind, name).await;
            if check(&found) { Ok(found) } else { Err(format!("{found:#}\n{}", self.log())) }
        })
        .await
    }

    /// The last lines of cloudcore's log.
    fn log(&self) -> String {
        let log = self.world.cloud_log();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Names of all objects of a kind in the namespace, except those of Kubernetes itself.
    pub(crate) async fn names(&self, kind: &str) -> Vec<String> {
        let all = self.api(kind).list(&ListParams::default()).await.unwrap();
        let names = all.items.into_iter().filter_map(|object| object.metadata.name);
        names.filter(|name| name != "kubernetes").collect()
    }

    /// Waits for an event with a reason about an object.
    pub(crate) async fn event(&self, reason: &str, about: &str) -> Value {
        wait_for_value(&format!("event {reason} about {about}"), DEADLINE, || async {
            let all = self.api("Event").list(&ListParams::default()).await.unwrap();
            let all: Vec<Value> =
                all.items.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
            let fits = |event: &&Value| event["reason"] == reason && event["involvedObject"]["name"] == about;
            all.iter().find(fits).cloned().ok_or_else(|| format!("{all:#?}"))
        })
        .await
    }
}

/// Spec of a Deployment with one container.
pub(crate) fn deployment() -> Value {
    json!({
        "replicas": 2,
        "selector": {"matchLabels": {"appGrid": "echo"}},
        "template": {
            "metadata": {"labels": {"appGrid": "echo"}},
            "spec": {"containers": [{"name": "echo", "image": "echo:1"}]},
        },
    })
}

pub(crate) fn grid(name: &str, key: &str, template: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"gridUniqKey": key, "template": template}})
}

pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|one| one["type"] == name).unwrap_or(&Value::Null)
}
