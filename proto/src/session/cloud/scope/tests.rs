//! Bounds of a scope's inner state, which is not visible in frames.

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::frame::Inventory;
use crate::ids::{Epoch, Uid};
use crate::limits::PARK_DELAY_MIN;
use crate::object::{ContentHash, Held, InventoryEntry, Resource, SharedObject};

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
    fn wanted(&self, _: ScopeId) -> Vec<ObjectKey> {
        vec![Self::key()]
    }

    fn lookup(&self, _: ScopeId, key: &ObjectKey) -> Lookup {
        let uid = Uid::parse("u").expect("valid");
        let version = ObjectVersion {
            uid,
            revision: CloudRevision(self.0.get()),
            hash: ContentHash(self.0.get().into()),
        };
        Lookup::Present(Arc::new(SharedObject::new(key.clone(), version, "{}".into(), Vec::new())))
    }

    fn revision(&self, _: ScopeId) -> CloudRevision {
        CloudRevision(self.0.get())
    }
}

fn opened(view: &View) -> Scope {
    let comparison = Comparison::new(None, None, Inventory::Full(Vec::new())).expect("an empty inventory");
    let mut scope = Scope::new(ScopeId::NODE, comparison, false);
    let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
    scope.open(Moment::default(), &epoch, view).expect("consistent");
    scope
}

fn flight(step: Step) -> InFlight {
    let (scope, key) = (ScopeId::NODE, step.change.key().clone());
    let sent_at = Moment::default();
    InFlight { scope, key, becomes: step.becomes, adoption: false, bytes: step.bytes, sent_at, refused: true }
}

fn next(scope: &mut Scope, now: Moment, view: &View) -> Option<Step> {
    let window = Window::new(Lane::Delivery, 8, 1 << 20);
    match scope.next(now, &window, Lane::Delivery, view, &mut VecDeque::new()) {
        Next::Send(step) => Some(step),
        Next::Nothing => None,
        Next::Blocked => panic!("an empty window has room"),
    }
}

#[test]
fn a_key_that_is_refused_a_thousand_times_has_one_timer() {
    let view = View(Cell::new(1));
    let mut scope = opened(&view);
    for _ in 0..1000 {
        let step = next(&mut scope, Moment::default(), &view).expect("a newer version never waits");
        assert!(scope.refused(Moment::default(), &flight(step)) >= PARK_DELAY_MIN);
        assert_eq!(scope.timers.len(), 1);
        view.next();
        scope.offer(View::key(), &view);
    }
    let step = next(&mut scope, Moment::default(), &view).expect("a newer version never waits");
    scope.acked(&View::key(), step.becomes);
    assert!(scope.timers.is_empty(), "what is stored has no back-off");
    assert_eq!((scope.dirty(), scope.parked(), scope.held()), (0, 0, 1));
}

#[test]
fn a_key_is_ready_once_however_often_it_is_offered() {
    let view = View(Cell::new(1));
    let mut scope = opened(&view);
    for _ in 0..1000 {
        scope.offer(View::key(), &view);
    }
    assert_eq!(scope.ready.iter().map(VecDeque::len).sum::<usize>(), 1);
    next(&mut scope, Moment::default(), &view).expect("one delivery");
    assert!(next(&mut scope, Moment::default(), &view).is_none());
    assert!(
        scope.ready.iter().all(|queue| queue.capacity() <= KEPT_CAPACITY),
        "an idle scope keeps no burst"
    );
}

#[test]
fn keys_that_nobody_wants_leave_nothing_behind() {
    let view = View(Cell::new(1));
    let mut scope = opened(&view);
    let other = ObjectKey::new(Resource::new("", "v1", "secrets"), "default", "other");
    struct Unwanted;
    impl NodeView for Unwanted {
        fn wanted(&self, _: ScopeId) -> Vec<ObjectKey> {
            Vec::new()
        }
        fn lookup(&self, _: ScopeId, _: &ObjectKey) -> Lookup {
            Lookup::Unwanted(None)
        }
        fn revision(&self, _: ScopeId) -> CloudRevision {
            CloudRevision(0)
        }
    }
    next(&mut scope, Moment::default(), &view).expect("the wanted one");
    scope.offer(other.clone(), &Unwanted);
    let window = Window::new(Lane::Delivery, 8, 1 << 20);
    let outcome = scope.next(Moment::default(), &window, Lane::Delivery, &Unwanted, &mut VecDeque::new());
    assert!(matches!(outcome, Next::Nothing));
    assert!(!scope.slots.contains_key(&other));
}

/// One key that a test wants, and later no longer wants.
struct Fickle(ObjectKey, Cell<bool>);

impl NodeView for Fickle {
    fn wanted(&self, _: ScopeId) -> Vec<ObjectKey> {
        if self.1.get() { vec![self.0.clone()] } else { Vec::new() }
    }

    fn lookup(&self, scope: ScopeId, key: &ObjectKey) -> Lookup {
        if self.1.get() { View(Cell::new(1)).lookup(scope, key) } else { Lookup::Unwanted(None) }
    }

    fn revision(&self, _: ScopeId) -> CloudRevision {
        CloudRevision(1)
    }
}

impl Fickle {
    fn want(&self, scope: &mut Scope, wanted: bool) -> usize {
        self.1.set(wanted);
        scope.offer(self.0.clone(), self);
        scope.memory()
    }

    /// The edge accepts the next delivery.
    fn deliver(&self, scope: &mut Scope) -> usize {
        let window = Window::new(Lane::Delivery, 8, 1 << 20);
        let sent = scope.next(Moment::default(), &window, Lane::Delivery, self, &mut VecDeque::new());
        let step = match sent {
            Next::Send(step) => step,
            other => panic!("nothing to send: {other:?}"),
        };
        scope.acked(&self.0, step.becomes);
        scope.memory()
    }
}

/// The texts of a wanted key belong to the view and are shared; those of a deleted key are kept only for its slot,
/// until the edge has acknowledged the deletion.
#[test]
fn texts_of_keys_that_have_gone_count() {
    let opened = |name: &str, held: Option<Held>| {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name);
        let view = Fickle(key.clone(), Cell::new(held.is_none()));
        let held = held.into_iter().map(|held| InventoryEntry { key: key.clone(), held }).collect();
        let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
        let comparison =
            Comparison::new(Some(epoch.clone()), None, Inventory::Full(held)).expect("an inventory");
        let mut scope = Scope::new(ScopeId(1), comparison, false);
        scope.open(Moment::default(), &epoch, &view).expect("consistent");
        (scope, view)
    };
    let offered = |name: &str| {
        let (mut scope, view) = opened(name, None);
        let held = view.deliver(&mut scope);
        let gone = [view.want(&mut scope, false), view.want(&mut scope, false)];
        let back = view.want(&mut scope, true);
        let again = view.want(&mut scope, false);
        let forgotten = view.deliver(&mut scope);
        view.want(&mut scope, false);
        assert!(scope.slots.is_empty(), "what nobody has and wants takes no place");
        [held, gone[0], gone[1], back, again, forgotten]
    };
    let (short, long) = (offered("a"), offered(&"a".repeat(201)));
    let more: Vec<usize> = long.iter().zip(short).map(|(long, short)| long - short).collect();
    assert_eq!(more, [0, 200, 200, 0, 200, 0]);

    let claimed = |name: &str| {
        let (mut scope, view) = opened(name, Some(Held::Absent));
        [scope.memory() - scope.claims(), view.deliver(&mut scope) - scope.claims()]
    };
    let (short, long) = (claimed("a"), claimed(&"a".repeat(201)));
    assert_eq!([long[0] - short[0], long[1] - short[1]], [200, 0], "what the edge alone knows of");
}
