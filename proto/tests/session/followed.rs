//! Bounds for the objects that a node follows, and for the resulting memory of its session.

use tombolo_proto::frame::{Change, Frame, Refusal, RefusalReason};
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::session::CloudEvent;
use tombolo_proto::{Lane, ObjectKey, SubscriptionId};

use super::harness::solo::Solo;
use super::selection::{Follower, MIB, SLACK, SUBSCRIPTION, Selection};
use super::subscriptions::subscribe;

/// The most that a session keeps for the objects that a node follows, all of which are being replaced.
const REPLACED_BYTES: usize = 6 * MIB;

/// An edge that follows one selection.
struct Edge {
    solo: Solo,
    selection: Selection,
}

impl Edge {
    fn new() -> Self {
        let mut solo = Solo::new(0).greeted();
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(SUBSCRIPTION.0))).expect("in order");
        let selection = Selection::default();
        assert!(solo.session.open_subscription(SUBSCRIPTION, &selection));
        solo.events();
        Self { solo, selection }
    }

    /// An edge that holds the maximum number of objects.
    fn full() -> Self {
        let mut follower = Self::new();
        for number in 0..FOLLOWED_MAX {
            follower.create(number);
        }
        follower.exchange(true);
        assert_eq!(follower.solo.session.stats().held, FOLLOWED_MAX);
        follower
    }

    /// The edge accepts everything; deletions only if `deletions` is set.
    fn exchange(&mut self, deletions: bool) {
        loop {
            let (now, mut newest) = (self.solo.now, None);
            while let Some(frame) = self.solo.session.poll_transmit(now, Lane::Delivery, &self.selection) {
                let Frame::Deliver(deliver) = frame else { panic!("{frame:?}") };
                newest = Some(deliver.seq);
                if !deletions && matches!(deliver.change, Change::Delete { .. }) {
                    let (lane, seq, message) = (Lane::Delivery, deliver.seq, String::new());
                    let refusal = Refusal { lane, seq, reason: RefusalReason::Other, message };
                    self.solo.feed(Lane::Control, Frame::Refuse(refusal)).expect("in flight");
                }
            }
            let Some(newest) = newest else { return };
            self.solo.ack(Lane::Delivery, newest.0);
        }
    }
}

impl Follower for Edge {
    const MAX: usize = FOLLOWED_MAX;

    fn selection(&mut self) -> &mut Selection {
        &mut self.selection
    }

    fn offer(&mut self, key: ObjectKey) {
        self.solo.session.offer(SUBSCRIPTION, key, &self.selection);
    }

    fn ended(&mut self) -> bool {
        let events = self.solo.events();
        events
            .iter()
            .any(|event| matches!(event, CloudEvent::Ended { subscription: SUBSCRIPTION, code: 413, .. }))
    }
}

/// Deleted objects take memory until the edge knows of the deletion, but are not followed. Neither one replacement nor
/// several of which a slow edge has received nothing end a subscription, or prevent another one from being opened.
#[test]
fn everything_a_node_follows_may_be_replaced_at_once() {
    let mut follower = Edge::full();
    let before = follower.solo.session.memory();
    for number in 0..2 * FOLLOWED_MAX {
        follower.replace(number);
    }
    assert!(!follower.ended());
    let (kept, dirty) = (follower.solo.session.memory(), follower.solo.session.stats().dirty);
    assert!((2 * FOLLOWED_MAX..=2 * FOLLOWED_MAX + SLACK).contains(&dirty), "{dirty} keys");
    assert!(kept > before && kept <= REPLACED_BYTES, "{kept} bytes, {before} before");
    follower.solo.feed(Lane::Delivery, Frame::Subscribe(subscribe(2))).expect("in order");
    assert!(follower.solo.session.open_subscription(SubscriptionId(2), &follower.selection));
    let delivered = follower.solo.session.stats().delivered;
    follower.exchange(true);
    let stats = follower.solo.session.stats();
    assert_eq!((stats.held, stats.dirty), (FOLLOWED_MAX, 0));
    assert_eq!(stats.delivered - delivered, 2 * FOLLOWED_MAX as u64, "the replaced objects were not sent");
    assert!(follower.solo.session.memory() < kept, "{} bytes", follower.solo.session.memory());
    // More than the maximum is followed.
    assert!(follower.ends_beyond());
}

/// If the edge accepts no deletions, the session keeps only a bounded number of keys.
#[test]
fn deletions_not_yet_known_to_the_edge_are_bounded() {
    let mut follower = Edge::full();
    let ended = (0..2 * FOLLOWED_MAX).find(|number| {
        follower.replace(*number);
        if number % 64 == 0 {
            follower.exchange(false);
        }
        let stats = (number % 4096 == 0).then(|| follower.solo.session.stats());
        assert!(stats.is_none_or(|stats| stats.held <= 2 * FOLLOWED_MAX + SLACK), "{stats:?}");
        follower.ended()
    });
    let ended = ended.expect("it ends");
    assert!((FOLLOWED_MAX..=FOLLOWED_MAX + SLACK).contains(&ended), "after {ended}");
    assert_eq!(follower.solo.session.stats().held, 0);
}
