//! Tests of the request log.

use http::{HeaderMap, HeaderValue, Method, header};

use super::http_api::{Served, settings};
use super::*;
use crate::identity::testing::fetch_plain;

/// The log contains the requests, but not credentials and bodies.
#[tokio::test]
async fn requests_are_in_the_log_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(file);
    let subscriber = subscriber.with_max_level(tracing::Level::DEBUG).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let served = Served::with_cluster(&settings()).await;
    let hushed = HeaderValue::from_static("Bearer hush");
    let json = HeaderValue::from_static("application/json");
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, hushed), (header::CONTENT_TYPE, json)]);
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event =
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "hush"});
    let asked = [
        (Method::GET, "/api/v1/services", "access_token=hush&labelSelector=app%3Dweb", "list", 200),
        (Method::GET, "/api/v1/services", "watch=true&resourceVersion=1&continue=hush", "watch", 200),
        (Method::GET, "/api/v1/nodes", "fieldSelector=metadata.name%3Dn1&token=hush", "list", 200),
        (Method::GET, "/api/v1/secrets", "access_token=hush", "list", 403),
        (Method::POST, events, "fieldManager=hush", "create", 201),
    ];
    for (method, path, query, _, code) in &asked {
        let body = if *method == Method::POST { event.to_string() } else { String::new() };
        let target = format!("{path}?{query}");
        let (answer, _) = fetch_plain(served.address, method.clone(), &target, headers.clone(), &body).await;
        assert_eq!(answer, *code, "{target}");
    }
    served.end().await;
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("hush"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |line: &&Value| line["message"] == "answered by the wrapper" && line["path"] != "/readyz";
    let lines: Vec<&Value> = lines.iter().filter(said).collect();
    assert_eq!(lines.len(), asked.len(), "{text}");
    for (line, (_, path, _, verb, code)) in lines.iter().zip(&asked) {
        assert_eq!(
            (&line["level"], &line["verb"], &line["path"]),
            (&json!("DEBUG"), &json!(verb), &json!(path))
        );
        assert_eq!(line["code"], *code);
        assert!(line["micros"].is_u64(), "{line}");
    }
    assert_eq!(lines[0]["label_selector"], "app=web");
    assert_eq!(lines[2]["field_selector"], "metadata.name=n1");
}
