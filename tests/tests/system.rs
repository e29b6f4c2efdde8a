//! The main task as a whole: objects reach exactly the nodes that need them, whatever fails on the way.
//!
//! Every scenario runs against the embedded server and against kube-apiserver, over both transports. The scenarios of
//! one such combination run one after the other in one world, each with its own namespace and nodes.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

tombolo_tests::scenarios![
    objects_reach_exactly_the_nodes_that_need_them,
    a_secret_stops_flowing_with_its_last_pod,
    an_edge_dies_during_updates,
    the_cloud_dies_during_updates,
    a_deleted_node_is_told_and_joins_again,
    a_pod_bound_before_its_node_is_not_lost,
    a_node_object_that_is_there_keeps_what_operators_set,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_websocket() {
    play(Api::Embedded, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_quic() {
    play(Api::Embedded, Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_websocket() {
    cluster_or_skip!("real_websocket");
    play(Api::Real, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_quic() {
    cluster_or_skip!("real_quic");
    play(Api::Real, Transport::Quic).await;
}

/// Runs every scenario, even after one has failed, and names the failed ones.
async fn play(api: Api, transport: Transport) {
    let mut world = World::start(api, transport).await.unwrap();
    let mut failed = Vec::new();
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let mut stage = Stage::open(world, number).await;
        let outcome = AssertUnwindSafe(perform(scenario, &mut stage)).catch_unwind().await;
        failed.extend(outcome.is_err().then_some(*scenario));
        world = stage.world;
        world.kill_edges();
        if world.check_cloud().is_err() {
            world.start_cloud().await.unwrap();
        }
    }
    assert!(failed.is_empty(), "over {transport:?} on {api:?}: {failed:?}; the reasons are above");
}

/// A world, and the part of it that belongs to one scenario.
struct Stage {
    world: World,
    objects: Objects,
    number: usize,
}

impl Stage {
    async fn open(world: World, number: usize) -> Self {
        let client = world.client().await.unwrap();
        let objects = Objects::in_namespace(client, &format!("shops-{number}")).await.unwrap();
        Self { world, objects, number }
    }

    /// A node name of this scenario.
    fn node(&self, letter: &str) -> String {
        format!("edge-{}{letter}", self.number)
    }

    /// Starts nodes, each with one pod that uses a ConfigMap and a Secret.
    async fn settled(&mut self, letters: &[&str]) -> Vec<String> {
        let nodes: Vec<String> = letters.iter().map(|letter| self.node(letter)).collect();
        for node in &nodes {
            self.world.start_edge(node).await.unwrap();
        }
        self.objects.config_map("settings", "1").await.unwrap();
        self.objects.secret("password", "1").await.unwrap();
        for node in &nodes {
            let name = format!("shop-{node}");
            self.objects.accepted_pod(&name, node, &["settings"], &["password"]).await;
        }
        for node in &nodes {
            self.converges(node).await;
            self.listed(node, "pod", &format!("shop-{node}"), true).await;
        }
        nodes
    }

    /// Waits until a node holds what it should, and checks that it has not received anything again.
    async fn converges(&self, node: &str) {
        let again = self.world.converges(node).await;
        assert!(again.is_empty(), "{node} stored these again although they are the same: {again:?}");
    }

    /// Checks that a node does not have objects, and that none of them is on its way.
    async fn never_listed(&self, node: &str, objects: &[(&str, &str)]) {
        self.world.fence(&self.objects, node).await;
        for (kind, name) in objects {
            assert_eq!(self.lists(node, kind, name).await, Ok(false), "{kind} {name} at {node}");
        }
    }

    /// Waits until a node's local API lists the ConfigMap `settings` with a value that begins with this text.
    async fn listed_value(&self, node: &str, beginning: &str) {
        let client = self.world.edge_client(node).await.unwrap();
        let maps = self.objects.seen_by(client).config_maps();
        wait_for(&format!("a value {beginning} at {node}"), DEADLINE, || async {
            let list = maps.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let values = list.items.into_iter().filter_map(|map| map.data?.remove("value"));
            let values: Vec<String> = values.collect();
            if values.iter().any(|value| value.starts_with(beginning)) {
                Ok(())
            } else {
                Err(format!("{values:?}"))
            }
        })
        .await;
    }

    /// Waits until an object is present in, or absent from, a node's local API.
    async fn listed(&self, node: &str, kind: &str, name: &str, present: bool) {
        wait_for(&format!("{kind} {name} at {node}: {present}"), DEADLINE, || async {
            match self.lists(node, kind, name).await {
                Ok(found) if found == present => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Whether a node's local API lists an object.
    async fn lists(&self, node: &str, kind: &str, name: &str) -> Result<bool, String> {
        let client = self.world.edge_client(node).await.map_err(|error| format!("{error:#}"))?;
        let objects = self.objects.seen_by(client);
        // Uses a list, not a read by name: the edge answers 503 for an object that it does not hold and cannot know to
        // be absent.
        let this = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = match kind {
            "pod" => objects.pods().list(&this).await.map(|list| !list.items.is_empty()),
            "configmap" => objects.config_maps().list(&this).await.map(|list| !list.items.is_empty()),
            _ => objects.secrets().list(&this).await.map(|list| !list.items.is_empty()),
        };
        found.map_err(|error| error.to_string())
    }
}

mod scenarios {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::JoinHandle;

    use super::*;

    pub(super) async fn objects_reach_exactly_the_nodes_that_need_them(stage: &mut Stage) {
        let nodes = stage.settled(&["a", "b"]).await;
        let [a, b] = [nodes[0].as_str(), nodes[1].as_str()];
        let objects = &stage.objects;
        objects.config_map("only-b", "1").await.unwrap();
        objects.config_map("nobody", "1").await.unwrap();
        objects.accepted_pod("extra", b, &["only-b", "not-there-yet"], &[]).await;
        stage.listed(b, "configmap", "only-b", true).await;

        objects.config_map("settings", "2").await.unwrap();
        objects.config_map("not-there-yet", "1").await.unwrap();
        stage.listed(b, "configmap", "not-there-yet", true).await;
        for node in [a, b] {
            stage.converges(node).await;
        }
        stage.never_listed(a, &[("configmap", "nobody"), ("configmap", "only-b"), ("pod", "extra")]).await;
        stage.never_listed(b, &[("configmap", "nobody")]).await;

        objects.config_maps().delete("settings", &DeleteParams::default()).await.unwrap();
        objects.remove_pod("extra").await.unwrap();
        stage.listed(a, "configmap", "settings", false).await;
        stage.listed(b, "pod", "extra", false).await;
        stage.listed(b, "configmap", "only-b", false).await;
        stage.converges(b).await;
    }

    pub(super) async fn a_secret_stops_flowing_with_its_last_pod(stage: &mut Stage) {
        let nodes = stage.settled(&["a"]).await;
        let (node, objects) = (nodes[0].as_str(), &stage.objects);
        objects.accepted_pod("second", node, &[], &["password"]).await;
        stage.listed(node, "pod", "second", true).await;
        objects.remove_pod(&format!("shop-{node}")).await.unwrap();
        stage.listed(node, "pod", &format!("shop-{node}"), false).await;
        stage.listed(node, "secret", "password", true).await;

        objects.remove_pod("second").await.unwrap();
        stage.listed(node, "secret", "password", false).await;
        objects.secret("password", "2").await.unwrap();
        stage.converges(node).await;
        stage.never_listed(node, &[("secret", "password")]).await;
    }

    pub(super) async fn an_edge_dies_during_updates(stage: &mut Stage) {
        let nodes = stage.settled(&["a"]).await;
        for round in 0..5 {
            let updates = Updates::start(stage.objects.clone(), round);
            stage.listed_value(&nodes[0], &updates.first()).await;
            stage.world.kill_edge(&nodes[0]);
            let at_the_kill = updates.accepted();
            stage.world.start_edge(&nodes[0]).await.unwrap();
            updates.finish(at_the_kill).await;
        }
        stage.converges(&nodes[0]).await;
    }

    pub(super) async fn the_cloud_dies_during_updates(stage: &mut Stage) {
        let nodes = stage.settled(&["a", "b"]).await;
        for round in 0..3 {
            let updates = Updates::start(stage.objects.clone(), round);
            for node in &nodes {
                stage.listed_value(node, &updates.first()).await;
            }
            stage.world.kill_cloud();
            let at_the_kill = updates.accepted();
            stage.world.start_cloud().await.unwrap();
            // With the embedded server, the API is killed as well: the updates are retried until it is back.
            updates.finish(at_the_kill).await;
        }
        for node in &nodes {
            stage.converges(node).await;
        }
    }

    /// A stream of updates of both objects, one after the other, until it is finished.
    struct Updates {
        round: u32,
        accepted: Arc<AtomicU32>,
        /// The total number of updates.
        until: Arc<AtomicU32>,
        task: JoinHandle<()>,
    }

    /// Number of updates in a stream after the kill.
    const AFTER_THE_KILL: u32 = 20;

    impl Updates {
        fn start(objects: Objects, round: u32) -> Self {
            let (accepted, until) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(u32::MAX)));
            let (counted, limit) = (Arc::clone(&accepted), Arc::clone(&until));
            let task = tokio::spawn(async move {
                for step in 0.. {
                    let value = format!("{round}.{step}");
                    wait_for("an update to be accepted", DEADLINE, || async {
                        objects.config_map("settings", &value).await.map_err(|error| format!("{error:#}"))?;
                        objects.secret("password", &value).await.map_err(|error| format!("{error:#}"))
                    })
                    .await;
                    counted.store(step + 1, Ordering::SeqCst);
                    if step + 1 >= limit.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
            Self { round, accepted, until, task }
        }

        /// The common beginning of the values of this stream.
        fn first(&self) -> String {
            format!("{}.", self.round)
        }

        fn accepted(&self) -> u32 {
            self.accepted.load(Ordering::SeqCst)
        }

        /// Ends the stream a few updates after the number that was accepted at the kill.
        async fn finish(self, at_the_kill: u32) {
            assert!(!self.task.is_finished(), "the updates ended before the kill");
            self.until.store(at_the_kill + AFTER_THE_KILL, Ordering::SeqCst);
            self.task.await.unwrap();
        }
    }

    pub(super) async fn a_deleted_node_is_told_and_joins_again(stage: &mut Stage) {
        let nodes = stage.settled(&["a"]).await;
        let (node, objects) = (nodes[0].as_str(), &stage.objects);
        let before = objects.nodes().get(node).await.unwrap().metadata.uid;
        objects.nodes().delete(node, &DeleteParams::default()).await.unwrap();
        wait_for("the agent to be refused", DEADLINE, || async {
            let log = stage.world.edge_log(node);
            if log.contains("was deleted") && log.contains("join again") { Ok(()) } else { Err(log) }
        })
        .await;
        // From here on it cannot do anything.
        stage.world.kill_edge(node);
        assert!(objects.nodes().get(node).await.is_err(), "a deleted node must not register again by itself");
        let token = wait_for_value("a join token", DEADLINE, || stage.world.join_token()).await;
        let output = stage.world.edge_join(node, &token).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        stage.world.start_edge(node).await.unwrap();
        wait_for("the node to register again", DEADLINE, || async {
            let found = objects.nodes().get(node).await.map_err(|error| error.to_string())?;
            if found.metadata.uid == before { Err("the old Node is still there".to_owned()) } else { Ok(()) }
        })
        .await;
        objects.accepted_pod("afterwards", node, &["settings"], &[]).await;
        stage.listed(node, "pod", "afterwards", true).await;
        stage.world.converges(node).await;
    }

    pub(super) async fn a_pod_bound_before_its_node_is_not_lost(stage: &mut Stage) {
        let node = stage.node("late");
        stage.objects.config_map("settings", "1").await.unwrap();
        stage.objects.accepted_pod("early", &node, &["settings"], &[]).await;
        stage.world.start_edge(&node).await.unwrap();
        stage.listed(&node, "pod", "early", true).await;
        stage.listed(&node, "configmap", "settings", true).await;
        stage.world.converges(&node).await;
    }

    pub(super) async fn a_node_object_that_is_there_keeps_what_operators_set(stage: &mut Stage) {
        let node = stage.node("known");
        let object = json!({"metadata": {"name": node, "labels": {"kubernetes.io/hostname": "wrong", "team": "theirs"}}});
        let object = serde_json::from_value(object).unwrap();
        stage.objects.nodes().create(&PostParams::default(), &object).await.unwrap();
        stage.world.start_edge(&node).await.unwrap();
        wait_for("the label to be restored", DEADLINE, || async {
            let found = stage.objects.nodes().get(&node).await.map_err(|error| error.to_string())?;
            let labels = found.metadata.labels.unwrap_or_default();
            match labels.get("kubernetes.io/hostname") {
                Some(host) if *host == node && labels.get("team").is_some_and(|team| team == "theirs") => {
                    Ok(())
                }
                _ => Err(format!("{labels:?}\n{}", stage.world.edge_log(&node))),
            }
        })
        .await;
        stage.world.converges(&node).await;
    }
}
