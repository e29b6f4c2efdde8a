//! Memory for followed objects: who pays for it, and who gives way when it is used up.

use super::*;

const KIB: usize = 1024;

/// Bytes for all followed objects. One node alone may follow a quarter of them.
const ALL: usize = 4096 * KIB;

/// An object takes a little more than this.
const OBJECT: usize = 64 * KIB;

/// An API server whose lists have as many objects as the selector says: `NAME=COUNT`. Each list takes a second.
fn objects() -> Kube {
    let client = answering(|call, _| async move {
        let query = call.uri.query().unwrap_or_default().to_owned();
        match call.uri.path() {
            "/api/v1" => (200, json!({"resources": [{"name": "configmaps", "kind": "ConfigMap"}]})),
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                (201, json!({"status": {"allowed": true}}))
            }
            _ if query.contains("watch") => std::future::pending().await,
            _ => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let mut parts = query.split('&').filter_map(|part| part.strip_prefix("labelSelector="));
                let selector = parts.next().expect("a selector").replace("%3D", "=");
                let (name, count) = selector.split_once('=').expect("NAME=COUNT");
                (200, list_of(name, count.parse().expect("a number")))
            }
        }
    });
    client.into()
}

fn list_of(name: &str, count: usize) -> Value {
    let object = |number: usize| {
        let metadata =
            json!({"name": format!("{name}-{number}"), "namespace": "d", "uid": "u", "resourceVersion": "5"});
        json!({"metadata": metadata, "data": {"k": "x".repeat(OBJECT)}})
    };
    let items: Vec<Value> = (0..count).map(object).collect();
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items})
}

/// A node with a session.
struct Node {
    hub: Arc<Hub>,
    session: Arc<SessionHandle>,
    subscriptions: std::cell::Cell<u32>,
}

impl Node {
    fn new(hub: &Arc<Hub>, name: &str) -> Self {
        let node = NodeId::parse(name).expect("valid");
        let Admission::Admitted(session) = hub.registry.admit(&node, mem::pair(node.clone()).0.peer()) else {
            panic!("the hub is full");
        };
        Self { hub: Arc::clone(hub), session, subscriptions: std::cell::Cell::new(0) }
    }

    async fn open(&self, selector: &str) -> Result<Arc<SharedWatch>, Closed> {
        let question = Subscribe { label_selector: selector.to_owned(), ..subscribe(SubscriptionId(1)) };
        self.hub.subscriptions.open(&self.session.node, &question).await
    }

    /// The number of the subscription, or the code of the refusal.
    async fn follow(&self, selector: &str) -> Result<SubscriptionId, u16> {
        let watch = self.open(selector).await.map_err(|closed| closed.code)?;
        self.subscriptions.set(self.subscriptions.get() + 1);
        let subscription = SubscriptionId(self.subscriptions.get());
        watch.follow(&self.session, subscription).map_err(|closed| closed.code).map(|()| subscription)
    }

    /// The subscriptions that have ended since the last call.
    fn ended(&self) -> Vec<(SubscriptionId, u16)> {
        let ended = self.session.mailbox.take().ended.into_iter();
        ended.map(|(subscription, code, _)| (subscription, code)).collect()
    }
}

fn hub_with_memory() -> Arc<Hub> {
    let mut hub = Arc::into_inner(hub(&objects())).expect("no other node has it");
    hub.subscriptions = hub.subscriptions.with_memory(ALL);
    Arc::new(hub)
}

fn ended(hub: &Hub, kind: &'static str) -> u64 {
    hub.metrics.shared_watches_ended.get_or_create(&Label { kind }).get()
}

#[tokio::test(start_paused = true)]
async fn selection_of_a_single_node_is_bounded_in_bytes() {
    let hub = hub_with_memory();
    let (one, other) = (Node::new(&hub, "one"), Node::new(&hub, "other"));
    assert_eq!(one.follow("much=16").await, Err(413), "more than its share at once");
    assert_eq!(one.follow("a=10").await, Ok(SubscriptionId(1)));
    assert_eq!(one.follow("b=10").await, Err(429), "more than its share with what it has");
    assert_eq!(one.follow("c=2").await, Ok(SubscriptionId(2)), "what fits is followed");
    assert_eq!(other.follow("b=10").await, Ok(SubscriptionId(1)), "another node has a share of its own");
    assert_eq!((ended(&hub, "share"), ended(&hub, "whole")), (2, 0));
    hub.subscriptions.sweep();
    let bytes = usize::try_from(hub.metrics.shared_watch_bytes.get()).expect("not negative");
    assert!((22 * OBJECT..23 * OBJECT).contains(&bytes), "{bytes} bytes of 22 objects");
    assert_eq!(
        one.follow("b=10").await,
        Ok(SubscriptionId(3)),
        "an object that another node follows too counts for no share"
    );
    assert_eq!((one.ended(), other.ended()), (vec![], vec![]));

    // The other node leaves, and what it followed does not fit the share of the remaining node.
    let b = other.open("b=10").await.expect("it runs");
    b.unfollow(&other.session, SubscriptionId(1));
    hub.subscriptions.sweep();
    assert_eq!((one.ended(), other.ended()), (vec![(SubscriptionId(3), 429)], vec![]));

    // Watches that a node no longer follows give way to those that it follows now.
    one.open("a=10").await.expect("it runs").unfollow(&one.session, SubscriptionId(1));
    assert_eq!(one.follow("b=10").await, Ok(SubscriptionId(4)));
    assert_eq!(ended(&hub, "idle"), 1);
}

#[tokio::test(start_paused = true)]
async fn full_share_of_one_node_does_not_end_a_watch_awaited_by_another() {
    let hub = hub_with_memory();
    let (full, other) = (Node::new(&hub, "full"), Node::new(&hub, "other"));
    full.follow("a=14").await.expect("it fits");
    let (first, second) = tokio::join!(full.follow("b=10"), other.follow("b=10"));
    assert_eq!((first, second), (Err(429), Ok(SubscriptionId(1))));
}

#[tokio::test(start_paused = true)]
async fn selection_of_one_node_never_ends_a_watch_with_many_followers() {
    let hub = hub_with_memory();
    let honest = ["h1", "h2", "h3"].map(|name| Node::new(&hub, name));
    for selector in ["a=14", "b=14", "c=14"] {
        for node in &honest {
            node.follow(selector).await.expect("room");
        }
    }
    let throwing = ["t1", "t2", "t3"].map(|name| Node::new(&hub, name));
    // From the second one on, all memory is used up: among the watches that one node alone follows, the payer with the
    // largest share gives way.
    throwing[0].follow("t=14").await.expect("room");
    throwing[1].follow("u=8").await.expect("the first one gives way");
    assert_eq!(throwing[0].ended(), [(SubscriptionId(1), 503)]);
    throwing[2].follow("v=6").await.expect("room");
    for node in &honest {
        node.follow("d=14").await.expect("room");
    }
    assert_eq!(throwing[1].ended(), [(SubscriptionId(1), 503)]);
    assert_eq!(throwing[2].ended(), [], "62 objects fit");
    for node in &throwing {
        assert_eq!(node.follow("t=14").await, Err(503), "only watches of many are left");
    }
    assert_eq!(throwing[2].ended(), [(SubscriptionId(1), 503)]);
    for node in &honest {
        assert_eq!(node.ended(), [], "{}", node.session.node);
    }
    assert_eq!(ended(&hub, "whole"), 6);
}

/// An object that many follow grows when all memory is used up.
#[tokio::test(start_paused = true)]
async fn growing_watch_with_many_followers_ends_one_with_few() {
    let hub = hub_with_memory();
    let nodes = ["n1", "n2", "n3"].map(|name| Node::new(&hub, name));
    let (payers, resource) = (&hub.subscriptions.interned.payers, subscribe(SubscriptionId(1)).resource);
    let begin = || {
        let watch =
            SharedWatch::new(resource.clone(), "ConfigMap".to_owned(), hub.subscriptions.interned.clone());
        let watch = Arc::new(watch.begun_by(Some(&nodes[0].session.node)));
        payers.enlist(&watch);
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(Arc::clone(&watch).run(receiver));
        (watch, events)
    };
    let show = async |events: &mpsc::Sender<ObjectEvent>, name: &str, count: usize| {
        for object in list_of(name, count)["items"].as_array().expect("items") {
            let event = ObjectEvent::Applied(crate::kube::RawObject::new(object.clone()));
            if events.send(event).await.is_err() {
                return;
            }
        }
        while events.capacity() < EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    };
    let ((many, of_many), (few, of_few)) = (begin(), begin());
    for (number, node) in nodes.iter().enumerate() {
        many.follow(&node.session, SubscriptionId(1)).expect("room");
        if number < 2 {
            few.follow(&node.session, SubscriptionId(2)).expect("room");
        }
    }
    show(&of_few, "few", 20).await;
    show(&of_many, "many", 40).await;
    assert_eq!((many.len(), few.len()), (40, 20), "nearly everything is used up");
    show(&of_many, "more", 10).await;
    assert_eq!((many.len(), few.len()), (50, 0));
    assert_eq!(
        nodes.each_ref().map(Node::ended),
        [vec![(SubscriptionId(2), 503)], vec![(SubscriptionId(2), 503)], vec![]]
    );
    show(&of_many, "too-much", 20).await;
    assert_eq!(nodes.each_ref().map(|node| node.ended().len()), [1; 3], "in the end there is only itself");
    assert!(few.has_failed() && of_many.is_closed());
}
