//! Tests of kinds that the cluster defines beyond the built-in ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};

use super::*;
use crate::identity::testing::fetch_plain;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// The discovery document of these groups and resources.
fn discovery(groups: &[(&str, &Value)]) -> Value {
    let group = |(name, entry): &(&str, &Value)| json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [entry]}]});
    let items: Vec<Value> = groups.iter().map(group).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items})
}

fn widgets_entry() -> Value {
    let kind = json!({"group": "example.com", "version": "v1", "kind": "Widget"});
    json!({"resource": "widgets", "responseKind": kind, "scope": "Namespaced", "singularResource": "widget",
        "shortNames": ["wi"], "verbs": ["get", "list", "watch", "create"],
        "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch"]}]})
}

fn define_widgets(cloud: &FakeCloud) {
    let resource = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let columns = json!([{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]);
    let spec = json!({"versions": [{"name": "v1", "additionalPrinterColumns": columns}]});
    let key = ObjectKey::new(resource, "", "widgets.example.com");
    cloud.put(&key, "d1", &json!({"spec": spec}), &[]);
}

/// Names of the columns, and the last cell of the first row, of a list as a table.
async fn row(agent: &Agent, path: &str) -> (Value, Value) {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
    let (_, text) = fetch_plain(agent.http, Method::GET, path, headers, "").await;
    let table: Value = serde_json::from_str(&text).unwrap_or_default();
    let columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
    let names = columns.iter().map(|column| column["name"].clone()).collect();
    let cells = &table["rows"][0]["cells"];
    // Ages change, so they are not compared.
    let cell = if columns.len() == 2 && columns[1]["name"] == "Age" { &cells[0] } else { &cells[1] };
    (names, cell.clone())
}

#[tokio::test]
async fn discovery_is_refused_before_the_first_answer_of_the_cloud() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    for path in [WIDGETS, "/apis/superedge.io/v1/statefulsetgrids"] {
        let (code, text) = fetch_plain(agent.http, Method::GET, path, HeaderMap::new(), "").await;
        let status: Value = serde_json::from_str(&text).unwrap_or_default();
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{path}: {text}");
        assert_eq!(status["details"]["retryAfterSeconds"], 1, "{path}: {text}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn kinds_of_the_cluster_are_found_and_explained_without_it() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let widget = ObjectKey::new(Resource::new("example.com", "v1", "widgets"), "default", "w");
    cloud.put(
        &widget,
        "w1",
        &json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"size": 3}}),
        &[],
    );
    let kind = json!({"group": "example.com", "version": "v1", "kind": "Widget"});
    let entry = widgets_entry();
    let builtin = json!({"resource": "deployments", "responseKind": {"kind": "Strange"}, "scope": "Cluster", "verbs": []});
    let document = discovery(&[("example.com", &entry), ("apps", &builtin)]);
    cloud.script("GET /apis", move |_, _| (200, document.clone()));
    let url = "/openapi/v3/apis/example.com/v1?hash=1";
    let index = json!({"paths": {"apis/example.com/v1": {"serverRelativeURL": url}}});
    cloud.script("GET /openapi/v3", move |_, _| (200, index.clone()));
    let schema = json!({"x-kubernetes-group-version-kind": [kind], "x-kubernetes-selectable-fields": [{"fieldPath": "spec.size"}]});
    let openapi = json!({"openapi": "3.0.0", "info": {"title": "of the cloud"},
        "components": {"schemas": {"com.example.v1.Widget": schema}}});
    cloud.script(&format!("GET {url}"), move |_, _| (200, openapi.clone()));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("a session", DEADLINE, async || agent.status.look().transport.is_some()).await;
    let widgets = WIDGETS;
    wait_until("the widget", DEADLINE, async || agent.names(widgets).await == ["w"]).await;
    assert_eq!(
        row(&agent, widgets).await,
        (json!(["Name", "Age"]), json!("w")),
        "its definition is not known"
    );
    define_widgets(&cloud);
    let sized = (json!(["Name", "Size"]), json!(3));
    wait_until("the columns", DEADLINE, async || row(&agent, widgets).await == sized).await;
    for _ in 0..2 {
        assert_eq!(row(&agent, widgets).await, sized);
        let (_, found) = agent.get("/apis/example.com/v1").await;
        let names: Vec<_> =
            found["resources"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
        assert_eq!(names, ["widgets", "widgets/status"], "{found}");
        assert_eq!(
            (&found["resources"][0]["verbs"], &found["resources"][0]["shortNames"]),
            (&json!(["get", "list", "watch", "create"]), &json!(["wi"]))
        );
        let (_, known) = agent.get("/apis/apps/v1").await;
        assert!(
            known["resources"].as_array().unwrap().iter().any(|entry| entry["kind"] == "Deployment"),
            "{known}"
        );
        let (_, explained) = agent.get("/openapi/v3/apis/example.com/v1").await;
        assert_eq!(explained["info"]["title"], "of the cloud", "{explained}");
        let (_, one) = agent.get(&format!("{widgets}/w")).await;
        assert_eq!(one["spec"]["size"], 3, "{one}");
        widgets_are_selected(&agent, widgets).await;
        cloud.set_away(true);
    }
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names(widgets).await, ["w"]);
    assert_eq!(row(&agent, widgets).await, sized);
    widgets_are_selected(&agent, widgets).await;
    let (_, explained) = agent.get("/openapi/v3/apis/example.com/v1").await;
    assert_eq!(explained["info"]["title"], "of the cloud", "{explained}");
    assert_eq!(agent.get("/apis/example.com/v1/gadgets").await.0, StatusCode::NOT_FOUND);
    agent.stop().await;
}

#[tokio::test]
async fn kinds_of_a_cloud_without_aggregated_discovery_are_combined() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let version = |name: &str| json!({"version": name});
    let group =
        json!({"name": "example.com", "versions": [version("v1")], "preferredVersion": version("v1")});
    let apps = json!({"name": "apps", "versions": [version("v1")], "preferredVersion": version("v1")});
    cloud.script("GET /apis", move |_, _| (200, json!({"kind": "APIGroupList", "groups": [group, apps]})));
    let widgets = json!({"name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget", "verbs": ["list"]});
    cloud.script("GET /apis/example.com/v1", move |_, _| {
        (200, json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [widgets]}))
    });
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the kind", DEADLINE, async || {
        agent.get("/apis/example.com/v1").await.1["resources"][0]["kind"] == "Widget"
    })
    .await;
    assert_eq!(count(&cloud, "GET /apis/apps/v1"), 0, "built-in groups are not requested");
    agent.stop().await;
}

/// Fetching all group lists of a cloud without a single discovery document may take a minute. A client waits for one
/// answer at most, however many others are waiting.
#[tokio::test]
async fn slow_discovery_of_the_cloud_delays_no_client() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let names = ["a.example", "b.example", "c.example", "d.example"];
    let groups = names.map(|name| json!({"name": name, "versions": [{"version": "v1"}]}));
    cloud.script("GET /apis", move |_, _| (200, json!({"kind": "APIGroupList", "groups": groups})));
    for name in names {
        cloud.script(&format!("GET /apis/{name}/v1"), |_, _| (super::cloud::NO_ANSWER, Value::Null));
    }
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the first list to be asked for", DEADLINE, async || {
        count(&cloud, "GET /apis/a.example/v1") > 0
    })
    .await;
    let asked = ["/apis/nothing.example/v1/things", "/apis", "/apis/nothing.example/v1/things"];
    futures::future::join_all(asked.map(|path| agent.get(path))).await;
    assert_eq!(count(&cloud, "GET /apis/d.example/v1"), 0, "answered before the last list was asked for");
    agent.stop().await;
}

/// Field selectors may name the fields that the kind's OpenAPI document declares.
async fn widgets_are_selected(agent: &Agent, widgets: &str) {
    let select = |selector: &str| format!("{widgets}?fieldSelector={selector}");
    assert_eq!(agent.names(&select("spec.size%3D3")).await, ["w"]);
    assert_eq!(agent.names(&select("spec.size!%3D3")).await, Vec::<String>::new());
    let (code, status) = agent.get(&select("spec.color%3Dred")).await;
    assert_eq!((code, &status["reason"]), (StatusCode::BAD_REQUEST, &json!("BadRequest")), "{status}");
}

/// A cloud whose discovery contains widgets once their definition was created.
fn with_definitions(cloud: &FakeCloud) {
    let defined = Arc::new(AtomicBool::new(false));
    let known = Arc::clone(&defined);
    cloud.script("GET /apis", move |_, _| match known.load(Ordering::SeqCst) {
        true => (200, discovery(&[("example.com", &widgets_entry())])),
        false => (200, discovery(&[])),
    });
    cloud.script("GET /openapi/v3", |_, _| (200, json!({"paths": {}})));
    cloud.script(&format!("POST {DEFINITIONS}"), move |body, _| {
        defined.store(true, Ordering::SeqCst);
        (201, body.clone())
    });
    cloud.script(&format!("POST {WIDGETS}"), |body, _| (201, body.clone()));
}

fn questions(cloud: &FakeCloud) -> usize {
    cloud.calls().iter().filter(|call| *call == "GET /apis").count()
}

#[tokio::test]
async fn client_finds_a_kind_it_just_defined() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_definitions(&cloud);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("discovery", DEADLINE, async || questions(&cloud) > 0).await;
    // Other clients request the kind meanwhile, so that the cloud is asked less and less often.
    wait_until("questions", DEADLINE, async || {
        assert_eq!(agent.get(WIDGETS).await.0, StatusCode::NOT_FOUND);
        questions(&cloud) > 3
    })
    .await;
    let names =
        json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    });
    let (code, answer) = agent.call(Method::POST, DEFINITIONS, &definition.to_string()).await;
    assert_eq!(code, StatusCode::CREATED, "{answer}");
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let (code, answer) = agent.call(Method::POST, WIDGETS, &widget.to_string()).await;
    assert_eq!(code, StatusCode::CREATED, "{answer}");
    let (_, found) = agent.get("/apis/example.com/v1").await;
    assert_eq!(found["resources"][0]["name"], "widgets", "{found}");
    agent.stop().await;
}

#[tokio::test]
async fn kinds_that_do_not_exist_cost_little() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_definitions(&cloud);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("discovery", DEADLINE, async || questions(&cloud) > 0).await;
    let (before, begin) = (questions(&cloud), Instant::now());
    for number in 0..100 {
        let path = format!("/apis/apps/v1/namespaces/default/things{number}");
        assert_eq!(agent.get(&path).await.0, StatusCode::NOT_FOUND);
    }
    assert_eq!(questions(&cloud), before, "a group that is built in has no more kinds elsewhere");
    for number in 0..100 {
        let path = format!("/apis/example{number}.com/v1/namespaces/default/things");
        assert_eq!(agent.get(&path).await.0, StatusCode::NOT_FOUND);
    }
    let most = 1 + usize::try_from(begin.elapsed().as_secs()).unwrap();
    assert!(questions(&cloud) - before <= most, "{:?}", cloud.calls());
    agent.stop().await;
}

/// How often a call was made.
fn count(cloud: &FakeCloud, call: &str) -> usize {
    cloud.calls().iter().filter(|other| *other == call).count()
}

/// A cloud with kinds of two groups, `a.example` and `b.example`, and their documents at these URLs.
fn with_two_groups(cloud: &FakeCloud, urls: [&'static str; 2]) {
    cloud.script("GET /apis", |_, _| {
        let entry = widgets_entry();
        (200, discovery(&[("a.example", &entry), ("b.example", &entry)]))
    });
    cloud.script("GET /openapi/v3", move |_, _| {
        let [a, b] = urls.map(|url| json!({"serverRelativeURL": url}));
        (200, json!({"paths": {"apis/a.example/v1": a, "apis/b.example/v1": b}}))
    });
}

#[tokio::test]
async fn missing_documents_delay_no_client() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_two_groups(&cloud, ["/a?1", "/b?1"]);
    for call in ["GET /a?1", "GET /b?1"] {
        cloud.script(call, |_, _| (super::cloud::NO_ANSWER, Value::Null));
    }
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("a document to be asked for", DEADLINE, async || count(&cloud, "GET /a?1") > 0).await;
    let asked = questions(&cloud);
    wait_until("the cloud to be asked for a client", DEADLINE, async || {
        for path in ["/apis", "/apis/a.example/v1", "/apis/nothing.example/v1/things"] {
            let answer = tokio::time::timeout(Duration::from_secs(3), agent.get(path)).await;
            assert!(answer.is_ok(), "{path} waits for documents");
        }
        questions(&cloud) > asked
    })
    .await;
    assert_eq!(agent.get("/apis/a.example/v1").await.0, StatusCode::OK);
    assert_eq!(count(&cloud, "GET /b?1"), 0, "one at a time");
    agent.stop().await;
}

#[tokio::test]
async fn documents_that_are_kept_are_not_fetched_again_after_a_restart() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    for call in ["GET /a?1", "GET /b?1", "GET /b?2"] {
        cloud.script(call, move |_, _| (200, json!({"openapi": "3.0.0", "info": {"title": call}})));
    }
    with_two_groups(&cloud, ["/a?1", "/b?1"]);
    let title =
        async |agent: &Agent| agent.get("/openapi/v3/apis/b.example/v1").await.1["info"]["title"].clone();
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the documents", DEADLINE, async || title(&agent).await == "GET /b?1").await;
    agent.stop().await;

    with_two_groups(&cloud, ["/a?1", "/b?2"]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the other document", DEADLINE, async || title(&agent).await == "GET /b?2").await;
    assert_eq!(count(&cloud, "GET /a?1"), 1, "this one is the same");
    agent.stop().await;
}
