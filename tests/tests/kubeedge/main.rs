//! KubeEdge nodes with our cloud: they join unchanged and hold everything that they should, whatever is
//! interrupted.
//!
//! Every scenario runs against the embedded server and against kube-apiserver, each with its own namespace and node. It
//! ends by comparing the node's rows with the API server's objects.

mod kubelet;
mod metaserver;
mod metaserver_rights;
mod older;
mod recorded;
mod replicas;
mod twins;
mod volumes;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::kubeedge::{self, Delivery, KubeEdgeNode, Store};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// Time after a connection is established within which everything that a node has missed must arrive on a busy machine:
/// before any resend.
const CAUGHT_UP: Duration = Duration::from_secs(4);

tombolo_tests::scenarios![
    other_names_are_refused,
    every_answer_has_the_form_that_the_edge_expects,
    pods_run_change_and_end,
    a_pod_with_a_claim_runs_once_its_volume_is_attached,
    what_was_missed_arrives_after_a_restart_of_the_node,
    what_was_missed_arrives_after_the_network_broke,
    what_was_missed_arrives_after_a_restart_of_the_cloud,
    a_quick_reconnect_replaces_the_old_socket,
    a_node_that_lost_its_database_gets_everything_again,
    two_hundred_objects_at_once,
    the_local_api_of_the_edge_is_served,
    older_edges_are_served,
    reports_end_when_nothing_changes,
    pods_start_without_what_they_call_optional,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_api() {
    play(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_api() {
    cluster_or_skip!("on_a_real_api");
    play(Api::Real).await;
}

/// Runs every scenario, even after one has failed, and names the failed ones.
async fn play(api: Api) {
    let mut world = World::start(api, Transport::WebSocket).await.unwrap();
    let mut failed = Vec::new();
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let mut stage = Stage::open(world, number).await;
        let started = std::time::Instant::now();
        let outcome = AssertUnwindSafe(perform(scenario, &mut stage)).catch_unwind().await;
        println!("{scenario}: {:?}", started.elapsed());
        failed.extend(outcome.is_err().then_some(*scenario));
        world = stage.world;
        if world.check_cloud().is_err() {
            world.start_cloud().await.unwrap();
        }
    }
    assert!(failed.is_empty(), "on {api:?}: {failed:?}; the reasons are above");
}

/// Time after which the cloud resends unacknowledged messages (docs/reference/kubeedge.md#resends).
const RESEND_AFTER: Duration = Duration::from_secs(5);

/// A world, and the part of it that belongs to one scenario.
struct Stage {
    world: World,
    objects: Objects,
    namespace: String,
    /// Name of the scenario's node.
    name: String,
}

impl Stage {
    async fn open(world: World, number: usize) -> Self {
        let namespace = format!("shops-{number}");
        let objects = Objects::in_namespace(world.client().await.unwrap(), &namespace).await.unwrap();
        Self { world, objects, namespace, name: format!("hollow-{number}") }
    }

    /// A node that has joined but is not connected.
    async fn node(&self) -> KubeEdgeNode {
        KubeEdgeNode::join(&self.world, &self.name).await.unwrap()
    }

    /// Wire path of an object of the scenario.
    fn path(&self, rest: &str) -> String {
        let (kind, name) = rest.split_once('/').unwrap();
        format!("{}/{kind}/{name}", self.namespace)
    }

    /// A Ready node with a kubelet and one running pod.
    async fn settled(&self) -> KubeEdgeNode {
        let mut node = self.node().await;
        node.boot().await.unwrap();
        self.ready().await;
        self.before_an_absence(&node).await;
        node
    }

    /// A node whose kubelet has registered it and reports nothing more: everything that it holds was pushed and
    /// acknowledged.
    async fn quiet(&self) -> KubeEdgeNode {
        let mut node = self.node().await;
        node.connect().await.unwrap();
        node.register().await.unwrap();
        self.before_an_absence(&node).await;
        node
    }

    async fn ready(&self) {
        wait_for(&format!("{} to be ready", self.name), DEADLINE, || async {
            let found = self.objects.nodes().get(&self.name).await.map_err(|error| error.to_string())?;
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().any(|each| each.type_ == "Ready" && each.status == "True");
            if ready { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }

    async fn phase(&self, pod: &str, phase: &str) {
        wait_for(&format!("{pod} to be {phase}"), DEADLINE, || async {
            let found = self.objects.pods().get(pod).await.map_err(|error| error.to_string())?;
            let found = found.status.and_then(|status| status.phase).unwrap_or_default();
            if found == phase { Ok(()) } else { Err(found) }
        })
        .await;
    }

    async fn gone(&self, pod: &str) {
        wait_for(&format!("{pod} to be gone"), DEADLINE, || async {
            match self.objects.pods().get_opt(pod).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(pod) => Err(format!("{:?}", pod.metadata.deletion_timestamp)),
            }
        })
        .await;
    }

    async fn before_an_absence(&self, node: &KubeEdgeNode) {
        self.objects.config_map("settings", "1").await.unwrap();
        self.objects.secret("password", "1").await.unwrap();
        self.objects.accepted_pod("stays", &self.name, &["settings"], &[]).await;
        self.objects.accepted_pod("old", &self.name, &[], &["password"]).await;
        let rows =
            ["pod/stays", "pod/old", "configmap/settings", "secret/password"].map(|row| self.path(row));
        node.until("both pods and their objects", |store| rows.iter().all(|row| store.has(row))).await;
        node.converges(&self.world).await;
        node.look(|store| store.delivered.clear());
    }

    /// Changes, deletes and creates objects; returns the time of completion.
    async fn work_behind_its_back(&self) -> Instant {
        self.objects.config_map("settings", "2").await.unwrap();
        self.objects.remove_pod("old").await.unwrap();
        self.objects.accepted_pod("new", &self.name, &["settings"], &[]).await;
        Instant::now()
    }

    /// Checks that nothing is missing [`CAUGHT_UP`] after the newest connection was established and the work was done.
    ///
    /// The exception is an object whose acknowledgement the edge itself has lost: its newer versions may only be sent
    /// after it was resent.
    async fn everything_was_caught_up(&self, node: &KubeEdgeNode, done: Instant) {
        let since = node.look(|store| store.since).unwrap().max(done);
        let rows = ["configmap/settings", "pod/new", "pod/old", "secret/password"].map(|row| self.path(row));
        let [settings, new, old, password] = &rows;
        let is_excused = |store: &Store| {
            store.lost.iter().any(|lost| rows.iter().any(|row| lost["route"]["resource"] == **row))
        };
        // An excused object is resent after [`RESEND_AFTER`], from then on one object at a time, and only then later
        // messages follow.
        wait_for("all missed changes", CAUGHT_UP + 2 * RESEND_AFTER, async || {
            let (arrived, excused, rows) = node.look(|store| {
                let arrived = value(store.row(settings)) == json!("2") && store.has(new) && !store.has(old);
                (arrived && !store.has(password), is_excused(store), format!("{:?}", store.describe()))
            });
            assert!(arrived || excused || since.elapsed() <= CAUGHT_UP, "too late: {rows}");
            if arrived { Ok(()) } else { Err(rows) }
        })
        .await;
        println!("{}: caught up {:?} after the connection was established", self.name, since.elapsed());
        node.converges(&self.world).await;
    }

    /// Checks that the ledger knew that the edge held the unchanged pod.
    async fn nothing_was_sent_again(&self, node: &KubeEdgeNode) {
        self.fence(node).await;
        let path = self.path("pod/stays");
        let pushed = node.look(|store| store.delivered.clone());
        let again = |pushed: &&Delivery| pushed.resource == path;
        assert_eq!(pushed.iter().find(again), None);
    }

    /// Waits until changes that are made now have reached the node: what was to be sent to it before has arrived.
    async fn fence(&self, node: &KubeEdgeNode) {
        let [pod, map] = ["pod/fence", "configmap/fence"].map(|row| self.path(row));
        // The keys that wait for a node have no order, so the last of them may arrive after the first change.
        for round in ["1", "2"] {
            self.objects.config_map("fence", round).await.unwrap();
            if round == "1" {
                self.objects.accepted_pod("fence", &self.name, &["fence"], &[]).await;
            }
            node.until("a fence", |store| store.has(&pod) && value(store.row(&map)) == json!(round)).await;
        }
    }
}

fn value(config: Option<&Value>) -> Value {
    config.map(|config| config["data"]["value"].clone()).unwrap_or_default()
}

mod scenarios {
    use super::*;

    pub(super) async fn other_names_are_refused(stage: &mut Stage) {
        let node = KubeEdgeNode::join(&stage.world, "stranger").await.unwrap();
        for (path, headers) in [
            ("/p/stranger/events", [("node_id", "another"), ("ConnectionUse", "msg")]),
            ("/p/another/events", [("node_id", "stranger"), ("ConnectionUse", "msg")]),
        ] {
            let refused = node.upgrade(path, &headers).await.unwrap_err().to_string();
            assert!(refused.starts_with("403"), "{refused}");
        }
    }

    /// Runs without a kubelet: the test plays it and checks each answer.
    pub(super) async fn every_answer_has_the_form_that_the_edge_expects(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.connect().await.unwrap();
        answers_about_the_node(stage, &node).await;
        let uid = answers_about_a_pod(stage, &node).await;
        pushes_are_marked_as_such(stage, &node).await;
        answers_to_a_deletion(stage, &node, &uid).await;
        node.converges(&stage.world).await;
    }

    async fn answers_about_the_node(stage: &Stage, node: &KubeEdgeNode) {
        let created = node.register().await.unwrap();
        assert_eq!(created["metadata"]["name"], *stage.name);
        let path = format!("null/node/{}", stage.name);
        node.until("the push of its Node", |store| store.has(&path)).await;
        let found = stage.objects.nodes().get(&stage.name).await.unwrap();
        assert_eq!(found.metadata.labels.unwrap()["node-role.kubernetes.io/edge"], "");
        stage.ready().await;
        let again = node.ask("insert", &path, json!({"metadata": {"name": stage.name}})).await.unwrap();
        assert_eq!(again["content"]["Err"]["ErrStatus"]["reason"], "AlreadyExists");
        assert!(again["content"]["Object"].is_object(), "the edge dereferences it: {again}");
    }

    async fn answers_about_a_pod(stage: &Stage, node: &KubeEdgeNode) -> Value {
        stage.objects.config_map("settings", "1").await.unwrap();
        stage.objects.secret("password", "1").await.unwrap();
        stage.objects.accepted_pod("web", &stage.name, &["settings"], &["password"]).await;
        let path = stage.path("pod/web");
        node.until("the pod", |store| store.has(&path)).await;
        let pod = node.look(|store| store.row(&path).cloned()).unwrap();
        assert_eq!((&pod["kind"], &pod["spec"]["nodeName"]), (&json!("Pod"), &json!(stage.name)));
        for (rest, kind) in [
            ("configmap/settings", "ConfigMap"),
            ("secret/password", "Secret"),
            ("configmap/kube-root-ca.crt", "ConfigMap"),
        ] {
            let path = stage.path(rest);
            // The authority's ConfigMap is created a moment after its namespace.
            let reply = wait_for_value(&path, DEADLINE, || async {
                let reply = node.ask("query", &path, Value::Null).await.map_err(|error| error.to_string())?;
                if reply["route"]["operation"] == "response" { Ok(reply) } else { Err(reply.to_string()) }
            })
            .await;
            assert_eq!(
                (&reply["content"]["kind"], &reply["route"]["resource"]),
                (&json!(kind), &json!(path))
            );
            assert_eq!(reply["content"]["metadata"]["resourceVersion"], reply["header"]["resourceversion"]);
        }
        let missing = node.ask("query", &stage.path("configmap/missing"), Value::Null).await.unwrap();
        assert_eq!(missing["route"]["operation"], "error", "no object that would be stored: {missing}");
        let uid = pod["metadata"]["uid"].clone();
        let request = json!({"spec": {"audiences": null, "expirationSeconds": 3607, "boundObjectRef": {
            "kind": "Pod", "apiVersion": "v1", "name": "web", "uid": uid}}});
        let token = node.ask("query", &stage.path("serviceaccounttoken/default"), request).await.unwrap();
        let secret = token["content"]["status"]["token"].as_str();
        assert!(secret.is_some_and(|token| token.starts_with("ey")), "{token}");
        let patch = json!({"metadata": {"uid": uid}, "status": {"phase": "Running"}}).to_string();
        let patched = node.ask("patch", &stage.path("podpatch/web"), patch.into()).await.unwrap();
        assert_eq!(kubeedge::done(&patched).unwrap()["status"]["phase"], "Running");
        stage.phase("web", "Running").await;
        uid
    }

    async fn pushes_are_marked_as_such(stage: &Stage, node: &KubeEdgeNode) {
        stage.objects.config_map("settings", "2").await.unwrap();
        stage.objects.secret("password", "2").await.unwrap();
        let [config, secret] = ["configmap/settings", "secret/password"].map(|rest| stage.path(rest));
        node.until("both changes", |store| {
            value(store.row(&config)) == json!("2")
                && store.row(&secret).is_some_and(|row| row["data"]["value"] == "Mg==")
        })
        .await;
        let pushed = node.look(|store| store.delivered.clone());
        let pushed = pushed.iter().rfind(|pushed| pushed.resource == config).unwrap();
        let (header, route) = (&pushed.message["header"], &pushed.message["route"]);
        assert!(header.get("parent_msg_id").is_none() && header["resourceversion"].is_string(), "{header}");
        assert_eq!((&route["source"], &route["group"]), (&json!("edgecontroller"), &json!("resource")));
    }

    async fn answers_to_a_deletion(stage: &Stage, node: &KubeEdgeNode, uid: &Value) {
        let grace = DeleteParams { grace_period_seconds: Some(30), ..DeleteParams::default() };
        stage.objects.pods().delete("web", &grace).await.unwrap();
        let path = stage.path("pod/web");
        node.until("the deletion timestamp", |store| {
            store.row(&path).is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        })
        .await;
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
        for _ in 0..2 {
            let deleted = node.ask("delete", &path, options.clone()).await.unwrap();
            assert_eq!(deleted["content"], "OK", "the answer is OK even if the pod no longer exists");
        }
    }

    pub(super) async fn pods_run_change_and_end(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.boot().await.unwrap();
        stage.ready().await;
        stage.objects.config_map("settings", "1").await.unwrap();
        stage.objects.secret("password", "1").await.unwrap();
        let pods: Vec<String> = (0..10).map(|number| format!("web-{number}")).collect();
        for pod in &pods {
            stage.objects.accepted_pod(pod, &stage.name, &["settings"], &["password"]).await;
        }
        for pod in &pods {
            stage.phase(pod, "Running").await;
        }
        node.converges(&stage.world).await;

        stage.objects.config_map("settings", "2").await.unwrap();
        stage.objects.secret("password", "2").await.unwrap();
        let label = Patch::Merge(json!({"metadata": {"labels": {"tier": "front"}}}));
        stage.objects.pods().patch("web-0", &PatchParams::default(), &label).await.unwrap();
        node.converges(&stage.world).await;

        let grace = DeleteParams { grace_period_seconds: Some(30), ..DeleteParams::default() };
        for pod in &pods {
            stage.objects.pods().delete(pod, &grace).await.unwrap();
        }
        for pod in &pods {
            stage.gone(pod).await;
        }
        node.converges(&stage.world).await;
        let left =
            node.look(|store| store.of_kind("secret").map(|(path, _)| path.to_owned()).collect::<Vec<_>>());
        assert_eq!(left, [""; 0], "a secret that no pod needs any more");
    }

    pub(super) async fn a_pod_with_a_claim_runs_once_its_volume_is_attached(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.boot().await.unwrap();
        stage.ready().await;
        let [volume, claim, attachment] = volumes::objects(&stage.namespace, &stage.name);
        for object in [&volume, &claim, &attachment] {
            volumes::create(&stage.world, object);
        }
        stage.objects.accepted_pod("other", &stage.name, &[], &[]).await;
        volumes::create(&stage.world, &volumes::pod(&stage.namespace, &stage.name));
        let name = attachment["metadata"]["name"].as_str().unwrap();
        let row = format!("default/volumeattachment/{name}");
        node.until("its queries", |store| store.has(&row)).await;
        stage.phase("other", "Running").await;
        let waiting = stage.objects.pods().get("stores").await.unwrap().status.unwrap().phase;
        assert_ne!(waiting.as_deref(), Some("Running"), "nothing is attached yet");
        let attached = json!({"status": {"attached": true}}).to_string();
        let patch =
            ["patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", &attached];
        stage.world.kubectl(&patch).unwrap();
        stage.phase("stores", "Running").await;
        volumes::are_followed(stage, &mut node).await;
        node.converges(&stage.world).await;
    }

    pub(super) async fn what_was_missed_arrives_after_a_restart_of_the_node(stage: &mut Stage) {
        let mut node = stage.settled().await;
        node.disconnect();
        let done = stage.work_behind_its_back().await;
        node.boot().await.unwrap();
        stage.everything_was_caught_up(&node, done).await;
        stage.phase("new", "Running").await;
    }

    pub(super) async fn what_was_missed_arrives_after_the_network_broke(stage: &mut Stage) {
        let node = stage.quiet().await;
        let before = node.look(|store| store.connections);
        node.cut().await.unwrap();
        let done = stage.work_behind_its_back().await;
        node.until("another connection", |store| store.connections > before).await;
        stage.everything_was_caught_up(&node, done).await;
        stage.nothing_was_sent_again(&node).await;
        assert_eq!(
            node.look(|store| store.lost.len()),
            1,
            "the send loop of the dead connection loses one message"
        );
    }

    pub(super) async fn what_was_missed_arrives_after_a_restart_of_the_cloud(stage: &mut Stage) {
        let node = stage.settled().await;
        let before = node.look(|store| store.connections);
        stage.world.kill_cloud();
        let done = if stage.world.plane.is_some() {
            let done = stage.work_behind_its_back().await;
            stage.world.start_cloud().await.unwrap();
            done
        } else {
            // The API is down while cloudcore is.
            stage.world.start_cloud().await.unwrap();
            stage.work_behind_its_back().await
        };
        node.until("another connection", |store| store.connections > before).await;
        stage.everything_was_caught_up(&node, done).await;
    }

    pub(super) async fn a_quick_reconnect_replaces_the_old_socket(stage: &mut Stage) {
        let mut node = stage.quiet().await;
        let old = node.connect_beside().await.unwrap();
        let done = stage.work_behind_its_back().await;
        stage.everything_was_caught_up(&node, done).await;
        old.ended().await.unwrap();
        stage.nothing_was_sent_again(&node).await;
        assert_eq!(node.look(|store| store.connections), 2, "the end of the old one ended the new one");
    }

    pub(super) async fn a_node_that_lost_its_database_gets_everything_again(stage: &mut Stage) {
        let mut node = stage.settled().await;
        node.disconnect();
        node.look(Store::wipe);
        node.boot().await.unwrap();
        node.converges(&stage.world).await;
    }

    pub(super) async fn two_hundred_objects_at_once(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.connect().await.unwrap();
        node.register().await.unwrap();
        node.disconnect();
        let (objects, name) = (&stage.objects, stage.name.as_str());
        let each = (0..50).map(|number| async move {
            let names = [0, 1].map(|half| format!("settings-{number}-{half}"));
            for name in &names {
                objects.config_map(name, "1").await.unwrap();
            }
            let secret = format!("password-{number}");
            objects.secret(&secret, "1").await.unwrap();
            let maps = names.each_ref().map(String::as_str);
            objects.accepted_pod(&format!("web-{number}"), name, &maps, &[&secret]).await;
        });
        futures::future::join_all(each).await;
        node.connect().await.unwrap();
        node.converges(&stage.world).await;
        stage.fence(&node).await;
        let repeated = node.look(|store| repeated(&store.delivered).map(str::to_owned));
        assert_eq!(repeated, None, "resent although it was acknowledged in time");
    }

    pub(super) async fn the_local_api_of_the_edge_is_served(stage: &mut Stage) {
        let objects = Objects::new(stage.world.client().await.unwrap()).await.unwrap();
        let mut node = KubeEdgeNode::join(&stage.world, "kubeedge-1").await.unwrap();
        node.connect().await.unwrap();
        node.register().await.unwrap();
        metaserver::requests_are_calls_of_the_node(&node).await;
        metaserver::watches_deliver_and_outlive_connections(&mut stage.world, &mut node, &objects).await;
        node.converges(&stage.world).await;
    }

    pub(super) async fn older_edges_are_served(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.connect().await.unwrap();
        node.register().await.unwrap();
        older::pods_are_reported_in_their_own_way(&node, &stage.objects, &stage.namespace).await;
        older::nodes_are_reported_in_their_own_way(&node, &stage.objects).await;
        older::small_questions_are_answered(&node).await;
    }

    pub(super) async fn reports_end_when_nothing_changes(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.boot().await.unwrap();
        stage.ready().await;
        stage.objects.accepted_pod("web", &stage.name, &[], &[]).await;
        stage.phase("web", "Running").await;
        kubelet::nothing_travels_to_and_fro(stage, &node, &stage.path("pod/web")).await;
        node.converges(&stage.world).await;
    }

    pub(super) async fn pods_start_without_what_they_call_optional(stage: &mut Stage) {
        let mut node = stage.node().await;
        node.boot().await.unwrap();
        stage.ready().await;
        volumes::create(&stage.world, &kubelet::pod_without_its_sources("lean", stage));
        stage.phase("lean", "Running").await;
        kubelet::rows_follow_what_is_created(&node, stage).await;
        node.converges(&stage.world).await;
    }

    /// A version that was delivered more than once.
    fn repeated(delivered: &[Delivery]) -> Option<&str> {
        let version = |each: &Delivery| each.message["header"]["resourceversion"].clone();
        let twice = |(index, each): &(usize, &Delivery)| {
            let before = &delivered[..*index];
            before.iter().any(|former| former.resource == each.resource && version(former) == version(each))
        };
        delivered.iter().enumerate().find(twice).map(|(_, each)| each.resource.as_str())
    }
}
