//! Bounds for the objects that a KubeEdge edge follows, and for the resulting memory of its session.

use std::time::Duration;

use tombolo_proto::limits::KUBEEDGE_FOLLOWED_MAX;
use tombolo_proto::message::{Message, MessageId, Operation};
use tombolo_proto::session::CloudEvent;
use tombolo_proto::session::kubeedge::{CloudConfig, CloudSession, LEDGER_MAX, Ledger};
use tombolo_proto::{Moment, ObjectKey, SubscriptionId, kubeedge};

use super::cluster::{epoch, node};
use super::selection::{Follower, MIB, Own, SLACK, SUBSCRIPTION, Selection};

/// The most that a session keeps for the objects that its edge follows: 14,336 slots, queues and texts of 13,312 keys,
/// their timers, and 8,192 slots in the ledger.
const KUBEEDGE_BYTES: usize = 11 * MIB / 2;

/// An edge that follows one selection.
struct Edge {
    now: Moment,
    session: CloudSession,
    selection: Selection,
}

impl Edge {
    fn new(selection: Selection) -> Self {
        let now = Moment::default();
        let config = CloudConfig::new(node(), epoch(), 1_700_000_000_000, [1; 16]);
        let mut session = CloudSession::new(config, Ledger::default(), now, &selection);
        assert!(session.open_subscription(SUBSCRIPTION, &selection));
        Self { now, session, selection }
    }

    /// The node begins to need an object.
    fn need(&mut self, kind: &str, number: usize, known: Option<Own>) {
        let key = self.selection.need(kind, number, known);
        self.session.offer(SubscriptionId::NODE, key, &self.selection);
    }

    /// An edge that holds the maximum number of objects.
    fn full() -> Self {
        let mut follower = Self::new(Selection::default());
        for number in 0..KUBEEDGE_FOLLOWED_MAX {
            follower.create(number);
        }
        assert!(!follower.ended(), "the maximum is allowed");
        follower.exchange(|_| true);
        assert_eq!(follower.session.stats().held, KUBEEDGE_FOLLOWED_MAX);
        follower
    }

    /// Runs until nothing more is sent. The edge stores the messages that it takes and rejects the others.
    fn exchange(&mut self, takes: impl Fn(&Message) -> bool) {
        let id = || MessageId::parse("an-answer").expect("printable");
        loop {
            let Some(document) = self.session.poll_transmit(self.now, &self.selection) else {
                let Some(write) = self.session.poll_ledger(self.now, &self.selection) else { return };
                self.session.ledger_saved(write.number);
                continue;
            };
            self.session.transmitted(self.now, document.number);
            let message = kubeedge::decode(&document.to_bytes()).expect("a message");
            let answer = match takes(&message) {
                true => message.ack(id(), 0),
                false => message.error_reply(id(), 0, "no"),
            };
            self.session.handle_document(self.now, &kubeedge::encode(&answer)).expect("a good edge");
        }
    }

    /// Time passes, in which the edge accepts everything.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds / 10 {
            self.now = self.now + Duration::from_secs(10);
            self.session.heard(self.now);
            self.session.handle_timeout(self.now);
            self.exchange(|_| true);
        }
    }
}

impl Follower for Edge {
    const MAX: usize = KUBEEDGE_FOLLOWED_MAX;

    fn selection(&mut self) -> &mut Selection {
        &mut self.selection
    }

    fn offer(&mut self, key: ObjectKey) {
        self.session.offer(SUBSCRIPTION, key, &self.selection);
    }

    fn ended(&mut self) -> bool {
        let mut ended = false;
        while let Some(event) = self.session.poll_event() {
            ended |= matches!(event, CloudEvent::Ended { subscription: SUBSCRIPTION, code: 413, .. });
        }
        ended
    }
}

/// Deleted objects are not followed, and leave the ledger when the edge has confirmed their deletion. Until then new
/// objects wait for a slot, and then get one.
#[test]
fn everything_a_kubeedge_edge_follows_may_be_replaced_at_once() {
    let mut follower = Edge::full();
    for number in 0..2 * KUBEEDGE_FOLLOWED_MAX {
        follower.replace(number);
    }
    assert!(!follower.ended());
    let (kept, dirty) = (follower.session.memory(), follower.session.stats().dirty);
    assert!((2 * KUBEEDGE_FOLLOWED_MAX..=2 * KUBEEDGE_FOLLOWED_MAX + SLACK).contains(&dirty), "{dirty} keys");
    assert!(kept <= KUBEEDGE_BYTES, "{kept} bytes");
    // The deletions come last.
    follower.exchange(|message| message.route.operation != Operation::Delete);
    assert!(!follower.ended());
    let stats = follower.session.stats();
    assert_eq!(stats.held, KUBEEDGE_FOLLOWED_MAX, "its part of the ledger is full");
    assert!(stats.parked > 0 && follower.session.memory() <= KUBEEDGE_BYTES, "{}", follower.session.memory());
    follower.wait(400);
    let stats = follower.session.stats();
    assert_eq!((stats.held, stats.dirty, stats.parked), (KUBEEDGE_FOLLOWED_MAX, 0, 0));
    // More than the maximum is followed.
    assert!(follower.ends_beyond());
}

/// The session stays bounded when the edge rejects deletions and everything else that it may reject.
#[test]
fn deletions_not_yet_known_to_a_kubeedge_edge_are_bounded() {
    let mut follower = Edge::full();
    for number in 0..2 * KUBEEDGE_FOLLOWED_MAX {
        follower.replace(number);
        if number % 64 == 0 {
            follower.exchange(|_| false);
            assert!(follower.session.memory() <= KUBEEDGE_BYTES, "{} bytes", follower.session.memory());
        }
    }
    assert!(!follower.ended(), "it follows no more than it may");
    let (stats, kept) = (follower.session.stats(), follower.session.memory());
    assert!(stats.held <= KUBEEDGE_FOLLOWED_MAX && stats.parked <= 2 * KUBEEDGE_FOLLOWED_MAX, "{stats:?}");
    assert!(kept > KUBEEDGE_BYTES / 2 && kept <= KUBEEDGE_BYTES, "{kept} bytes");
}

/// Whatever a node follows, and however it changes: the objects that its pods need have their part of the ledger.
#[test]
fn followed_objects_leave_ledger_room_for_the_pushed_set() {
    let mut edge = Edge::full();
    for number in 0..KUBEEDGE_FOLLOWED_MAX {
        edge.replace(number);
    }
    // The edge confirms no deletion, so there is no space for what it follows now.
    edge.exchange(|message| message.route.operation != Operation::Delete);
    for number in 0..LEDGER_MAX - KUBEEDGE_FOLLOWED_MAX {
        edge.need("configmaps", number, None);
    }
    let before = edge.session.stats().acked;
    edge.exchange(|message| message.route.operation != Operation::Delete);
    let stats = edge.session.stats();
    assert_eq!(stats.held, LEDGER_MAX);
    assert_eq!(usize::try_from(stats.acked - before).expect("few"), LEDGER_MAX - KUBEEDGE_FOLLOWED_MAX);
}

/// Pods refer to objects that never existed, and some pods cannot be read. Nothing of that is sent, so it takes no slot
/// in the ledger and no memory of the node's share.
#[test]
fn absent_and_unreadable_objects_take_no_ledger_entry() {
    let mut selection = Selection::default();
    for number in 0..2 * LEDGER_MAX {
        selection.need("configmaps", number, Some(Own::Absent));
        selection.need("pods", number, Some(Own::Unreadable));
    }
    selection.need("secrets", 0, None);
    let mut edge = Edge::new(selection);
    edge.exchange(|_| true);
    assert_eq!(edge.session.stats().held, 1);
    edge.need("pods", 3 * LEDGER_MAX, None);
    edge.exchange(|_| true);
    let stats = edge.session.stats();
    assert_eq!((stats.held, stats.parked), (2, 0), "a new pod has its slot");
    let named = edge.session.final_ledger().expect("it is not stored").len();
    assert_eq!(named, 2);
    assert!(edge.session.memory() < 64 * 1024, "{} bytes", edge.session.memory());
    edge.create(0);
    edge.exchange(|_| true);
    assert_eq!((edge.session.stats().held, edge.ended()), (3, false), "and so have the followed objects");
}
