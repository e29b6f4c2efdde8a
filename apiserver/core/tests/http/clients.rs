//! The clients that people use: kube-rs and kubectl.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
use kube::{Client, Config};
use serde_json::json;
use tombolo_apicore::history::LogLimits;
use tombolo_testkit::{cluster_or_skip, components, wait_for};

use crate::server::*;

fn client(server: &Server) -> Client {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::try_from(Config::new(format!("http://{}", server.address).parse().unwrap())).unwrap()
}

fn typed(name: &str, text: &str) -> ConfigMap {
    serde_json::from_value(configmap(name, text)).unwrap()
}

#[tokio::test]
async fn kube_rs_reads_and_writes() {
    let server = Server::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&server), "default");
    let created = maps.create(&PostParams::default(), &typed("a", "1")).await.unwrap();
    let mut changed = created.clone();
    changed.data = Some(BTreeMap::from([("text".to_owned(), "2".to_owned())]));
    maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    let conflict = maps.replace("a", &PostParams::default(), &changed).await.unwrap_err();
    let kube::Error::Api(status) = conflict else { panic!("{conflict}") };
    assert!(status.is_conflict(), "{status:?}");
    let patch = Patch::Merge(json!({"data": {"more": "3"}}));
    let patched = maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    let apply =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"x": "y"}});
    maps.patch("b", &PatchParams::apply("me"), &Patch::Apply(apply)).await.unwrap();
    let list = maps.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!((list.items.len(), list.metadata.remaining_item_count), (1, Some(1)));
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_right());
    let missing = maps.get("a").await.unwrap_err();
    assert!(matches!(missing, kube::Error::Api(status) if status.is_not_found()));
    let events: Vec<_> =
        maps.watch(&WatchParams::default(), "0").await.unwrap().take(1).try_collect().await.unwrap();
    assert!(matches!(&events[0], WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("b")));
}

async fn follows(strategy: InitialListStrategy) {
    let server = Server::with_limits(LogLimits { count: 16, ..LogLimits::default() }).await;
    let maps: Api<ConfigMap> = Api::namespaced(client(&server), "default");
    for number in 0..5 {
        maps.create(&PostParams::default(), &typed(&format!("old{number}"), "1")).await.unwrap();
    }
    let config = watcher::Config { initial_list_strategy: strategy, ..watcher::Config::default() };
    let mut stream = Box::pin(watcher(maps.clone(), config));
    let mut state = BTreeMap::new();
    let mut initialised = false;
    let mut next = async |state: &mut BTreeMap<String, Option<String>>| {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await.expect("in time").unwrap().unwrap();
        match event {
            Event::Init => state.clear(),
            Event::InitApply(map) | Event::Apply(map) => {
                state.insert(map.metadata.name.clone().unwrap(), map.metadata.resource_version);
            }
            Event::Delete(map) => {
                state.remove(&map.metadata.name.clone().unwrap());
            }
            Event::InitDone => return true,
        }
        false
    };
    while !initialised {
        initialised = next(&mut state).await;
    }
    assert_eq!(state.len(), 5);
    maps.delete("old0", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &typed("new", "1")).await.unwrap();
    while !state.contains_key("new") || state.contains_key("old0") {
        next(&mut state).await;
    }
    let list = maps.list(&ListParams::default()).await.unwrap();
    let listed: BTreeMap<_, _> = list
        .items
        .into_iter()
        .map(|map| (map.metadata.name.unwrap(), map.metadata.resource_version))
        .collect();
    assert_eq!(state, listed);
}

#[tokio::test]
async fn the_watcher_of_kube_rs_follows_by_list_and_watch() {
    follows(InitialListStrategy::ListWatch).await;
}

#[tokio::test]
async fn the_watcher_of_kube_rs_follows_by_streaming_list() {
    follows(InitialListStrategy::StreamingList).await;
}

#[tokio::test]
async fn a_watcher_whose_revision_has_expired_lists_again() {
    let server = Server::with_limits(LogLimits { count: 2, ..LogLimits::default() }).await;
    let pods: Api<Pod> = Api::all(client(&server));
    for name in ["a", "b", "c", "d"] {
        server.post(PODS, &pod(name, "n")).await.expect(201);
    }
    let events: Vec<_> =
        pods.watch(&WatchParams::default(), "1").await.unwrap().take(1).try_collect().await.unwrap();
    assert!(
        matches!(&events[0], WatchEvent::Error(status) if status.code == 410 && status.reason == "Expired")
    );
}

fn kubectl(server: &Server, home: &std::path::Path, arguments: &[&str]) -> Output {
    let binaries = components().expect("checked by cluster_or_skip");
    let mut command = Command::new(binaries.binary("kubectl"));
    command.env_remove("KUBECONFIG").env("HOME", home).arg(format!("--server=http://{}", server.address));
    command.args(arguments).output().unwrap()
}

/// Output of a kubectl call that must succeed.
async fn run(server: &Server, home: &std::path::Path, arguments: &[&str]) -> String {
    // kubectl blocks, the server runs on the other threads.
    let output = tokio::task::block_in_place(|| kubectl(server, home, arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "kubectl {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: '1'\n---\napiVersion: v1\n\
                        kind: Pod\nmetadata:\n  name: p\nspec:\n  nodeName: n1\n  containers:\n  - name: c\n    image: i\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_kubectl_does_its_daily_work() {
    cluster_or_skip!("apiserve: stock kubectl");
    let server = Server::start().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("m.yaml");
    std::fs::write(&file, MANIFEST).unwrap();
    let file = file.to_str().unwrap();
    server.post("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await.expect(201);
    let run = async |arguments: &[&str]| run(&server, home.path(), arguments).await;
    assert_eq!(run(&["apply", "-f", file]).await, "configmap/m created\npod/p created\n");
    assert_eq!(run(&["apply", "-f", file]).await, "configmap/m unchanged\npod/p unchanged\n");
    assert_eq!(
        run(&["apply", "--server-side", "--force-conflicts", "-f", file]).await,
        "configmap/m serverside-applied\npod/p serverside-applied\n"
    );
    let table = run(&["get", "pods", "-A"]).await;
    assert!(table.starts_with("NAMESPACE") && table.contains("Pending"), "{table}");
    assert!(run(&["get", "po", "p", "-o", "wide"]).await.contains("n1"));
    assert_eq!(run(&["get", "cm", "m", "-o", "jsonpath={.data.a}"]).await, "1");
    run(&["label", "pod", "p", "x=y"]).await;
    run(&["annotate", "pod", "p", "x=y"]).await;
    run(&["patch", "cm", "m", "-p", r#"{"data":{"b":"2"}}"#]).await;
    run(&["patch", "cm", "m", "--type=merge", "-p", r#"{"data":{"c":"3"}}"#]).await;
    run(&["patch", "cm", "m", "--type=json", "-p", r#"[{"op":"remove","path":"/data/b"}]"#]).await;
    assert_eq!(run(&["get", "cm", "m", "-o", "jsonpath={.data}"]).await, r#"{"a":"1","c":"3"}"#);
    assert!(run(&["describe", "pod", "p"]).await.contains("Node:"));
    let made = home.path().join("made.yaml");
    std::fs::write(&made, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: made}\ndata: {k: v}\n").unwrap();
    assert_eq!(run(&["create", "-f", made.to_str().unwrap()]).await, "configmap/made created\n");
    assert!(run(&["get", "cm", "-l", "none"]).await.is_empty());
    assert!(run(&["api-resources"]).await.contains("configmaps"));
    assert!(run(&["explain", "pod.spec.nodeName"]).await.contains("nodeName"));
    assert_eq!(run(&["delete", "cm", "made"]).await, "configmap \"made\" deleted from default namespace\n");
    assert!(run(&["delete", "pod", "p", "--grace-period=0", "--force"]).await.contains("deleted"));
    let missing = tokio::task::block_in_place(|| kubectl(&server, home.path(), &["get", "pod", "p"]));
    assert_eq!(
        String::from_utf8_lossy(&missing.stderr),
        "Error from server (NotFound): pods \"p\" not found\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_kubectl_watches() {
    cluster_or_skip!("apiserve: stock kubectl watches");
    let server = Server::start().await;
    let home = tempfile::tempdir().unwrap();
    let log = std::fs::File::create(home.path().join("watch.log")).unwrap();
    let binaries = components().unwrap();
    let mut command = Command::new(binaries.binary("kubectl"));
    command
        .env_remove("KUBECONFIG")
        .env("HOME", home.path())
        .arg(format!("--server=http://{}", server.address));
    let mut child = command.args(["get", "cm", "-A", "-w"]).stdout(log).spawn().unwrap();
    for name in ["first", "second"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
        wait_for(&format!("kubectl to show {name}"), Duration::from_secs(30), || async {
            let text = std::fs::read_to_string(home.path().join("watch.log")).unwrap();
            if text.contains(name) { Ok(()) } else { Err(text) }
        })
        .await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
