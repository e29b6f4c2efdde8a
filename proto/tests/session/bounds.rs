//! Bounds for the objects that an edge claims to hold and follows.

use tombolo_proto::frame::{Frame, Inventory};
use tombolo_proto::limits::{INVENTORY_BYTES_MAX, SUBSCRIBE_WINDOW, SUBSCRIBES_MAX};
use tombolo_proto::object::{ContentHash, ObjectVersion};
use tombolo_proto::session::CloudEvent;
use tombolo_proto::{
    CloudRevision, HeldState, InventoryEntry, Lane, ObjectKey, Resource, SubscriptionId, Uid,
};

use super::harness::cloud::key;
use super::harness::solo::Solo;
use super::harness::world::subscribe_to;

/// An edge that claims more than the bound, in subscriptions that are not open yet: these are refused, and delivery of
/// the objects that the node needs continues.
#[test]
fn reported_inventory_is_bounded_in_bytes() {
    let mut solo = Solo::new(0).greeted();
    let claim = |subscription: u32| {
        let entry = |number: usize| InventoryEntry {
            key: key(0, usize::try_from(subscription).expect("small") * 1000 + number),
            held: HeldState::Absent,
        };
        let mut subscribe = subscribe_to(SubscriptionId(subscription), 1);
        subscribe.inventory = Inventory::Full((0..512).map(entry).collect());
        Frame::Subscribe(subscribe)
    };
    let mut refused = 0;
    for subscription in 1..=128 {
        solo.feed(Lane::Delivery, claim(subscription)).expect("it is answered");
        let closed = |frame: &Frame| matches!(frame, Frame::SubscriptionClosed { code: 429, .. });
        refused += solo.sent(Lane::Control).iter().filter(|frame| closed(frame)).count();
        assert!(solo.session.memory() <= INVENTORY_BYTES_MAX + 64 * 1024, "{}", solo.session.memory());
    }
    assert!((64..128).contains(&refused), "{refused} of 128 inventories of 512 entries were refused");
    assert!(!solo.session.is_closed());
    solo.change(|view| {
        view.put(&key(0, 0), 16);
        view.want(0, &key(0, 0), true);
    });
    assert_eq!(solo.sent(Lane::Delivery).len(), 1);
}

/// An entry counts with everything in it, including the texts of its resource and its UID.
#[test]
fn every_text_of_an_inventory_counts_towards_the_bound() {
    let mut solo = Solo::new(0).greeted();
    let text = |letter: &str| letter.repeat(200);
    let entry = |number: usize| {
        let resource = Resource::new(&text("g"), &text("v"), &format!("{number:0>200}"));
        let version = ObjectVersion {
            uid: Uid::parse(&"u".repeat(100)).expect("valid"),
            revision: CloudRevision(1),
            hash: ContentHash(1),
        };
        InventoryEntry {
            key: ObjectKey::new(resource, &text("s"), &text("n")),
            held: HeldState::Present(version),
        }
    };
    let mut subscribe = subscribe_to(SubscriptionId(1), 1);
    subscribe.inventory = Inventory::Full((0..100).map(entry).collect());
    solo.feed(Lane::Delivery, Frame::Subscribe(subscribe)).expect("within the bounds");
    assert!(solo.session.memory() >= 100 * 1100, "{} bytes", solo.session.memory());
}

/// Claims count until the edge has acknowledged the deletions.
#[test]
fn compared_inventory_entries_still_count() {
    let mut solo = Solo::new(0);
    let mut hello = solo.hello();
    let entry = |number| InventoryEntry { key: key(0, number), held: HeldState::Absent };
    hello.inventory = Inventory::Full((0..100).map(entry).collect());
    solo.feed(Lane::Control, Frame::Hello(hello)).expect("a good hello");
    let claimed = solo.session.memory();
    assert!(claimed > 100 * 64, "{claimed} bytes for a hundred claims");
    let deletions = solo.sent(Lane::Delivery).len();
    assert!(deletions > 0 && solo.session.memory() == claimed);
    solo.ack(Lane::Delivery, u64::try_from(deletions).expect("few"));
    assert!(solo.session.memory() < claimed);
}

#[test]
fn subscriptions_that_begin_and_end_in_a_loop_are_refused_for_a_while() {
    let mut solo = Solo::new(0).greeted();
    let mut begun = 0;
    for subscription in 1..=2 * SUBSCRIBES_MAX {
        let subscription = SubscriptionId(subscription);
        solo.feed(Lane::Delivery, Frame::Subscribe(subscribe_to(subscription, 1))).expect("answered");
        begun += solo.events().iter().filter(|event| matches!(event, CloudEvent::Subscribe(_))).count();
        if subscription.0 <= SUBSCRIBES_MAX {
            solo.feed(Lane::Delivery, Frame::Unsubscribe { subscription }).expect("it is open");
        }
        solo.sent(Lane::Control);
    }
    assert_eq!(u32::try_from(begun), Ok(SUBSCRIBES_MAX));
    solo.now = solo.now + SUBSCRIBE_WINDOW;
    let again = subscribe_to(SubscriptionId(2 * SUBSCRIBES_MAX + 1), 1);
    solo.feed(Lane::Delivery, Frame::Subscribe(again)).expect("answered");
    assert!(solo.events().iter().any(|event| matches!(event, CloudEvent::Subscribe(_))), "a minute later");
}
