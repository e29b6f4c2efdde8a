//! No acknowledged write is lost, neither by a restart nor by SIGKILL during writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use serde_json::json;
use tombolo_apiserver::{Embedded, EmbeddedError, Options};
use tombolo_runtime::Drain;

use crate::harness::{Api, Ask, DEADLINE, Server, client};

const CHILD_DIR: &str = "TOMBOLO_TEST_EMBEDDED_DIR";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_objects_identities_and_revisions() {
    let server = Server::start().await;
    let api = server.api().await;
    let before = api.create(MAPS, &json!({"metadata": {"name": "m"}, "data": {"a": "b"}})).await;
    api.create(MAPS, &json!({"metadata": {"name": "gone"}})).await;
    api.delete(&format!("{MAPS}/gone"), serde_json::Value::Null).await;
    let (_, list) = api.get(MAPS).await;
    let revision = |list: &serde_json::Value| {
        list["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    };
    let newest = revision(&list);
    let kubeconfig = std::fs::read(&server.kubeconfig).unwrap();
    let server = Server::start_in(server.stop().await).await;
    assert_eq!(std::fs::read(&server.kubeconfig).unwrap(), kubeconfig, "the same keys and port");
    let api = server.api().await;
    assert_eq!(api.get(&format!("{MAPS}/m")).await, (200, before));
    assert_eq!(api.get(&format!("{MAPS}/gone")).await.0, 404);
    assert!(revision(&api.get(MAPS).await.1) >= newest, "revisions never go back");
    server.stop().await;
}

/// After a restart the older history is gone. A watcher that needs it gets 410, lists again, and misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_watcher_resumes_across_a_restart() {
    let server = Server::start().await;
    let api = server.api().await;
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"at": "first"}});
    let stays = api.create(MAPS, &map("stays")).await;
    let first = stays["metadata"]["resourceVersion"].as_str().unwrap();
    api.create(MAPS, &map("goes")).await;
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(server.client().await, "default");
    let following = tokio::spawn(follow(maps, Arc::clone(&seen)));
    let holds = async |what: &str, expected: &[(&str, &str)]| {
        tombolo_testkit::wait_for(what, DEADLINE, || async {
            let seen = seen.lock().clone();
            let found: Vec<(&str, &str)> =
                seen.iter().map(|(name, at)| (name.as_str(), at.as_str())).collect();
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    holds("the first list", &[("goes", "first"), ("stays", "first")]).await;
    let server = Server::start_in(server.stop().await).await;
    let api = server.api().await;
    api.delete(&format!("{MAPS}/goes"), serde_json::Value::Null).await;
    api.merge(&format!("{MAPS}/stays"), &json!({"data": {"at": "second"}})).await;
    let (code, event) = api.get(&format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={first}")).await;
    assert!(code == 410 || event["object"]["code"] == 410, "history of before the restart: {code} {event}");
    holds("what happened after the restart", &[("stays", "second")]).await;
    following.abort();
    server.stop().await;
}

/// Records names and contents as a watcher reports them.
async fn follow(maps: kube::Api<ConfigMap>, seen: Arc<Mutex<BTreeMap<String, String>>>) {
    let at = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("at").cloned());
    let mut listed = BTreeMap::new();
    let stream = watcher::watcher(maps, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(map)) => {
                if let Some(at) = at(&map) {
                    listed.insert(map.name_any(), at);
                }
            }
            Ok(watcher::Event::InitDone) => seen.lock().clone_from(&listed),
            Ok(watcher::Event::Apply(map)) => {
                if let Some(at) = at(&map) {
                    seen.lock().insert(map.name_any(), at);
                }
            }
            Ok(watcher::Event::Delete(map)) => drop(seen.lock().remove(&map.name_any())),
            // The server is down or the history is gone: the watcher starts again.
            Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_cannot_share_a_directory() {
    let server = Server::start().await;
    let error = Embedded::start(Options::new(server.dir.path().join("data"))).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::InUse(_)), "{error}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_one_clear_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path());
    options.listen = taken.local_addr().unwrap();
    let error = Embedded::start(options).await.unwrap_err().to_string();
    assert!(error.contains(&taken.local_addr().unwrap().to_string()) && !error.contains('\n'), "{error}");
}

/// Not a test by itself: the process that the next test kills.
#[tokio::test(flavor = "multi_thread")]
async fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let bound = Embedded::start(Options::new(Path::new(&dir))).await.unwrap();
    bound.run(Drain::never()).await.unwrap();
}

fn spawn(dir: &Path) -> Child {
    let binary = std::env::current_exe().unwrap();
    let mut command = Command::new(binary);
    command.args(["--exact", "durable::child_process"]).env(CHILD_DIR, dir);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn connect(kubeconfig: &Path) -> Api {
    tombolo_testkit::wait_for_value("the server to answer", DEADLINE, || async {
        if !kubeconfig.exists() {
            return Err("no kubeconfig".to_owned());
        }
        let api = Api { client: client(kubeconfig).await };
        let request = http::Request::get("/readyz").body(kube::client::Body::empty()).unwrap();
        match api.client.send(request).await {
            Ok(response) if response.status().is_success() => Ok(api),
            Ok(response) => Err(response.status().to_string()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

/// Creates objects until the server is gone. Returns the names of the acknowledged ones.
async fn write_until_killed(api: Api, round: usize, writer: usize) -> Vec<String> {
    let mut answered = Vec::new();
    for number in 0.. {
        let name = format!("m-{round}-{writer}-{number}");
        let body = json!({"metadata": {"name": name}, "data": {"pad": "x".repeat(512)}}).to_string();
        let mut request = http::Request::post(MAPS);
        request = request.header("content-type", "application/json");
        match api.client.send(request.body(kube::client::Body::from(body.into_bytes())).unwrap()).await {
            Ok(response) if response.status() == 201 => answered.push(name),
            // It is still starting, or is overloaded.
            Ok(response) if [429, 503].contains(&response.status().as_u16()) => {}
            Ok(response) => panic!("{}", response.status()),
            Err(_) => return answered,
        }
    }
    answered
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answered_write_is_lost_when_the_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let data: PathBuf = dir.path().join("data");
    let mut answered = Vec::new();
    for round in 0..3 {
        let mut child = spawn(&data);
        let api = connect(&data.join("kubeconfig")).await;
        let writers: Vec<_> =
            (0..8).map(|writer| tokio::spawn(write_until_killed(api.clone(), round, writer))).collect();
        let enough = answered.len() + 50;
        tombolo_testkit::wait_for("some writes", DEADLINE, || async {
            let request =
                Ask { method: "GET", path: &format!("{MAPS}?limit=5000"), headers: &[], body: String::new() };
            let (_, list) = api.send(request).await;
            let count = list["items"].as_array().map_or(0, Vec::len);
            if count > enough { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        child.kill().unwrap();
        child.wait().unwrap();
        for writer in writers {
            answered.extend(writer.await.unwrap());
        }
    }
    let mut child = spawn(&data);
    let api = connect(&data.join("kubeconfig")).await;
    let (_, list) = api.get(MAPS).await;
    let names: std::collections::HashSet<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    let lost: Vec<&String> = answered.iter().filter(|name| !names.contains(name.as_str())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    // In each round of fifty, the last eight writes may be unacknowledged; they count for the next round.
    assert!(answered.len() >= 100 && lost.is_empty(), "{} of {} lost: {lost:?}", lost.len(), answered.len());
}
