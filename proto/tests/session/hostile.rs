//! Peers that send anything: each session receives frames that no correct peer would send, in any order.
//!
//! Nothing may panic, everything stays bounded, and whatever ends a session produces exactly one goodbye.

use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{
    ApiReply, ApiRequest, Change, Deliver, Frame, Goodbye, GoodbyeReason, Inventory, InventoryPart, Refusal,
    RefusalReason, Reply, ReplyBody, Request, RequestBody, Welcome,
};
use tombolo_proto::limits::{REQUESTS_MAX, SUBSCRIPTIONS_MAX};
use tombolo_proto::session::{CloudEvent, EdgeConfig, EdgeEvent, EdgeSession, ProtocolVersion};
use tombolo_proto::{
    CloudRevision, HeldState, InventoryEntry, Lane, Moment, RequestId, Seq, StoreId, SubscriptionId,
};

use super::cloud::{Object, key};
use super::edge::Store;
use super::solo::Solo;
use super::world::{node, subscribe_to};

/// Numbers that are likely to cause errors.
const NUMBERS: [u64; 8] = [0, 1, 2, 3, 5, 200, u64::MAX - 1, u64::MAX];

fn number(byte: u8) -> u64 {
    NUMBERS[usize::from(byte % 8)]
}

fn subscription_id(byte: u8) -> SubscriptionId {
    SubscriptionId(u32::try_from(number(byte)).unwrap_or(u32::MAX))
}

fn lane(byte: u8) -> Lane {
    Lane::ALL[usize::from(byte) % 3]
}

fn inventory(b: u8) -> Inventory {
    let entry = |n: u8| InventoryEntry { key: key(0, usize::from(n % 5)), held: HeldState::Absent };
    match b % 3 {
        0 => Inventory::Full(Vec::new()),
        1 => Inventory::Full((0..b % 7).map(entry).collect()),
        _ => Inventory::Digest { count: number(b / 3), digest: [b; 16] },
    }
}

fn change(b: u8) -> Change {
    let key = key(0, usize::from(b % 3));
    let object = Object { uid: 1, revision: u64::from(b), content: u64::from(b), len: 10 };
    let shared = object.shared(&key, 1);
    match b / 64 {
        0 => Change::Upsert(shared),
        1 => Change::Delete { key, version: None },
        2 => Change::Absent { key },
        _ => Change::Adopt { key, version: shared.version.clone() },
    }
}

fn welcome(solo: &Solo, b: u8) -> Welcome {
    Welcome {
        version: if b < 240 { 1 } else { u32::from(b) },
        epoch: solo.view.epoch(),
        features: u64::from(b),
        trim_version: 1,
        ping_interval: Duration::from_millis(number(b)),
        idle_timeout: Duration::from_secs(number(b / 8)),
        unix_millis: number(b),
        agent: String::new(),
    }
}

/// An arbitrary frame, from three bytes.
fn frame(solo: &Solo, kind: u8, b: u8, c: u8) -> Frame {
    let message = "x".repeat(usize::from(c) * 8);
    let api = RequestBody::Api(ApiRequest::new("GET", "/"));
    let timeout = Duration::from_millis(number(c));
    match kind % 20 {
        0 => {
            let mut hello = solo.hello();
            hello.inventory = inventory(c);
            hello.versions = if b < 230 { ProtocolVersion::range() } else { (u32::from(c), u32::from(b)) };
            Frame::Hello(hello)
        }
        1 => Frame::Welcome(welcome(solo, b)),
        2 => Frame::InventoryRequest { subscription: subscription_id(b) },
        3 => {
            let Inventory::Full(entries) = inventory(c) else { return Frame::Ping { id: 1 } };
            Frame::InventoryPart(InventoryPart { subscription: subscription_id(b), entries, last: c >= 128 })
        }
        4 | 5 => Frame::Deliver(Deliver {
            seq: Seq(number(b)),
            subscription: subscription_id(c),
            change: change(c),
        }),
        6 | 7 => Frame::Ack { lanes: vec![(lane(c), Seq(number(b))); usize::from(c % 5)] },
        8 => {
            let reason = RefusalReason::StorageFull;
            Frame::Refuse(Refusal { lane: lane(c), seq: Seq(number(b)), reason, message })
        }
        9 => Frame::CaughtUp {
            subscription: subscription_id(b),
            epoch: solo.view.epoch(),
            revision: CloudRevision(number(c)),
        },
        10 | 11 => {
            let id = RequestId(number(b).wrapping_add(u64::from(c)));
            Frame::Request(Request { id, timeout, body: api, caller_token: None })
        }
        12 => {
            let body =
                ReplyBody::Api(ApiReply { code: 200, content_type: String::new(), body: Bytes::new() });
            Frame::Reply(Reply { id: RequestId(number(b)), body })
        }
        13 | 14 => {
            let mut subscribe = subscribe_to(subscription_id(b), usize::from(c % 3));
            if c >= 64 {
                subscribe.subscription = SubscriptionId(u32::from(b) * 256 + u32::from(c));
            }
            subscribe.inventory = inventory(c);
            Frame::Subscribe(subscribe)
        }
        15 => Frame::Unsubscribe { subscription: subscription_id(b) },
        16 => Frame::SubscriptionClosed { subscription: subscription_id(b), code: 410, reason: message },
        17 if c >= 128 => Frame::Attestation { proof: vec![b; usize::from(c - 128)].into() },
        17 => Frame::LeaseRenew { renew_time_micros: i64::from(b) },
        18 => {
            if b < 128 {
                Frame::Ping { id: number(b) }
            } else {
                Frame::Pong { id: number(b) }
            }
        }
        _ if b >= 250 => {
            Frame::Goodbye(Goodbye { reason: GoodbyeReason::Other, message, retry_after: timeout })
        }
        _ => Frame::LeaseRenewed { renew_time_micros: i64::from(b), code: 200 },
    }
}

/// Four bytes per step: the incoming frame, and how far time advances.
pub fn run(data: &[u8]) {
    against_cloud(data);
    against_edge(data);
}

fn against_cloud(data: &[u8]) {
    let mut solo = Solo::new(3);
    solo.view.subscriptions = (0..=u32::from(u16::MAX)).take(4).map(|id| (SubscriptionId(id), 0)).collect();
    let mut goodbyes = 0;
    let mut closed = 0;
    for step in data.chunks_exact(4) {
        let incoming = frame(&solo, step[0], step[1], step[2]);
        let outcome = solo.feed(lane(step[3]), incoming);
        if step[3] >= 200 {
            solo.wait(Duration::from_millis(u64::from(step[3]) * 50));
        }
        if step[3] % 4 == 0 || outcome.is_err() {
            for lane in Lane::ALL {
                let sent = solo.sent(lane);
                goodbyes += sent.iter().filter(|frame| matches!(frame, Frame::Goodbye(_))).count();
            }
        }
        for event in solo.events() {
            match event {
                CloudEvent::Subscribe(subscribe) => {
                    solo.view.subscriptions.insert(subscribe.subscription, 0);
                    match step[3] % 3 {
                        0 => _ = solo.session.open_subscription(subscribe.subscription, &solo.view),
                        1 => solo.session.close_subscription(subscribe.subscription, 403, "no"),
                        _ => {}
                    }
                }
                CloudEvent::LeaseRenew { renew_time_micros } => {
                    solo.session.lease_renewed(renew_time_micros, 200);
                }
                CloudEvent::Closed(_) => closed += 1,
                _ => {}
            }
        }
        let stats = solo.session.stats();
        assert!(stats.requests <= REQUESTS_MAX && stats.subscriptions <= SUBSCRIPTIONS_MAX, "{stats:?}");
        assert!(goodbyes <= 1 && closed <= 1, "a session ends once: {goodbyes} goodbyes, {closed} events");
        if outcome.is_err() {
            assert_eq!(closed, 1, "an error ends the session");
        }
    }
}

fn against_edge(data: &[u8]) {
    let script = Solo::new(0);
    let mut store = Store::new(1);
    store.subscriptions = [(SubscriptionId::NODE, 0), (SubscriptionId(1), 1), (SubscriptionId(2), 2)].into();
    let mut now = Moment::default();
    let mut edge = EdgeSession::new(EdgeConfig::new(node(), StoreId([1; 16])), now, &store);
    edge.subscribe(subscribe_to(SubscriptionId(1), 1)).expect("the first");
    edge.subscribe(subscribe_to(SubscriptionId(2), 2)).expect("the second");
    let mut closed = 0;
    for step in data.chunks_exact(4) {
        now = now + Duration::from_millis(u64::from(step[3]));
        edge.handle_timeout(now);
        let outcome =
            edge.handle_frame(now, lane(step[3]), frame(&script, step[0], step[1], step[2]), &store);
        while let Some(event) = edge.poll_event() {
            match event {
                EdgeEvent::Deliver { lane, seq, .. } if step[3] % 2 == 0 => edge.committed(lane, seq),
                EdgeEvent::Closed(_) => closed += 1,
                _ => {}
            }
        }
        edge.committed(lane(step[0]), Seq(number(step[1])));
        if step[3] % 4 == 0 {
            for lane in Lane::ALL {
                while let Some(sent) = edge.poll_transmit(now, lane) {
                    let acked =
                        matches!(&sent, Frame::Ack { lanes } if lanes.iter().any(|(_, seq)| seq.0 > 100_000));
                    assert!(!acked, "acknowledged a delivery that never arrived: {sent:?}");
                }
            }
        }
        assert!(closed <= 1 && (outcome.is_ok() || closed == 1), "an error ends the session once");
    }
}
