//! Lists and watches of large objects, with a scripted API server.

use std::sync::Arc;

use http::Response;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::paging::PAGE_LEN_MAX;
use super::*;

mod long;

const MIB: usize = 1024 * 1024;

/// What happens to a watch.
#[derive(Clone)]
enum Told {
    /// These events arrive, then the watch ends.
    Events(Vec<String>),
    /// The watch is refused with this code.
    Refused(u16),
}

/// An API server that lists objects of these sizes, named by numbers, and plays the next script entry for each watch.
struct Api {
    sizes: Vec<usize>,
    watches: Mutex<Vec<Told>>,
    /// Number of requested objects, and length of each page.
    pages: Mutex<Vec<(usize, usize)>>,
    /// The revisions at which watches began.
    begun: Mutex<Vec<String>>,
}

fn object(number: usize, size: usize) -> Value {
    let metadata = json!({"name": number.to_string(), "namespace": "d", "uid": "u", "resourceVersion": "5"});
    json!({"metadata": metadata, "data": {"k": "x".repeat(size)}})
}

fn event(kind: &str, number: usize, revision: &str) -> String {
    let mut object = object(number, 1);
    object["metadata"]["resourceVersion"] = revision.into();
    event_of(kind, &object)
}

fn event_of(kind: &str, object: &Value) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

impl Api {
    fn new(sizes: Vec<usize>, watches: &[Told]) -> Arc<Self> {
        let (pages, begun) = Default::default();
        Arc::new(Self { sizes, watches: Mutex::new(watches.to_vec()), pages, begun })
    }

    fn kube(self: &Arc<Self>) -> Kube {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&api);
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let value = |name: &str| {
                    let part = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
                    part.map(str::to_owned)
                };
                let (code, body) = match value("watch") {
                    Some(_) => api.watch(value("resourceVersion")).await,
                    None => (200, api.page(value("limit"), value("continue"))),
                };
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, tower::BoxError>(response.body(Body::from(body.into_bytes()))?)
            }
        });
        Client::new(service, "default").into()
    }

    fn page(&self, limit: Option<String>, from: Option<String>) -> String {
        let limit: usize = limit.expect("a limit").parse().expect("a number");
        let from: usize = from.map_or(0, |from| from.parse().expect("a number"));
        let until = (from + limit).min(self.sizes.len());
        let items: Vec<Value> = (from..until).map(|number| object(number, self.sizes[number])).collect();
        let next = if until < self.sizes.len() { until.to_string() } else { String::new() };
        let page =
            json!({"metadata": {"resourceVersion": "7", "continue": next}, "items": items}).to_string();
        self.pages.lock().push((limit, page.len()));
        page
    }

    async fn watch(&self, from: Option<String>) -> (u16, String) {
        self.begun.lock().push(from.expect("a revision"));
        let told = self.watches.lock().pop();
        match told {
            None => std::future::pending().await,
            Some(Told::Refused(code)) => {
                let status = json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "no", "code": code});
                (code, status.to_string())
            }
            Some(Told::Events(events)) => (200, events.iter().map(|event| format!("{event}\n")).collect()),
        }
    }
}

fn spec(bytes: usize) -> WatchSpec {
    let mut spec = WatchSpec::all(Resource::new("", "v1", "configmaps"));
    spec.waiting = Some(Waiting::new(u32::try_from(bytes).expect("few")));
    spec
}

/// An event in short: the number and revision of its object.
fn told(event: &ObjectEvent) -> String {
    let about = |object: &RawObject| {
        let key = object.key(&Resource::new("", "v1", "configmaps"));
        format!("{}@{}", key.name(), object.revision().expect("one").0)
    };
    match event {
        ObjectEvent::Applied(object) => format!("+{}", about(object)),
        ObjectEvent::Deleted(object) => format!("-{}", about(object)),
        ObjectEvent::RelistStart => "[".to_owned(),
        ObjectEvent::RelistEnd => "]".to_owned(),
    }
}

/// The result, which must arrive within ten minutes.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(600), what).await.expect("it comes")
}

/// The listed objects, in order.
fn all(count: usize) -> Vec<String> {
    let objects = (0..count).map(|number| format!("+{number}@5"));
    std::iter::once("[".to_owned()).chain(objects).chain(["]".to_owned()]).collect()
}

#[tokio::test(start_paused = true)]
async fn list_of_large_objects_stays_within_the_page_memory() {
    let sizes: Vec<usize> = std::iter::repeat_n(MIB, 20).chain(std::iter::repeat_n(100, 2000)).collect();
    let api = Api::new(sizes, &[]);
    let mut numbers = Vec::new();
    let path = "/api/v1/configmaps";
    let answer = api
        .kube()
        .list(Caller::Own, path, |object| numbers.push(object.value()["metadata"]["name"].clone()))
        .await;
    assert!(answer.expect("a list").is_none());
    assert!((0..2020).map(|number| json!(number.to_string())).eq(numbers), "each once and in order");
    let pages = std::mem::take(&mut *api.pages.lock());
    let taken: Vec<usize> =
        pages.iter().filter(|(_, len)| *len <= PAGE_LEN_MAX).map(|(limit, _)| *limit).collect();
    assert_eq!(taken.first(), Some(&1), "fewer objects are requested until they fit: {pages:?}");
    assert!(taken.contains(&500), "and more again, when they are small: {pages:?}");
    assert!(pages.len() < 45, "{pages:?}");
}

/// The consumer of the events is slow.
#[tokio::test(start_paused = true)]
async fn queued_events_are_bounded_in_bytes_and_none_is_lost() {
    let api = Api::new(vec![MIB; 20], &[]);
    let (out, mut events) = mpsc::channel(1024);
    let spec = spec(4 * MIB);
    let waiting = spec.waiting.clone().expect("some");
    let watching = tokio::spawn(watch(api.kube(), spec, out, |event| event, |error| panic!("{error}")));
    // With a paused clock, time passes only when all tasks are blocked.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(events.len(), 1 + 3, "the beginning and what fits");
    assert!(waiting.free() < MIB + 4096, "{} bytes are free", waiting.free());
    let mut seen = Vec::new();
    while seen.len() < 22 {
        // The previous event is dropped when the next one is received.
        seen.push(told(&soon(events.recv()).await.expect("an event")));
    }
    assert_eq!(seen, all(20));
    assert_eq!(waiting.free(), 4 * MIB, "events that were read occupy no memory");
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn watch_resumes_and_relists_after_expiry() {
    let bookmark = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "20"}});
    let gone = json!({"kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
    let (bookmark, gone) = (event_of("BOOKMARK", &bookmark), event_of("ERROR", &gone));
    let first = vec![event("ADDED", 1, "8"), event("MODIFIED", 1, "9"), event("DELETED", 0, "10")];
    let mut watches = [
        Told::Events(first),
        Told::Refused(500),
        Told::Events(vec![bookmark]),
        Told::Events(vec![event("ADDED", 2, "21"), gone]),
        Told::Refused(410),
    ];
    watches.reverse();
    let api = Api::new(vec![1], &watches);
    let (out, mut events) = mpsc::channel(1024);
    let (errors, mut failures) = mpsc::unbounded_channel();
    let failed = move |error: &WatchError| {
        let _ = errors.send(error.code);
    };
    let watching = tokio::spawn(watch(api.kube(), spec(MIB), out, |event| event, failed));
    let mut seen = Vec::new();
    while seen.len() < 3 + 4 + 6 {
        seen.push(told(&soon(events.recv()).await.expect("an event")));
    }
    let again = ["[", "+0@5", "]"];
    let expected = [&again[..], &["+1@8", "+1@9", "-0@10", "+2@21"], &again, &again].concat();
    assert_eq!(seen, expected);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*api.begun.lock(), ["7", "10", "10", "20", "7", "7"]);
    let codes: Vec<_> = std::iter::from_fn(|| failures.try_recv().ok()).collect();
    assert_eq!(codes, [Some(500), Some(410), Some(410)]);
    watching.abort();
}

/// A user who writes an object can have it followed by many watches, and its tree is many times as large as its text.
#[tokio::test(start_paused = true)]
async fn watches_of_one_large_object_parse_it_one_at_a_time() {
    let api = Api::new(vec![MIB; 2], &[]);
    let spec = spec(2 * MIB);
    let (waiting, mut taken) = (spec.waiting.clone().expect("some"), Vec::new());
    let watches: Vec<_> = (0..48)
        .map(|_| {
            let (out, events) = mpsc::channel(1024);
            taken.push(events);
            tokio::spawn(watch(api.kube(), spec.clone(), out, |event| event, |error| panic!("{error}")))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.pages.lock().len(), super::super::waiting::PAGES_MAX, "no more pages are in memory");
    assert!(waiting.is_reading() && waiting.free() < MIB, "one object has its bytes, and one is read");
    let all = taken.iter_mut().map(async |events| {
        let mut told = 0;
        while told < 4 {
            soon(events.recv()).await.expect("an event");
            told += 1;
        }
    });
    soon(futures::future::join_all(all)).await;
    assert!(!waiting.is_reading() && waiting.free() == 2 * MIB, "and all followers are notified");
    watches.into_iter().for_each(|watch| watch.abort());
}

/// A server that ends each watch immediately is not asked again immediately.
#[tokio::test(start_paused = true)]
async fn watch_that_ends_at_once_backs_off() {
    let api = Api::new(vec![1], &vec![Told::Events(Vec::new()); 1000]);
    let (out, mut events) = mpsc::channel(1024);
    let (errors, mut failures) = mpsc::unbounded_channel();
    let failed = move |error: &WatchError| {
        let _ = errors.send(error.text.clone());
    };
    let watching = tokio::spawn(watch(api.kube(), spec(MIB), out, |event| event, failed));
    for expected in all(1) {
        assert_eq!(told(&soon(events.recv()).await.expect("an event")), expected);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let begun = api.begun.lock().len();
    assert!((10..60).contains(&begun), "{begun} times");
    assert_eq!(failures.recv().await.as_deref(), Some("the watch ended at once"));
    watching.abort();
}

/// An API server that breaks off in the middle of a list is not asked for the list again immediately.
#[tokio::test(start_paused = true)]
async fn truncated_list_backs_off() {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let is_first = !request.uri().query().unwrap_or_default().contains("continue");
        let page = json!({"metadata": {"resourceVersion": "7", "continue": "1"}, "items": [object(0, 1)]});
        let (code, body) =
            if is_first { (200, page.to_string()) } else { (429, json!({"code": 429}).to_string()) };
        Ok::<_, tower::BoxError>(Response::builder().status(code).body(Body::from(body.into_bytes()))?)
    });
    let (out, events) = mpsc::channel(1024);
    let kube = Kube::from(Client::new(service, "default"));
    let watching = tokio::spawn(watch(kube, spec(MIB), out, |event| event, |_| {}));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let begun = events.len() / 2;
    assert!((10..60).contains(&begun), "{begun} times");
    watching.abort();
}

/// Dropping the receiver ends the watch, even one that waits for room.
#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_receiver() {
    let api = Api::new(vec![MIB; 20], &[]);
    let (out, events) = mpsc::channel(1024);
    let watching = tokio::spawn(watch(api.kube(), spec(MIB), out, |event| event, |error| panic!("{error}")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(events);
    soon(watching).await.expect("it ends");
}
