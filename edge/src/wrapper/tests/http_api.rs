//! Tests of the wrapper on a socket, with the requests of kube-proxy.

use std::net::SocketAddr;

use http::{HeaderValue, Method, header};
use tombolo_apicore::history::Change;
use tombolo_runtime::Tasks;

use super::*;
use crate::config::WrapperConfig;
use crate::identity::testing::{fetch_plain, get_plain};
use crate::wrapper::{Projection, Wrapper};

/// The `Accept` header of kube-proxy 1.36.
const ACCEPT: &str = "application/vnd.kubernetes.protobuf, */*";

pub(super) struct Served {
    pub(super) source: Arc<Source>,
    pub(super) address: SocketAddr,
    pub(super) view: View,
    events: Arc<Events>,
    tasks: Tasks,
    stop: CancellationToken,
}

pub(super) fn settings() -> WrapperConfig {
    WrapperConfig { address: Some("127.0.0.1:0".parse().unwrap()), ..WrapperConfig::default() }
}

impl Served {
    pub(super) async fn start(source: &Arc<Source>, settings: &WrapperConfig) -> Self {
        Self::start_at(SystemTime::now(), source, settings).await
    }

    /// Starts with a clock that shows this time.
    async fn start_at(now: SystemTime, source: &Arc<Source>, settings: &WrapperConfig) -> Self {
        let wrapper = Wrapper::bind(settings).await.unwrap().unwrap();
        Self::start_on(wrapper, now, source, settings)
    }

    /// Starts with the listener of this wrapper.
    pub(super) fn start_on(
        mut wrapper: Wrapper,
        now: SystemTime,
        source: &Arc<Source>,
        settings: &WrapperConfig,
    ) -> Self {
        wrapper.reread = Duration::from_millis(10);
        let (tasks, stop, address) = (Tasks::new(), CancellationToken::new(), wrapper.local_addr());
        let events = Arc::new(Events::default());
        let parts = WrapperParts {
            node: "n1".to_owned(),
            source: Arc::clone(source) as _,
            writes: Arc::clone(&events) as _,
            kubernetes: Kubernetes::AsItIs,
            address: watch::channel(None).1,
            pods: no_pods(),
            started: now,
        };
        let projection = Projection::spawn(&tasks, parts, settings.watch_queue, Arc::default(), &stop);
        wrapper.spawn(&tasks, &projection, &stop);
        let view = projection.view;
        Self { source: Arc::clone(source), address, view, events, tasks, stop }
    }

    /// A cluster for kube-proxy: two nodes, a Service of each kind, two slices.
    pub(super) async fn with_cluster(settings: &WrapperConfig) -> Self {
        let source = Source::new();
        let store = source.store();
        put(&store, ProjectedKind::Nodes, "n1", node("a"));
        put(&store, ProjectedKind::Nodes, "n2", node("b"));
        put(&store, ProjectedKind::Services, "web", service(true));
        let mut headless = service(false);
        headless["spec"]["clusterIP"] = "None".into();
        put(&store, ProjectedKind::Services, "headless", headless);
        put(&store, ProjectedKind::EndpointSlices, "web-1", slice("web", "1@n1 2@n2"));
        let mut hidden = slice("headless", "3@n1");
        hidden["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
        put(&store, ProjectedKind::EndpointSlices, "headless-1", hidden);
        put(&store, ProjectedKind::ServiceCidrs, "kubernetes", json!({"spec": {"cidrs": ["10.96.0.0/16"]}}));
        let served = Self::start(&source, settings).await;
        served.ready().await;
        served
    }

    pub(super) async fn ready(&self) {
        let holds = async {
            while get_plain(self.address, "/readyz").await != StatusCode::OK {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, holds).await.expect("the wrapper to be ready");
    }

    async fn text(&self, path: &str) -> (StatusCode, String) {
        let headers = [(header::ACCEPT, HeaderValue::from_static(ACCEPT))].into_iter().collect();
        fetch_plain(self.address, Method::GET, path, headers, "").await
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let (code, text) = self.text(path).await;
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}")))
    }

    /// The revision of a list.
    pub(super) async fn revision(&self, path: &str) -> u64 {
        let (_, list) = self.get(path).await;
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let (code, list) = self.get(path).await;
        assert_eq!(code, StatusCode::OK, "{path}: {list}");
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The events of a watch that ends by itself: type, and name or code.
    async fn events(&self, path: &str) -> Vec<String> {
        let (code, text) = self.text(path).await;
        assert_eq!(code, StatusCode::OK, "{path}: {text}");
        let shown = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap();
            let object = &event["object"];
            let what = match event["type"].as_str().unwrap() {
                "ERROR" => object["code"].to_string(),
                "BOOKMARK" => object["metadata"]["annotations"]["k8s.io/initial-events-end"].to_string(),
                _ => object["metadata"]["name"].as_str().unwrap().to_owned(),
            };
            format!("{} {what}", event["type"].as_str().unwrap())
        };
        text.lines().map(shown).collect()
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.shutdown(DEADLINE).await.unwrap();
    }
}

/// Rows W6, W12, W13 and W14 of docs/reference/superedge.md#list-and-watch-rows: the requests of kube-proxy, in its
/// order (docs/reference/kubernetes.md#kube-proxy).
#[tokio::test]
async fn kube_proxy_is_answered() {
    let served = Served::with_cluster(&settings()).await;
    const LIST: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1&timeout=1s";
    let proxied =
        "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone";
    let sliced = "labelSelector=%21service.kubernetes.io%2Fheadless";
    for (path, selector, name) in [
        ("/api/v1/nodes", "fieldSelector=metadata.name%3Dn1", "n1"),
        ("/apis/networking.k8s.io/v1/servicecidrs", "", "kubernetes"),
        ("/api/v1/services", proxied, "web"),
        ("/apis/discovery.k8s.io/v1/endpointslices", sliced, "web-1"),
    ] {
        let events = served.events(&format!("{path}?{LIST}&{selector}")).await;
        let expected = [format!("ADDED {name}"), "BOOKMARK \"true\"".to_owned()];
        // One more bookmark may come before the end.
        assert_eq!(events[..2], expected, "{path}: {events:?}");
        assert!(events[2..].iter().all(|event| event == "BOOKMARK null"), "{events:?}");
        assert_eq!(served.names(&format!("{path}?limit=500&resourceVersion=0&{selector}")).await, [name]);
    }
    let (_, list) = served.get(&format!("/apis/discovery.k8s.io/v1/endpointslices?{sliced}")).await;
    assert_eq!(list["items"][0]["endpoints"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["items"][0]["endpoints"][0]["nodeName"], "n1");
    assert_eq!(served.names("/api/v1/namespaces/default/services").await, ["headless", "web"]);
    assert_eq!(served.get("/api/v1/nodes/n2").await.1["metadata"]["name"], "n2");
    assert_eq!(served.get("/api/v1/nodes/n9").await.0, StatusCode::NOT_FOUND);
    served.end().await;
}

/// Rows W2 to W5, W7 to W10 and W15 of docs/reference/superedge.md#list-and-watch-rows.
#[tokio::test]
async fn lists_and_watches_are_those_of_kubernetes() {
    let served = Served::with_cluster(&settings()).await;
    let slices = "/apis/discovery.k8s.io/v1/endpointslices";
    let both = ["ADDED headless-1", "ADDED web-1"];
    assert_eq!(served.events(&format!("{slices}?watch=true&timeoutSeconds=1")).await, both);
    assert_eq!(served.events(&format!("{slices}?watch&timeoutSeconds=1")).await, both);
    for list in ["watch=false", "watch=0", ""] {
        assert_eq!(served.names(&format!("{slices}?{list}")).await, ["headless-1", "web-1"]);
    }
    let revision = served.revision(slices).await;
    let store = served.source.store();
    put(&store, ProjectedKind::Nodes, "n2", node("a"));
    let changed =
        served.events(&format!("{slices}?watch=true&timeoutSeconds=1&resourceVersion={revision}")).await;
    assert_eq!(changed, ["MODIFIED web-1"]);
    // A revision that is too old is refused at once, and so is one that this wrapper has not given out: it is from
    // another wrapper.
    let newest = served.revision(slices).await;
    for (since, told) in [(1, &["ERROR 410"][..]), (newest, &[]), (newest + 1, &["ERROR 410"])] {
        let path = format!("{slices}?watch=true&timeoutSeconds=1&resourceVersion={since}");
        assert_eq!(served.events(&path).await, told, "{since}, and the newest is {newest}");
    }
    let (code, status) = served.get(&format!("{slices}?resourceVersion={}", revision + (1 << 30))).await;
    assert_eq!(code, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    let (code, _) = served.get(&format!("{slices}?watch=true&sendInitialEvents=true")).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
    let cbor = [(header::ACCEPT, HeaderValue::from_static("application/cbor, application/json"))];
    let (code, text) = fetch_plain(served.address, Method::GET, slices, cbor.into_iter().collect(), "").await;
    assert_eq!((code, text.starts_with('{')), (StatusCode::OK, true));
    served.end().await;
}

/// Row W16 of docs/reference/superedge.md#list-and-watch-rows: a watch is not resumed from revisions of an earlier
/// wrapper.
#[tokio::test]
async fn a_restart_makes_clients_list_again() {
    let served = Served::with_cluster(&settings()).await;
    let revision = served.revision("/api/v1/services").await;
    let source = Arc::clone(&served.source);
    served.end().await;
    let watch = format!("/api/v1/services?watch=true&timeoutSeconds=1&resourceVersion={revision}");
    // If the clock went back, the new wrapper has not reached the old revision.
    for back in [Duration::ZERO, Duration::from_secs(24 * 3600)] {
        let again = Served::start_at(SystemTime::now() - back, &source, &settings()).await;
        again.ready().await;
        assert_eq!(again.events(&watch).await, ["ERROR 410"], "{back:?}");
        let newest = again.revision("/api/v1/services").await;
        let path = format!("/api/v1/services?watch=true&timeoutSeconds=1&resourceVersion={newest}");
        assert_eq!(again.events(&path).await, [""; 0], "{back:?}: its own revisions are resumed");
        again.end().await;
    }
}

/// Row W20 of docs/reference/superedge.md#list-and-watch-rows.
#[tokio::test]
async fn unknown_resource_is_not_an_empty_list() {
    let source = Source::new();
    source.set_unknown(&[ProjectedKind::Services]);
    let served = Served::start(&source, &settings()).await;
    for path in
        ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices?watch=true", "/api/v1/endpoints"]
    {
        let (code, status) = served.get(path).await;
        assert_eq!((code, &status["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("Status")), "{path}");
        assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0, "{status}");
    }
    assert_eq!(get_plain(served.address, "/readyz").await, StatusCode::INTERNAL_SERVER_ERROR);
    source.set_unknown(&[]);
    served.ready().await;
    assert_eq!(served.names("/api/v1/services").await, [] as [&str; 0]);
    served.end().await;
}

#[tokio::test]
async fn events_are_forwarded_and_other_writes_refused() {
    let served = Served::with_cluster(&settings()).await;
    let write = async |method: Method, path: &str, body: &Value| {
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        fetch_plain(served.address, method, path, json.into_iter().collect(), &body.to_string()).await.0
    };
    let (new, old) =
        ("/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/namespaces/default/events");
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}});
    assert_eq!(write(Method::POST, new, &event).await, StatusCode::CREATED);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}});
    assert_eq!(write(Method::POST, old, &event).await, StatusCode::CREATED);
    assert_eq!(*served.events.0.lock(), [new, old]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}});
    for (method, path) in [
        (Method::POST, "/api/v1/namespaces/default/services"),
        (Method::DELETE, "/api/v1/nodes/n1"),
        (Method::PUT, "/api/v1/namespaces/default/services/web"),
        (Method::DELETE, old),
    ] {
        assert_eq!(write(method, path, &service).await, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(get_plain(served.address, old).await, StatusCode::FORBIDDEN);
    assert_eq!(get_plain(served.address, "/api/v1/secrets").await, StatusCode::FORBIDDEN);
    assert_eq!(served.events.0.lock().len(), 2);
    served.end().await;
}

#[cfg(feature = "profile")]
#[tokio::test]
async fn profile_is_served_only_when_enabled() {
    let served = Served::with_cluster(&WrapperConfig { debug: true, ..settings() }).await;
    let (code, stacks) = served.text("/debug/pprof/profile?seconds=1").await;
    assert_eq!(code, StatusCode::OK);
    let counted = |line: &str| line.rsplit_once(' ').is_some_and(|(_, count)| count.parse::<u32>().is_ok());
    assert!(stacks.lines().all(counted), "{stacks}");
    for bad in ["seconds=0", "seconds=31", "seconds=x"] {
        assert_eq!(
            served.get(&format!("/debug/pprof/profile?{bad}")).await.0,
            StatusCode::BAD_REQUEST,
            "{bad}"
        );
    }
    served.end().await;
}

#[tokio::test]
async fn debug_dump_is_served_only_when_enabled() {
    let served = Served::with_cluster(&settings()).await;
    for path in ["/debug/dump", "/debug/pprof/profile?seconds=1"] {
        assert_eq!(get_plain(served.address, path).await, StatusCode::NOT_FOUND, "{path}");
    }
    served.end().await;
    let served = Served::with_cluster(&WrapperConfig { debug: true, ..settings() }).await;
    let (code, dump) = served.get("/debug/dump").await;
    assert_eq!((code, &dump["labels"]["k"]), (StatusCode::OK, &json!("a")), "{dump}");
    assert_eq!(dump["closedServices"], json!({"default/web": ["k"]}));
    assert_eq!(dump["kinds"]["endpointslices"], json!({"objects": 2, "watches": 0, "state": "shown"}));
    assert_eq!(dump["kinds"]["endpoints"], json!({"objects": 0, "watches": 0, "state": "not requested yet"}));
    served.end().await;
}

/// Row W11 of docs/reference/superedge.md#list-and-watch-rows: the queue of a watcher is bounded, and others are not
/// affected.
#[test]
fn a_watcher_that_falls_behind_is_ended_alone() {
    let view = View::new(START, 16);
    view.open(ProjectedKind::Services);
    let resource = ProjectedKind::Services.resource();
    let mut slow = view.watch(&resource, view.revision()).unwrap();
    let mut quick = view.watch(&resource, view.revision()).unwrap();
    let mut taken: Vec<Arc<Change>> = Vec::new();
    for number in 0..17 {
        put(&view.served(), ProjectedKind::Services, &format!("s{number}"), service(false));
        taken.extend(quick.poll_ready().unwrap());
    }
    assert!(matches!(slow.poll_ready(), Err(StoreError::Expired { .. })));
    assert_eq!(taken.len(), 17);
}

/// A client watches from the revision of the event that it has just received.
#[test]
fn shown_change_never_belongs_to_another_history() {
    const CHANGES: u64 = 20_000;
    let view = View::new(START, 4096);
    view.open(ProjectedKind::Services);
    let resource = ProjectedKind::Services.resource();
    let mut seen = view.watch(&resource, view.revision()).unwrap();
    let served = view.served();
    let writing = std::thread::spawn(move || {
        (0..CHANGES).for_each(|number| {
            put(&served, ProjectedKind::Services, "web", json!({"spec": {"number": number}}));
        });
    });
    while view.revision().0 < START.0 + CHANGES {
        // Polled without waiting: a change may be visible before its writer has finished. A watcher that has fallen
        // behind starts again.
        let Ok(changes) = seen.poll_ready() else {
            seen = view.watch(&resource, view.revision()).unwrap_or(seen);
            continue;
        };
        let Some(shown) = changes.last().map(|change| change.revision()) else { continue };
        let again = view.watch(&resource, shown);
        assert!(!matches!(again, Err(StoreError::Unreached { .. })), "{shown} was shown: {again:?}");
    }
    writing.join().unwrap();
    let next = view.revision().next();
    assert!(matches!(view.watch(&resource, next), Err(StoreError::Unreached { .. })));
}

/// The bound of a watcher's queue comes from the settings.
#[tokio::test]
async fn watcher_queue_has_the_configured_length() {
    for queue in [16, 64] {
        let (source, tasks, stop) = (Source::new(), Tasks::new(), CancellationToken::new());
        let parts = WrapperParts {
            node: "n1".to_owned(),
            source: Arc::clone(&source) as _,
            writes: Arc::new(Events::default()),
            kubernetes: Kubernetes::AsItIs,
            address: watch::channel(None).1,
            pods: no_pods(),
            started: SystemTime::now(),
        };
        let view = Projection::spawn(&tasks, parts, queue, Arc::default(), &stop).view;
        let services = ProjectedKind::Services.resource();
        let until = async |count: usize| {
            let holds = async {
                while !view.list(&services, None).is_ok_and(|list| list.items.len() == count) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(DEADLINE, holds).await.expect("the Services to be shown");
        };
        until(0).await;
        let mut slow = view.watch(&services, view.revision()).unwrap();
        for number in 0..17 {
            put(&source.store(), ProjectedKind::Services, &format!("s{number}"), service(false));
        }
        until(17).await;
        assert_eq!(slow.poll_ready().map(|changes| changes.len()).ok(), (queue >= 17).then_some(17));
        stop.cancel();
        tasks.shutdown(DEADLINE).await.unwrap();
    }
}

/// Idle watches cost memory, so their number is bounded, and further ones are refused.
#[tokio::test]
async fn idle_wrapper_watches_are_bounded_and_affect_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let served = Served::with_cluster(&settings()).await;
    let head = async |stream: &mut tokio::net::TcpStream| {
        let request = "GET /api/v1/services?watch=true HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = [0; 12];
        stream.read_exact(&mut buffer).await.unwrap();
        String::from_utf8_lossy(&buffer).into_owned()
    };
    let connect = async || tokio::net::TcpStream::connect(served.address).await.unwrap();
    let mut idle = Vec::new();
    for number in 0..crate::wrapper::WATCHES_MAX {
        let mut stream = connect().await;
        assert_eq!(head(&mut stream).await, "HTTP/1.1 200", "watch {number}");
        idle.push(stream);
    }
    assert_eq!(head(&mut connect().await).await, "HTTP/1.1 429");
    let (status, _) = served.get("/api/v1/services").await;
    assert_eq!(status, StatusCode::OK, "lists are still answered");
    drop(idle);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while head(&mut connect().await).await != "HTTP/1.1 200" {
        assert!(std::time::Instant::now() < deadline, "the slots are not freed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.end().await;
}
