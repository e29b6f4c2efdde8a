//! Attacks by a node with a valid certificate.

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::time::Instant;
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{
    ApiRequest, Frame, Inventory, InventoryPart, Refusal, RefusalReason, Request, RequestBody, Subscribe,
};
use tombolo_proto::object::{HeldState, InventoryEntry};
use tombolo_proto::package::Header;
use tombolo_proto::{Lane, ObjectKey, RequestId, Resource, SubscriptionId};
use tombolo_tests::raw::RawQuic;

use super::peer::{Heard, Hub, Took};

/// A running attack; it returns the result.
pub(crate) type Work<'a> = Pin<Box<dyn Future<Output = Result<Took>> + 'a>>;

/// One attack: its name in the table, and the function that runs it for a given time.
pub(crate) type Attack = (&'static str, for<'a> fn(&'a Hub, Duration) -> Work<'a>);

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 11] = [
    ("256 answers unread", |hub, limit| Box::pin(unread_answers(hub, limit))),
    ("256 answers unread, over and over", |hub, limit| Box::pin(many_sessions(hub, limit))),
    ("240 requests of 32 MiB", |hub, limit| Box::pin(large_requests(hub, limit))),
    ("240 requests of 3 MiB", |hub, limit| Box::pin(many_requests(hub, limit))),
    ("unfinished inventories in 129 subscriptions", |hub, limit| Box::pin(inventories(hub, limit))),
    ("subscribe and unsubscribe in a loop", |hub, limit| Box::pin(subscribe_loop(hub, limit))),
    ("512 throw-away selectors", |hub, limit| Box::pin(selectors(hub, limit))),
    ("every delivery refused", |hub, limit| Box::pin(refusals(hub, limit))),
    ("a frame a byte at a time, WebSocket", |hub, limit| Box::pin(drip_websocket(hub, limit))),
    ("a frame a byte at a time, QUIC", |hub, limit| Box::pin(drip_quic(hub, limit))),
    ("unfinished documents of a KubeEdge edge", |hub, limit| Box::pin(unfinished_document(hub, limit))),
];

fn empty() -> Inventory {
    Inventory::Full(Vec::new())
}

fn request(id: u64, method: &str, path: &str, body: Bytes) -> Frame {
    let body = ApiRequest {
        content_type: "application/json".to_owned(),
        accept: "application/json".to_owned(),
        body,
        ..ApiRequest::new(method, path)
    };
    Frame::Request(Request {
        id: RequestId(id),
        timeout: Duration::from_secs(60),
        body: RequestBody::Api(body),
        caller_token: None,
    })
}

fn subscribe(subscription: u32, selector: String, inventory: Inventory) -> Frame {
    Frame::Subscribe(Subscribe {
        subscription: SubscriptionId(subscription),
        resource: Resource::new("", "v1", "services"),
        namespace: String::new(),
        label_selector: selector,
        field_selector: String::new(),
        caller_token: None,
        epoch: None,
        inventory,
    })
}

/// Reads until the time is over or the session ends.
async fn listen(link: &mut Link, heard: &mut Heard, until: Instant) {
    while let Ok(event) = tokio::time::timeout_at(until, link.next()).await {
        if heard.take(&event) {
            break;
        }
        // An honest node would acknowledge; this one only stays alive.
        if let LinkEvent::Frame(_, Frame::Ping { id }) = event {
            let _ = link.send(Lane::Control, Frame::Pong { id });
        }
    }
}

/// Sends as fast as the hub accepts it, and reads meanwhile. False when the session has ended.
async fn send(link: &mut Link, heard: &mut Heard, lane: Lane, frame: Frame, until: Instant) -> bool {
    while !link.can_send(lane) {
        match tokio::time::timeout_at(until, link.next()).await {
            Ok(event) if !heard.take(&event) => {}
            _ => return false,
        }
    }
    link.send(lane, frame).is_ok() && Instant::now() < until
}

/// Sends one of each request, and prints the hub's answers.
pub(crate) async fn warm_up(hub: &Hub) -> Result<()> {
    let (mut link, mut heard) = (hub.connect(empty()).await?, Heard::default());
    link.send(Lane::Control, request(1, "GET", "/openapi/v2", Bytes::new()))?;
    link.send(Lane::Delivery, subscribe(1, String::new(), empty()))?;
    listen(&mut link, &mut heard, Instant::now() + Duration::from_secs(5)).await;
    link.close(Duration::from_secs(1)).await;
    hub.newcomers().await;
    eprintln!("hostile: one of everything: {}", heard.text());
    Ok(())
}

/// Sends requests without reading, and returns how many were sent.
async fn ask_many(link: &mut Link, count: u64) -> Result<u64> {
    for id in 0..count {
        if !link.can_send(Lane::Control) {
            link.flush().await?;
        }
        let path = if id % 2 == 0 { "/openapi/v2" } else { "/api/v1/services?limit=500" };
        link.send(Lane::Control, request(id, "GET", path, Bytes::new()))?;
    }
    link.flush().await?;
    Ok(count)
}

async fn unread_answers(hub: &Hub, limit: Duration) -> Result<Took> {
    let mut link = hub.connect(empty()).await?;
    let asked = ask_many(&mut link, 256).await?;
    // Reads nothing.
    tokio::time::sleep(limit).await;
    let mut heard = Heard::default();
    listen(&mut link, &mut heard, Instant::now() + Duration::from_secs(2)).await;
    let took = Took::place(heard.text());
    Ok(took.least("question", asked, 256).least("reaction", heard.reactions(), 1))
}

/// The same, but the node connects again before its session has ended, and leaves the old connection open.
async fn many_sessions(hub: &Hub, limit: Duration) -> Result<Took> {
    let (begin, mut left, mut asked, mut failed) = (Instant::now(), Vec::new(), 0, Vec::new());
    while begin.elapsed() < limit {
        let asking = async {
            let mut link = hub.connect(empty()).await?;
            asked += ask_many(&mut link, 256).await?;
            left.push(link);
            anyhow::Ok(())
        };
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed.push(format!("{error:#}")),
            Err(_) => failed.push("no welcome in time".to_owned()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let sessions = u64::try_from(left.len())?;
    let text = failed.last().map(|last| format!("{} × not welcome, the last: {last}", failed.len()));
    Ok(Took::place(text.unwrap_or_default()).least("session", sessions, 3).least("question", asked, 768))
}

/// The time limit for attacks with so much data that a busy machine needs longer.
fn long(limit: Duration) -> Duration {
    3 * limit + Duration::from_secs(15)
}

async fn large_requests(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut heard, mut begun) = (Heard::default(), 0);
    let (until, body) = (Instant::now() + long(limit), Bytes::from(vec![b'x'; 31 * 1024 * 1024]));
    // The hub ends the session if it does not accept a request; the node then connects again.
    while begun < 240 && Instant::now() < until {
        let Ok(link) = tokio::time::timeout_at(until, hub.connect(empty())).await else { break };
        let (mut link, mut own) = (link?, Heard::default());
        while begun < 240 {
            let lane = Lane::ALL[usize::try_from(begun % 3)?];
            let frame = request(begun, "POST", "/api/v1/namespaces/default/configmaps", body.clone());
            begun += 1;
            if !send(&mut link, &mut own, lane, frame, until).await {
                break;
            }
        }
        listen(&mut link, &mut own, until).await;
        heard.add(own);
    }
    let took = Took::place(heard.text());
    // The hub need not read more than the first requests of a session.
    Ok(took.least("request", begun, 240).least("reaction", heard.reactions(), 24))
}

async fn many_requests(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut link, mut heard) = (hub.connect(empty()).await?, Heard::default());
    let mut begun = 0;
    let (until, body) = (Instant::now() + long(limit), Bytes::from(vec![b'x'; 3 * 1024 * 1024]));
    for id in 0..240 {
        let frame = request(id, "POST", "/api/v1/namespaces/default/configmaps", body.clone());
        begun += 1;
        if !send(&mut link, &mut heard, Lane::Bulk, frame, until).await {
            break;
        }
    }
    listen(&mut link, &mut heard, until.min(Instant::now() + Duration::from_secs(2))).await;
    let took = Took::place(heard.text());
    Ok(took.least("request", begun, 240).least("reaction", heard.reactions(), 64))
}

async fn inventories(hub: &Hub, limit: Duration) -> Result<Took> {
    let digest = || Inventory::Digest { count: 100_000, digest: [7; 16] };
    let (mut link, mut heard) = (hub.connect(digest()).await?, Heard::default());
    let (until, mut parts) = (Instant::now() + limit, 0);
    for subscription in 1..=128 {
        if !send(
            &mut link,
            &mut heard,
            Lane::Delivery,
            subscribe(subscription, String::new(), digest()),
            until,
        )
        .await
        {
            return Ok(Took::none(format!("it ended with subscription {subscription}: {}", heard.text())));
        }
    }
    listen(&mut link, &mut heard, Instant::now() + Duration::from_secs(2)).await;
    for round in 0..u32::MAX {
        let subscription = SubscriptionId(round % 129);
        let entry = |number: u32| InventoryEntry {
            key: ObjectKey::new(
                Resource::new("", "v1", "services"),
                &"n".repeat(60),
                &format!("{}-{round}-{number}", "x".repeat(180)),
            ),
            held: HeldState::Absent,
        };
        // So small that a part for each subscription fits into what a node may claim.
        let part = InventoryPart { subscription, entries: (0..32).map(entry).collect(), last: false };
        parts += 1;
        if !send(&mut link, &mut heard, Lane::Bulk, Frame::InventoryPart(part), until).await {
            break;
        }
    }
    listen(&mut link, &mut heard, until).await;
    Ok(Took::place(heard.text()).least("part", parts, 129))
}

async fn subscribe_loop(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut link, mut heard) = (hub.connect(empty()).await?, Heard::default());
    let (until, mut begun) = (Instant::now() + limit, 0);
    for number in 1..u32::MAX {
        let subscription = SubscriptionId(number);
        if !send(&mut link, &mut heard, Lane::Delivery, subscribe(number, "a".repeat(4000), empty()), until)
            .await
            || !send(&mut link, &mut heard, Lane::Delivery, Frame::Unsubscribe { subscription }, until).await
        {
            break;
        }
        begun += 1;
    }
    listen(&mut link, &mut heard, until).await;
    Ok(Took::place(heard.text()).least("subscription begun and ended", begun, 512))
}

async fn selectors(hub: &Hub, limit: Duration) -> Result<Took> {
    let (mut heard, begin) = (Heard::default(), Instant::now());
    let mut subscription = 0;
    // Several sessions one after the other: the effects of a session last for a while after its end.
    for _ in 0..8 {
        let mut link = hub.connect(empty()).await?;
        let first = subscription + 1;
        for _ in 0..100 {
            subscription += 1;
            link.send(
                Lane::Delivery,
                subscribe(subscription, format!("throw!=away-{subscription}"), empty()),
            )?;
            link.flush().await?;
        }
        let until = (begin + limit).min(Instant::now() + limit / 8 + Duration::from_secs(1));
        listen(&mut link, &mut heard, until).await;
        for number in first..=subscription {
            let _ = link.send(Lane::Delivery, Frame::Unsubscribe { subscription: SubscriptionId(number) });
            let _ = link.flush().await;
        }
    }
    // The first selection of another node.
    let mut link = hub.connect(empty()).await?;
    link.send(Lane::Delivery, subscribe(1, "honest=selector".to_owned(), empty()))?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut outcome = "no answer to one more selector".to_owned();
    while let Ok(event) = tokio::time::timeout_at(deadline, link.next()).await {
        match event {
            LinkEvent::Frame(_, Frame::CaughtUp { subscription: SubscriptionId(1), .. }) => {
                outcome = "one more selector is followed".to_owned();
                break;
            }
            LinkEvent::Frame(_, Frame::SubscriptionClosed { code, .. }) => {
                outcome = format!("one more selector is refused with {code}");
                break;
            }
            LinkEvent::Closed(_) => break,
            _ => {}
        }
    }
    let took = Took::place(format!("{}; {outcome}", heard.text()));
    let reactions = heard.times("caught up") + heard.times("subscription");
    Ok(took.least("subscription", u64::from(subscription), 512).least("reaction to one", reactions, 64))
}

async fn refusals(hub: &Hub, limit: Duration) -> Result<Took> {
    let mut link = hub.connect(empty()).await?;
    let nodes = Subscribe { resource: Resource::new("", "v1", "nodes"), ..all_services() };
    link.send(Lane::Delivery, Frame::Subscribe(nodes))?;
    let (mut heard, until) = (Heard::default(), Instant::now() + limit);
    while let Ok(event) = tokio::time::timeout_at(until, link.next()).await {
        if let LinkEvent::Frame(lane, Frame::Deliver(deliver)) = &event {
            heard.count("delivery");
            let refusal = Refusal {
                lane: *lane,
                seq: deliver.seq,
                reason: RefusalReason::Other,
                message: "never".repeat(200),
            };
            let lanes = vec![(*lane, deliver.seq)];
            if !send(&mut link, &mut heard, Lane::Control, Frame::Refuse(refusal), until).await
                || !send(&mut link, &mut heard, Lane::Control, Frame::Ack { lanes }, until).await
            {
                break;
            }
        } else if heard.take(&event) {
            break;
        }
    }
    Ok(Took::place(heard.text()).least("refusal", heard.times("delivery"), 16))
}

fn all_services() -> Subscribe {
    match subscribe(1, String::new(), empty()) {
        Frame::Subscribe(subscribe) => subscribe,
        _ => unreachable!("made as one"),
    }
}

async fn drip_websocket(hub: &Hub, limit: Duration) -> Result<Took> {
    let mut socket = super::strangers::raw_websocket(hub).await.context("upgrade")?;
    drip(limit, async |lane| socket.piece(lane, b"x").await).await
}

async fn drip_quic(hub: &Hub, limit: Duration) -> Result<Took> {
    let [_, port, _] = hub.ports;
    let mut connection = RawQuic::with(hub.bare.clone(), port).await.context("handshake")?;
    drip(limit, async |lane| {
        let header = Header { lane, more: true, len: 1 }.encode();
        connection.bytes(lane, &[&header[..], b"x"].concat()).await
    })
    .await
}

/// Sends a frame in every lane byte by byte, and never its last byte.
async fn drip(limit: Duration, mut piece: impl AsyncFnMut(Lane) -> Result<()>) -> Result<Took> {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut heard = Heard::default();
    let (mut sent, until) = (0_u64, Instant::now() + limit);
    while Instant::now() < until {
        let lane = Lane::ALL[usize::try_from(sent % 3)?];
        if piece(lane).await.is_err() {
            heard.ended = Some("connection closed".to_owned());
            break;
        }
        sent += 1;
        tokio::time::sleep(PAUSE).await;
    }
    let pace = u64::try_from(limit.as_millis() / PAUSE.as_millis())?;
    Ok(Took::place(heard.text()).least("byte", sent, pace / 2))
}

/// Documents of nearly the maximum length that never end, on one connection after the other.
async fn unfinished_document(hub: &Hub, limit: Duration) -> Result<Took> {
    let (begin, mut left, mut bytes, mut ended) = (Instant::now(), Vec::new(), 0, 0_u64);
    let piece = vec![b'x'; 64 * 1024];
    while begin.elapsed() < limit {
        let mut socket = super::strangers::kubeedge_websocket(hub).await.context("upgrade")?;
        for number in 0..62 {
            let sending = socket.fragment(number == 0, &piece);
            match tokio::time::timeout(Duration::from_secs(2), sending).await {
                Ok(Ok(())) => bytes += u64::try_from(piece.len())?,
                Ok(Err(_)) => {
                    ended += 1;
                    break;
                }
                // The connection waits for its turn.
                Err(_) => break,
            }
        }
        left.push(socket);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let connections = u64::try_from(left.len())?;
    let took = Took::place(format!("{ended} closed by the hub"));
    Ok(took.least("connection", connections, 8).least("KiB taken", bytes / 1024, 16 * 1024))
}
