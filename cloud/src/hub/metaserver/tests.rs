//! Watches as MetaServer requests them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_proto::message::{Group, MessageId, Operation, Route, Source};

use super::*;

struct World {
    watches: MetaServer,
    now: Instant,
    requests: u64,
}

impl World {
    fn new() -> Self {
        Self { watches: MetaServer::default(), now: Instant::now(), requests: 0 }
    }

    fn request(&mut self, resource: ResourcePath, content: &Value) {
        self.requests += 1;
        let route = Route::new(
            Source::MetaServer,
            Group::parse("dynamiccontroller"),
            Operation::parse("null"),
            resource,
        );
        let id = MessageId::parse("question").expect("an id");
        let content = Content::from_value(content).expect("JSON");
        let request = Request {
            id: RequestId(self.requests),
            timeout: Duration::from_secs(9),
            body: RequestBody::Message(Box::new(Message::new(id, 1, route, content))),
            caller_token: None,
        };
        assert!(MetaServer::concerns(&request));
        self.watches.take(request, self.now);
    }

    fn watch(&mut self, id: &str, key: &str) {
        self.request(ResourcePath::Null, &record(id, key));
    }

    fn sync(&mut self, records: &[(&str, &str)]) {
        let all: BTreeMap<&str, Value> = records.iter().map(|(id, key)| (*id, record(id, key))).collect();
        self.request(ResourcePath::WatchSync, &json!(all));
    }

    fn opened(&mut self, subscription: u32, outcome: Result<(), &Closed>) {
        self.watches.opened(SubscriptionId(subscription), outcome, self.now);
    }

    /// The pending actions, as text.
    fn actions(&mut self) -> Vec<String> {
        let text = |action| match action {
            Action::Open(subscribe) => {
                format!(
                    "open {} {} {}",
                    subscribe.subscription.0,
                    subscribe.resource,
                    subscribe.namespace + &subscribe.field_selector
                )
            }
            Action::OpenLater(subscribe, wait) => {
                format!("later {} {}", subscribe.subscription.0, wait.as_secs())
            }
            Action::Close(subscription) => format!("close {}", subscription.0),
            Action::Reply(reply) => {
                let ReplyBody::Message(message) = reply.body else { panic!("a message") };
                let content: Value = serde_json::from_slice(message.content.as_json()).expect("JSON");
                match content.get("Status") {
                    Some(status) => format!("{} {status}", reply.id.0).replace('"', ""),
                    None => format!(
                        "{} {:?}",
                        reply.id.0,
                        content.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>())
                    ),
                }
            }
        };
        std::iter::from_fn(|| self.watches.poll_action()).map(text).collect()
    }

    fn remembered(&mut self) -> Option<Vec<String>> {
        Some(self.watches.poll_watches()?.into_iter().map(|watch| watch.id.into()).collect())
    }
}

fn record(id: &str, key: &str) -> Value {
    json!({"ID": id, "Key": key, "Verb": "watch", "Option": STANDARD.encode(r#"{"watch":true}"#),
        "ReqBody": null, "Subresource": "", "Status": "InApplying"})
}

const PODS: &str = "/core/v1/pods/shop/null";
const NODE: &str = "/core/v1/nodes/null/edge";

#[test]
fn watch_is_opened_once_and_answered_when_open() {
    let mut world = World::new();
    world.watch("a", PODS);
    world.watch("b", PODS);
    assert_eq!(world.actions(), ["open 1 v1/pods shop"]);
    world.opened(1, Ok(()));
    assert_eq!(world.actions(), ["1 Approved", "2 Approved"]);
    world.watch("c", PODS);
    assert_eq!(world.actions(), ["3 Approved"]);
    assert_eq!(world.remembered(), Some(vec!["c".to_owned()]), "one for each selection");
    assert_eq!(world.remembered(), None);
    world.watch("d", NODE);
    assert_eq!(world.actions(), ["open 2 v1/nodes metadata.name=edge"]);
    world.opened(2, Err(&Closed::new(403, "no")));
    assert_eq!(world.actions(), ["4 Rejected"]);
    world.watch("e", "/nonsense");
    assert_eq!(world.actions(), ["5 Rejected"]);
    assert_eq!(world.remembered(), Some(vec!["c".to_owned()]));
}

#[test]
fn watches_left_out_of_a_sync_linger_and_close() {
    let mut world = World::new();
    world.watch("a", PODS);
    world.actions();
    world.opened(1, Ok(()));
    world.sync(&[("a", PODS), ("b", NODE), ("c", "bad")]);
    assert_eq!(world.actions(), ["1 Approved", "open 2 v1/nodes metadata.name=edge"]);
    world.opened(2, Err(&Closed::new(403, "no")));
    assert_eq!(world.actions(), [r#"2 Some(["b", "c"])"#], "the failed ones");
    world.sync(&[]);
    assert_eq!((world.actions(), world.remembered()), (vec!["3 Some([])".to_owned()], Some(Vec::new())));
    let deadline = world.watches.deadline().expect("it lingers");
    world.watch("d", PODS);
    assert_eq!((world.actions(), world.watches.deadline()), (vec!["4 Approved".to_owned()], None));
    world.sync(&[]);
    world.actions();
    world.watches.expire(deadline - Duration::from_secs(1));
    assert_eq!(world.actions(), Vec::<String>::new());
    world.watches.expire(deadline + LINGER);
    assert_eq!(world.actions(), ["close 1"]);
}

#[test]
fn watches_of_the_previous_connection_are_reopened() {
    let mut world = World::new();
    let watch = |id: &str, key: &str| Watch { id: id.into(), key: key.into(), option: b"{}"[..].into() };
    world.watches.restore(vec![watch("a", PODS), watch("b", NODE), watch("c", "bad")]);
    assert_eq!(world.actions(), ["open 1 v1/pods shop", "open 2 v1/nodes metadata.name=edge"]);
    // Without an answer, the retries become less frequent.
    for wait in [5, 10, 20, 40, 80, 160, 300, 300] {
        world.opened(1, Err(&Closed::new(503, "no answer")));
        assert_eq!((world.actions(), world.watches.is_restoring()), (vec![format!("later 1 {wait}")], true));
    }
    world.opened(1, Ok(()));
    assert!(world.watches.is_restoring());
    world.opened(2, Err(&Closed::new(403, "no")));
    assert!(!world.watches.is_restoring());
    assert_eq!(world.remembered(), Some(vec!["a".to_owned()]));
    world.watches.ended(SubscriptionId(1));
    assert_eq!(world.remembered(), Some(Vec::new()));
}

#[test]
fn the_number_of_selections_is_bounded_and_lingering_ones_make_room() {
    let mut world = World::new();
    for number in 0..SUBSCRIPTIONS_MAX {
        world.watch(&format!("id{number}"), &format!("/core/v1/pods/ns{number}/null"));
        world.opened(u32::try_from(number + 1).expect("small"), Ok(()));
    }
    world.actions();
    world.watch("more", NODE);
    assert_eq!(world.actions(), [format!("{} Rejected", SUBSCRIPTIONS_MAX + 1)]);
    world.sync(&[]);
    world.actions();
    world.watch("more", NODE);
    let actions = world.actions();
    assert!(actions.first().is_some_and(|action| action.starts_with("close ")), "{actions:?}");
    assert!(actions.last().is_some_and(|action| action.starts_with("open ")), "{actions:?}");
}

/// The texts that a KubeEdge edge puts into its watches stay in memory with them: they are counted, and a record has a
/// maximum length.
#[test]
fn the_texts_of_watches_are_bounded_and_counted() {
    let mut world = World::new();
    for number in 0..20 {
        world.watch(&format!("id-{number}"), "/core/v1/services/null/null");
    }
    let opening = world.watches.memory();
    assert!(opening > 20 * 2 * RECORD_OVERHEAD, "{opening} bytes");
    world.opened(1, Ok(()));
    let open = world.watches.memory();
    assert!(open > 20 * RECORD_OVERHEAD && open < opening, "{open} bytes");
    world.watch(&"x".repeat(WATCH_LEN_MAX), "/core/v1/services/null/null");
    assert_eq!(world.watches.memory(), open, "it was refused");
    world.watches.ended(SubscriptionId(1));
    assert_eq!(world.watches.memory(), 0);
}

/// A sync waits for the slowest of its selections. Records that have failed meanwhile are kept by name only and
/// counted. No more records are read than a sync may have, and nothing is left of the sync once no request waits for
/// its answer.
#[test]
fn waiting_metaserver_sync_is_bounded_and_counted() {
    let mut world = World::new();
    let bad = |count: usize| {
        let bad = |id: usize| {
            (
                format!("{id:05}"),
                json!({"ID": format!("{id:05}"), "Verb": null, "Status": null, "Nodename": "n".repeat(500)}),
            )
        };
        let mut all: BTreeMap<String, Value> = (0..count).map(bad).collect();
        all.insert("zzzzz".to_owned(), record("zzzzz", PODS));
        json!(all)
    };
    world.request(ResourcePath::WatchSync, &bad(1024));
    assert_eq!(world.actions(), ["1 None"], "too many records");
    assert_eq!(world.watches.memory(), 0);
    world.request(ResourcePath::WatchSync, &bad(1000));
    assert_eq!(world.actions(), ["open 1 v1/pods shop"]);
    let one = world.watches.memory();
    assert!(one > 1000 * RECORD_OVERHEAD && one < 1000 * (RECORD_OVERHEAD + 500), "{one} bytes");
    world.request(ResourcePath::WatchSync, &bad(1000));
    assert!(world.watches.memory() > one * 3 / 2, "{} bytes", world.watches.memory());
    // The session has given up both requests.
    assert_eq!(world.watches.deadline(), Some(world.now + Duration::from_secs(9)));
    world.watches.expire(world.now + Duration::from_secs(9));
    assert!(world.watches.memory() < 8 * 1024, "{} bytes", world.watches.memory());
    world.opened(1, Ok(()));
    assert_eq!((world.actions(), world.watches.deadline()), (Vec::new(), None));
    assert_eq!(
        world.remembered(),
        Some(vec!["zzzzz".to_owned()]),
        "the requested watch is open nevertheless"
    );
}

/// A request for a watch gets its answer even if a sync has left the watch out meanwhile. Then the watch lingers.
#[test]
fn watch_left_out_while_opening_is_answered_and_lingers() {
    let mut world = World::new();
    world.watch("a", PODS);
    assert_eq!(world.remembered(), Some(vec!["a".to_owned()]));
    world.sync(&[]);
    assert_eq!(world.actions(), ["open 1 v1/pods shop", "2 Some([])"]);
    assert_eq!(world.remembered(), Some(Vec::new()), "the ledger is updated");
    world.opened(1, Ok(()));
    assert_eq!(world.actions(), ["1 Approved"]);
    assert_eq!(world.watches.deadline(), Some(world.now + LINGER));
}

/// An edge that asks now gets the failure now. Only restored watches, for which the edge does not ask again, are
/// retried later.
#[test]
fn failures_are_reported_to_every_requester() {
    let mut world = World::new();
    world.watch("a", PODS);
    world.opened(1, Err(&Closed::new(503, "no answer")));
    assert_eq!(world.actions(), ["open 1 v1/pods shop", "1 Rejected"]);
    assert_eq!(world.watches.memory(), 0);
}

#[test]
fn abandoned_watch_request_gets_no_answer() {
    let mut world = World::new();
    world.watch("a", PODS);
    let waits = world.watches.memory();
    let end = world.now + Duration::from_secs(9);
    assert_eq!(world.watches.deadline(), Some(end));
    world.watches.expire(end);
    assert!(world.watches.memory() < waits && world.watches.deadline().is_none());
    world.actions();
    world.opened(1, Ok(()));
    assert_eq!((world.actions(), world.watches.deadline()), (Vec::new(), None), "it is open all the same");
    // The subscription that it waits for ends without an answer.
    world.sync(&[("b", NODE)]);
    world.watches.ended(SubscriptionId(2));
    assert_eq!(world.watches.deadline(), Some(end), "of the sync, and not of the watch that lingers");
    world.watches.expire(end);
    world.watches.ended(SubscriptionId(1));
    assert_eq!((world.watches.memory(), world.watches.deadline()), (0, None));
}

/// Only the used part of what an edge writes into its watches is kept, each text counts, and the total is bounded.
#[test]
fn memory_of_watches_is_bounded_and_released() {
    let mut world = World::new();
    let mut large = record("a", PODS);
    large["Nodename"] = "n".repeat(WATCH_LEN_MAX).into();
    world.request(ResourcePath::WatchSync, &json!({"a": large}));
    assert!(world.watches.memory() < 8 * 1024, "{} bytes", world.watches.memory());
    assert_eq!(world.actions(), ["open 1 v1/pods shop"]);
    world.opened(1, Ok(()));
    world.actions();

    let mut long = record("a", PODS);
    long["Nodename"] = "n".repeat(SYNC_LEN_MAX).into();
    world.request(ResourcePath::WatchSync, &json!({"a": long}));
    assert_eq!(world.actions(), ["2 None"], "too long");

    let open = world.watches.memory();
    (0..10).for_each(|_| world.watch("a", PODS));
    assert_eq!(world.watches.memory(), open, "one watch, regardless of the number of requests");
    for number in 0..2 * APPLICATIONS_MAX {
        world.watch(&format!("id-{number:05}"), PODS);
    }
    let most = world.watches.memory();
    assert!(most > APPLICATIONS_MAX * RECORD_OVERHEAD, "{most} bytes");
    (0..100).for_each(|number| world.watch(&format!("of-{number:05}"), PODS));
    assert_eq!(world.watches.memory(), most, "the oldest are forgotten");

    let mut selecting = record("b", PODS);
    let option = json!({"labelSelector": format!("a={}", "x".repeat(10_000))}).to_string();
    selecting["Option"] = STANDARD.encode(option).into();
    world.request(ResourcePath::Null, &selecting);
    assert!(world.watches.memory() > most + 3 * 10_000, "with the watch, and twice for its selection");
}
