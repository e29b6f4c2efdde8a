//! Selections that several callers share, and selections that are evicted and requested again.

use std::collections::BTreeSet;

use serde_json::json;
use tokio::task::JoinHandle;
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::Store as _;
use tombolo_proto::documents::WARM_SET;
use tombolo_proto::frame::Change;
use tombolo_proto::ids::{CloudRevision, Epoch, Uid};
use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion, Resource, SharedObject};
use tombolo_testkit::wait_until;

use super::*;
use crate::store::{Delivery, FaultyDisk, LogBounds, Sealer};

const DEADLINE: Duration = Duration::from_secs(20);

fn maps() -> Resource {
    Resource::new("", "v1", "configmaps")
}

/// A selection that callers follow in their own names.
fn borrowed() -> Selection {
    Selection { namespace: "default".to_owned(), borrowed: true, ..Selection::all(maps()) }
}

/// Selections over a store, with a session that does what the test says.
struct Edge {
    store: Store,
    subscriptions: Subscriptions,
    registry: Arc<SelectionRegistry>,
}

impl Edge {
    async fn new(seed: u64) -> Self {
        let disk = Box::new(FaultyDisk::new(seed));
        let store = Store::open_on(disk, Sealer::new(&[9; 32]), LogBounds::default()).unwrap().store;
        let subscriptions = Subscriptions::load(store.clone()).await.unwrap();
        let registry = subscriptions.registry();
        registry.session(true);
        Self { store, subscriptions, registry }
    }

    fn keep(&self) -> JoinHandle<()> {
        tokio::spawn(self.subscriptions.clone().keep())
    }

    /// A caller requests the selection.
    async fn ask(&self, token: &str) -> SubscriptionId {
        let deadline = Instant::now() + PATIENCE;
        let who = TokenCaller { sender: token, token };
        self.subscriptions.request(&borrowed(), Some(who), deadline).await.unwrap()
    }

    /// Makes the session follow a selection if it is wanted. Returns in whose name.
    fn subscribe(&self, subscription: SubscriptionId) -> Option<String> {
        self.registry.wanted().contains(&subscription).then(|| self.registry.open(subscription))??.token
    }

    async fn subscribed(&self, subscription: SubscriptionId, token: &str) {
        wait_until("a subscription", DEADLINE, async || {
            self.subscribe(subscription).is_some_and(|name| name == token)
        })
        .await;
    }

    /// The cloud delivers an object.
    async fn deliver(&self, subscription: SubscriptionId, name: &str, revision: u64) {
        let key = ObjectKey::new(maps(), "default", name);
        let body = json!({"metadata": {"name": name, "namespace": "default", "uid": "u"}}).to_string();
        let uid = Uid::parse("u").unwrap();
        let version = ObjectVersion { uid, revision: CloudRevision(revision), hash: ContentHash(1) };
        let object = SharedObject::new(key, version, body.into(), Vec::new());
        let delivery = Delivery { subscription, change: Change::Upsert(Arc::new(object)) };
        self.store.apply(vec![delivery]).await.unwrap()[0].clone().unwrap();
    }

    /// The cloud delivers the first list, of one object.
    async fn fill(&self, subscription: SubscriptionId) {
        self.deliver(subscription, "app", 7).await;
        let epoch = Epoch { cluster: Uid::parse("cluster").unwrap(), generation: 1 };
        self.store.caught_up(subscription, epoch, CloudRevision(7)).await.unwrap();
        self.registry.stands(subscription, Standing::Live);
    }

    /// A caller reads with the token, and watches.
    async fn live(&self, token: &str) -> (SubscriptionId, ChangeStream) {
        let subscription = self.ask(token).await;
        self.subscribed(subscription, token).await;
        self.fill(subscription).await;
        (subscription, self.store.subscribed(subscription).watch(&maps(), self.store.revision()).unwrap())
    }

    fn refuse(&self, subscription: SubscriptionId, code: u16) {
        self.registry.stands(subscription, Standing::Refused { code, reason: format!("code {code}") });
    }

    fn reconnect(&self) {
        self.registry.session(false);
        self.registry.session(true);
    }

    fn copied(&self, subscription: SubscriptionId) -> usize {
        self.store.subscribed(subscription).list(&maps(), None).map_or(0, |list| list.items.len())
    }
}

#[tokio::test]
async fn refusal_of_one_caller_does_not_affect_others() {
    let edge = Edge::new(61).await;
    let keeper = edge.keep();
    let (subscription, mut watch) = edge.live("all").await;
    // A caller with narrower rights is served from the same copy.
    assert_eq!(edge.ask("narrow").await, subscription);
    edge.reconnect();
    assert_eq!(
        edge.subscribe(subscription).as_deref(),
        Some("all"),
        "a caller that is known to have the right"
    );
    edge.fill(subscription).await;
    // The watch has neither ended nor sent an event before this object.
    edge.deliver(subscription, "later", 8).await;
    let told = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().expect("it continues");
    assert_eq!(told.iter().map(|change| change.object.key.name()).collect::<Vec<_>>(), ["later"]);

    // After a restart no caller is known to have the right.
    let again = Subscriptions::load(edge.store.clone()).await.unwrap();
    let again = Edge { store: edge.store.clone(), registry: again.registry(), subscriptions: again };
    keeper.abort();
    let keeper = again.keep();
    again.registry.session(true);
    again.ask("all").await;
    again.ask("narrow").await;
    again.subscribed(subscription, "narrow").await;
    again.refuse(subscription, 403);
    let standing = again.registry.standing(subscription, Some("narrow"));
    assert!(matches!(standing, Some(Standing::Refused { code: 403, .. })), "{standing:?}");
    again.subscribed(subscription, "all").await;
    assert_eq!(again.copied(subscription), 2, "the copy stays");
    keeper.abort();
}

#[tokio::test]
async fn expired_token_is_replaced_by_another() {
    let edge = Edge::new(62).await;
    let keeper = edge.keep();
    let (subscription, mut watch) = edge.live("old").await;
    edge.ask("new").await;
    edge.refuse(subscription, 401);
    assert_eq!(
        edge.registry.standing(subscription, Some("new")),
        Some(Standing::Idle),
        "not refused to this one"
    );
    // The owner of the watch is unknown: the caller watches again, and is authorized again.
    assert!(tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().is_none());
    edge.subscribed(subscription, "new").await;
    assert_eq!(edge.copied(subscription), 1, "a token is no evidence about the copy");
    edge.refuse(subscription, 401);
    let standing = edge.registry.standing(subscription, Some("new"));
    assert!(matches!(standing, Some(Standing::Refused { code: 401, .. })), "{standing:?}");
    edge.ask("new").await;
    assert_eq!(edge.subscribe(subscription), None, "it is believed for a while");
    assert_eq!(edge.ask("newest").await, subscription);
    edge.subscribed(subscription, "newest").await;
    assert_eq!(edge.copied(subscription), 1);
    keeper.abort();
}

#[tokio::test]
async fn revoked_right_clears_the_copy() {
    let edge = Edge::new(63).await;
    let (subscription, mut watch) = edge.live("revoked").await;
    edge.ask("other").await;
    edge.refuse(subscription, 403);
    assert!(edge.subscriptions.kept(&borrowed()).unwrap().is_none(), "from this moment on");
    // If it were followed before the copy is gone, the inventory would have objects that will not be there.
    assert_eq!((edge.ask("another").await, edge.subscribe(subscription)), (subscription, None));
    let narrow = Selection { field_selector: "metadata.name=app".to_owned(), ..borrowed() };
    assert_eq!(edge.registry.covering(&narrow), None);
    let keeper = edge.keep();
    assert!(tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().is_none());
    edge.subscribed(subscription, "another").await;
    assert_eq!(edge.store.held(subscription).unwrap().inventory, []);
    keeper.abort();
}

#[tokio::test]
async fn full_session_is_not_retried_at_once() {
    let edge = Edge::new(66).await;
    let subscription = edge.ask("some").await;
    let mut news = edge.registry.news();
    news.borrow_and_update();
    assert_eq!(edge.subscribe(subscription).as_deref(), Some("some"));
    edge.registry.put_off(subscription);
    assert!(!news.has_changed().unwrap());
    assert_eq!(
        edge.subscribe(subscription).as_deref(),
        Some("some"),
        "but whenever something else has changed"
    );
}

#[tokio::test]
async fn unread_selection_is_unfollowed_after_ten_minutes() {
    let edge = Edge::new(67).await;
    let (subscription, watch) = edge.live("some").await;
    let is_wanted = || edge.registry.wanted().contains(&subscription);
    let mut weights = Weights::new(edge.store.commits());
    // Not earlier, because a paused clock does not wait for the store's own threads.
    tokio::time::pause();
    let almost = Duration::from_secs(9 * 60 + 59);
    tokio::time::advance(almost).await;
    assert!(is_wanted());
    // A watch counts as reading all the time.
    edge.subscriptions.sweep(&mut weights).await.unwrap();
    tokio::time::advance(almost).await;
    assert!(is_wanted());
    edge.subscriptions.sweep(&mut weights).await.unwrap();
    drop(watch);
    tokio::time::advance(almost).await;
    edge.subscriptions.sweep(&mut weights).await.unwrap();
    assert!(is_wanted());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!is_wanted(), "it has no reader any more");
    assert_eq!(edge.copied(subscription), 1, "the copy stays");
    edge.registry.demand(subscription, Some(TokenCaller { sender: "some", token: "some" }));
    assert!(is_wanted(), "until it is requested again");
}

#[tokio::test]
async fn forgotten_selection_is_unfollowed_and_can_return() {
    let edge = Edge::new(64).await;
    let (subscription, watch) = edge.live("some").await;
    drop(watch);
    assert_eq!(edge.registry.evict(|_, _| true), Some(subscription));
    let keeper = edge.keep();
    let asking = edge.ask("some");
    let giving_up = async {
        // Pending deliveries of the session would be written to the next selection with the same number.
        wait_until("a turn of the keeper", DEADLINE, async || edge.registry.wishes().is_empty()).await;
        assert!(edge.store.subscriptions().unwrap().iter().any(|kept| kept.subscription == subscription));
        assert!(!edge.registry.wanted().contains(&subscription));
        edge.registry.stands(subscription, Standing::Idle);
    };
    edge.registry.wish(Selection::all(Resource::new("", "v1", "services")));
    let (anew, ()) = tokio::join!(asking, giving_up);
    edge.subscribed(anew, "some").await;
    let kept = edge.store.subscriptions().unwrap();
    let row = kept.iter().find(|kept| kept.subscription == anew).expect("a row");
    assert_eq!((&row.selection, row.synced), (&borrowed(), false));
    keeper.abort();
}

#[tokio::test]
async fn wished_selection_is_opened_when_there_is_room() {
    let edge = Edge::new(65).await;
    let whole = edge.subscriptions.whole();
    let mut watches = Vec::new();
    for number in edge.registry.count()..KEPT_MAX {
        let selection = Selection { namespace: format!("n{number}"), ..Selection::all(maps()) };
        let subscription =
            edge.subscriptions.request(&selection, None, Instant::now() + PATIENCE).await.unwrap();
        edge.fill(subscription).await;
        watches.push(edge.store.subscribed(subscription).watch(&maps(), edge.store.revision()).unwrap());
    }
    for _ in 0..3 {
        assert!(whole.list(&maps(), None).is_err());
    }
    let wish = Selection::all(maps());
    assert_eq!(edge.registry.wishes(), std::slice::from_ref(&wish), "regardless of the number of requests");
    edge.subscriptions.grant_wishes().await;
    edge.subscriptions.grant_wishes().await;
    assert!(!edge.registry.delay(&wish), "it was logged, and is not logged again");
    let keeper = edge.keep();
    drop(watches.pop());
    edge.registry.session(false);
    wait_until("a place", DEADLINE, async || edge.registry.covering(&wish).is_some()).await;
    assert!(edge.registry.wishes().is_empty() && edge.registry.count() <= KEPT_MAX);
    keeper.abort();
}

#[tokio::test]
async fn client_with_many_selections_takes_none_from_others() {
    let edge = Edge::new(68).await;
    let request = async |sender: &str, number: usize| {
        let selection = Selection { namespace: format!("{sender}{number}"), ..borrowed() };
        let who = TokenCaller { sender, token: "some" };
        edge.subscriptions.request(&selection, Some(who), Instant::now() + PATIENCE).await
    };
    let shop = request("shop", 0).await.unwrap();
    let mut watches = Vec::new();
    for number in 0..KEPT_PER_SENDER_MAX {
        let subscription = request("eve", number).await.unwrap();
        edge.fill(subscription).await;
        watches.push(edge.store.subscribed(subscription).watch(&maps(), edge.store.revision()).unwrap());
    }
    let refused = request("eve", 999).await.unwrap_err();
    assert!(refused.to_string().contains("64 selections are read by eve"), "{refused}");
    request("bob", 0).await.unwrap();
    let wanted = edge.registry.wanted();
    assert!(
        wanted[..WARM_SET.len() + 3].contains(&shop),
        "the newest of every sender precedes the second of any: {wanted:?}"
    );
    drop(watches);
    for _ in 0..KEPT_PER_SENDER_MAX - 1 {
        assert_ne!(edge.registry.evict(|_, _| true).unwrap(), shop, "of the sender that has the most");
    }
}

#[tokio::test]
async fn following_a_shared_selection_takes_it_from_nobody() {
    let edge = Edge::new(69).await;
    let request = async |sender: &str, selection: &str| {
        let selection = Selection { namespace: selection.to_owned(), ..borrowed() };
        let who = TokenCaller { sender, token: sender };
        edge.subscriptions.request(&selection, Some(who), Instant::now() + PATIENCE).await.unwrap()
    };
    let mut shop = BTreeSet::new();
    for number in 0..8 {
        shop.insert(request("shop", &format!("shop{number}")).await);
    }
    // Eve has nothing yet, and requests all of them, then many others.
    for number in 0..8 {
        request("eve", &format!("shop{number}")).await;
    }
    let mut eves = BTreeSet::new();
    for number in 0..40 {
        eves.insert(request("eve", &format!("eve{number}")).await);
    }
    let wanted = edge.registry.wanted();
    let last = wanted.iter().rposition(|subscription| shop.contains(subscription)).unwrap();
    assert!(last < WARM_SET.len() + 16, "the last request of each sender: {wanted:?}");
    for _ in 0..32 {
        let gone = edge.registry.evict(|_, _| true).unwrap();
        assert!(eves.remove(&gone), "{gone:?} of {shop:?}");
        edge.registry.done(gone, Duty::Forget);
    }
    // A sender that makes room in a share with selections of others gives up only its own claim.
    for number in 0..8 {
        request("bob", &format!("shop{number}")).await;
    }
    for _ in 0..8 {
        assert!(edge.registry.evict_of("bob", |_, _| true));
    }
    assert!(!edge.registry.evict_of("bob", |_, _| true), "it has none any more");
    assert!(edge.registry.duties().is_empty(), "no entry of the other is dropped");
}
