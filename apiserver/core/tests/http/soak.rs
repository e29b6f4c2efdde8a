//! Random writes with watchers that are cut at random: at the end each equals the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tombolo_apicore::history::LogLimits;

use crate::server::*;

const WATCHERS: usize = 48;
const WRITES: usize = 600;
const NAMES: usize = 25;

/// What a client believes: name to revision.
type Belief = BTreeMap<String, u64>;

/// A client that lists and watches until no more events are expected, and cuts its own connections at random.
struct Follower {
    server: Arc<Server>,
    rng: StdRng,
    state: Belief,
    at: Option<u64>,
    streaming: bool,
}

impl Follower {
    /// `last` is the revision of the last write once there is none to come, and 0 before.
    async fn follow(mut self, last: Arc<AtomicU64>) -> Belief {
        loop {
            let last = last.load(Ordering::SeqCst);
            let Some(path) = self.start().await else { continue };
            let mut events = self.server.watch(&path).await;
            let mut left = if last > 0 { usize::MAX } else { self.rng.random_range(1..80) };
            while left > 0 {
                let Some(event) = events.next().await else { break };
                self.apply(&event);
                left -= 1;
            }
            // A watch may end at its time with something left to say.
            if last > 0 && self.at.is_some_and(|at| at >= last) {
                return self.state;
            }
        }
    }

    /// Lists if necessary. Returns the path of the next watch.
    async fn start(&mut self) -> Option<String> {
        const BOUND: &str = "watch=1&timeoutSeconds=1&allowWatchBookmarks=true";
        if self.at.is_none() && self.streaming {
            self.state.clear();
            let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
            return Some(format!("{CONFIGMAPS}?{BOUND}&{initial}"));
        }
        if self.at.is_none() {
            let list = self.server.get(CONFIGMAPS).await.expect(200);
            self.at = Some(revision(&list));
            let items = list["items"].as_array()?;
            self.state = items.iter().map(|item| (name(item), revision(item))).collect();
        }
        Some(format!("{CONFIGMAPS}?{BOUND}&resourceVersion={}", self.at?))
    }

    fn apply(&mut self, event: &Value) {
        let object = &event["object"];
        match event["type"].as_str().unwrap() {
            "ERROR" => {
                assert_eq!(object["code"], 410);
                self.at = None;
                return;
            }
            "BOOKMARK" => {}
            "DELETED" => assert!(self.state.remove(&name(object)).is_some(), "deleted what was never added"),
            "ADDED" => {
                let before = self.state.insert(name(object), revision(object));
                assert!(before.is_none(), "added twice without a deletion between");
            }
            _ => {
                let before = self.state.insert(name(object), revision(object));
                assert!(
                    before.is_some_and(|before| before < revision(object)),
                    "modified what was not there"
                );
            }
        }
        let initial = self.at.is_none();
        let end = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
        if !initial {
            assert!(Some(revision(object)) >= self.at, "revisions only grow");
        }
        if !initial || end {
            self.at = Some(revision(object));
        } else {
            // A list that was cut cannot be resumed.
            self.at = None;
        }
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

async fn write_at_random(server: &Server, rng: &mut StdRng) {
    let name = format!("m{}", rng.random_range(0..NAMES));
    let path = format!("{CONFIGMAPS}/{name}");
    let answer = match rng.random_range(0..4) {
        0 => server.delete(&path).await,
        1 => server.post(CONFIGMAPS, &configmap(&name, "new")).await,
        _ => server.put(&path, &configmap(&name, &rng.random::<u64>().to_string())).await,
    };
    assert!(answer.status.is_success() || [404, 409].contains(&answer.status.as_u16()), "{}", answer.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn randomly_disconnected_watchers_converge_to_the_stored_objects() {
    let seed = tombolo_testkit::seed();
    let mut rng = seed.rng();
    let server = Arc::new(Server::with_limits(LogLimits { count: 64, ..LogLimits::default() }).await);
    let last = Arc::new(AtomicU64::new(0));
    let followers: Vec<_> = (0..WATCHERS)
        .map(|number| {
            let follower = Follower {
                server: Arc::clone(&server),
                rng: StdRng::seed_from_u64(rng.random()),
                state: Belief::new(),
                at: None,
                streaming: number % 3 == 0,
            };
            tokio::spawn(follower.follow(Arc::clone(&last)))
        })
        .collect();
    for _ in 0..WRITES {
        write_at_random(&server, &mut rng).await;
    }
    let list = server.get(CONFIGMAPS).await.expect(200);
    last.store(revision(&list), Ordering::SeqCst);
    let wanted: Belief =
        list["items"].as_array().unwrap().iter().map(|item| (name(item), revision(item))).collect();
    for follower in followers {
        assert_eq!(follower.await.unwrap(), wanted);
    }
}
