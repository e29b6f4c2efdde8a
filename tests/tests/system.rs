//! The main job, whole: objects reach exactly the nodes that need them, whatever dies on the way.
//!
//! Each scenario runs against the embedded server and against kube-apiserver, over both transports in turn.

use kube::api::{DeleteParams, ListParams};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

macro_rules! scenario {
    ($name:ident) => {
        mod $name {
            use super::{Api, Transport, World, cluster_or_skip};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded_websocket() {
                super::scenarios::$name(World::start(Api::Embedded, Transport::WebSocket).await.unwrap())
                    .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn real_quic() {
                cluster_or_skip!(concat!(stringify!($name), "::real_quic"));
                super::scenarios::$name(World::start(Api::Real, Transport::Quic).await.unwrap()).await;
            }
        }
    };
}

scenario!(objects_reach_exactly_the_nodes_that_need_them);
scenario!(a_secret_stops_flowing_with_its_last_pod);
scenario!(an_edge_dies_during_updates);
scenario!(the_cloud_dies_during_updates);
scenario!(a_deleted_node_is_told_and_starts_again);
scenario!(a_pod_bound_before_its_node_is_not_lost);

/// Objects of the administrator, and one pod with a ConfigMap and a Secret on each of the nodes.
async fn settled(world: &mut World, nodes: &[&str]) -> Objects {
    for node in nodes {
        world.start_edge(node).await.unwrap();
    }
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "1").await.unwrap();
    for node in nodes {
        create_pod(&objects, &format!("shop-{node}"), node, &["settings"], &["password"]).await;
    }
    for node in nodes {
        world.converges(node).await;
        assert_listed(world, node, "pod", &format!("shop-{node}"), true).await;
    }
    objects
}

/// Creates a pod as soon as its namespace has a ServiceAccount.
async fn create_pod(objects: &Objects, name: &str, node: &str, config_maps: &[&str], secrets: &[&str]) {
    wait_for(&format!("pod {name} to be accepted"), DEADLINE, || async {
        objects.pod(name, node, config_maps, secrets).await.map_err(|error| format!("{error:#}"))
    })
    .await;
}

/// Waits until an object is, or is no longer, in a node's local API.
async fn assert_listed(world: &World, node: &str, kind: &str, name: &str, present: bool) {
    wait_for(&format!("{kind} {name} at {node}: {present}"), DEADLINE, || async {
        let client = world.edge_client(node).await.map_err(|error| format!("{error:#}"))?;
        let objects = Objects::new_for_reading(client);
        // Listed, not read by name: the edge answers 503 for what it does not hold and cannot know to be absent.
        let this = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = match kind {
            "pod" => objects.pods().list(&this).await.map(|list| !list.items.is_empty()),
            "configmap" => objects.config_maps().list(&this).await.map(|list| !list.items.is_empty()),
            _ => objects.secrets().list(&this).await.map(|list| !list.items.is_empty()),
        };
        match found {
            Ok(found) if found == present => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

mod scenarios {
    use super::*;

    pub(super) async fn objects_reach_exactly_the_nodes_that_need_them(mut world: World) {
        let objects = settled(&mut world, &["edge-a", "edge-b"]).await;
        objects.config_map("only-b", "1").await.unwrap();
        objects.config_map("nobody", "1").await.unwrap();
        create_pod(&objects, "extra", "edge-b", &["only-b", "not-there-yet"], &[]).await;
        assert_listed(&world, "edge-b", "configmap", "only-b", true).await;

        objects.config_map("settings", "2").await.unwrap();
        objects.config_map("not-there-yet", "1").await.unwrap();
        assert_listed(&world, "edge-b", "configmap", "not-there-yet", true).await;
        for node in ["edge-a", "edge-b"] {
            world.converges(node).await;
            assert_listed(&world, node, "configmap", "nobody", false).await;
        }
        assert_listed(&world, "edge-a", "configmap", "only-b", false).await;

        objects.config_maps().delete("settings", &DeleteParams::default()).await.unwrap();
        objects.remove_pod("extra").await.unwrap();
        assert_listed(&world, "edge-a", "configmap", "settings", false).await;
        assert_listed(&world, "edge-b", "pod", "extra", false).await;
        assert_listed(&world, "edge-b", "configmap", "only-b", false).await;
        world.converges("edge-b").await;
    }

    pub(super) async fn a_secret_stops_flowing_with_its_last_pod(mut world: World) {
        let objects = settled(&mut world, &["edge-a"]).await;
        create_pod(&objects, "second", "edge-a", &[], &["password"]).await;
        assert_listed(&world, "edge-a", "pod", "second", true).await;
        objects.remove_pod("shop-edge-a").await.unwrap();
        assert_listed(&world, "edge-a", "pod", "shop-edge-a", false).await;
        assert_listed(&world, "edge-a", "secret", "password", true).await;

        objects.remove_pod("second").await.unwrap();
        assert_listed(&world, "edge-a", "secret", "password", false).await;
        objects.secret("password", "2").await.unwrap();
        world.converges("edge-a").await;
        assert_listed(&world, "edge-a", "secret", "password", false).await;
    }

    pub(super) async fn an_edge_dies_during_updates(mut world: World) {
        let objects = settled(&mut world, &["edge-a"]).await;
        for round in 0..5 {
            let updates = tokio::spawn(update(objects.clone(), round));
            world.kill_edge("edge-a");
            world.start_edge("edge-a").await.unwrap();
            updates.await.unwrap();
        }
        world.converges("edge-a").await;
    }

    pub(super) async fn the_cloud_dies_during_updates(mut world: World) {
        let objects = settled(&mut world, &["edge-a", "edge-b"]).await;
        for round in 0..3 {
            let updates = tokio::spawn(update(objects.clone(), round));
            world.kill_cloud();
            world.start_cloud().await.unwrap();
            // With the embedded server the API dies as well: the updates are retried until it is back.
            updates.await.unwrap();
        }
        for node in ["edge-a", "edge-b"] {
            world.converges(node).await;
        }
    }

    /// Twenty updates of both objects, each retried while the API is away.
    async fn update(objects: Objects, round: u32) {
        for step in 0..20 {
            let value = format!("{round}.{step}");
            wait_for("an update to be accepted", DEADLINE, || async {
                objects.config_map("settings", &value).await.map_err(|error| format!("{error:#}"))?;
                objects.secret("password", &value).await.map_err(|error| format!("{error:#}"))
            })
            .await;
        }
    }

    pub(super) async fn a_deleted_node_is_told_and_starts_again(mut world: World) {
        let objects = settled(&mut world, &["edge-a"]).await;
        let before = objects.nodes().get("edge-a").await.unwrap().metadata.uid;
        objects.nodes().delete("edge-a", &DeleteParams::default()).await.unwrap();
        wait_for("edge-a to register again", DEADLINE, || async {
            let node = objects.nodes().get("edge-a").await.map_err(|error| error.to_string())?;
            if node.metadata.uid == before { Err("the old Node is still there".to_owned()) } else { Ok(()) }
        })
        .await;
        assert!(world.edge_log("edge-a").contains("NodeDeleted"), "{}", world.edge_log("edge-a"));
        create_pod(&objects, "afterwards", "edge-a", &["settings"], &[]).await;
        assert_listed(&world, "edge-a", "pod", "afterwards", true).await;
        world.converges("edge-a").await;
    }

    pub(super) async fn a_pod_bound_before_its_node_is_not_lost(mut world: World) {
        let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
        objects.config_map("settings", "1").await.unwrap();
        create_pod(&objects, "early", "edge-late", &["settings"], &[]).await;
        world.start_edge("edge-late").await.unwrap();
        assert_listed(&world, "edge-late", "pod", "early", true).await;
        assert_listed(&world, "edge-late", "configmap", "settings", true).await;
        world.converges("edge-late").await;
    }
}
