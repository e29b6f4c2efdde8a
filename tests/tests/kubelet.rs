//! A whole node: stock kubelet and containerd on the local API of an edge, with the settings that
//! `edgecore kubelet-config` prints. It runs with the cloud, without it, and when it is back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tombolo_testkit::{Child, free_port, kubelet, record_skip_for, skips_allowed, wait_for, wait_for_value};
use tombolo_tests::containers::{Containers, IMAGE, missing, unmount};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, Transport, World};

const NODE: &str = "edge-k";
const NAMESPACE: &str = "shop";

/// Text in the command line of the container whose pod is bound in the cloud.
const BOUND: &str = "1000001";

/// Like [`BOUND`], for the pod that only the kubelet knows.
const STATIC: &str = "1000002";

/// How long a kubelet may take. If a step fails because a server is busy, it may retry only after 90 s (mirror pods) or
/// 140 s (its CSINode).
const PATIENCE: Duration = Duration::from_secs(200);

/// Lines of a kubelet's log that a failure prints.
const LOG_TAIL: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_embedded_quic() {
    if can_run("kubelet_embedded_quic") {
        play(Api::Embedded, Transport::Quic, 201).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_real_websocket() {
    if can_run("kubelet_real_websocket") {
        play(Api::Real, Transport::WebSocket, 202).await;
    }
}

/// Whether a kubelet can run here. Otherwise the test is recorded as skipped, which fails where skips are not allowed.
fn can_run(test: &str) -> bool {
    let why = match kubelet() {
        None if !skips_allowed() => {
            Some("there is no kubelet: run the tests with `cargo xtask test`".to_owned())
        }
        None => Some("there is no kubelet".to_owned()),
        Some(_) => missing(),
    };
    if let Some(why) = &why {
        record_skip_for(test, why);
    }
    why.is_none()
}

/// A kubelet with its containerd.
struct Node {
    kubelet: Option<Child>,
    /// How often it was started: each run has its own log.
    runs: usize,
    containers: Containers,
    folder: TempDir,
}

impl Node {
    async fn start(world: &World, number: u8) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tombolo-node-").tempdir()?;
        let containers = Containers::start(folder.path(), number).await?;
        let mut node = Self { kubelet: None, runs: 0, containers, folder };
        for name in ["config.d", "manifests", "logs"] {
            fs::create_dir_all(node.path(name))?;
        }
        let endpoint = node.containers.endpoint();
        for (document, file) in [("kubeconfig", "kubeconfig"), ("kubelet", "kubelet.yaml")] {
            let arguments = ["kubelet-config", "--of", document, "--container-runtime", &endpoint];
            let output = world.edge_command(NODE, &arguments)?;
            ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            fs::write(node.path(file), output.stdout)?;
        }
        fs::write(node.path("config.d/90-machine.conf"), node.machine()?.to_string())?;
        let pod = pod("static", STATIC, &json!({"hostNetwork": true}));
        fs::write(node.path("manifests/static.json"), pod.to_string())?;
        node.run()?;
        Ok(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The kubelet's settings that depend on the test machine: ports, folders, cgroups that are not in use, and a disk
    /// that others fill, so that no pod is evicted and no image deleted for lack of space (a threshold of 0 % means
    /// none).
    fn machine(&self) -> Result<Value> {
        Ok(json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": self.path("manifests"),
            "podLogsDir": self.path("logs"),
            "volumePluginDir": self.path("plugins"),
            "port": free_port()?,
            "healthzPort": free_port()?,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "failSwapOn": false,
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                "imagefs.available": "0%", "imagefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
        }))
    }

    fn run(&mut self) -> Result<()> {
        let mut command = Command::new(kubelet().context("no kubelet")?);
        command.arg("--config").arg(self.path("kubelet.yaml"));
        command.arg("--config-dir").arg(self.path("config.d"));
        command.arg("--kubeconfig").arg(self.path("kubeconfig"));
        command.arg("--root-dir").arg(self.path("kubelet")).arg("--cert-dir").arg(self.path("pki"));
        // At this level it logs the pods that it learns of.
        command.args(["--hostname-override", NODE, "--v", "2"]);
        self.runs += 1;
        let name = format!("kubelet-{}", self.runs);
        self.kubelet = Some(Child::spawn(&name, self.folder.path(), &mut command)?);
        Ok(())
    }

    fn tail(&self) -> String {
        self.kubelet.as_ref().map_or_else(String::new, |kubelet| kubelet.log_tail(LOG_TAIL))
    }

    /// Waits until the running kubelet knows the pods.
    async fn has_taken_over(&self, pods: &[&str]) {
        wait_for("the kubelet to know its pods", PATIENCE, || async {
            let kubelet = self.kubelet.as_ref().ok_or("no kubelet runs")?;
            let log = kubelet.log();
            let missing = pods.iter().find(|pod| {
                let name = format!("{NAMESPACE}/{pod}");
                !log.lines().any(|line| line.contains("SyncLoop ADD") && line.contains(&name))
            });
            match missing {
                None => Ok(()),
                Some(pod) => Err(format!("{pod} is not known\n{}", self.tail())),
            }
        })
        .await;
    }

    /// Waits until exactly one container with this text in its command line is running, not counting `other_than`.
    async fn runs(&self, text: &str, other_than: Option<u32>) -> u32 {
        wait_for_value(&format!("the container of {text}"), PATIENCE, || {
            let found = self.containers.running(text).map_err(|error| format!("{error:#}"));
            let one = found.and_then(|ids| match ids[..] {
                [id] if Some(id) != other_than => Ok(id),
                _ => Err(format!("{ids:?} run\n{}", self.tail())),
            });
            async move { one }
        })
        .await
    }

    /// The log output of a pod.
    fn log(&self, pod: &str) -> String {
        let mut text = String::new();
        collect(&self.path("logs"), pod, &mut text);
        text
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kubelet = None;
        unmount(self.folder.path());
    }
}

fn collect(folder: &Path, pod: &str, text: &mut String) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, pod, text);
        } else if path.to_string_lossy().contains(&format!("_{pod}_")) {
            text.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// A pod whose container prints the contents of its volumes, and then sleeps for `seconds`.
fn pod(name: &str, seconds: &str, more: &Value) -> Value {
    let script = "cat /map/value /secret/value 2>/dev/null; \
                  test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo has-token";
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["sh", "-c", format!("{script}; echo; exec sleep {seconds}")],
            }],
        },
    });
    for (member, value) in more.as_object().into_iter().flatten() {
        pod["spec"][member] = value.clone();
    }
    pod
}

fn bound_pod() -> Value {
    let mut pod = pod(
        "web",
        BOUND,
        &json!({
            "nodeName": NODE,
            "volumes": [
                {"name": "map", "configMap": {"name": "app"}},
                {"name": "secret", "secret": {"secretName": "key"}},
            ],
        }),
    );
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "map", "mountPath": "/map"}, {"name": "secret", "mountPath": "/secret"}]);
    pod
}

/// One kubelet at a time: each of them manages the machine's cgroups and packet filter.
static TURN: Mutex<()> = Mutex::const_new(());

async fn play(api: Api, transport: Transport, number: u8) {
    let _turn = TURN.lock().await;
    let mut world = World::start(api, transport).await.unwrap();
    world.set_edge_settings(json!({"simulatePods": false, "node": {"register": false}}));
    let objects = Objects::in_namespace(world.client().await.unwrap(), NAMESPACE).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    let mut node = wait_for_node(&world, number).await;
    becomes_an_edge_node(&objects, &node).await;

    objects.config_map("app", "from-map").await.unwrap();
    objects.secret("key", "from-secret").await.unwrap();
    wait_for("the pod to be bound", PATIENCE, || async {
        objects.create_pod(&bound_pod()).await.map_err(|error| format!("{error:#}"))
    })
    .await;
    let first = node.runs(BOUND, None).await;
    is_ready(&objects, "web", 0, &node).await;
    wait_for("the contents of the volumes in the log", PATIENCE, || async {
        let log = node.log("web");
        let all = ["from-map", "from-secret", "has-token"].iter().all(|text| log.contains(text));
        if all { Ok(()) } else { Err(log) }
    })
    .await;
    let fixed = node.runs(STATIC, None).await;
    is_ready(&objects, &format!("static-{NODE}"), 0, &node).await;

    world.kill_cloud();
    node.kubelet = None;
    world.kill_edge(NODE);
    world.start_edge(NODE).await.unwrap();
    let here = objects.seen_by(world.edge_client(NODE).await.unwrap());
    let before = lease(&here).await;
    node.run().unwrap();
    is_renewed(&here, &before, &node).await;
    node.has_taken_over(&["web", &format!("static-{NODE}")]).await;
    assert_eq!(
        (node.runs(BOUND, None).await, node.runs(STATIC, None).await),
        (first, fixed),
        "they were kept"
    );
    // Ended containers are restarted, and their status is reported here.
    end(first);
    node.runs(BOUND, Some(first)).await;
    end(fixed);
    node.runs(STATIC, Some(fixed)).await;
    is_ready(&here, "web", 1, &node).await;

    world.start_cloud().await.unwrap();
    is_ready(&objects, "web", 1, &node).await;
    is_ready(&objects, &format!("static-{NODE}"), 1, &node).await;
    let before = lease(&objects).await;
    is_renewed(&objects, &before, &node).await;
    objects.pods().delete("web", &DeleteParams::default()).await.unwrap();
    wait_for("the pod to be gone", PATIENCE, || async {
        let here = node.containers.running(BOUND).map_err(|error| format!("{error:#}"))?;
        let there = objects.pods().get_opt("web").await.map_err(|error| error.to_string())?;
        if here.is_empty() && there.is_none() { Ok(()) } else { Err(node.tail()) }
    })
    .await;
    world.check_cloud().unwrap();
    world.check_edge(NODE).unwrap();
}

/// Starts the kubelet once the agent has written its kubeconfig.
async fn wait_for_node(world: &World, number: u8) -> Node {
    wait_for("the agent's kubeconfig", PATIENCE, || async {
        world.edge_kubeconfig(NODE).map(drop).map_err(|error| format!("{error:#}"))
    })
    .await;
    Node::start(world, number).await.unwrap()
}

async fn becomes_an_edge_node(objects: &Objects, node: &Node) {
    wait_for("the node to be Ready", PATIENCE, || async {
        let found = objects.nodes().get_opt(NODE).await.map_err(|error| error.to_string())?;
        let object = serde_json::to_value(found).map_err(|error| error.to_string())?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
        let edge = object["metadata"]["labels"].get("node-role.kubernetes.io/edge").is_some();
        if ready && edge { Ok(()) } else { Err(format!("{object}\n{}", node.tail())) }
    })
    .await;
    let before = lease(objects).await;
    is_renewed(objects, &before, node).await;
}

/// When the node's lease was last renewed, as sortable text.
async fn renewed(objects: &Objects) -> Result<String, String> {
    let leases: kube::Api<Lease> = kube::Api::namespaced(objects.client(), "kube-node-lease");
    let lease = leases.get_opt(NODE).await.map_err(|error| error.to_string())?;
    let time = lease.and_then(|lease| lease.spec?.renew_time).ok_or("the node has no lease")?;
    serde_json::to_string(&time).map_err(|error| error.to_string())
}

/// The same, once there is a lease.
async fn lease(objects: &Objects) -> String {
    wait_for_value("the node's lease", PATIENCE, || renewed(objects)).await
}

async fn is_renewed(objects: &Objects, before: &str, node: &Node) {
    wait_for("the lease to be renewed", PATIENCE, || async {
        let now = renewed(objects).await?;
        if now.as_str() > before { Ok(()) } else { Err(format!("renewed at {now}\n{}", node.tail())) }
    })
    .await;
}

/// Waits until a pod is reported ready, with a container that was restarted at least this often.
async fn is_ready(objects: &Objects, name: &str, restarts: u64, node: &Node) {
    wait_for(&format!("{name} to be ready after {restarts} restarts"), PATIENCE, || async {
        let pod = objects.pods().get_opt(name).await.map_err(|error| error.to_string())?;
        let pod = serde_json::to_value(pod).map_err(|error| error.to_string())?;
        let container = pod["status"]["containerStatuses"][0].clone();
        let restarted = container["restartCount"].as_u64().is_some_and(|count| count >= restarts);
        if container["ready"] == true && restarted {
            Ok(())
        } else {
            Err(format!("{}\n{}", pod["status"], node.tail()))
        }
    })
    .await;
}

fn end(process: u32) {
    let id = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
}
