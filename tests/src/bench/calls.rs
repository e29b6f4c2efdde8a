//! What returning nodes cost the API server: the calls of cloudcore in its audit log, by kind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_edge::identity::{EnrollOptions, enroll};
use tombolo_link::client::{Choice, Target};
use tombolo_proto::NodeId;
use tombolo_testkit::AuditEvent;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use super::hollow::HollowNode;

/// Concurrent certificate requests.
const AT_ONCE: usize = 64;

/// Nodes that connect and send requests at a time. With thousands, two cores take longer to answer than a request may
/// take, and the retries of nodes are not what this counts.
const ASKING: usize = 256;

/// Longer than cloudcore caches a document, so that documents that are fetched again after an hour are fetched again
/// here.
const AWAY: Duration = Duration::from_secs(6);

/// Counts the calls of one cloudcore when this many nodes come back, and prints them.
pub(crate) async fn measure(nodes: u32) -> Result<()> {
    let world = World::start(Api::Real, Transport::WebSocket).await?;
    let fleet = enlist(&world, nodes).await?;
    eprintln!("bench: {nodes} nodes connect for the first time");
    let fleet = come_and_go(fleet).await.context("the first connections")?;
    tokio::time::sleep(AWAY).await;
    let before = calls(&world)?.len();
    eprintln!("bench: {nodes} nodes come back");
    come_and_go(fleet).await.context("the second connections")?;
    let calls = calls(&world)?;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for event in calls.get(before..).context("the audit log has shrunk")? {
        *kinds.entry(kind(event)).or_default() += 1;
    }
    ensure!(!kinds.is_empty(), "the audit log has no calls of cloudcore: nothing was counted");
    print(nodes, &kinds);
    Ok(())
}

/// Creates hollow nodes with their certificates.
async fn enlist(world: &World, nodes: u32) -> Result<Vec<HollowNode>> {
    let token = NewToken { names: Vec::new(), uses: nodes, life: DEADLINE * 40, replace: false };
    let token = tombolo_testkit::wait_for_value("a join token", DEADLINE, || world.new_token(&token)).await;
    let (endpoint, [websocket_port, quic_port, _]) = (world.join_address(), world.hub_ports());
    let target =
        Target { host: "127.0.0.1".to_owned(), websocket_port, quic_port, choice: Choice::WebSocket };
    let enlisted = |number: u32| {
        let (endpoint, token, target) = (endpoint.clone(), token.clone(), target.clone());
        async move {
            let node = NodeId::parse(&format!("hollow-{number}"))?;
            let identity = enroll(&EnrollOptions { endpoint, node: node.clone(), token }).await?;
            anyhow::Ok(HollowNode { node, identity, target, returns: false })
        }
    };
    stream::iter(0..nodes).map(enlisted).buffer_unordered(AT_ONCE).try_collect().await
}

/// Connects all nodes, keeps each connected until the last one has received everything, and cuts their connections.
async fn come_and_go(fleet: Vec<HollowNode>) -> Result<Vec<HollowNode>> {
    let (over, is_over) = watch::channel(());
    let (arrived, mut arrivals) = mpsc::channel(AT_ONCE);
    let asking = Arc::new(Semaphore::new(ASKING));
    let count = fleet.len();
    let mut running = JoinSet::new();
    for mut node in fleet {
        let (arrived, mut is_over) = (arrived.clone(), is_over.clone());
        let asking = Arc::clone(&asking);
        running.spawn(async move {
            let mut connected = {
                let _turn = asking.acquire().await;
                node.come(node.connect().await?).await?
            };
            arrived.send(()).await.context("the counter has ended")?;
            loop {
                tokio::select! {
                    step = connected.step() => step?,
                    _ = is_over.changed() => return anyhow::Ok(node),
                }
            }
        });
    }
    let mut there = 0;
    while there < count {
        tokio::select! {
            Some(()) = arrivals.recv() => there += 1,
            Some(ended) = running.join_next() => {
                ended??;
                return Err(anyhow!("a node left before the last one was connected"));
            }
        }
    }
    drop(over);
    let mut fleet = Vec::with_capacity(count);
    while let Some(ended) = running.join_next().await {
        fleet.push(ended??);
    }
    Ok(fleet)
}

/// The calls of cloudcore so far. A watch appears in the log when it has ended; it began earlier.
fn calls(world: &World) -> Result<Vec<AuditEvent>> {
    let events = world.plane.as_ref().context("a real control plane")?.audit_events()?;
    let own = |event: &AuditEvent| event.user.ends_with(":tombolo-cloudcore") && event.verb != "watch";
    Ok(events.into_iter().filter(own).collect())
}

fn kind(event: &AuditEvent) -> String {
    let AuditEvent { verb, resource, path, .. } = event;
    let path = path.split('?').next().unwrap_or_default();
    match &**resource {
        "" if path.starts_with("/openapi/") => "OpenAPI".to_owned(),
        "" if path.starts_with("/openid/") || path.starts_with("/.well-known/") => {
            "keys of tokens".to_owned()
        }
        "" if path.starts_with("/api") => "discovery".to_owned(),
        "" => format!("{verb} {path}"),
        "subjectaccessreviews" => "reviews of rights".to_owned(),
        "tokenreviews" => "reviews of tokens".to_owned(),
        resource if verb == "list" => format!("list of {resource}"),
        resource => format!("{verb} {resource}"),
    }
}

fn print(nodes: u32, kinds: &BTreeMap<String, usize>) {
    let of_each = |count: usize| count as f64 / f64::from(nodes);
    println!("\n{nodes} nodes come back: calls to the API server");
    println!("{:<40} {:>10} {:>10}", "", "calls", "a node");
    let mut kinds: Vec<_> = kinds.iter().collect();
    kinds.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    for (name, count) in &kinds {
        println!("{name:<40} {count:>10} {:>10.2}", of_each(**count));
    }
    let all: usize = kinds.iter().map(|(_, count)| **count).sum();
    println!("{:<40} {all:>10} {:>10.2}", "all", of_each(all));
}
