//! Lists, paging, forms.

use serde_json::json;
use tombolo_apicore::history::LogLimits;

use crate::server::*;

#[tokio::test]
async fn list_has_its_revision_and_kind() {
    let server = Server::start().await;
    let list = server.get("/api/v1/pods").await.expect(200);
    assert_eq!(
        list,
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
    );
    server.post(CONFIGMAPS, &configmap("b", "1")).await.expect(201);
    server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    let list = server.get(CONFIGMAPS).await.expect(200);
    assert_eq!((names(&list), revision(&list)), (vec!["a", "b"], 3));
}

#[tokio::test]
async fn pages_come_from_one_snapshot() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
    }
    let first = server.get(&format!("{CONFIGMAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    server.delete(&format!("{CONFIGMAPS}/c")).await.expect(200);
    server.post(CONFIGMAPS, &configmap("cc", "1")).await.expect(201);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{CONFIGMAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d"], "as it was when the first page was served");
    assert_eq!(revision(&second), revision(&first));
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = server.get(&format!("{CONFIGMAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn expired_page_offers_an_inconsistent_continuation() {
    let server = Server::with_limits(LogLimits { count: 2, ..LogLimits::default() }).await;
    for name in ["a", "b", "d"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
    }
    let first = server.get(&format!("{CONFIGMAPS}?limit=1")).await.expect(200);
    for name in ["c", "e", "f"] {
        server.post(CONFIGMAPS, &configmap(name, "1")).await.expect(201);
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = server.get(&format!("{CONFIGMAPS}?limit=9&continue={token}")).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{CONFIGMAPS}?limit=9&continue={token}")).await.expect(200);
    assert_eq!(names(&rest), ["b", "c", "d", "e", "f"]);
}

#[tokio::test]
async fn revisions_choose_which_state_is_listed() {
    let server = Server::start().await;
    let first = server.post(CONFIGMAPS, &configmap("a", "1")).await.expect(201);
    server.post(CONFIGMAPS, &configmap("b", "1")).await.expect(201);
    let at = revision(&first);
    let exact = format!("{CONFIGMAPS}?resourceVersion={at}&resourceVersionMatch=Exact");
    assert_eq!(names(&server.get(&exact).await.expect(200)), ["a"]);
    let newer = format!("{CONFIGMAPS}?resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&server.get(&newer).await.expect(200)), ["a", "b"]);
    assert_eq!(names(&server.get(&format!("{CONFIGMAPS}?resourceVersion=0")).await.expect(200)), ["a", "b"]);
    let begin = std::time::Instant::now();
    let future = server.get(&format!("{CONFIGMAPS}?resourceVersion=100")).await.expect(504);
    assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(future["message"], "Timeout: Too large resource version: 100, current: 3");
    assert_eq!(future["details"]["retryAfterSeconds"], 1);
    assert!(begin.elapsed().as_secs() >= 2);
    let old = server.get(&format!("{CONFIGMAPS}?resourceVersion=0&resourceVersionMatch=Exact")).await;
    old.expect(422);
}

#[tokio::test]
async fn selectors_choose_objects() {
    let server = Server::start().await;
    server.post(CONFIGMAPS, &labelled("a", "web")).await.expect(201);
    server.post(CONFIGMAPS, &labelled("b", "db")).await.expect(201);
    let list = server.get(&format!("{CONFIGMAPS}?labelSelector=app%20in%20(web)")).await.expect(200);
    assert_eq!(names(&list), ["a"]);
    let list = server.get("/api/v1/configmaps?fieldSelector=metadata.name!%3Da").await.expect(200);
    assert_eq!(names(&list), ["b"]);
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    server.post(PODS, &pod("q", "n2")).await.expect(201);
    let list = server.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2").await.expect(200);
    assert_eq!(names(&list), ["q"]);
    let refused = server.get("/api/v1/pods?fieldSelector=spec.foo%3Da").await.expect(400);
    assert_eq!(refused["message"], "field label not supported: spec.foo");
    let refused = server.get("/api/v1/configmaps?fieldSelector=spec.foo%3Da").await.expect(400);
    let wanted = "\"spec.foo\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    assert_eq!(refused["message"], wanted);
}

#[tokio::test]
async fn tables_metadata_and_yaml_are_other_forms_of_the_same() {
    let server = Server::start().await;
    server.post(PODS, &pod("p", "n1")).await.expect(201);
    let table =
        server.get_as("/api/v1/pods", "application/json;as=Table;g=meta.k8s.io;v=v1").await.expect(200);
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "p");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let columns = table["columnDefinitions"].as_array().unwrap().len();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap().len(), columns);
    let none = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let table = server.get_as("/api/v1/pods?includeObject=None", none).await.expect(200);
    assert_eq!(table["rows"][0].get("object"), Some(&json!(null)));
    let table = server.get_as("/api/v1/pods?includeObject=Object", none).await.expect(200);
    assert_eq!(table["rows"][0]["object"]["spec"]["nodeName"], "n1");
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = server.get_as("/api/v1/pods", partial).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0].get("spec").is_none());
    assert_eq!(names(&list), ["p"]);
    let yaml = server.get_as(&format!("{PODS}/p"), "application/yaml").await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    let text = String::from_utf8(yaml.bytes.to_vec()).unwrap();
    assert!(text.contains("nodeName: n1"), "{text}");
}

#[tokio::test]
async fn large_answers_are_compressed_for_clients_that_accept_gzip() {
    let server = Server::start().await;
    let text = "x".repeat(100_000);
    for name in ["a", "b"] {
        server.post(CONFIGMAPS, &configmap(name, &text)).await.expect(201);
    }
    let plain = server.get(CONFIGMAPS).await;
    assert!(plain.headers.get("content-encoding").is_none());
    let request = server.request("GET", CONFIGMAPS).header("accept-encoding", "gzip");
    let zipped = server.send(request.body(Default::default()).unwrap()).await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert!(zipped.bytes.len() < plain.bytes.len() / 10);
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.bytes[..]), &mut text).unwrap();
    assert_eq!(text, plain.bytes);
}
