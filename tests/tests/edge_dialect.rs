//! edgecore with `dialect: kubeedge`, against a cloud that behaves like KubeEdge's, and against our own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_replay::Event;
use tombolo_testkit::{Child, cluster_or_skip, free_port, wait_for};
use tombolo_tests::kubeedge_cloud::{Asked, KubeEdgeCloud, KubeEdgeJoin};
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, binary, kubectl};

const NODE: &str = "edge-a";

/// Writes the settings of [`NODE`] for this cloud, which it joins at `join`.
fn settings(cloud: &KubeEdgeCloud, join: &str, folder: &Path) {
    let address = format!("127.0.0.1:{}", cloud.port);
    let config = json!({
        "nodeName": NODE,
        "dialect": "kubeedge",
        "dataDir": folder,
        "cloud": {"websocket": address, "join": join, "backOff": {"firstMillis": 50, "maxMillis": 1000}},
        "localApi": {"https": format!("127.0.0.1:{}", free_port().unwrap())},
        "wrapper": {"address": null}, "dns": {"hostsPath": null},
        "admin": null,
        "node": {"leaseIntervalMillis": 500, "statusIntervalMillis": 500},
        "simulatePods": true,
    });
    std::fs::write(folder.join("edgecore.yaml"), config.to_string()).unwrap();
}

/// Starts an agent with these settings.
fn agent(folder: &Path) -> Child {
    let mut command = Command::new(binary("edgecore").unwrap());
    Child::spawn("edgecore", folder, command.arg("--config").arg(folder.join("edgecore.yaml"))).unwrap()
}

fn object(kind: &str, name: &str, version: u32, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{kind}-{name}"), "resourceVersion": version.to_string()},
    });
    for (key, value) in rest.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

/// Waits until the local API has this value in a field of an object; an empty value if the object does not exist.
async fn locally(folder: &Path, resource: &str, path: &str, expected: &str) {
    wait_for(&format!("{resource} to have {path} {expected:?}"), DEADLINE, async || {
        let output = format!("jsonpath={path}");
        let arguments = ["get", resource, "-n", "default", "-o", &output];
        match kubectl(&folder.join("kubeconfig"), &arguments) {
            Ok(value) if value == expected => Ok(()),
            Err(error) if expected.is_empty() && error.to_string().contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_follows_a_kubeedge_cloud() {
    cluster_or_skip!("an_edge_follows_a_kubeedge_cloud");
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cloud = KubeEdgeCloud::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    cloud.authority.enlist(NODE, folder.path()).unwrap();
    cloud.put("default/configmap/settings", object("ConfigMap", "settings", 5, &json!({"data": {"a": "1"}})));
    settings(&cloud, "127.0.0.1:1", folder.path());
    let mut agent = agent(folder.path());

    // The messages of a node that a KubeEdge cloud needs, in the form that it reads.
    let keepalive = cloud.asked("keepalive", "node").await;
    assert_eq!(keepalive["content"], "ping");
    let project = "e632aba927ea4ac2b575ec1603d56f10";
    let path = format!("/{project}/{NODE}/events");
    assert_eq!(cloud.upgrades()[0], [path.as_str(), NODE, project, "msg"]);
    let node = cloud.asked("insert", &format!("null/node/{NODE}")).await;
    assert_eq!(node["content"]["metadata"]["name"], NODE);
    let lease = format!("kube-node-lease/lease/{NODE}");
    cloud.asked("insert", &lease).await;
    let renewal = cloud.asked("update", &lease).await;
    assert!(renewal["content"]["metadata"]["resourceVersion"].is_string(), "{renewal}");
    assert!(renewal["content"]["spec"]["renewTime"].is_string(), "{renewal}");
    let status = cloud.asked("patch", &format!("null/nodepatch/{NODE}")).await;
    let patch: Value = serde_json::from_str(status["content"].as_str().expect("not a string")).unwrap();
    assert!(patch["status"]["conditions"].is_array(), "{patch}");

    // A pod arrives, and the objects that it refers to are requested.
    let spec = json!({"spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "configMap": {"name": "settings"}}]}, "status": {"phase": "Pending"}});
    let pod = object("Pod", "web", 10, &spec);
    cloud.put("default/pod/web", pod.clone());
    let pushed = cloud.push("insert", "default/pod/web", &pod);
    let acknowledgement = cloud.acknowledged(&pushed).await;
    assert_eq!(acknowledgement["content"], "OK");
    assert_eq!(acknowledgement["route"]["operation"], "response");
    cloud.asked("query", "default/configmap/settings").await;
    cloud.asked("response", "default/configmap/settings").await;
    locally(folder.path(), "pod/web", "{.metadata.uid}", "uid-Pod-web").await;
    locally(folder.path(), "configmap/settings", "{.data.a}", "1").await;
    let report = cloud.asked("patch", "default/podpatch/web").await;
    assert!(report["content"].as_str().is_some_and(|patch| patch.contains("uid-Pod-web")), "{report}");

    // Updates overwrite the object, but an older version does not.
    let newer = object("ConfigMap", "settings", 8, &json!({"data": {"a": "2"}}));
    let older = object("ConfigMap", "settings", 6, &json!({"data": {"a": "stale"}}));
    for (version, value) in [(&newer, "2"), (&older, "2")] {
        let id = cloud.push("update", "default/configmap/settings", version);
        cloud.acknowledged(&id).await;
        locally(folder.path(), "configmap/settings", "{.data.a}", value).await;
    }

    // After the connection and the process have ended, all objects are still there and updates continue.
    cloud.hang_up();
    wait_for("the edge to come back", DEADLINE, async || match cloud.count("keepalive", "node") {
        0 | 1 => Err("it is not connected".to_owned()),
        _ => Ok(()),
    })
    .await;
    let mut gone = pod.clone();
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    gone["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    gone["metadata"]["resourceVersion"] = json!("12");
    let id = cloud.push("update", "default/pod/web", &gone);
    cloud.acknowledged(&id).await;
    let removal = cloud.asked("delete", "default/pod/web").await;
    assert_eq!(removal["content"]["preconditions"]["uid"], "uid-Pod-web");
    let id = cloud.push("delete", "default/pod/web", &gone);
    cloud.acknowledged(&id).await;
    locally(folder.path(), "pod/web", "{.metadata.uid}", "").await;
    agent.check_running().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_objects_of_custom_kinds_follow_discovery() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cloud = KubeEdgeCloud::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    cloud.authority.enlist(NODE, folder.path()).unwrap();
    settings(&cloud, "127.0.0.1:1", folder.path());
    let agent_process = agent(folder.path());
    cloud.asked("insert", &format!("null/node/{NODE}")).await;

    // As Go's typed encoders write objects: no kind, no apiVersion, nulls for unset fields.
    let typed = |version: u32| {
        json!({"metadata": {"name": "gray", "namespace": "default", "uid": "uid-gray",
            "resourceVersion": version.to_string(), "creationTimestamp": null, "labels": null}, "eggs": null})
    };
    let version = AtomicU32::new(5);
    let push = async || {
        let version = version.fetch_add(1, Ordering::Relaxed);
        let id = cloud.push("insert", "default/goose/gray", &typed(version));
        cloud.acknowledged(&id).await
    };
    let refused = push().await;
    assert_eq!(refused["route"]["operation"], "error", "{refused}");
    assert!(refused["content"].as_str().is_some_and(|why| why.contains("goose")), "{refused}");
    // Only one object is rejected.
    let settings = object("ConfigMap", "settings", 6, &json!({"data": null}));
    let id = cloud.push("insert", "default/configmap/settings", &settings);
    assert_eq!(cloud.acknowledged(&id).await["content"], "OK");

    let group = json!({"name": "example.org", "versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}});
    let geese = json!({"name": "geese", "namespaced": true, "kind": "Goose", "verbs": ["get", "list"]});
    cloud.put("/apis", json!({"kind": "APIGroupList", "groups": [group]}));
    cloud.put("/apis/example.org/v1", json!({"kind": "APIResourceList", "resources": [geese]}));
    wait_for("discovery, which an object of an unknown kind triggers", DEADLINE, async || {
        let answer = push().await;
        if answer["content"] == "OK" { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    drop(agent_process);

    // The discovery is stored: the next process knows the kind before the cloud has sent anything.
    cloud.remove("/apis");
    let before = cloud.count("keepalive", "node");
    let mut again = agent(folder.path());
    wait_for("the edge to come back", DEADLINE, async || {
        if cloud.count("keepalive", "node") > before { Ok(()) } else { Err("it is not connected".to_owned()) }
    })
    .await;
    let answer = push().await;
    assert_eq!(answer["content"], "OK", "{answer}");
    again.check_running().unwrap();
}

/// Runs `edgecore join` until it exits. Returns its output if it fails.
async fn join_with(folder: &Path, token: &str) -> Result<(), String> {
    let mut command = tokio::process::Command::new(binary("edgecore").unwrap());
    command.env("TOMBOLO_TOKEN", token).args(["join", "--config"]).arg(folder.join("edgecore.yaml"));
    let output = command.output().await.unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_joins_and_renews_at_a_kubeedge_cloud() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cloud = KubeEdgeCloud::start().await.unwrap();
    let join = KubeEdgeJoin::start(Arc::clone(&cloud.authority)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    settings(&cloud, &join.address.to_string(), folder.path());

    let token = join.token();
    let (hash, jwt) = token.split_once('.').unwrap();
    let elsewhere = join_with(folder.path(), &format!("{}.{jwt}", "0".repeat(64))).await.unwrap_err();
    assert!(elsewhere.contains(hash), "the error names the authority that the server presented: {elsewhere}");
    assert_eq!(join.asked().len(), 1, "no further request goes to another authority");
    let refused = join_with(folder.path(), &format!("{hash}.a.b.c")).await.unwrap_err();
    assert!(refused.contains("401") && refused.contains("the token is not valid"), "{refused}");

    // It expires soon after it is issued: the agent renews it at once, and authenticates with it.
    join.set_life(Duration::from_secs(36_000), Duration::from_secs(600));
    join_with(folder.path(), &token).await.unwrap();
    let last = join.asked().pop().unwrap();
    let asked = |certificate, bearer| Asked {
        path: "/edge.crt".to_owned(),
        node: NODE.to_owned(),
        certificate,
        bearer,
        code: 200,
    };
    assert_eq!(last, asked(false, true));
    join.set_life(Duration::from_secs(60), Duration::from_secs(365 * 86_400));
    let mut agent = agent(folder.path());
    wait_for("the renewal", DEADLINE, async || match join.asked().pop().unwrap() {
        last if last == asked(true, false) => Ok(()),
        last => Err(format!("{last:?}")),
    })
    .await;
    let renewals = join.asked().len();
    cloud.asked("insert", &format!("null/node/{NODE}")).await;
    assert_eq!(join.asked().len(), renewals, "the certificate is renewed only once");
    agent.check_running().unwrap();
}

/// A running agent receives the messages that a KubeEdge cloud sent to a KubeEdge edge, connection by connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_edge_handles_recorded_kubeedge_traffic() {
    cluster_or_skip!("running_edge_handles_recorded_kubeedge_traffic");
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let path = tombolo_tests::source::root().join("tests/transcripts/kubeedge-join-run-offline.jsonl");
    let transcript = tombolo_cli::replay::read(&path).unwrap();
    assert_eq!(transcript.node, NODE);
    let said = || {
        transcript.lines.iter().filter_map(|line| match &line.event {
            Event::Down(frame) => Some((line.conn, frame)),
            _ => None,
        })
    };
    let cloud = KubeEdgeCloud::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    cloud.authority.enlist(NODE, folder.path()).unwrap();
    // The objects that the edge requests for a pod have their first recorded answers from the beginning.
    for (_, frame) in said().filter(|(_, frame)| !frame.is_push()).collect::<Vec<_>>().into_iter().rev() {
        let key = frame.key().filter(|key| matches!(key.kind.as_str(), "configmap" | "secret"));
        if let (Some(_), Some(object)) = (key, frame.objects().first()) {
            cloud.put(frame.resource(), object.clone());
        }
    }
    settings(&cloud, "127.0.0.1:1", folder.path());
    let mut agent = agent(folder.path());
    cloud.asked("insert", &format!("null/node/{NODE}")).await;

    let (mut connection, mut pushed) = (None, 0);
    let mut held: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (conn, frame) in said().filter(|(_, frame)| frame.is_push()) {
        if connection.replace(conn).is_some_and(|before| before != conn) {
            cloud.hang_up();
            wait_for("the edge to come back", DEADLINE, async || match cloud.is_connected() {
                true => Ok(()),
                false => Err("it is not connected".to_owned()),
            })
            .await;
        }
        let id = cloud.push(frame.operation(), frame.resource(), frame.content());

        let answer = cloud.acknowledged(&id).await;
        assert_eq!((&answer["content"], &answer["route"]["operation"]), (&json!("OK"), &json!("response")));
        pushed += 1;
        let key = frame.key().expect("the delivery has no key");
        let uid = frame.content()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if matches!(key.kind.as_str(), "pod" | "configmap" | "secret") {
            held.insert(format!("{}/{}", key.kind, key.name), (frame.operation() != "delete").then_some(uid));
        }
    }
    assert!(pushed > 10, "{pushed}");
    assert_eq!(held.get("pod/web-0"), Some(&None), "{held:?}");
    for (resource, uid) in held {
        // An object that a later answer of the recorded cloud restored is requested again when it is needed.
        if let Some(uid) = uid {
            locally(folder.path(), &resource, "{.metadata.uid}", &uid).await;
        } else if resource.starts_with("pod/") {
            locally(folder.path(), &resource, "{.metadata.uid}", "").await;
        }
    }
    agent.check_running().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_of_dialect_kubeedge_follows_our_cloud() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    world.set_dialect("kubeedge");
    world.start_edge("edge-1").await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "x").await.unwrap();
    wait_for("the node to be registered", DEADLINE, async || {
        world.kubectl(&["get", "node", "edge-1"]).map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    objects.accepted_pod("web", "edge-1", &["settings"], &["password"]).await;
    let running = |world: &World| {
        world.kubectl(&["get", "pod", "web", "-n", NAMESPACE, "-o", "jsonpath={.status.phase}"])
    };
    wait_for("the pod to be reported as running", DEADLINE, async || match running(&world) {
        Ok(phase) if phase == "Running" => Ok(()),
        other => Err(format!("{other:?}; the edge says {}", world.edge_log("edge-1"))),
    })
    .await;
    let local = |world: &World, resource: &str, path: &str| {
        let kubeconfig = world.edge_kubeconfig("edge-1").unwrap();
        kubectl(&kubeconfig, &["get", resource, "-n", NAMESPACE, "-o", &format!("jsonpath={path}")])
    };
    for (resource, name) in [("configmap", "settings"), ("secret", "password")] {
        wait_for("the objects that the pod refers to", DEADLINE, async || {
            match local(&world, &format!("{resource}/{name}"), "{.metadata.name}") {
                Ok(found) if found == name => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    // A request without a message of its own is sent as a record of MetaServer, with the rights of the node, which has
    // none here.
    let kubeconfig = world.edge_kubeconfig("edge-1").unwrap();
    let create = ["create", "configmap", "mine", "-n", NAMESPACE];
    let refused = kubectl(&kubeconfig, &create).unwrap_err().to_string();
    assert!(refused.contains("is forbidden") && refused.contains("system:node:edge-1"), "{refused}");

    // A change while the cloud is down reaches the edge once it is back.
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    objects.config_map("settings", "2").await.unwrap();
    wait_for("the new version", DEADLINE, async || match local(&world, "configmap/settings", "{.data}") {
        Ok(data) if data.contains('2') => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    objects.remove_pod("web").await.unwrap();
    wait_for("the pod to be gone on both sides", DEADLINE, async || {
        match (running(&world), local(&world, "pod/web", "{.metadata.uid}")) {
            (Err(_), Err(error)) if error.to_string().contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
