//! Bounds of a subscription's inner state, which is not visible in frames.

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::frame::Inventory;
use crate::ids::{Epoch, Uid};
use crate::limits::PARK_DELAY_MIN;
use crate::object::{ContentHash, HeldState, InventoryEntry, Resource, SharedObject};

/// One object whose revision a test increases.
struct View(Cell<u64>);

impl View {
    fn key() -> ObjectKey {
        ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "settings")
    }

    fn next(&self) {
        self.0.set(self.0.get() + 1);
    }
}

impl NodeView for View {
    fn wanted(&self, _: SubscriptionId) -> Vec<ObjectKey> {
        vec![Self::key()]
    }

    fn lookup(&self, _: SubscriptionId, key: &ObjectKey) -> Lookup {
        let uid = Uid::parse("u").expect("valid");
        let version = ObjectVersion {
            uid,
            revision: CloudRevision(self.0.get()),
            hash: ContentHash(self.0.get().into()),
        };
        Lookup::Present(Arc::new(SharedObject::new(key.clone(), version, "{}".into(), Vec::new())))
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(self.0.get())
    }
}

fn opened(view: &View) -> Subscription {
    let comparison =
        InventoryComparison::new(None, None, Inventory::Full(Vec::new())).expect("an empty inventory");
    let mut subscription = Subscription::new(SubscriptionId::NODE, comparison, false);
    let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
    subscription.open(Moment::default(), &epoch, view).expect("consistent");
    subscription
}

fn flight(step: PlannedDelivery) -> InFlight {
    let (subscription, key) = (SubscriptionId::NODE, step.change.key().clone());
    let sent_at = Moment::default();
    InFlight {
        subscription,
        key,
        becomes: step.becomes,
        adoption: false,
        bytes: step.bytes,
        sent_at,
        refused: true,
    }
}

fn next(subscription: &mut Subscription, now: Moment, view: &View) -> Option<PlannedDelivery> {
    let window = SendWindow::new(Lane::Delivery, 8, 1 << 20);
    match subscription.next(now, &window, Lane::Delivery, view, &mut VecDeque::new()) {
        Next::Send(step) => Some(step),
        Next::Nothing => None,
        Next::Blocked => panic!("an empty window has room"),
    }
}

#[test]
fn repeatedly_refused_key_has_one_timer() {
    let view = View(Cell::new(1));
    let mut subscription = opened(&view);
    for _ in 0..1000 {
        let step = next(&mut subscription, Moment::default(), &view).expect("a newer version never waits");
        assert!(subscription.refused(Moment::default(), &flight(step)) >= PARK_DELAY_MIN);
        assert_eq!(subscription.timers.len(), 1);
        view.next();
        subscription.offer(View::key(), &view);
    }
    let step = next(&mut subscription, Moment::default(), &view).expect("a newer version never waits");
    subscription.acked(&View::key(), step.becomes);
    assert!(subscription.timers.is_empty(), "what is stored has no back-off");
    assert_eq!((subscription.dirty(), subscription.parked(), subscription.held()), (0, 0, 1));
}

#[test]
fn a_key_is_ready_once_however_often_it_is_offered() {
    let view = View(Cell::new(1));
    let mut subscription = opened(&view);
    for _ in 0..1000 {
        subscription.offer(View::key(), &view);
    }
    assert_eq!(subscription.ready.iter().map(VecDeque::len).sum::<usize>(), 1);
    next(&mut subscription, Moment::default(), &view).expect("one delivery");
    assert!(next(&mut subscription, Moment::default(), &view).is_none());
    assert!(
        subscription.ready.iter().all(|queue| queue.capacity() <= KEPT_CAPACITY),
        "an idle subscription keeps no burst"
    );
}

#[test]
fn unwanted_keys_leave_nothing_behind() {
    let view = View(Cell::new(1));
    let mut subscription = opened(&view);
    let other = ObjectKey::new(Resource::new("", "v1", "secrets"), "default", "other");
    struct Unwanted;
    impl NodeView for Unwanted {
        fn wanted(&self, _: SubscriptionId) -> Vec<ObjectKey> {
            Vec::new()
        }
        fn lookup(&self, _: SubscriptionId, _: &ObjectKey) -> Lookup {
            Lookup::Unwanted(None)
        }
        fn revision(&self, _: SubscriptionId) -> CloudRevision {
            CloudRevision(0)
        }
    }
    next(&mut subscription, Moment::default(), &view).expect("the wanted one");
    subscription.offer(other.clone(), &Unwanted);
    let window = SendWindow::new(Lane::Delivery, 8, 1 << 20);
    let outcome =
        subscription.next(Moment::default(), &window, Lane::Delivery, &Unwanted, &mut VecDeque::new());
    assert!(matches!(outcome, Next::Nothing));
    assert!(!subscription.slots.contains_key(&other));
}

/// One key that a test wants, and later no longer wants.
struct Fickle(ObjectKey, Cell<bool>);

impl NodeView for Fickle {
    fn wanted(&self, _: SubscriptionId) -> Vec<ObjectKey> {
        if self.1.get() { vec![self.0.clone()] } else { Vec::new() }
    }

    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        if self.1.get() { View(Cell::new(1)).lookup(subscription, key) } else { Lookup::Unwanted(None) }
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(1)
    }
}

impl Fickle {
    fn want(&self, subscription: &mut Subscription, wanted: bool) -> usize {
        self.1.set(wanted);
        subscription.offer(self.0.clone(), self);
        subscription.memory()
    }

    /// The edge accepts the next delivery.
    fn deliver(&self, subscription: &mut Subscription) -> usize {
        let window = SendWindow::new(Lane::Delivery, 8, 1 << 20);
        let sent = subscription.next(Moment::default(), &window, Lane::Delivery, self, &mut VecDeque::new());
        let step = match sent {
            Next::Send(step) => step,
            other => panic!("nothing to send: {other:?}"),
        };
        subscription.acked(&self.0, step.becomes);
        subscription.memory()
    }
}

/// The texts of a wanted key belong to the view and are shared; those of a deleted key are kept only for its slot,
/// until the edge has acknowledged the deletion.
#[test]
fn keys_of_deleted_objects_count_towards_the_bound() {
    let opened = |name: &str, held: Option<HeldState>| {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name);
        let view = Fickle(key.clone(), Cell::new(held.is_none()));
        let held = held.into_iter().map(|held| InventoryEntry { key: key.clone(), held }).collect();
        let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
        let comparison =
            InventoryComparison::new(Some(epoch.clone()), None, Inventory::Full(held)).expect("an inventory");
        let mut subscription = Subscription::new(SubscriptionId(1), comparison, false);
        subscription.open(Moment::default(), &epoch, &view).expect("consistent");
        (subscription, view)
    };
    let offered = |name: &str| {
        let (mut subscription, view) = opened(name, None);
        let held = view.deliver(&mut subscription);
        let gone = [view.want(&mut subscription, false), view.want(&mut subscription, false)];
        let back = view.want(&mut subscription, true);
        let again = view.want(&mut subscription, false);
        let forgotten = view.deliver(&mut subscription);
        view.want(&mut subscription, false);
        assert!(subscription.slots.is_empty(), "a key that is neither held nor wanted takes no entry");
        [held, gone[0], gone[1], back, again, forgotten]
    };
    let (short, long) = (offered("a"), offered(&"a".repeat(201)));
    let more: Vec<usize> = long.iter().zip(short).map(|(long, short)| long - short).collect();
    assert_eq!(more, [0, 200, 200, 0, 200, 0]);

    let claimed = |name: &str| {
        let (mut subscription, view) = opened(name, Some(HeldState::Absent));
        [
            subscription.memory() - subscription.claims(),
            view.deliver(&mut subscription) - subscription.claims(),
        ]
    };
    let (short, long) = (claimed("a"), claimed(&"a".repeat(201)));
    assert_eq!([long[0] - short[0], long[1] - short[1]], [200, 0], "objects that only the edge knows");
}
