//! Tests of the wrapper over the agent's store.

use http::{HeaderMap, HeaderValue, header};

use super::*;
use crate::identity::testing::fetch_plain;
use crate::wrapper::Kubernetes;

#[tokio::test]
async fn wrapper_lists_the_stored_objects_and_forwards_events() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let node = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a");
    cloud.put(&node, "u1", &json!({"metadata": {"labels": {"zone": "a"}}}), &[]);
    cloud.put(&key("services", "web"), "s1", &json!({"spec": {"clusterIP": "10.0.0.1"}}), &[]);
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let get = async |path: &str| {
        let (code, text) = fetch_plain(agent.wrapper, Method::GET, path, HeaderMap::new(), "").await;
        (code, serde_json::from_str::<Value>(&text).unwrap())
    };
    for path in
        ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/endpoints?watch=true"]
    {
        let (code, status) = get(path).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{path}: {status}");
        assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0, "{status}");
    }
    cloud.set_away(false);
    wait_until("this node", DEADLINE, async || get("/api/v1/nodes/edge-a").await.0 == StatusCode::OK).await;
    assert_eq!(get("/api/v1/nodes/edge-a").await.1["metadata"]["labels"]["zone"], "a");
    wait_until("the Service", DEADLINE, async || {
        get("/api/v1/services").await.1["items"][0]["spec"]["clusterIP"] == "10.0.0.1"
    })
    .await;
    wait_until("Endpoints, which are followed on demand", DEADLINE, async || {
        get("/api/v1/endpoints").await.0 == StatusCode::OK
    })
    .await;
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let event =
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}}).to_string();
    let (code, _) = fetch_plain(agent.wrapper, Method::POST, path, json.into_iter().collect(), &event).await;
    assert_eq!(code, StatusCode::CREATED);
    assert!(cloud.calls().contains(&format!("POST {path}")), "{:?}", cloud.calls());
    agent.stop().await;
}

#[tokio::test]
async fn the_unit_is_that_of_the_node_that_the_settings_name() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    for (name, zone) in [("edge-a", "a"), ("edge-b", "b")] {
        let node = ObjectKey::new(Resource::new("", "v1", "nodes"), "", name);
        cloud.put(&node, name, &json!({"metadata": {"labels": {"zone": zone}}}), &[]);
    }
    let closed = json!({"metadata": {"annotations": {"topologyKeys": "[\"zone\"]"}}, "spec": {}});
    cloud.put(&key("services", "web"), "s1", &closed, &[]);
    let slice = ObjectKey::new(Resource::new("discovery.k8s.io", "v1", "endpointslices"), "default", "web-1");
    let endpoint = |node: &str| json!({"addresses": ["10.0.0.1"], "nodeName": node});
    let body = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
        "endpoints": [endpoint("edge-a"), endpoint("edge-b")],
    });
    cloud.put(&slice, "w1", &body, &[]);
    with_grid(&cloud, &[("10.0.0.1", "db-a-0", "edge-a"), ("10.0.0.2", "db-b-0", "edge-b")]);
    for (named, expected, own) in [(None, "edge-a", "10.0.0.1"), (Some("edge-b"), "edge-b", "10.0.0.2")] {
        let named = named.map(|name| NodeId::parse(name).unwrap());
        let agent = Agent::start_with(folder.path(), &cloud, Duration::ZERO, |config| {
            config.wrapper.node_name = named;
        })
        .await;
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1";
        let nodes = async || {
            let (_, text) = fetch_plain(agent.wrapper, Method::GET, path, HeaderMap::new(), "").await;
            let shown: Value = serde_json::from_str(&text).unwrap();
            let endpoints = shown["endpoints"].as_array().cloned().unwrap_or_default();
            endpoints.iter().map(|endpoint| endpoint["nodeName"].clone()).collect::<Vec<_>>()
        };
        wait_until(expected, DEADLINE, async || nodes().await == [expected]).await;
        let line = format!("{own} db-0.db.default.svc.cluster.local\n");
        wait_until("its uniform name", DEADLINE, async || {
            std::fs::read_to_string(folder.path().join("hosts")).unwrap_or_default() == line
        })
        .await;
        agent.stop().await;
    }
}

#[test]
fn kubernetes_service_points_here_unless_disabled() {
    let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
    let listener = "169.254.20.11:10550".parse().unwrap();
    assert_eq!(kubernetes(&config, listener), Kubernetes::Local(listener));
    config.wrapper.local_rewrite = false;
    assert_eq!(kubernetes(&config, listener), Kubernetes::AsItIs);
}

/// The kubelet restarts a pod of a StatefulSetGrid while there is no cloud, and only the cloud writes slices.
#[tokio::test]
async fn pods_restarted_offline_are_found_at_their_new_address() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let node = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a");
    let kubelet = json!({"nodeInfo": {"kubeletVersion": "v1.36.3"}});
    cloud.put(&node, "n1", &json!({"metadata": {"labels": {"zone": "a"}}, "status": kubelet}), &[]);
    cloud.put(&key("pods", "db-a-0"), "p1", &pod_spec(), &[]);
    with_grid(&cloud, &[("10.0.0.1", "db-a-0", "edge-a")]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let hosts = folder.path().join("hosts");
    found_at("10.0.0.1", &agent, &hosts).await;

    away(&agent, &cloud).await;
    starts_anew(&agent, "10.0.0.9").await;
    found_at("10.0.0.9", &agent, &hosts).await;
    agent.stop().await;
    std::fs::remove_file(&hosts).unwrap();
    let agent = Agent::start(folder.path(), &cloud, false).await;
    found_at("10.0.0.9", &agent, &hosts).await;

    // With a cloud the result is the same, and the cloud's slices agree.
    cloud.set_away(false);
    agent.connects().await;
    wait_until("an empty outbox", DEADLINE, async || agent.status.look().reports_waiting == 0).await;
    starts_anew(&agent, "10.0.0.8").await;
    found_at("10.0.0.8", &agent, &hosts).await;
    agent.stop().await;
}

/// Reports a restarted pod as a kubelet does.
async fn starts_anew(agent: &Agent, address: &str) {
    let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    let path = "/api/v1/namespaces/default/pods/db-a-0/status";
    let (code, answer) = agent.call(Method::PATCH, path, &status.to_string()).await;
    assert_eq!(code, StatusCode::OK, "{answer}");
}

/// A StatefulSetGrid with its Service and these pods, each with its address and its node.
fn with_grid(cloud: &FakeCloud, pods: &[(&str, &str, &str)]) {
    let labels = json!({"superedge.io/grid-uniq-key": "zone"});
    cloud.put(&key("services", "db"), "s1", &json!({"metadata": {"labels": labels}, "spec": {}}), &[]);
    let grid = ObjectKey::new(Resource::new("superedge.io", "v1", "statefulsetgrids"), "default", "db");
    let spec = json!({"gridUniqKey": "zone", "template": {"serviceName": "db"}});
    cloud.put(&grid, "g1", &json!({"spec": spec, "status": {"owned": ["a", "b"]}}), &[]);
    let endpoint = |(address, pod, node): &(&str, &str, &str)| {
        let target = json!({"kind": "Pod", "name": pod, "namespace": "default", "uid": "p1"});
        json!({"addresses": [address], "nodeName": node, "targetRef": target})
    };
    let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
    let slice = ObjectKey::new(Resource::new("discovery.k8s.io", "v1", "endpointslices"), "default", "db-1");
    let labels = json!({"kubernetes.io/service-name": "db"});
    let body = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": endpoints});
    cloud.put(&slice, "e1", &body, &[]);
}

/// Waits until the endpoint in the wrapper and the pod's uniform name have this address.
async fn found_at(address: &str, agent: &Agent, hosts: &Path) {
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/db-1";
    wait_until(&format!("{address} in the slice"), DEADLINE, async || {
        let (_, text) = fetch_plain(agent.wrapper, Method::GET, path, HeaderMap::new(), "").await;
        let shown: Value = serde_json::from_str(&text).unwrap();
        shown["endpoints"][0]["addresses"] == json!([address])
    })
    .await;
    let line = format!("{address} db-0.db.default.svc.cluster.local\n");
    wait_until(&format!("{address} in the hosts file"), DEADLINE, async || {
        std::fs::read_to_string(hosts).unwrap_or_default() == line
    })
    .await;
}
