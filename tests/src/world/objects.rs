//! Objects that the scenarios create.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tombolo_testkit::wait_for;

use super::DEADLINE;

/// Namespace of the objects of a test that uses a world alone.
pub const NAMESPACE: &str = "shops";

/// Typed handles of the administrator.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: String,
}

impl Objects {
    /// As [`Self::in_namespace`], in [`NAMESPACE`].
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn new(client: Client) -> Result<Self> {
        Self::in_namespace(client, NAMESPACE).await
    }

    /// Creates the namespace and returns handles, without waiting.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn in_namespace(client: Client, namespace: &str) -> Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        if namespaces.get_opt(namespace).await?.is_none() {
            namespaces.create(&PostParams::default(), &object).await?;
        }
        Ok(Self { client, namespace: namespace.to_owned() })
    }

    /// Handles for the same namespace in another API where nothing is created: an edge's.
    #[must_use]
    pub fn seen_by(&self, client: Client) -> Self {
        Self { client, namespace: self.namespace.clone() }
    }

    /// The client of these handles.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Pods of the namespace.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// ConfigMaps of the namespace.
    #[must_use]
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Secrets of the namespace.
    #[must_use]
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Creates or replaces the data of a ConfigMap.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn config_map(&self, name: &str, value: &str) -> Result<()> {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}});
        self.config_maps().patch(name, &apply(), &Patch::Apply(object)).await?;
        Ok(())
    }

    /// Creates or replaces the data of a Secret.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn secret(&self, name: &str, value: &str) -> Result<()> {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"value": value}});
        self.secrets().patch(name, &apply(), &Patch::Apply(object)).await?;
        Ok(())
    }

    /// Creates a Service.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn create_service(&self, service: &Value) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        services.create(&PostParams::default(), &serde_json::from_value(service.clone())?).await?;
        Ok(())
    }

    /// Creates a pod as soon as its namespace has a ServiceAccount.
    ///
    /// # Panics
    /// When the pod is not accepted in time.
    pub async fn accepted_pod(&self, name: &str, node: &str, config_maps: &[&str], secrets: &[&str]) {
        wait_for(&format!("pod {name} to be accepted"), DEADLINE, || async {
            self.pod(name, node, config_maps, secrets).await.map_err(|error| format!("{error:#}"))
        })
        .await;
    }

    /// Creates a pod bound to a node that mounts these ConfigMaps and Secrets.
    ///
    /// # Errors
    /// When the API server refuses, for example because the namespace has no default ServiceAccount yet.
    pub async fn pod(&self, name: &str, node: &str, config_maps: &[&str], secrets: &[&str]) -> Result<()> {
        let maps = config_maps.iter().map(|map| json!({"name": map, "configMap": {"name": map}}));
        let hidden = secrets.iter().map(|secret| json!({"name": secret, "secret": {"secretName": secret}}));
        let volumes: Vec<Value> = maps.chain(hidden).collect();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "shop", "image": "registry.example/shop:1"}],
                "volumes": volumes,
                "terminationGracePeriodSeconds": 1,
            },
        }))?;
        self.pods().create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Creates a pod unless it exists.
    ///
    /// # Errors
    /// When the API server refuses, for example because the namespace has no default ServiceAccount yet.
    pub async fn create_pod(&self, pod: &Value) -> Result<()> {
        match self.pods().create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a pod without a grace period, as the node's agent does at the end.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn remove_pod(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods().delete(name, &at_once).await?;
        Ok(())
    }
}

fn apply() -> PatchParams {
    PatchParams::apply("tests").force()
}
