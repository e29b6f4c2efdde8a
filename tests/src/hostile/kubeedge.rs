//! State that a node can make its session keep: watch syncs of many records and refusals that it does not read, as a
//! KubeEdge edge, and inventories that arrive late.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::time::Instant;
use tombolo_link::LinkEvent;
use tombolo_proto::frame::{Frame, Inventory, InventoryPart, Subscribe};
use tombolo_proto::{Lane, Resource, SubscriptionId};

use super::attacks::Attack;
use super::peer::{Heard, Hub, Took};
use super::strangers::{Raw, kubeedge_websocket};

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 3] = [
    ("watch syncs of 20,000 records of a KubeEdge edge", |hub, limit| Box::pin(syncs(hub, limit))),
    ("refusals of a KubeEdge edge unread", |hub, limit| Box::pin(refusals(hub, limit))),
    ("128 inventories that come late", |hub, limit| Box::pin(late_inventories(hub, limit))),
];

/// Longest wait until the hub accepts a document from a node that reads nothing.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// A message of MetaServer with this number.
fn asked(number: u64, path: &str, content: &str) -> String {
    format!(
        r#"{{"header":{{"msg_id":"m{number}","timestamp":1}},"route":{{"source":"metaserver","group":"dynamiccontroller","operation":"null","resource":"{path}"}},"content":{content}}}"#
    )
}

/// Sends a document and reads nothing. False when the connection has ended or the hub accepts no more.
async fn say(socket: &mut Raw, text: String) -> bool {
    matches!(tokio::time::timeout(TAKEN_WITHIN, socket.document(text)).await, Ok(Ok(())))
}

/// Sends documents on one connection after the other until the time is over. Returns how many were accepted.
async fn flood(hub: &Hub, limit: Duration, document: impl Fn(u64) -> String) -> Result<(u64, u64)> {
    let (until, mut taken, mut ended) = (Instant::now() + limit, 0, 0);
    while Instant::now() < until {
        let mut socket = kubeedge_websocket(hub).await.context("upgrade")?;
        while Instant::now() < until && say(&mut socket, document(taken)).await {
            taken += 1;
        }
        ended += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok((taken, ended))
}

async fn syncs(hub: &Hub, limit: Duration) -> Result<Took> {
    // One watch that is opened, and many records that fail at once: as few as are allowed, and far more.
    let records = |count: usize| {
        let bad = |id: usize| format!(r#""{id:05}":{{"ID":"{id:05}","Verb":null,"Status":null}}"#);
        let open =
            r#""z":{"ID":"z","Key":"/core/v1/services/null/null","Verb":"watch","Status":"InApplying"}"#;
        format!("{{{},{open}}}", (0..count).map(bad).collect::<Vec<_>>().join(","))
    };
    let (few, many) = (records(1000), records(20_000));
    let document =
        |number: u64| asked(number, "watchapp/sync", if number.is_multiple_of(2) { &many } else { &few });
    let (taken, ended) = flood(hub, limit, document).await?;
    Ok(Took::place(format!("{ended} connections")).least("sync", taken, 8))
}

async fn refusals(hub: &Hub, limit: Duration) -> Result<Took> {
    let small = json!({"ID": "a", "Key": "/version", "Verb": "get", "Status": "InApplying"}).to_string();
    let large = json!({"ID": "a", "Key": "/version", "Verb": "get", "Status": "InApplying", "ReqBody": "A".repeat(1024 * 1024)});
    let large = large.to_string();
    let document = |number: u64| asked(number, "null", if number % 300 < 256 { &small } else { &large });
    let (taken, ended) = flood(hub, limit, document).await?;
    Ok(Took::place(format!("{ended} connections")).least("application", taken, 300))
}

/// Subscriptions to the same objects that claim to hold a different number of them, followed by all empty inventories
/// at once.
async fn late_inventories(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut link, mut heard) = (hub.connect(Inventory::Full(Vec::new())).await?, Heard::default());
    for subscription in 1..=128 {
        let subscribe = Subscribe {
            subscription: SubscriptionId(subscription),
            resource: Resource::new("", "v1", "nodes"),
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            caller_token: None,
            epoch: None,
            inventory: Inventory::Digest { count: 100_000, digest: [7; 16] },
        };
        link.send(Lane::Delivery, Frame::Subscribe(subscribe))?;
        link.flush().await?;
    }
    let (until, mut asked) = (Instant::now() + limit, Vec::new());
    while asked.len() < 128
        && let Ok(event) = tokio::time::timeout_at(until, link.next()).await
    {
        if heard.take(&event) {
            break;
        }
        if let LinkEvent::Frame(_, Frame::InventoryRequest { subscription }) = event {
            asked.push(subscription);
        }
    }
    for subscription in &asked {
        let part = InventoryPart { subscription: *subscription, entries: Vec::new(), last: true };
        link.send(Lane::Bulk, Frame::InventoryPart(part))?;
        link.flush().await?;
    }
    // Reads nothing.
    tokio::time::sleep_until(until).await;
    Ok(Took::place(heard.text()).least("late inventory", u64::try_from(asked.len())?, 8))
}
