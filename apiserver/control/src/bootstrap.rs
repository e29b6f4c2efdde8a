//! Objects that every cluster has: system namespaces, priority classes, the default service range, RBAC, flow schemas.

pub(super) mod flows;
mod rbac;

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tombolo_proto::object::Resource;

pub(super) use rbac::node_rules;

use super::error::EmbeddedError;
use super::objects::{Objects, core, text, timestamp, v1};

/// Namespaces that always exist; the first three cannot be deleted.
pub(super) const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Name of the ServiceCIDR object of the default range.
const DEFAULT_RANGE: &str = "kubernetes";

/// Facts about this server that bootstrap objects contain.
#[derive(Debug, Clone)]
pub(super) struct ServerFacts<'a> {
    /// The range of cluster addresses, as text.
    pub(super) service_cidr: &'a str,
    /// The certificate authority, PEM.
    pub(super) ca_certificate: &'a str,
}

/// Creates missing objects. Existing objects stay as they are, except that objects with an auto-update annotation are
/// restored: RBAC objects get lost rules and subjects back, flow schemas and priority levels their specification.
///
/// # Errors
/// [`EmbeddedError::Bootstrap`] when the store refuses.
pub(super) async fn ensure(objects: &Objects, facts: &ServerFacts<'_>) -> Result<(), EmbeddedError> {
    for (resource, value) in first_objects(facts) {
        let name = format!("{resource} {}", value["metadata"]["name"].as_str().unwrap_or_default());
        objects.ensure(resource, value).await.map_err(|e| failed(&name, &e))?;
    }
    rbac::ensure(objects).await?;
    flows::ensure(objects).await
}

/// The objects of a table, which is a sequence of JSON objects.
fn table(json: &'static str) -> impl Iterator<Item = (Resource, Value)> {
    serde_json::Deserializer::from_str(json).into_iter().map(|object| {
        let object: Value = object.expect("tests read all tables");
        (resource_of(&object), object)
    })
}

/// The resource of a bootstrap object: all have version 1 and a regular plural.
fn resource_of(object: &Value) -> Resource {
    let group = text(object, "/apiVersion").trim_end_matches("/v1");
    v1(group, &format!("{}s", text(object, "/kind").to_lowercase()))
}

fn failed(object: &str, error: &dyn std::fmt::Display) -> EmbeddedError {
    EmbeddedError::Bootstrap { object: object.to_owned(), message: error.to_string() }
}

fn first_objects(facts: &ServerFacts<'_>) -> Vec<(Resource, Value)> {
    let mut all: Vec<(Resource, Value)> =
        NAMESPACES.iter().map(|name| (core("namespaces"), namespace(name))).collect();
    let classes = [
        ("system-cluster-critical", 2_000_000_000, "Used for pods that the cluster needs, on whatever node."),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for pods that a node needs and that must not leave it.",
        ),
    ];
    for (name, value, description) in classes {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name, "generation": 1},
            "value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority",
        });
        all.push((v1("scheduling.k8s.io", "priorityclasses"), class));
    }
    all.push((v1("networking.k8s.io", "servicecidrs"), service_range(facts.service_cidr)));
    let authentication = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "kube-system", "name": "extension-apiserver-authentication"},
        "data": {"client-ca-file": facts.ca_certificate},
    });
    all.push((core("configmaps"), authentication));
    all
}

/// A namespace object as the server creates it.
fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

fn service_range(cidr: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": DEFAULT_RANGE},
        "spec": {"cidrs": [cidr]},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": timestamp(jiff::Timestamp::now()),
        }]},
    })
}

/// Makes the `kubernetes` Service point to this server: Service, EndpointSlice and Endpoints.
///
/// # Errors
/// [`EmbeddedError::Bootstrap`] when the store refuses.
pub(super) async fn ensure_service(
    objects: &Objects,
    cluster_ip: Ipv4Addr,
    host: Ipv4Addr,
    port: u16,
) -> Result<(), EmbeddedError> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
        "status": {"loadBalancer": {}},
    });
    replace(objects, core("services"), service, &["spec"]).await?;
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "kubernetes", "generation": 1, "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
        "ports": ports,
    });
    replace(objects, v1("discovery.k8s.io", "endpointslices"), slice, &["endpoints", "ports"]).await?;
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": host}], "ports": ports}],
    });
    replace(objects, core("endpoints"), endpoints, &["subsets"]).await
}

/// Creates an object, or replaces these parts of an existing one.
async fn replace(
    objects: &Objects,
    resource: Resource,
    wanted: Value,
    parts: &[&str],
) -> Result<(), EmbeddedError> {
    use super::objects::Edit;

    let name = format!("{resource} kubernetes");
    let key = tombolo_proto::object::ObjectKey::new(resource.clone(), "default", "kubernetes");
    objects.ensure(resource, wanted.clone()).await.map_err(|e| failed(&name, &e))?;
    let update = objects.update(&key, |object| {
        let changed: Vec<&&str> =
            parts.iter().filter(|part| object.value.get(**part) != wanted.get(**part)).collect();
        for part in &changed {
            object.value[**part] = wanted[**part].clone();
        }
        if changed.is_empty() { Edit::Keep } else { Edit::Put }
    });
    update.await.map(|_| ()).map_err(|e| failed(&name, &e))
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;
    use tombolo_apicore::store::Store as _;

    use super::*;

    #[tokio::test]
    async fn second_start_writes_nothing_and_another_port_changes_only_the_service() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let facts = ServerFacts { service_cidr: "10.0.0.0/16", ca_certificate: "pem" };
        let start = async |port| {
            ensure(&objects, &facts).await.unwrap();
            ensure_service(&objects, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::LOCALHOST, port).await.unwrap();
            objects.store().revision().0
        };
        let first = start(6443).await;
        assert_eq!(start(6443).await, first);
        assert_eq!(start(7443).await, first + 3, "service, slice and endpoints name the port");
        assert!(objects.get(core("namespaces"), "", "kube-node-lease").is_some());
    }
}
