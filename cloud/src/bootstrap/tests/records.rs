//! The watch of the records, with an API server whose answers the test gives by hand.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tombolo_proto::NodeId;

use super::world::{MemorySecrets, World, present};
use super::*;
use crate::bootstrap::identities::follow;
use crate::kube::Kube;

const NAMESPACE: &str = "tombolo";

/// The kind of a call, and the channel for its answer.
type Call = (&'static str, oneshot::Sender<String>);

/// An API server that passes its calls about Secrets to the test. It never answers calls about Nodes.
fn by_hand() -> (Kube, mpsc::UnboundedReceiver<Call>) {
    let (asked, calls) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, answered) = oneshot::channel::<String>();
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let is_known = path == format!("/api/v1/namespaces/{NAMESPACE}/secrets");
        if is_known {
            assert!(query.contains("labelSelector=app.kubernetes.io"), "{query}");
            let what = if query.contains("watch=true") { "watch" } else { "list" };
            asked.send((what, answer)).expect("the test keeps asking");
        }
        async move {
            if !is_known {
                return std::future::pending().await;
            }
            let body = answered.await?.into_bytes();
            let response = Response::builder().header("content-type", "application/json");
            Ok::<_, tower::BoxError>(response.body(Body::from(body))?)
        }
    });
    (kube::Client::new(service, "default").into(), calls)
}

/// The next call, which must be this one.
async fn asked(calls: &mut mpsc::UnboundedReceiver<Call>, what: &str) -> oneshot::Sender<String> {
    let next = tokio::time::timeout(Duration::from_secs(60), calls.recv()).await;
    let (question, answer) = next.expect("in time").expect("it continues");
    assert_eq!(question, what);
    answer
}

/// The stored Secrets.
fn stored(secrets: &MemorySecrets) -> Vec<Value> {
    let secrets = secrets.secrets.lock();
    let objects = secrets.iter().map(|(name, StoredSecret { data, version })| {
        let data = data.iter().map(|(key, value)| (key.clone(), STANDARD.encode(value).into()));
        let metadata = json!({"name": name, "namespace": NAMESPACE, "uid": "u", "resourceVersion": version});
        json!({"metadata": metadata, "data": data.collect::<Map<_, _>>()})
    });
    objects.collect()
}

fn list(secrets: &[Value]) -> String {
    json!({"metadata": {"resourceVersion": "1000"}, "items": secrets}).to_string()
}

fn event(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// A watch that reports these objects and ends because its history has expired.
fn events(told: &[(&str, &[Value])]) -> String {
    let gone =
        json!({"kind": "Status", "status": "Failure", "message": "old", "reason": "Expired", "code": 410});
    let told = told.iter().flat_map(|(kind, objects)| objects.iter().map(|object| event(kind, object)));
    told.chain([event("ERROR", &gone)]).collect()
}

#[tokio::test]
async fn records_watch_never_undoes_a_revocation_and_each_list_is_compared() {
    let node = NodeId::parse("edge1").expect("a name");
    let world = World::start().await;
    let (facts, identities) = (world.joined("edge1").await.facts(), world.bootstrap.identities());
    world.set_node("edge1", present("u1"));
    identities.know_nodes([(node.clone(), "u1".to_owned())].into());
    assert_eq!(identities.check(&node, &facts).await.expect("an answer"), Ok(()));
    let is_good = || identities.is_known_good(&node, &facts);

    let (kube, mut calls) = by_hand();
    let following = tokio::spawn(follow(Arc::clone(&identities), kube, NAMESPACE.to_owned()));
    let (before, backup) = (stored(&world.secrets), world.secrets.secrets.lock().clone());
    world.replica().await.identities().revoke(&node).await.expect("revoked");
    assert!(is_good(), "another replica has done it");
    asked(&mut calls, "list").await.send(list(&stored(&world.secrets))).expect("awaited");
    let watch = asked(&mut calls, "watch").await;
    assert!(!is_good(), "a list tells it");
    watch.send(events(&[("DELETED", &before), ("MODIFIED", &before)])).expect("awaited");
    let restored = asked(&mut calls, "list").await;
    assert!(!is_good(), "neither a deletion of the whole record nor a late event reverts it");

    // A restored etcd.
    *world.secrets.secrets.lock() = backup;
    restored.send(list(&before)).expect("awaited");
    let watch = asked(&mut calls, "watch").await;
    assert!(is_good(), "the API itself has an earlier record");
    let mut unreadable =
        before.iter().find(|secret| secret["data"].get("edge1").is_some()).expect("one").clone();
    unreadable["metadata"]["resourceVersion"] = "999".into();
    unreadable["data"] = json!({"edge1": 7});
    watch.send(events(&[("MODIFIED", &[unreadable])])).expect("awaited");

    let made_before = asked(&mut calls, "list").await;
    assert!(is_good(), "an unreadable record changes nothing");
    identities.revoke(&node).await.expect("revoked");
    made_before.send(list(&before)).expect("awaited");
    let watch = asked(&mut calls, "watch").await;
    assert!(!is_good(), "an older list reverts no revocation");

    // The next list shows it. An event of the watch after that is not an answer to a question.
    watch.send(events(&[])).expect("awaited");
    asked(&mut calls, "list").await.send(list(&stored(&world.secrets))).expect("awaited");
    asked(&mut calls, "watch").await.send(events(&[("MODIFIED", &before)])).expect("awaited");
    asked(&mut calls, "list").await;
    assert!(!is_good(), "nor does what a watch tells late");
    following.abort();
}
