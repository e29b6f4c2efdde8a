//! The wrapper over what the agent holds.

use http::{HeaderMap, HeaderValue, header};

use super::*;
use crate::identity::testing::fetch_plain;
use crate::wrapper::Kubernetes;

#[tokio::test]
async fn the_wrapper_shows_what_this_node_knows_and_passes_events_on() {
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
    wait_for("this node", DEADLINE, async || get("/api/v1/nodes/edge-a").await.0 == StatusCode::OK).await;
    assert_eq!(get("/api/v1/nodes/edge-a").await.1["metadata"]["labels"]["zone"], "a");
    wait_for("the Service", DEADLINE, async || {
        get("/api/v1/services").await.1["items"][0]["spec"]["clusterIP"] == "10.0.0.1"
    })
    .await;
    wait_for("Endpoints, which are followed on demand", DEADLINE, async || {
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
    cloud.put(&slice, "e1", &body, &[]);
    for (named, expected) in [(None, "edge-a"), (Some("edge-b"), "edge-b")] {
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
        wait_for(expected, DEADLINE, async || nodes().await == [expected]).await;
        agent.stop().await;
    }
}

#[test]
fn kubernetes_leads_here_unless_the_settings_say_no() {
    let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
    let listener = "169.254.20.11:10550".parse().unwrap();
    assert_eq!(kubernetes(&config, listener), Kubernetes::Local(listener));
    config.wrapper.local_rewrite = false;
    assert_eq!(kubernetes(&config, listener), Kubernetes::AsItIs);
}
