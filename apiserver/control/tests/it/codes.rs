//! Invalid requests get a Status with the right code and reason.

use serde_json::{Value, json};

use crate::harness::{Ask, Server};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests() {
    let server = Server::start().await;
    // After a restart, older history is gone.
    let server = Server::start_in(server.stop().await).await;
    let api = server.api().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
    let stored = api.create(maps, &map).await;
    let own = format!("{maps}/m");
    let json = "application/json";
    let cases = [
        ("POST", maps, json, "{".to_owned(), 400, "BadRequest"),
        (
            "POST",
            maps,
            json,
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}).to_string(),
            400,
            "BadRequest",
        ),
        ("GET", "/api/v1/namespaces/default/configmaps/absent", "", String::new(), 404, "NotFound"),
        ("GET", "/api/v1/nothing", "", String::new(), 404, "NotFound"),
        ("POST", "/api/v1/namespaces/absent/configmaps", json, map.to_string(), 404, "NotFound"),
        ("POST", maps, json, map.to_string(), 409, "AlreadyExists"),
        ("PUT", &own, json, with_version(&stored, "1").to_string(), 409, "Conflict"),
        ("GET", "/api/v1/configmaps?watch=1&resourceVersion=1", "", String::new(), 410, "Expired"),
        ("POST", maps, "application/vnd.kubernetes.protobuf", "k8s".to_owned(), 400, "BadRequest"),
        ("POST", maps, "application/cbor", "k8s".to_owned(), 415, "UnsupportedMediaType"),
        ("PATCH", &own, "text/plain", "{}".to_owned(), 415, "UnsupportedMediaType"),
        ("POST", maps, json, json!({"metadata": {"name": "Not A Name"}}).to_string(), 422, "Invalid"),
        ("DELETE", "/api/v1/namespaces/kube-system", "", String::new(), 403, "Forbidden"),
        ("GET", "/api/v1/pods?labelSelector=a%3D%3D%3Db", "", String::new(), 400, "BadRequest"),
    ];
    for (method, path, media_type, body, code, reason) in cases {
        let headers: &[(&str, &str)] =
            if media_type.is_empty() { &[] } else { &[("content-type", media_type)] };
        let (found, status) = api.send(Ask { method, path, headers, body: body.clone() }).await;
        if path.contains("watch=1") && found == 200 {
            // A watch that is refused after its start reports this in its first event.
            assert_eq!(status["object"]["code"], 410, "{method} {path} {status}");
            continue;
        }
        assert_eq!(
            (found, status["kind"].as_str()),
            (code, Some("Status")),
            "{method} {path} {body}: {status}"
        );
        assert_eq!(status["reason"], reason, "{method} {path}: {status}");
    }
    server.stop().await;
}

fn with_version(object: &Value, version: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = json!(version);
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn services_get_unique_addresses() {
    let server = Server::start().await;
    let api = server.api().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| {
        let mut spec = spec;
        spec["ports"] = json!([{"port": 80}]);
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let first = api.create(services, &service("first", json!({}))).await;
    let address = first["spec"]["clusterIP"].as_str().unwrap();
    assert!(address.starts_with("10.0."), "{first}");
    let taken = json!({"clusterIP": address});
    let (code, status) = api.post(services, &service("second", taken.clone())).await;
    assert_eq!(code, 422, "{status}");
    let expected = format!(
        "Service \"second\" is invalid: spec.clusterIPs: Invalid value: [{address:?}]: failed to allocate IP {address}: provided IP is already allocated"
    );
    assert_eq!(status["message"], expected);
    let node_port = api.create(services, &service("ports", json!({"type": "NodePort"}))).await;
    let port = node_port["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&port));
    let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
    api.wait_code(&path, 200).await;
    api.delete(&format!("{services}/first"), Value::Null).await;
    api.wait_code(&path, 404).await;
    api.create(services, &service("second", taken)).await;
    server.stop().await;
}
