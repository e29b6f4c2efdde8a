//! Lists that confirm what a shared watch does not have.

use std::sync::atomic::AtomicU16;

use tokio::sync::Notify;
use tombolo_proto::CloudRevision;
use tombolo_proto::object::{ContentHash, HeldState, ObjectKey, ObjectVersion};
use tombolo_proto::session::Lookup;

use super::*;
use crate::hub::followed::Followed;
use crate::hub::shared::EVENTS_MAX;
use crate::kube::RawObject;
use crate::kube::tests::double::answering;

/// An API server with a list of ConfigMaps.
#[derive(Default)]
struct Api {
    code: AtomicU16,
    items: parking_lot::Mutex<Vec<Value>>,
    asked: Notify,
    answers: Notify,
}

fn object(name: &str, uid: &str, revision: u64) -> Value {
    let metadata =
        json!({"name": name, "namespace": "d", "uid": uid, "resourceVersion": revision.to_string()});
    json!({"metadata": metadata, "data": {"revision": revision.to_string()}})
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", name)
}

impl Api {
    /// Each list is answered when the test says so, with the objects of the time when it was requested.
    fn client(self: &Arc<Self>) -> Kube {
        let api = Arc::clone(self);
        let client = answering(move |call, _| {
            let api = Arc::clone(&api);
            async move {
                assert_eq!(call.uri.path(), "/api/v1/namespaces/d/configmaps");
                let list = json!({"metadata": {"resourceVersion": "9"}, "items": *api.items.lock()});
                let code = api.code.load(Ordering::SeqCst);
                api.asked.notify_one();
                api.answers.notified().await;
                (code, list)
            }
        });
        client.into()
    }
}

/// A watch whose events the test sends, a session that follows it, and the API server behind it.
struct World {
    api: Arc<Api>,
    hub: Arc<Hub>,
    watch: Arc<SharedWatch>,
    events: mpsc::Sender<ObjectEvent>,
}

impl World {
    async fn new(shown: &[Value]) -> Self {
        let api = Arc::new(Api::default());
        api.code.store(200, Ordering::SeqCst);
        let hub = hub(&api.client());
        let interned = hub.subscriptions.interned.clone();
        let watch = SharedWatch::new(subscribe(SubscriptionId(1)).resource, "ConfigMap".to_owned(), interned);
        let watch = Arc::new(watch.listed_at("/api/v1/namespaces/d/configmaps".to_owned()));
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(Arc::clone(&watch).run(receiver));
        let world = Self { api, hub, watch, events };
        world.relist(shown).await;
        world
    }

    async fn relist(&self, shown: &[Value]) {
        self.watch.relist_begins();
        self.show(ObjectEvent::RelistStart).await;
        for object in shown {
            self.show(ObjectEvent::Applied(RawObject::new(object.clone()))).await;
        }
        self.show(ObjectEvent::RelistEnd).await;
    }

    /// The copy has processed an event.
    async fn show(&self, event: ObjectEvent) {
        self.events.send(event).await.expect("it runs");
        while self.events.capacity() < EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    }

    fn prove(&self, followed: &Followed) -> tokio::task::JoinHandle<bool> {
        let (hub, watch, since) = (Arc::clone(&self.hub), Arc::clone(&self.watch), followed.since());
        tokio::spawn(async move { hub.subscriptions.prove(&node(), &watch, since).await })
    }

    /// Waits until the API server is asked for the list.
    async fn is_asked(&self) {
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, self.api.asked.notified()).await.expect("the API server is asked");
    }

    fn revision(&self, name: &str) -> Option<u64> {
        match self.watch.lookup(&key(name)) {
            Lookup::Present(object) => Some(object.version.revision.0),
            _ => None,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn list_enters_the_shared_copy_and_a_late_watch_does_not_revert_it() {
    let world = World::new(&[object("a", "a1", 5), object("z", "z1", 6)]).await;
    let followed = Followed::new(Arc::clone(&world.watch));
    assert!(!followed.is_proven(), "the first query starts without a list");
    *world.api.items.lock() = vec![object("a", "a1", 5), object("b", "b2", 28), object("z", "z1", 6)];
    let proof = world.prove(&followed);
    world.is_asked().await;
    // Objects deleted during the list do not come back with it, and objects changed meanwhile do not go back to an
    // older version.
    world.show(ObjectEvent::Deleted(RawObject::new(object("z", "z1", 40)))).await;
    world.show(ObjectEvent::Applied(RawObject::new(object("a", "a1", 41)))).await;
    assert!(!followed.is_proven() && world.revision("b").is_none());
    world.api.answers.notify_one();
    assert!(proof.await.expect("no panic"));
    assert!(followed.is_proven());
    assert_eq!((world.revision("a"), world.revision("b"), world.revision("z")), (Some(41), Some(28), None));

    // The watch lagged behind: it shows an older incarnation, its deletion, and then what the list has shown.
    world.show(ObjectEvent::Applied(RawObject::new(object("b", "b1", 15)))).await;
    world.show(ObjectEvent::Deleted(RawObject::new(object("b", "b1", 20)))).await;
    assert_eq!(world.revision("b"), Some(28));
    world.show(ObjectEvent::Applied(RawObject::new(object("b", "b2", 28)))).await;
    world.show(ObjectEvent::Deleted(RawObject::new(object("b", "b2", 50)))).await;
    assert_eq!(world.revision("b"), None, "and what it tells from then on is true");
    assert!(
        !Followed::new(Arc::clone(&world.watch)).is_proven(),
        "an older list is no proof for a later query"
    );
}

/// An object that the watch's own list does not have may have been created after it.
#[tokio::test(start_paused = true)]
async fn confirming_list_is_repeated_when_the_watch_relists() {
    let world = World::new(&[]).await;
    let followed = Followed::new(Arc::clone(&world.watch));
    *world.api.items.lock() = vec![object("b", "b1", 28)];
    let proof = world.prove(&followed);
    world.is_asked().await;
    world.relist(&[]).await;
    world.api.answers.notify_one();
    world.is_asked().await;
    assert!(world.revision("b").is_none() && !followed.is_proven());
    world.api.answers.notify_one();
    assert!(proof.await.expect("no panic"));
    assert_eq!(world.revision("b"), Some(28));
    world.relist(&[]).await;
    assert_eq!(world.revision("b"), None, "a list of the watch that started later is newer");
}

/// A node opens subscriptions with invented selectors. Selections that others follow are listed meanwhile, even if this
/// node has asked for them before.
#[tokio::test(start_paused = true)]
async fn first_lists_of_one_node_queue_without_delaying_others() {
    let api = Arc::new(Slow::default());
    let hub = api.hub();
    let name = |name: &str| NodeId::parse(name).expect("valid");
    let start = |selector: &str, node: &str| {
        let subscribe = Subscribe { label_selector: selector.to_owned(), ..subscribe(SubscriptionId(1)) };
        let selection = Selection::of(&subscribe).expect("a selection");
        hub.subscriptions.start(&selection, "ConfigMap", Some(&name(node))).watch
    };
    let greedy: Vec<_> = (10..58).map(|number| start(&format!("own{number}"), "greedy")).collect();
    tokio::time::sleep(LISTING / 2).await;
    assert_eq!(api.asked("own"), 1, "one at a time");
    let begun = Instant::now();
    start("modest", "modest").synced().await.expect("a list");
    greedy[46].ask(Some(&name("modest")));
    greedy[46].synced().await.expect("a list for another node");
    greedy[47].ask(None);
    greedy[47].synced().await.expect("a list for cloudcore");
    assert!(begun.elapsed() < LISTING * 4, "{:?}", begun.elapsed());
    for watch in &greedy {
        watch.synced().await.expect("each arrives eventually");
    }
    assert!(begun.elapsed() > LISTING * 40, "one at a time");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(hub.subscriptions.kube.nodes_with_turns(), 0, "no state is kept for idle nodes");
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_retried_until_the_watch_ends() {
    let world = World::new(&[]).await;
    let followed = Followed::new(Arc::clone(&world.watch));
    world.api.code.store(500, Ordering::SeqCst);
    let proof = world.prove(&followed);
    for _ in 0..5 {
        world.is_asked().await;
        world.api.answers.notify_one();
    }
    assert!(!followed.is_proven());
    world.watch.fail(&Closed::new(503, "over"));
    world.api.answers.notify_one();
    assert!(!proof.await.expect("no panic"), "no deletion is reported");
}

/// An API server that answers lists after a while, and records their label selectors.
#[derive(Default)]
struct Slow {
    asked: parking_lot::Mutex<Vec<String>>,
    code: AtomicU16,
}

/// How long a list takes.
const LISTING: Duration = Duration::from_secs(10);

impl Slow {
    fn client(self: &Arc<Self>) -> Kube {
        let api = Arc::clone(self);
        let client = answering(move |call, _| {
            let api = Arc::clone(&api);
            async move {
                let query = call.uri.query().unwrap_or_default();
                if query.contains("watch=true") {
                    // No event ever arrives.
                    std::future::pending::<()>().await;
                }
                api.asked.lock().push(query.to_owned());
                tokio::time::sleep(LISTING).await;
                (api.code.load(Ordering::SeqCst), json!({"metadata": {"resourceVersion": "7"}}))
            }
        });
        client.into()
    }

    fn hub(self: &Arc<Self>) -> Arc<Hub> {
        self.code.store(200, Ordering::SeqCst);
        hub(&self.client())
    }

    fn asked(&self, selector: &str) -> usize {
        self.asked.lock().iter().filter(|query| query.contains(selector)).count()
    }
}

/// A watch with a selector, whose own list is complete.
async fn selecting(hub: &Hub, selector: &str) -> Arc<SharedWatch> {
    let interned = hub.subscriptions.interned.clone();
    let watch = SharedWatch::new(subscribe(SubscriptionId(1)).resource, "ConfigMap".to_owned(), interned);
    let path = format!("/api/v1/namespaces/d/configmaps?labelSelector={selector}");
    let watch = Arc::new(watch.listed_at(path));
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(Arc::clone(&watch).run(receiver));
    watch.relist_begins();
    for event in [ObjectEvent::RelistStart, ObjectEvent::RelistEnd] {
        events.send(event).await.expect("it runs");
    }
    watch.synced().await.expect("it continues");
    // The watch goes on as long as its event channel is open.
    tokio::spawn(async move { events.closed().await });
    watch
}

fn proving(hub: &Arc<Hub>, name: &str, watch: &Arc<SharedWatch>) -> tokio::task::JoinHandle<bool> {
    let (hub, watch) = (Arc::clone(hub), Arc::clone(watch));
    let (node, since) = (NodeId::parse(name).expect("valid"), watch.lists_begun());
    tokio::spawn(async move { hub.subscriptions.prove(&node, &watch, since).await })
}

#[tokio::test(start_paused = true)]
async fn node_with_many_selectors_does_not_delay_lists_of_others() {
    let api = Arc::new(Slow::default());
    let hub = api.hub();
    let shared = selecting(&hub, "shared").await;
    let mut greedy = Vec::new();
    for number in 0..48 {
        let watch = selecting(&hub, &format!("own{number}")).await;
        greedy.push(proving(&hub, "greedy", &watch));
    }
    // The node waits for the shared watch as well, behind its own watches.
    greedy.push(proving(&hub, "greedy", &shared));
    tokio::time::sleep(LISTING / 2).await;
    let begun = Instant::now();
    let modest = selecting(&hub, "modest").await;
    for proof in [proving(&hub, "a", &shared), proving(&hub, "b", &modest)] {
        assert!(proof.await.expect("no panic"));
    }
    assert!(begun.elapsed() < LISTING * 2, "{:?}: at once, beside one list of the other", begun.elapsed());
    for proof in greedy {
        assert!(proof.await.expect("no panic"));
    }
    assert_eq!(hub.subscriptions.kube.nodes_with_turns(), 0, "no state is kept for idle nodes");
}

#[tokio::test(start_paused = true)]
async fn failed_shared_list_is_retried_by_one_session_and_delays_no_other_list() {
    let api = Arc::new(Slow::default());
    let hub = api.hub();
    let (odd, good) = (selecting(&hub, "odd").await, selecting(&hub, "good").await);
    api.code.store(403, Ordering::SeqCst);
    let names: Vec<String> = (0..50).map(|number| format!("n{number}")).collect();
    let waiting: Vec<_> = names.iter().map(|name| proving(&hub, name, &odd)).collect();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let asked = api.asked("odd");
    assert!((5..20).contains(&asked), "{asked} lists for fifty nodes in five minutes");
    // It pauses now or soon, and holds nothing meanwhile.
    while odd.rests_until().is_none() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    api.code.store(200, Ordering::SeqCst);
    let begun = Instant::now();
    assert!(proving(&hub, "n0", &good).await.expect("no panic"));
    assert!(begun.elapsed() < LISTING * 2, "{:?}", begun.elapsed());
    for proof in waiting {
        assert!(proof.await.expect("no panic"));
    }
    assert!(api.asked("odd") <= asked + 2, "one list serves all");
}

/// End to end: an edge reconnects with an object that the copy does not have.
#[tokio::test(start_paused = true)]
async fn edge_keeps_followed_objects_while_the_api_server_does_not_answer() {
    let rights = Arc::new(Rights::default());
    let hub = hub(&scripted(&rights));
    hub.subscriptions.open(&node(), &subscribe(SubscriptionId(1))).await.expect("the watch runs already");
    let mut edge = Edge::connect(&hub);
    rights.deaf.store(true, Ordering::SeqCst);
    let version = ObjectVersion {
        uid: Uid::parse("x").expect("valid"),
        revision: CloudRevision(3),
        hash: ContentHash(1),
    };
    let subscription = edge.session.next_subscription();
    let held = InventoryEntry { key: key("x"), held: HeldState::Present(version) };
    let (epoch, inventory) = (Some(hub.epoch.load().as_ref().clone()), Inventory::Full(vec![held]));
    let resumed = Subscribe { epoch, inventory, ..subscribe(subscription) };
    edge.session.subscribe(resumed).expect("room for one");
    assert_eq!(
        edge.listen(SOON).await,
        Some((subscription, None)),
        "caught up: no node waits for the answer"
    );
    assert_eq!(edge.listen(Duration::from_secs(120)).await, None);
    assert_eq!(edge.deleted, 0, "the copy is no proof, regardless of its age");
    rights.deaf.store(false, Ordering::SeqCst);
    assert_eq!(edge.listen(Duration::from_secs(120)).await, None);
    assert_eq!(edge.deleted, 1, "the list has no such object");
}
