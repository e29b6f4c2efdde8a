//! Tests the test control plane itself: it becomes ready, restarts, restores an older state, and its audit log names
//! callers.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for_value};

fn config_map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        ..Default::default()
    }
}

#[tokio::test]
async fn restores_an_older_state_and_audits() {
    cluster_or_skip!("restores_an_older_state_and_audits");
    let mut plane =
        ControlPlane::start(ControlPlaneOptions { controllers: true, ..ControlPlaneOptions::default() })
            .await
            .unwrap();
    let client = plane.admin_client().await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    wait_for_value("the default ServiceAccount", Duration::from_secs(30), || async {
        accounts.get("default").await.map_err(|error| error.to_string())
    })
    .await;

    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    maps.create(&PostParams::default(), &config_map("before")).await.unwrap();
    let snapshot = plane.snapshot().unwrap();
    wait_for_value("a write after the snapshot", Duration::from_secs(30), || async {
        maps.create(&PostParams::default(), &config_map("after")).await.map_err(|error| error.to_string())
    })
    .await;
    plane.restore(snapshot.path()).await.unwrap();
    assert!(maps.get("before").await.is_ok());
    assert!(maps.get_opt("after").await.unwrap().is_none(), "the restored state has a newer object");

    let events = plane.audit_events().unwrap();
    let created = events.iter().find(|event| event.is_write() && event.name == "before").unwrap();
    assert_eq!((created.user.as_str(), created.code), ("admin", 201));
    let output = plane.kubectl(&["get", "configmap", "before", "-o", "name"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "configmap/before");
}
