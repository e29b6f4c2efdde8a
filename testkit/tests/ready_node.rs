//! A control plane with a scheduler and a node: pods are bound, and deleted pods disappear.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tombolo_testkit::{
    ControlPlane, ControlPlaneOptions, ReadyNode, cluster_or_skip, components, wait_for, wait_for_value,
};

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn pod_is_bound_to_the_ready_node_and_removed_when_deleted() {
    cluster_or_skip!("pod_is_bound_to_the_ready_node_and_removed_when_deleted");
    let options =
        ControlPlaneOptions { controllers: true, scheduler: true, ..ControlPlaneOptions::default() };
    assert!(components().unwrap().binary("kube-scheduler").is_file(), "the components lack kube-scheduler");
    let plane = ControlPlane::start(options).await.unwrap();
    let client = plane.admin_client().await.unwrap();
    let _node = ReadyNode::start(client.clone(), "ready").await.unwrap();

    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound"},
        "spec": {"containers": [{"name": "main", "image": "image"}]}}))
    .unwrap();
    // Fails until the controllers have created the default ServiceAccount.
    wait_for_value("the pod to be accepted", DEADLINE, || async {
        pods.create(&PostParams::default(), &pod).await.map_err(|error| error.to_string())
    })
    .await;
    wait_for("the pod to be bound", DEADLINE, || async {
        let bound = pods.get("bound").await.map_err(|error| error.to_string())?;
        let spec = bound.spec.ok_or("no spec")?;
        if spec.node_name.as_deref() == Some("ready") { Ok(()) } else { Err(format!("{:?}", bound.status)) }
    })
    .await;
    pods.delete("bound", &DeleteParams::default()).await.unwrap();
    wait_for("the pod to be gone", DEADLINE, || async {
        match pods.get_opt("bound").await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(pod) => Err(format!("still there, deleted at {:?}", pod.metadata.deletion_timestamp)),
        }
    })
    .await;
}
