//! Objects that cannot be stored.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tombolo_proto::frame::{Frame, RefusalReason};
use tombolo_proto::{Lane, ObjectKey, Resource};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::hub::RawHub;
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, Transport, World};

use super::says;

const THREE_MIB: usize = 3 * 1024 * 1024;

pub(super) fn now_millis() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edge_refuses_what_it_cannot_store_and_continues() {
    let mut hub = RawHub::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = hub.agent(folder.path(), None).unwrap();
    let mut edge = hub.edge().await.unwrap();
    edge.welcome(now_millis()).await.unwrap();
    let key = |name| ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name);
    let body = |name, uid, length| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "x".repeat(length)},
               "metadata": {"name": name, "namespace": "default", "uid": uid}})
        .to_string()
    };
    let nameless =
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"nobody","namespace":"default"}}"#;
    edge.deliver(Lane::Delivery, 1, &key("nobody"), nameless.to_owned()).await.unwrap();
    edge.deliver(Lane::Delivery, 2, &key("good"), body("good", json!("u1"), 1)).await.unwrap();
    edge.deliver(Lane::Bulk, 1, &key("large"), body("large", json!("u1"), THREE_MIB)).await.unwrap();
    let mut refusals = Vec::new();
    let mut acknowledged = false;
    edge.until("two refusals and an acknowledgement", |frame| {
        match frame {
            Frame::Refuse(refusal) => refusals.push((refusal.lane, refusal.reason, refusal.message.clone())),
            Frame::Ack { lanes } => {
                acknowledged |= lanes.iter().any(|(lane, seq)| *lane == Lane::Delivery && seq.0 == 2);
            }
            _ => {}
        }
        (refusals.len() == 2 && acknowledged).then_some(())
    })
    .await
    .unwrap();
    refusals.sort_by_key(|(lane, ..)| *lane as u8);
    assert_eq!(refusals[0].1, RefusalReason::Malformed);
    says(&refusals[0].2, &["metadata.uid"]);
    assert_eq!(refusals[1].1, RefusalReason::TooLarge);
    says(&refusals[1].2, &["3145728"]);
    says(&agent.log(), &["a delivery is refused", "default/nobody", "default/large"]);
    agent.check_running().unwrap();
}

/// Sends 3 MiB to every endpoint that accepts objects.
async fn three_mib(api: Api, transport: Transport) {
    let mut world = World::start(api, transport).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    let text = "x".repeat(THREE_MIB);
    // kube-apiserver's own endpoint is not part of the product.
    if api == Api::Embedded {
        let refused = objects.config_map("large", &text).await.unwrap_err();
        let Some(kube::Error::Api(status)) = refused.downcast_ref::<kube::Error>() else {
            panic!("{refused:#}")
        };
        assert_eq!(status.code, 413, "{status:?}");
        says(&status.message, &["3145728"]);
    }

    let node = world.raw_node("edge-a", "edge-a").await.unwrap();
    let event = json!({"metadata": {"name": "large"}, "message": text}).to_string();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events");
    let reply = node.api("POST", &path, "application/json", &event).await.unwrap();
    let answer = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!(reply.code, 413, "{answer}");
    says(&answer, &["RequestEntityTooLarge", "3145728"]);

    world.start_edge("edge-b").await.unwrap();
    objects.config_map("small", "1").await.unwrap();
    objects.accepted_pod("shop", "edge-b", &["small"], &[]).await;
    world.converges("edge-b").await;
    let local = objects.seen_by(world.edge_client("edge-b").await.unwrap());
    let refused = local.config_map("small", &text).await.unwrap_err();
    let Some(kube::Error::Api(status)) = refused.downcast_ref::<kube::Error>() else { panic!("{refused:#}") };
    assert_eq!(status.code, 413, "{status:?}");
    says(&status.message, &["3145728"]);

    world.check_edge("edge-b").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_server_refuses_three_mib_at_every_endpoint() {
    three_mib(Api::Embedded, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_apiserver_refuses_three_mib_at_every_endpoint() {
    cluster_or_skip!("kube_apiserver_refuses_three_mib_at_every_endpoint");
    three_mib(Api::Real, Transport::Quic).await;
}
