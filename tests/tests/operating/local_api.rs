//! A node's local API as its operator uses it: stock kubectl, with the kubeconfig that `edgecore kubeconfig` prints.

use std::path::Path;
use std::process::Command;

use kube::api::DeleteParams;
use tombolo_testkit::{Child, cluster_or_skip, components, wait_for};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const NODE: &str = "edge-a";

/// A `kubectl get -A -w` that runs until it is dropped.
fn watching(kubeconfig: &Path, folder: &Path, kind: &str) -> Child {
    let mut command = Command::new(components().unwrap().binary("kubectl"));
    command.env("KUBECONFIG", kubeconfig).env("HOME", folder);
    command.args(["get", kind, "-A", "-w", "--output-watch-events"]);
    Child::spawn(kind, folder, &mut command).unwrap()
}

/// Waits until a watch prints an event of an object.
async fn shows(watch: &Child, event: &str, name: &str) {
    wait_for(&format!("{event} of {name}"), DEADLINE, || async {
        let log = watch.log();
        let found = log
            .lines()
            .any(|line| line.starts_with(event) && line.split_whitespace().any(|word| word == name));
        if found { Ok(()) } else { Err(log) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_follows_pods_configmaps_and_secrets() {
    cluster_or_skip!("kubectl_follows_pods_configmaps_and_secrets");
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "1").await.unwrap();
    world.start_edge(NODE).await.unwrap();
    objects.accepted_pod("shop", NODE, &["settings"], &["password"]).await;
    world.converges(NODE).await;

    let (kubeconfig, folder) = (world.edge_kubeconfig(NODE).unwrap(), tempfile::tempdir().unwrap());
    let watch = |kind| watching(&kubeconfig, folder.path(), kind);
    let (pods, maps, secrets) = (watch("pods"), watch("configmaps"), watch("secrets"));
    shows(&pods, "ADDED", "shop").await;
    shows(&maps, "ADDED", "settings").await;
    shows(&secrets, "ADDED", "password").await;

    objects.config_map("settings", "2").await.unwrap();
    objects.secret("password", "2").await.unwrap();
    objects.config_map("later", "1").await.unwrap();
    objects.secret("hidden", "1").await.unwrap();
    objects.accepted_pod("second", NODE, &["later"], &["hidden"]).await;
    shows(&maps, "MODIFIED", "settings").await;
    shows(&secrets, "MODIFIED", "password").await;
    shows(&maps, "ADDED", "later").await;
    shows(&secrets, "ADDED", "hidden").await;
    shows(&pods, "ADDED", "second").await;

    objects.remove_pod("second").await.unwrap();
    shows(&pods, "DELETED", "second").await;
    shows(&maps, "DELETED", "later").await;
    shows(&secrets, "DELETED", "hidden").await;
    objects.config_maps().delete("settings", &DeleteParams::default()).await.unwrap();
    shows(&maps, "DELETED", "settings").await;
}
