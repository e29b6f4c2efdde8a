//! `tombolo doctor` reports no failures on a working system, and names deliberately broken parts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{Node, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api as Objects, Client};
use serde_json::json;
use tombolo_cli::doctor::{DoctorOptions, Level, Report, examine};
use tombolo_cli::manifest;
use tombolo_cli::operate::ClusterOptions;
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::source;
use tombolo_tests::world::{Api, DEADLINE, Transport, World, binary};

const DAY: Duration = Duration::from_secs(86_400);

fn options(world: &World) -> DoctorOptions {
    let [websocket_port, quic_port, join_port] = world.hub_ports();
    DoctorOptions {
        cluster: ClusterOptions { kubeconfig: Some(world.kubeconfig()), namespace: "kubeedge".to_owned() },
        cloud: None,
        websocket_port,
        quic_port,
        join_port,
        transport: None,
        config: None,
        edge: None,
    }
}

/// `FAIL` and `warn` lines of an examination, and the number of passed checks.
async fn examined(options: &DoctorOptions, now: SystemTime) -> (Vec<String>, usize) {
    let mut report = Report::new(|_| ());
    examine(options, now, &mut report).await;
    let in_order = report.findings().iter().filter(|finding| finding.level == Level::Ok).count();
    let rest = report.findings().iter().filter(|finding| finding.level != Level::Ok);
    (rest.map(ToString::to_string).collect(), in_order)
}

/// Lines of an examination that report a problem.
async fn lines(options: &DoctorOptions) -> Vec<String> {
    examined(options, SystemTime::now()).await.0
}

/// Asserts that a `FAIL` line contains all of these words.
async fn fails(options: &DoctorOptions, words: &[&str]) {
    let lines = lines(options).await;
    has(&lines, "FAIL", words);
}

fn has(lines: &[String], level: &str, words: &[&str]) {
    let found =
        lines.iter().any(|line| line.starts_with(level) && words.iter().all(|word| line.contains(word)));
    assert!(found, "no {level} line has {words:?}:\n{}", lines.join("\n"));
}

/// Grants the rights of `deploy/` on a server without them.
async fn grant(client: &Client) {
    let own =
        ["10-rights", "20-impersonation", "30-edge-network"].map(|name| format!("cloudcore/{name}.yaml"));
    let options = ["grids", "kubeedge-edges"].map(|name| format!("optional/{name}.yaml"));
    for name in own.into_iter().chain(options) {
        let path = source::root().join("deploy").join(name);
        for document in manifest::read(&path).unwrap() {
            document.apply(client).await.unwrap();
        }
    }
}

async fn patch<K>(objects: &Objects<K>, name: &str, patch: serde_json::Value)
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    objects.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Breaks everything that can be broken while cloudcore runs, one part at a time, and repairs it again.
async fn breaks_and_names(world: &mut World) {
    let client = world.client().await.unwrap();
    grant(&client).await;
    let options = options(world);
    wait_for("a system without failures", DEADLINE, || async {
        let (lines, in_order) = examined(&options, SystemTime::now()).await;
        let failures: Vec<_> = lines.iter().filter(|line| line.starts_with("FAIL")).collect();
        if failures.is_empty() && in_order >= 15 { Ok(()) } else { Err(lines.join("\n")) }
    })
    .await;
    clocks_and_dates(&options).await;
    cluster_access(&options).await;
    rights(&client, &options).await;
    hub(&options).await;
    secrets(&client, &options).await;
    let node: Node = serde_json::from_value(
        json!({"metadata": {"name": "gone", "labels": {"node-role.kubernetes.io/edge": ""}}}),
    )
    .unwrap();
    Objects::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    has(&lines(&options).await, "warn", &["edge nodes", "gone (last heartbeat never)"]);
    // This invalidates the credentials of the running cloudcore.
    let accounts: Objects<ServiceAccount> = Objects::namespaced(client, "kubeedge");
    accounts.delete("tombolo-cloudcore", &DeleteParams::default()).await.unwrap();
    has(&lines(&options).await, "warn", &["service account kubeedge/tombolo-cloudcore", "does not exist"]);
    world.kill_cloud();
    if world.plane.is_some() {
        fails(&options, &["join endpoints", "Is cloudcore running"]).await;
    } else {
        fails(&options, &["api server", "does not answer"]).await;
    }
}

async fn clocks_and_dates(options: &DoctorOptions) {
    let (lines, _) = examined(options, SystemTime::now() + DAY).await;
    has(&lines, "FAIL", &["clock of the api server", "ahead of it"]);
    has(&lines, "FAIL", &["join token", "expired"]);
    let (lines, _) = examined(options, SystemTime::now() + 350 * DAY).await;
    has(&lines, "warn", &["certificate of the hub", "expires in"]);
    let (lines, _) = examined(options, SystemTime::now() + 400 * DAY).await;
    has(&lines, "FAIL", &["certificate of the hub", "expired"]);
    let (lines, _) = examined(options, SystemTime::now() - DAY).await;
    has(&lines, "FAIL", &["certificate authority", "Set the clock"]);
}

async fn cluster_access(options: &DoctorOptions) {
    let mut other = options.clone();
    other.cluster.namespace = "elsewhere".to_owned();
    fails(&other, &["namespace elsewhere", "does not exist"]).await;
    fails(&other, &["certificate authority", "casecret does not exist"]).await;
    other = options.clone();
    other.cluster.kubeconfig = Some("/nonexistent/kubeconfig".into());
    fails(&other, &["api server", "/nonexistent/kubeconfig"]).await;
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("kubeconfig");
    let mut kubeconfig =
        kube::config::Kubeconfig::read_from(options.cluster.kubeconfig.as_ref().unwrap()).unwrap();
    kubeconfig.auth_infos[0].auth_info = Some(serde_json::from_value(json!({"token": "nobody's"})).unwrap());
    fs::write(&broken, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    other.cluster.kubeconfig = Some(broken.clone());
    fails(&other, &["api server", "401"]).await;
    kubeconfig.clusters[0].cluster.as_mut().unwrap().server = Some("https://127.0.0.1:1".to_owned());
    fs::write(&broken, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    fails(&other, &["api server", "127.0.0.1:1", "does not answer"]).await;
}

async fn rights(client: &Client, options: &DoctorOptions) {
    let roles: Objects<ClusterRole> = Objects::all(client.clone());
    let bindings: Objects<ClusterRoleBinding> = Objects::all(client.clone());
    let whole = roles.get("tombolo:cloudcore").await.unwrap();
    let mut rules = serde_json::to_value(whole.rules.clone().unwrap()).unwrap();
    rules[0]["resources"] = json!(["pods", "configmaps"]);
    patch(&roles, "tombolo:cloudcore", json!({ "rules": rules })).await;
    let account = "system:serviceaccount:kubeedge:tombolo-cloudcore";
    eventually_fails(options, &[account, "10-rights.yaml", "may not get secrets"]).await;
    bindings.delete("tombolo:edge-network", &DeleteParams::default()).await.unwrap();
    eventually_fails(options, &["system:node:", "edge-network.yaml", "may not list endpoints"]).await;
    bindings.delete("tombolo:grids", &DeleteParams::default()).await.unwrap();
    eventually(options, "warn", &[account, "grids.yaml", "may not get deploymentgrids", "enable: true"])
        .await;
    let kubeedge: Objects<RoleBinding> = Objects::namespaced(client.clone(), "kubeedge");
    kubeedge.delete("tombolo:kubeedge-edges", &DeleteParams::default()).await.unwrap();
    eventually_fails(options, &[account, "kubeedge-edges.yaml", "update configmaps in kubeedge"]).await;
    bindings.delete("tombolo:impersonate-nodes", &DeleteParams::default()).await.unwrap();
    eventually_fails(
        options,
        &["impersonation of nodes", "impersonate:arbitrary-node", "impersonation.yaml"],
    )
    .await;
    let legacy = source::root().join("deploy/optional/legacy-impersonation.yaml");
    for document in manifest::read(&legacy).unwrap() {
        document.apply(client).await.unwrap();
    }
    eventually(
        options,
        "warn",
        &["impersonation of nodes", "allows impersonating any user", "impersonation.yaml instead"],
    )
    .await;
    grant(client).await;
}

/// kube-apiserver needs a moment to apply a changed role.
async fn eventually(options: &DoctorOptions, level: &str, words: &[&str]) {
    wait_for(&format!("a {level} line with {words:?}"), DEADLINE, || async {
        let lines = lines(options).await;
        let named = |line: &String| line.starts_with(level) && words.iter().all(|word| line.contains(word));
        if lines.iter().any(named) { Ok(()) } else { Err(lines.join("\n")) }
    })
    .await;
}

async fn eventually_fails(options: &DoctorOptions, words: &[&str]) {
    eventually(options, "FAIL", words).await;
}

async fn hub(options: &DoctorOptions) {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("cloudcore.yaml");
    fs::write(&settings, "listen: {quic: null}").unwrap();
    let mut other = options.clone();
    (other.config, other.quic_port) = (Some(settings), 1);
    let (off, _) = examined(&other, SystemTime::now()).await;
    assert!(!off.iter().any(|line| line.contains("QUIC")), "it is off: {off:?}");
    other = options.clone();
    other.websocket_port = 1;
    fails(&other, &["WebSocket at 127.0.0.1:1", "do firewalls allow TCP"]).await;
    other.transport = Some(tombolo_cli::transport::TransportOption::Quic);
    let lines = lines(&other).await;
    assert!(!lines.iter().any(|line| line.contains("WebSocket")), "{lines:?}");
    other = options.clone();
    other.cloud = Some("localhost".to_owned());
    fails(&other, &["joining at localhost", "not valid for name"]).await;
    // The join endpoints of another cloudcore.
    let foreign = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    other = options.clone();
    other.join_port = foreign.hub_ports()[2];
    fails(&other, &["join endpoints", "casecret has", "Another cloudcore"]).await;
}

/// Runs last: cloudcore does not recover from a broken CA by itself.
async fn secrets(client: &Client, options: &DoctorOptions) {
    let secrets: Objects<Secret> = Objects::namespaced(client.clone(), "kubeedge");
    let whole = secrets.get("tokensecret").await.unwrap().data.unwrap();
    patch(&secrets, "tokensecret", json!({"stringData": {"tokendata": "a.b.c.d"}})).await;
    fails(options, &["join token", "not signed by this cloud"]).await;
    patch(&secrets, "tokensecret", json!({ "data": whole })).await;
    let server = secrets.get("tombolo-server").await.unwrap().data.unwrap();
    let ca = secrets.get("casecret").await.unwrap().data.unwrap();
    patch(&secrets, "tombolo-server", json!({"stringData": {"cloudcorekeydata": "garbage"}})).await;
    fails(options, &["certificate of the hub", "tombolo-server"]).await;
    patch(&secrets, "tombolo-server", json!({ "data": server })).await;
    patch(&secrets, "casecret", json!({"stringData": {"cakeydata": "garbage"}})).await;
    fails(options, &["certificate authority", "casecret"]).await;
    patch(&secrets, "casecret", json!({ "data": ca })).await;
    wait_for("a mended system", DEADLINE, || async {
        let mended = lines(options).await;
        let failure = mended.into_iter().find(|line| line.starts_with("FAIL"));
        failure.map_or(Ok(()), Err)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_what_was_broken_on_the_embedded_server() {
    let shared = json!({"sharedToken": true});
    let mut world = World::start_with(Api::Embedded, Transport::WebSocket, shared).await.unwrap();
    breaks_and_names(&mut world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_what_was_broken_on_kube_apiserver() {
    cluster_or_skip!("doctor_names_what_was_broken_on_kube_apiserver");
    let shared = json!({"sharedToken": true});
    let mut world = World::start_with(Api::Real, Transport::Quic, shared).await.unwrap();
    breaks_and_names(&mut world).await;
}

fn device(path: &Path) -> DoctorOptions {
    DoctorOptions {
        cluster: ClusterOptions { kubeconfig: None, namespace: "kubeedge".to_owned() },
        cloud: None,
        websocket_port: 1,
        quic_port: 1,
        join_port: 1,
        transport: None,
        config: None,
        edge: Some(path.to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_what_was_broken_on_a_device() {
    let mut world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    world.start_edge("node-a").await.unwrap();
    world.converges("node-a").await;
    let (settings, folder) = (world.edge_config("node-a"), world.edge_dir("node-a"));
    let options = device(&settings);
    // The agent's admin endpoints are disabled in this world.
    let running = lines(&options).await;
    assert_eq!(running.len(), 1, "{running:?}");
    has(&running, "warn", &["session with the cloud", "admin"]);
    world.kill_edge("node-a");
    let stopped = lines(&options).await;
    assert!(!stopped.iter().any(|line| line.starts_with("FAIL")), "{stopped:?}");
    has(&stopped, "warn", &["store in", "the agent is not running"]);
    let (found, _) = examined(&options, SystemTime::now() + 400 * DAY).await;
    has(&found, "FAIL", &["certificate of node node-a", "expired", "edgecore join"]);
    has(&found, "FAIL", &["clock of the cloud"]);
    has(&lines(&device(&folder)).await, "warn", &["cloud: not checked", "the settings file"]);

    let key = folder.join("pki/node.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    fails(&options, &["permissions of the key files", "pki/node.pem", "chmod 600"]).await;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let whole = fs::read(folder.join("store.redb")).unwrap();
    fs::write(folder.join("store.redb"), vec![7; 65_536]).unwrap();
    fails(&options, &["store in", "damaged"]).await;
    fs::write(folder.join("store.redb"), whole).unwrap();
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("node-a", "node-b").replace("edges/node-b", "edges/node-a")).unwrap();
    fails(&options, &["certificate of the node", "system:node:node-a"]).await;
    fs::write(&settings, &text).unwrap();
    let [_, quic, join] = world.hub_ports().map(|port| format!("127.0.0.1:{port}"));
    fs::write(&settings, text.replace(&quic, "nowhere.invalid:1")).unwrap();
    fails(&options, &["QUIC at nowhere.invalid:1"]).await;
    let mut either: serde_json::Value = serde_json::from_str(&text).unwrap();
    either["cloud"]["transport"] = "auto".into();
    either["cloud"]["websocket"] = "127.0.0.1:1".into();
    fs::write(&settings, either.to_string()).unwrap();
    let found = lines(&options).await;
    has(&found, "warn", &["WebSocket at 127.0.0.1:1", "uses the other transport"]);
    assert!(!found.iter().any(|line| line.starts_with("FAIL")), "{found:?}");
    let foreign = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    let other = format!("127.0.0.1:{}", foreign.hub_ports()[2]);
    fs::write(&settings, text.replace(&join, &other)).unwrap();
    fails(&options, &["join endpoints", "not the one that this node trusts"]).await;
    let mut led: serde_json::Value = serde_json::from_str(&text).unwrap();
    led["wrapper"]["address"] = "127.0.0.1:51006".into();
    fs::write(&settings, led.to_string()).unwrap();
    has(&lines(&options).await, "warn", &["wrapper.localRewrite is on", "localApi.pods"]);
    fs::write(&settings, "nodeName: [").unwrap();
    fails(&options, &["settings"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_code_shows_whether_a_check_failed() {
    let world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    let ports = world.hub_ports().map(|port| port.to_string());
    let doctor = |namespace: &str| {
        let mut command = Command::new(binary("tombolo").unwrap());
        command.arg("doctor").arg("--kubeconfig").arg(world.kubeconfig()).args(["--namespace", namespace]);
        command.args(["--websocket-port", &ports[0], "--quic-port", &ports[1], "--join-port", &ports[2]]);
        command.output().unwrap()
    };
    wait_for("everything to be in order", DEADLINE, || async {
        let output = doctor("kubeedge");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && text.lines().count() > 8 { Ok(()) } else { Err(text) }
    })
    .await;
    let output = doctor("elsewhere");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("checks failed"), "{stderr}");
}
