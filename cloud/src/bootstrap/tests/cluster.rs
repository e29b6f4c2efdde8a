//! Tests with a real Kubernetes API: Secrets by compare-and-swap, the namespace on demand, and the lookup of Nodes.

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tombolo_proto::NodeId;
use tombolo_testkit::{ControlPlane, ControlPlaneOptions};

use super::world::options;
use super::*;

/// An API server that accepts every call and answers none.
#[tokio::test(start_paused = true)]
async fn unanswered_api_call_does_not_stall_a_join() {
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let client = Client::new(silent, "default");
    let (store, nodes) = (ClusterSecrets::new(client.clone(), NAMESPACE), ClusterNodes::new(client));
    let began = tokio::time::Instant::now();
    let sentence = "the Kubernetes API did not answer within 10s";
    let (name, reason) = ("casecret".to_owned(), sentence.to_owned());
    let unavailable = SecretError::Unavailable { name, reason, passing: true };
    assert_eq!(store.get("casecret").await, Err(unavailable.clone()));
    assert_eq!(store.create("casecret", SecretData::new()).await, Err(unavailable.clone()));
    assert_eq!(store.update("casecret", "1", SecretData::new()).await, Err(unavailable));
    let error = nodes.state(&NodeId::parse("edge1").expect("a name")).await.expect_err("no answer");
    assert_eq!(error.to_string(), format!("cannot look up node edge1: {sentence}"));
    assert_eq!(began.elapsed(), 4 * CALL_LIMIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_one_ca_in_a_real_cluster() {
    tombolo_testkit::cluster_or_skip!("replicas_share_one_ca_in_a_real_cluster");
    let plane =
        ControlPlane::start(ControlPlaneOptions { controllers: false, ..ControlPlaneOptions::default() })
            .await
            .expect("a control plane");
    let client = plane.admin_client().await.expect("a client");

    let prepared =
        futures::future::join_all((0..4).map(|_| Bootstrap::prepare(client.clone(), options()))).await;
    let authorities: Vec<_> = prepared.into_iter().map(|one| one.expect("ready").authority()).collect();
    assert!(authorities.windows(2).all(|pair| pair[0] == pair[1]));

    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let stored = secrets.get("casecret").await.expect("stored");
    assert_eq!(stored.type_.as_deref(), Some("Opaque"));
    assert_eq!(stored.data.expect("data")["cadata"].0, authorities[0].as_ref());

    conflicts(&client).await;
    which_node(&client).await;
}

async fn conflicts(client: &Client) {
    let store = ClusterSecrets::new(client.clone(), NAMESPACE);
    let data = |value: &str| SecretData::from([("key".to_owned(), value.as_bytes().to_vec())]);
    store.create("swap", data("one")).await.expect("created");
    assert!(matches!(store.create("swap", data("two")).await, Err(SecretError::Exists { .. })));
    let read = store.get("swap").await.expect("an answer").expect("stored");
    store.update("swap", &read.version, data("two")).await.expect("still at that version");
    let late = store.update("swap", &read.version, data("three")).await;
    assert!(matches!(late, Err(SecretError::Conflict { .. })), "{late:?}");
    assert_eq!(store.get("swap").await.expect("an answer").expect("stored").data, data("two"));
    assert_eq!(store.get("none").await.expect("an answer"), None);
}

async fn which_node(client: &Client) {
    let (nodes, id) = (ClusterNodes::new(client.clone()), NodeId::parse("edge1").expect("a name"));
    let state = || async { nodes.state(&id).await.expect("an answer") };
    assert_eq!(state().await, NodeState::Absent);
    let api = Api::<Node>::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": "edge1"}})).expect("a node");
    let created = api.create(&PostParams::default(), &node).await.expect("created");
    let present = |control_plane| NodeState::Present {
        uid: created.metadata.uid.clone().expect("every object has one"),
        control_plane,
    };
    assert_eq!(state().await, present(false));
    let patch = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    api.patch("edge1", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("patched");
    assert_eq!(state().await, present(true));

    // The writer of a Node, including the node itself, chooses how deep its managedFields are nested.
    let fields = (0..200).fold(json!({}), |inner, _| json!({ "f:a": inner }));
    let writer = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": fields}});
    let patch = json!({"metadata": {"managedFields": [writer]}});
    let patched = api.patch("edge1", &PatchParams::default(), &Patch::Merge(&patch)).await;
    assert!(
        matches!(patched, Err(kube::Error::SerdeError(_))),
        "written, and not to be read as a typed object"
    );
    assert_eq!(state().await, present(true));
}
