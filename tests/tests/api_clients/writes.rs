//! Random changes of three kinds, one of them a custom resource.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tombolo_testkit::wait_for;
use tombolo_tests::world::DEADLINE;

use crate::{Revisions, SELECTORS};

const NAMESPACE: &str = "default";

/// Number of names of each kind: few, so that objects are often deleted and created again.
const NAMES: u32 = 12;

/// The kinds that are written, as the Go program names them.
pub(crate) const RESOURCES: [&str; 3] =
    ["v1/configmaps", "coordination.k8s.io/v1/leases", "soak.example.com/v1/widgets"];

/// The kind behind one of [`RESOURCES`].
pub(crate) fn kind(resource: &str) -> ApiResource {
    let (group, name, plural) = match resource {
        "v1/configmaps" => ("", "ConfigMap", "configmaps"),
        "coordination.k8s.io/v1/leases" => ("coordination.k8s.io", "Lease", "leases"),
        _ => ("soak.example.com", "Widget", "widgets"),
    };
    let api_version = resource.rsplit_once('/').map(|(version, _)| version.to_owned()).unwrap_or_default();
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version,
        kind: name.to_owned(),
        plural: plural.to_owned(),
    }
}

pub(crate) struct Writes {
    client: Client,
}

impl Writes {
    /// Defines the custom resource and waits until it is served.
    pub(crate) async fn new(client: Client) -> Result<Self> {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &serde_json::from_value(definition())?).await?;
        let writes = Self::again(client);
        let widgets = writes.api(RESOURCES[2]);
        wait_for("widgets to be served", DEADLINE, || async {
            widgets.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        Ok(writes)
    }

    /// Continues the writes of an earlier instance.
    pub(crate) fn again(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, resource: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), NAMESPACE, &kind(resource))
    }

    /// Creates, changes or deletes an object.
    pub(crate) async fn one(&self, rng: &mut StdRng) -> Result<()> {
        let resource = RESOURCES[rng.random_range(0..RESOURCES.len())];
        let name = format!("soak-{}", rng.random_range(0..NAMES));
        let labels = json!({"half": if rng.random() { "yes" } else { "no" }});
        let note = json!({"note": rng.random::<u32>().to_string()});
        let api = self.api(resource);
        let done = match rng.random_range(0..6) {
            0 => api.delete(&name, &DeleteParams::default()).await.map(drop),
            1 | 2 => {
                let kind = kind(resource);
                let object = json!({"apiVersion": kind.api_version, "kind": kind.kind,
                    "metadata": {"name": name, "labels": labels}});
                api.create(&PostParams::default(), &serde_json::from_value(object)?).await.map(drop)
            }
            change => {
                let metadata =
                    if change == 3 { json!({"labels": labels}) } else { json!({"annotations": note}) };
                let patch = Patch::Merge(json!({"metadata": metadata}));
                api.patch(&name, &PatchParams::default(), &patch).await.map(drop)
            }
        };
        match done {
            // The object exists already, or does not exist.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The stored objects, by resource and selector.
    pub(crate) async fn stored(&self) -> Result<BTreeMap<(&'static str, &'static str), Revisions>> {
        let mut stored = BTreeMap::new();
        for resource in RESOURCES {
            for selector in SELECTORS {
                let list = self.api(resource).list(&ListParams::default().labels(selector)).await?;
                stored.insert((resource, selector), list.iter().map(entry).collect());
            }
        }
        Ok(stored)
    }
}

/// Name and revision of an object.
pub(crate) fn entry(object: &DynamicObject) -> (String, String) {
    let namespace = object.namespace().unwrap_or_default();
    (format!("{namespace}/{}", object.name_any()), object.resource_version().unwrap_or_default())
}

fn definition() -> Value {
    json!({
        "metadata": {"name": "widgets.soak.example.com"},
        "spec": {
            "group": "soak.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}
