//! Discovery, versions, health, and custom kinds that come and go.

use serde_json::{Value, json};

use crate::server::*;

#[tokio::test]
async fn both_forms_of_discovery_name_the_same_resources() {
    let server = Server::start().await;
    assert_eq!(server.get("/api").await.expect(200)["versions"], json!(["v1"]));
    let core = server.get("/api/v1").await.expect(200);
    let pods = core["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "pods").unwrap();
    assert_eq!((&pods["kind"], &pods["namespaced"]), (&json!("Pod"), &json!(true)));
    assert_eq!(pods["shortNames"], json!(["po"]));
    let groups = server.get("/apis").await.expect(200);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let aggregated = server.get_as("/apis", accept).await;
    let content_type = aggregated.headers["content-type"].to_str().unwrap().to_owned();
    assert_eq!(content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let etag = aggregated.headers["etag"].clone();
    let aggregated = aggregated.expect(200);
    for group in aggregated["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap();
        let known = groups["groups"].as_array().unwrap().iter().any(|own| own["name"] == name);
        assert!(known, "{name}");
        for version in group["versions"].as_array().unwrap() {
            let path = format!("/apis/{name}/{}", version["version"].as_str().unwrap());
            let old = server.get(&path).await.expect(200);
            let main = |entry: &&Value| !entry["name"].as_str().unwrap().contains('/');
            let count = old["resources"].as_array().unwrap().iter().filter(main).count();
            assert_eq!(version["resources"].as_array().unwrap().len(), count, "{path}");
        }
    }
    let request = server.request("GET", "/apis").header("accept", accept).header("if-none-match", etag);
    assert_eq!(server.send(request.body(Default::default()).unwrap()).await.status, 304);
}

#[tokio::test]
async fn version_and_health_are_served() {
    let server = Server::start().await;
    assert_eq!(server.get("/version").await.expect(200)["minor"], "36");
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status.as_u16(), &answer.bytes[..]), (200, &b"ok"[..]), "{path}");
    }
    let verbose = server.get("/readyz?verbose").await;
    let text = String::from_utf8(verbose.bytes.to_vec()).unwrap();
    assert!(text.starts_with("[+]ping ok\n") && text.ends_with("readyz check passed\n"), "{text}");
    let unknown = server.get("/nothing").await;
    assert_eq!((unknown.status.as_u16(), &unknown.bytes[..]), (404, &b"404 page not found\n"[..]));
    for path in
        ["/api/v1/nopods", "/api/v1/pods/x", "/api/v1/namespaces/x/nodes", "/api/v1/namespaces/d/pods/a/b"]
    {
        assert_eq!(
            server.get(path).await.expect(404)["message"],
            "the server could not find the requested resource"
        );
    }
    let missing = server.get("/apis/apps/v1/namespaces/default/deployments/a").await.expect(404);
    assert_eq!(missing["message"], "deployments.apps \"a\" not found");
    assert_eq!(missing["details"], json!({"name": "a", "group": "apps", "kind": "deployments"}));
}

#[tokio::test]
async fn openapi_documents_are_kept_under_their_hash() {
    let server = Server::start().await;
    let index = server.get("/openapi/v3").await.expect(200);
    let path = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = server.get(&path).await;
    assert_eq!(document.headers["cache-control"], "public, max-age=31536000, immutable");
    let etag = document.headers["etag"].clone();
    let schemas = &document.expect(200)["components"]["schemas"];
    assert!(schemas.as_object().unwrap().keys().any(|name| name.ends_with(".Deployment")), "{schemas}");
    let request = server.request("GET", "/openapi/v3/apis/apps/v1").header("if-none-match", etag);
    assert_eq!(server.send(request.body(Default::default()).unwrap()).await.status, 304);
    assert_eq!(server.get("/openapi/v3/apis/none/v1").await.status, 404);
    server.registry.update(|kinds| kinds.with_crd(&definition())).unwrap();
    let index = server.get("/openapi/v3").await.expect(200);
    assert!(index["paths"]["apis/x.io/v1"].is_object(), "published together with the paths");
}

fn definition() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}}},
    });
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.x.io"},
        "spec": {
            "group": "x.io", "scope": "Namespaced",
            "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

#[tokio::test]
async fn custom_kinds_appear_and_disappear_at_once() {
    let server = Server::start().await;
    let path = "/apis/x.io/v1/namespaces/default/boats";
    assert_eq!(server.get(path).await.status, 404);
    server.registry.update(|kinds| kinds.with_crd(&definition())).unwrap();
    let group = server.get("/apis/x.io").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let boat = json!({"apiVersion": "x.io/v1", "kind": "Boat", "metadata": {"name": "b"}, "spec": {}});
    let created = server.post(path, &boat).await.expect(201);
    assert_eq!(created["spec"]["size"], 3);
    let old = server.get("/apis/x.io/v1beta1/namespaces/default/boats/b").await.expect(200);
    assert_eq!((&old["apiVersion"], &old["spec"]), (&json!("x.io/v1beta1"), &created["spec"]));
    let mut watch = server.watch("/apis/x.io/v1beta1/boats?watch=1").await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["apiVersion"], "x.io/v1beta1");
    let unconditional = json!({"apiVersion": "x.io/v1", "kind": "Boat", "metadata": {"name": "b"}});
    let refused = server.put(&format!("{path}/b"), &unconditional).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("metadata.resourceVersion: Invalid value"));
    let storage = server.registry.catalog().kinds.by_kind("x.io", "v1", "Boat").unwrap().storage.clone();
    server
        .registry
        .update(|kinds| Ok::<_, std::convert::Infallible>(kinds.without_group_resource("x.io", "boats")))
        .unwrap();
    server.store.forget(&storage);
    assert_eq!(watch.brief().await, "END");
    assert_eq!(server.get(path).await.status, 404);
    assert_eq!(server.get("/apis/x.io").await.status, 404);
}
