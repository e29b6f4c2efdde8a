//! A pod of an edge uses the local API, with the token that its kubelet requested there: with the cloud, without it,
//! after a restart without it, and long afterwards.

use std::path::Path;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ListParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api as Objects, Client};
use serde_json::{Value, json};
use tombolo_edge::{App, Config};
use tombolo_runtime::drain;
use tombolo_testkit::{cluster_or_skip, free_port, wait_for, wait_for_value};
use tombolo_tests::world::objects::{NAMESPACE, Objects as Workload};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, impatient};

const NODE: &str = "edge-a";
const ACCOUNT: &str = "till";
const POD: &str = "shop";

/// The lifetime that the kubelet requests by default, in seconds; the API server extends such tokens to a year.
const DEFAULT_SECONDS: i64 = 3607;

const SIX_HOURS: Duration = Duration::from_secs(6 * 3600);
const LONGER_THAN_ANY_TOKEN: Duration = Duration::from_secs(366 * 86_400);

/// Creates an account that may read ConfigMaps of its namespace, and a pod of it on the node.
async fn workload(world: &World) -> Workload {
    let client = world.client().await.unwrap();
    let workload = Workload::new(client.clone()).await.unwrap();
    workload.config_map("map", "1").await.unwrap();
    workload.secret("secret", "1").await.unwrap();
    let create = PostParams::default();
    let accounts: Objects<ServiceAccount> = Objects::namespaced(client.clone(), NAMESPACE);
    accounts.create(&create, &typed(json!({"metadata": {"name": ACCOUNT}}))).await.unwrap();
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
    let roles: Objects<Role> = Objects::namespaced(client.clone(), NAMESPACE);
    roles.create(&create, &typed(json!({"metadata": {"name": ACCOUNT}, "rules": [rule]}))).await.unwrap();
    let binding = json!({"metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]});
    let bindings: Objects<RoleBinding> = Objects::namespaced(client, NAMESPACE);
    bindings.create(&create, &typed(binding)).await.unwrap();
    let pod = json!({"metadata": {"name": POD}, "spec": {
        "nodeName": NODE, "serviceAccountName": ACCOUNT,
        "containers": [{"name": "c", "image": "registry.example/shop:1"}]}});
    wait_for("the pod to be accepted", DEADLINE, || async {
        let created = workload.pods().create(&create, &typed(pod.clone())).await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
    workload
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Requests the pod's token as its kubelet does.
async fn token(edge: &Client) -> Result<String, kube::Error> {
    let pods: Objects<Pod> = Objects::namespaced(edge.clone(), NAMESPACE);
    let uid = pods.get(POD).await?.metadata.uid;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(POD.to_owned()),
        uid,
    };
    let spec = TokenRequestSpec {
        audiences: None,
        bound_object_ref: Some(bound),
        expiration_seconds: Some(DEFAULT_SECONDS),
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let accounts: Objects<ServiceAccount> = Objects::namespaced(edge.clone(), NAMESPACE);
    let reply = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
    Ok(reply.status.and_then(|status| status.token).unwrap_or_default())
}

/// A client as in a pod: with the token and the CA that are mounted into it.
async fn pod_client(edge: &Client, port: u16, token: &str) -> Client {
    let maps: Objects<ConfigMap> = Objects::namespaced(edge.clone(), NAMESPACE);
    let trusted = wait_for_value("the CA of the local API in kube-root-ca.crt", DEADLINE, || async {
        let map = maps.get("kube-root-ca.crt").await.map_err(|error| error.to_string())?;
        let trusted = map.data.and_then(|mut data| data.remove("ca.crt")).unwrap_or_default();
        if trusted.matches("BEGIN CERTIFICATE").count() == 2 { Ok(trusted) } else { Err(trusted) }
    })
    .await;
    use base64::Engine as _;
    let trusted = base64::engine::general_purpose::STANDARD.encode(trusted);
    let kubeconfig: Kubeconfig = typed(json!({
        "clusters": [{"name": "e", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": trusted,
            "tls-server-name": "kubernetes.default.svc"}}],
        "users": [{"name": "e", "user": {"token": token}}],
        "contexts": [{"name": "e", "context": {"cluster": "e", "user": "e"}}],
        "current-context": "e",
    }));
    impatient(kubeconfig).await.unwrap()
}

fn code<T>(answer: Result<T, kube::Error>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

/// Status codes of the pod's reads, allowed and forbidden ones.
async fn reads(pod: &Client) -> [u16; 4] {
    let maps: Objects<ConfigMap> = Objects::namespaced(pod.clone(), NAMESPACE);
    let secrets: Objects<Secret> = Objects::namespaced(pod.clone(), NAMESPACE);
    let pods: Objects<Pod> = Objects::namespaced(pod.clone(), NAMESPACE);
    [
        code(maps.get("map").await),
        code(maps.list(&ListParams::default()).await),
        code(secrets.get("secret").await),
        code(pods.list(&ListParams::default()).await),
    ]
}

async fn play(api: Api, transport: Transport) {
    let mut world = World::start(api, transport).await.unwrap();
    let port = free_port().unwrap();
    world.set_edge_settings(json!({"localApi": {"pods": format!("127.0.0.1:{port}")}}));
    let workload = workload(&world).await;
    world.start_edge(NODE).await.unwrap();
    let edge = world.impatient_edge_client(NODE).await.unwrap();
    let issued = wait_for_value("a token", DEADLINE, || async {
        token(&edge).await.map_err(|error| error.to_string())
    })
    .await;
    let pod = pod_client(&edge, port, &issued).await;
    wait_for("the role to be in force", DEADLINE, || async {
        let codes = reads(&pod).await;
        if codes == [200, 200, 403, 403] { Ok(()) } else { Err(format!("{codes:?}")) }
    })
    .await;
    // The first list may wait for data that the cloud learns later than its API server.
    let maps: Objects<ConfigMap> = Objects::namespaced(pod.clone(), NAMESPACE);
    workload.config_map("late", "1").await.unwrap();
    wait_for("the change to arrive", DEADLINE, || async {
        let names = maps.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let found = names.items.iter().any(|map| map.metadata.name.as_deref() == Some("late"));
        if found { Ok(()) } else { Err("not there".to_owned()) }
    })
    .await;

    world.kill_cloud();
    world.kill_edge(NODE);
    world.start_edge(NODE).await.unwrap();
    wait_for("the agent", DEADLINE, || async {
        token(&edge).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(token(&edge).await.unwrap(), issued, "the stored reply is returned");
    assert_eq!(reads(&pod).await, [200, 200, 403, 403], "the last decisions still apply");
    assert_eq!(code(maps.get("other").await), 503, "never decided");
    let elsewhere: Objects<ConfigMap> = Objects::namespaced(pod.clone(), "default");
    assert_eq!(code(elsewhere.list(&ListParams::default()).await), 503, "never decided");

    world.kill_edge(NODE);
    long_after(&world.edge_config(NODE), &edge, &pod, &issued).await;
}

/// The agent with the same data, but with a clock that is ahead.
async fn long_after(config: &Path, edge: &Client, pod: &Client, issued: &str) {
    for (later, answered) in [(SIX_HOURS, true), (LONGER_THAN_ANY_TOKEN, false)] {
        let bound = App::build(Config::load(config).unwrap()).await.unwrap();
        let (trigger, drain) = drain::channel(Duration::from_secs(5));
        let running = tokio::spawn(bound.with_clock(move || SystemTime::now() + later).run(drain));
        match token(edge).await {
            Ok(token) => {
                assert!(answered && token == issued, "after {later:?}");
                // A pod that its kubelet restarts with this token works as before.
                assert_eq!(reads(pod).await, [200, 200, 403, 403], "after {later:?}");
            }
            Err(kube::Error::Api(status)) => {
                assert!(!answered && status.code == 503, "after {later:?}: {status:?}");
            }
            Err(error) => panic!("after {later:?}: {error}"),
        }
        trigger.start();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_token_works_while_the_embedded_server_is_away() {
    play(Api::Embedded, Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_token_works_while_kube_apiserver_is_away() {
    cluster_or_skip!("pod_token_works_while_kube_apiserver_is_away");
    play(Api::Real, Transport::WebSocket).await;
}
