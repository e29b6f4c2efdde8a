//! Requests of sessions to the controller before they remove objects from an edge.

use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tombolo_proto::session::Lookup;
use tombolo_runtime::Readiness;

use super::*;
use crate::edgecontroller::NodeObjectCache;

/// A model of the API server, as far as the controller uses it.
#[derive(Default)]
struct Api {
    /// The server does not answer.
    away: bool,
    /// Status codes of answers by path; with 0 there is no answer.
    codes: HashMap<String, u16>,
    pods: Vec<Value>,
    secrets: Vec<Value>,
    /// Paths whose answers are held back until there is a permit for each.
    slow: HashMap<String, Arc<Semaphore>>,
    /// Requested paths.
    asked: Vec<String>,
}

fn client(api: &Arc<Mutex<Api>>) -> Kube {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path();
        let (code, answer) = api.lock().answer(path);
        let slow = api.lock().slow.get(path).cloned();
        async move {
            if let Some(slow) = slow {
                slow.acquire().await?.forget();
            }
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let response = Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, tower::BoxError>(response.body(Body::from(answer.to_string().into_bytes()))?)
        }
    });
    Client::new(service, "default").into()
}

impl Api {
    fn answer(&mut self, path: &str) -> (u16, Value) {
        self.asked.push(path.to_owned());
        let named = |object: &&Value| Some(path) == object["metadata"]["selfLink"].as_str();
        match path {
            _ if self.away => (500, json!({"kind": "Status", "code": 500, "message": "away"})),
            _ if self.codes.contains_key(path) => (self.codes[path], json!({"message": "not this one"})),
            "/api/v1/pods" => (200, json!({"kind": "PodList", "metadata": {}, "items": self.pods})),
            _ => match self.secrets.iter().chain(&self.pods).find(named) {
                Some(object) => (200, object.clone()),
                None => (404, json!({"kind": "Status", "code": 404, "message": "none"})),
            },
        }
    }
}

/// The notifications to the hub, in order.
#[derive(Default)]
struct Told(Mutex<Vec<ObjectKey>>);

impl Outlet for Told {
    fn offer(&self, _: &NodeId, key: &ObjectKey) {
        self.0.lock().push(key.clone());
    }
    fn ready(&self, _: &NodeId) {}
    fn node_deleted(&self, _: &NodeId) {}
}

fn node() -> NodeId {
    NodeId::parse("edge-1").expect("valid")
}

fn secret_key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Secret.resource(), "d", name)
}

fn secret(name: &str, revision: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "uid": format!("u-{name}"),
        "resourceVersion": revision.to_string(), "selfLink": format!("/api/v1/namespaces/d/secrets/{name}")}})
}

fn pod(name: &str, revision: u64, secrets: &[&str]) -> Value {
    let pull: Vec<_> = secrets.iter().map(|name| json!({ "name": name })).collect();
    json!({"metadata": {"name": name, "namespace": "d", "uid": format!("u-{name}"),
        "resourceVersion": revision.to_string(), "selfLink": format!("/api/v1/namespaces/d/pods/{name}")}, "spec": {"nodeName": "edge-1", "imagePullSecrets": pull}})
}

/// A controller that knows the node, and whose watches have shown these pods and no Secrets.
struct World {
    api: Arc<Mutex<Api>>,
    down: Arc<NodeObjectCache>,
    told: Arc<Told>,
    inputs: mpsc::Sender<Input>,
    readiness: Readiness,
}

impl World {
    async fn new(pods: &[Value]) -> Self {
        let world = Self::begun(pods);
        world.list(&Kind::ALL, pods).await;
        world
    }

    /// Nothing is listed yet.
    fn begun(pods: &[Value]) -> Self {
        let api = Api { pods: pods.to_vec(), ..Api::default() };
        let (api, told) = (Arc::new(Mutex::new(api)), Arc::new(Told::default()));
        let down = Arc::new(NodeObjectCache::default());
        let (inputs, receiver) = mpsc::channel(INPUTS_MAX);
        let index = Index::new(Arc::clone(&down));
        let outlet: Arc<dyn Outlet> = Arc::clone(&told) as _;
        let readiness = Readiness::new();
        let ready = readiness.wait_for("lists");
        tokio::spawn(DownstreamController::new(index, client(&api), outlet, ready).run(receiver));
        Self { api, down, told, inputs, readiness }
    }

    /// The node connects, and the watches of these kinds list what exists.
    async fn list(&self, kinds: &[Kind], pods: &[Value]) {
        self.send(Input::Joined(node())).await;
        let metadata = json!({"name": "edge-1", "uid": "u-node", "resourceVersion": "1"});
        for kind in kinds.iter().copied() {
            self.watched(kind, ObjectEvent::RelistStart).await;
            let shown = match kind {
                Kind::Node => vec![json!({ "metadata": metadata })],
                Kind::Pod => pods.to_vec(),
                Kind::ConfigMap | Kind::Secret => Vec::new(),
            };
            for object in shown {
                self.watched(kind, ObjectEvent::Applied(RawObject::new(object))).await;
            }
            self.watched(kind, ObjectEvent::RelistEnd).await;
        }
        self.settle().await;
    }

    async fn send(&self, input: Input) {
        self.inputs.send(input).await.expect("it runs");
    }

    async fn watched(&self, kind: Kind, event: ObjectEvent) {
        self.send(Input::Watched(kind, event, None)).await;
    }

    fn answers_with(&self, key: &ObjectKey, code: u16) {
        self.api.lock().codes.insert(path_of(key.resource(), key.namespace(), key.name()), code);
    }

    fn answers_again(&self) {
        self.api.lock().codes.clear();
    }

    /// Holds back answers of this path until there is a permit for each.
    fn slows(&self, path: &str) -> Arc<Semaphore> {
        let slow = Arc::new(Semaphore::new(0));
        self.api.lock().slow.insert(path.to_owned(), Arc::clone(&slow));
        slow
    }

    async fn applied(&self, kind: Kind, object: Value) {
        self.watched(kind, ObjectEvent::Applied(RawObject::new(object))).await;
    }

    async fn deleted(&self, kind: Kind, object: Value) {
        self.watched(kind, ObjectEvent::Deleted(RawObject::new(object))).await;
    }

    /// How often this object was requested.
    fn asked(&self, key: &ObjectKey) -> usize {
        let path = path_of(key.resource(), key.namespace(), key.name());
        self.api.lock().asked.iter().filter(|asked| **asked == path).count()
    }

    /// Lets everything run that can run at once.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    async fn prove(&self, keys: &[ObjectKey]) -> oneshot::Receiver<Proven> {
        let (answer, proof) = oneshot::channel();
        self.send(Input::Prove(node(), keys.to_vec(), answer)).await;
        proof
    }

    /// The answer, which must arrive soon.
    async fn proven(&self, keys: &[ObjectKey]) -> Proven {
        let answer = self.prove(keys).await;
        tokio::time::timeout(Duration::from_secs(40), answer).await.expect("in time").expect("an answer")
    }

    fn state(&self, key: &ObjectKey) -> &'static str {
        match self.down.lookup(&node(), key) {
            Lookup::Present(_) => "present",
            Lookup::Absent => "absent",
            Lookup::Unwanted(_) => "unwanted",
            Lookup::Unreadable(_) => "unreadable",
            Lookup::Pending => "pending",
        }
    }
}

/// The pod watch has not shown the pod that needs the object. The list shows it, and the need is recorded before the
/// answer.
#[tokio::test(start_paused = true)]
async fn listed_pods_are_indexed_before_the_confirmation_is_answered() {
    let world = World::new(&[pod("p1", 5, &[])]).await;
    let (held, gone) = (secret_key("held"), secret_key("gone"));
    assert_eq!(world.state(&held), "unwanted");
    {
        let mut api = world.api.lock();
        api.pods = vec![pod("p1", 5, &[]), pod("p2", 20, &["held"])];
        api.secrets = vec![secret("held", 21)];
    }
    let proven = world.proven(&[held.clone(), gone.clone()]).await;
    assert_eq!(proven, Proven::default(), "neither was needed, so neither was read");
    assert!(matches!(world.state(&held), "pending" | "present"), "it is needed now");
    assert_eq!(world.state(&gone), "unwanted");
    assert!(world.told.0.lock().contains(&held));
    world.settle().await;
    assert_eq!(world.state(&held), "present");
    // The late watch shows the same, and changes nothing.
    world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(pod("p2", 20, &["held"])))).await;
    world.settle().await;
    assert_eq!(world.state(&held), "present");
}

/// An object that a pod needs and that the watch of its kind has not shown is read.
#[tokio::test(start_paused = true)]
async fn absent_objects_are_read_before_the_confirmation_is_answered() {
    let world = World::new(&[pod("p", 5, &["there", "gone"])]).await;
    let (there, gone) = (secret_key("there"), secret_key("gone"));
    assert_eq!((world.state(&there), world.state(&gone)), ("absent", "absent"));
    world.api.lock().secrets = vec![secret("there", 30)];
    let proven = world.proven(&[there.clone(), gone.clone()]).await;
    assert_eq!(proven, Proven { read: vec![there.clone(), gone.clone()], put_off: Vec::new() });
    assert_eq!((world.state(&there), world.state(&gone)), ("present", "absent"));
}

#[tokio::test(start_paused = true)]
async fn confirmation_waits_for_the_api_server_and_blocks_nothing_else() {
    let world = World::new(&[pod("p1", 5, &[])]).await;
    world.api.lock().away = true;
    let mut proof = world.prove(&[secret_key("held")]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(proof.try_recv().is_err(), "no answer has arrived");
    world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(pod("p3", 40, &[])))).await;
    world.settle().await;
    assert_eq!(world.state(&ObjectKey::new(Kind::Pod.resource(), "d", "p3")), "present");
    world.api.lock().away = false;
    assert_eq!(proof.await.expect("an answer"), Proven::default());
    let lists = world.api.lock().asked.iter().filter(|path| *path == "/api/v1/pods").count();
    assert!(lists > 1, "asked again");

    let given_up = world.prove(&[secret_key("held")]).await;
    drop(given_up);
    world.settle().await;
}

/// An object that the API server refuses to show is reported as such and requested again. Everything else is proven.
#[tokio::test(start_paused = true)]
async fn refused_object_does_not_block_confirmation_of_others() {
    for code in [403, 405, 410] {
        let world = World::new(&[pod("p", 5, &["odd", "gone"])]).await;
        let (odd, gone) = (secret_key("odd"), secret_key("gone"));
        world.answers_with(&odd, code);
        let proven = world.proven(&[odd.clone(), gone.clone()]).await;
        assert_eq!(proven, Proven { read: vec![gone.clone()], put_off: Vec::new() }, "{code}");
        assert_eq!((world.state(&odd), world.state(&gone)), ("unreadable", "absent"), "{code}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!((5..12).contains(&world.asked(&odd)), "{}: again, with back-off", world.asked(&odd));
        world.answers_again();
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(world.state(&odd), "absent", "{code}");
    }
}

/// A failure says nothing about the object: its state stays, the session waits, and is notified when there is an
/// answer.
#[tokio::test(start_paused = true)]
async fn failing_read_does_not_block_confirmation_of_others() {
    for code in [401, 408, 429, 500, 503, 504] {
        let world = World::new(&[pod("p", 5, &["odd", "gone"])]).await;
        let (odd, gone) = (secret_key("odd"), secret_key("gone"));
        world.answers_with(&odd, code);
        let proven = world.proven(&[odd.clone(), gone.clone()]).await;
        assert_eq!(proven, Proven { read: vec![gone], put_off: vec![odd.clone()] }, "{code}");
        world.told.0.lock().clear();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.state(&odd), "absent", "{code}: no conclusion is drawn");
        assert!((5..12).contains(&world.asked(&odd)), "{}: again, with back-off", world.asked(&odd));
        assert_eq!(*world.told.0.lock(), [], "{code}: there is no news");
        world.answers_again();
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(*world.told.0.lock(), std::slice::from_ref(&odd), "{code}: waiting nodes may ask again");
        let proven = world.proven(std::slice::from_ref(&odd)).await;
        assert_eq!(proven, Proven { read: vec![odd], put_off: Vec::new() }, "{code}");
    }
}

/// A request without an answer costs its timeout once, not once for each object behind it.
#[tokio::test(start_paused = true)]
async fn unanswered_read_delays_a_confirmation_once() {
    let names: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new(&[pod("p", 5, &names)]).await;
    let keys: Vec<ObjectKey> = names.iter().map(|name| secret_key(name)).collect();
    keys[1..4].iter().for_each(|key| world.answers_with(key, 0));
    let proven = world.proven(&keys).await;
    assert_eq!((proven.read.as_slice(), proven.put_off.as_slice()), (&keys[..1], &keys[1..]));
    world.told.0.lock().clear();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let told = world.told.0.lock().len();
    assert!(told > 30, "the answered object is read alone, in a slot of its own: {told}");
    let proven = world.proven(&keys[4..]).await;
    assert_eq!((proven.read.len(), proven.put_off.len()), (36, 0));
}

/// A refusal will be repeated, so it counts at once; other failures may pass.
#[tokio::test(start_paused = true)]
async fn refused_read_is_unreadable_at_once_and_failing_read_after_retries() {
    for (code, attempts) in [(400, 1), (403, 1), (429, 5), (500, 5), (503, 5)] {
        let world = World::new(&[]).await;
        world.answers_with(&secret_key("s"), code);
        world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(pod("p", 5, &["s"])))).await;
        let known = async {
            while matches!(world.state(&secret_key("s")), "unwanted" | "pending") {
                world.settle().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), known).await.expect("an outcome");
        assert_eq!(world.state(&secret_key("s")), "unreadable", "{code}");
        let asked = world.api.lock().asked.iter().filter(|path| path.ends_with("/secrets/s")).count();
        assert_eq!(asked, attempts, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_process_is_ready_when_every_kind_was_listed() {
    let world = World::begun(&[]);
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        assert!(!world.readiness.is_ready(), "{number} kinds are listed");
        world.list(&[kind], &[]).await;
    }
    assert!(world.readiness.is_ready());
}

/// The cloud's history went back. Unanswered reads release their slots, and pending requests get no answer.
#[tokio::test(start_paused = true)]
async fn reset_releases_read_slots_and_forgets_confirmations() {
    let names = ["a", "b", "c", "d"];
    let world = World::new(&[]).await;
    names.iter().for_each(|name| world.answers_with(&secret_key(name), 0));
    world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(pod("p", 5, &names)))).await;
    world.settle().await;
    assert_eq!(
        names.map(|name| world.asked(&secret_key(name))),
        [1; 4],
        "all slots of the node are occupied"
    );
    let proof = world.prove(&[secret_key("a")]).await;
    let (done, reset) = oneshot::channel();
    world.send(Input::Reset(done)).await;
    reset.await.expect("it is done");
    let unanswered = tokio::time::timeout(Duration::from_secs(1), proof).await.expect("at once");
    assert!(unanswered.is_err(), "its session ends");

    world.answers_again();
    world.api.lock().secrets = vec![secret("e", 7)];
    world.list(&Kind::ALL, &[]).await;
    world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(pod("q", 6, &["e"])))).await;
    world.settle().await;
    assert_eq!(world.state(&secret_key("e")), "present");
}

#[tokio::test(start_paused = true)]
async fn versions_skipped_in_a_burst_are_not_assumed_equal() {
    let world = World::new(&[pod("p", 5, &[])]).await;
    let mut labelled = pod("p", 6, &[]);
    labelled["metadata"]["labels"] = json!({"a": "b"});
    for object in [labelled, pod("p", 7, &[])] {
        world.watched(Kind::Pod, ObjectEvent::Applied(RawObject::new(object))).await;
    }
    world.settle().await;
    let key = ObjectKey::new(Kind::Pod.resource(), "d", "p");
    let Lookup::Present(object) = world.down.lookup(&node(), &key) else { panic!("it is there") };
    assert_eq!((object.version.revision.0, object.same_since.0), (7, 7), "the label was there between");
}

/// While no node needs an object its events are ignored, so an earlier answer says nothing about its present state.
#[tokio::test(start_paused = true)]
async fn read_from_before_a_renewed_need_is_ignored() {
    let key = secret_key("s");
    let path = path_of(key.resource(), "d", "s");
    for (before, after) in [(None, Some(30)), (Some(20), Some(30)), (Some(20), None)] {
        let world = World::new(&[]).await;
        let stored =
            |revision: Option<u64>| revision.map(|revision| secret("s", revision)).into_iter().collect();
        world.api.lock().secrets = stored(before);
        let slow = world.slows(&path);
        world.applied(Kind::Pod, pod("p", 5, &["s"])).await;
        world.settle().await;
        assert_eq!((world.asked(&key), world.state(&key)), (1, "pending"));
        world.deleted(Kind::Pod, pod("p", 6, &["s"])).await;
        world.api.lock().secrets = stored(after);
        match after {
            Some(revision) => world.applied(Kind::Secret, secret("s", revision)).await,
            None => world.deleted(Kind::Secret, secret("s", 30)).await,
        }
        let again = json!({"metadata": {"uid": "u-again", "resourceVersion": "31"}});
        let mut pod = pod("p", 31, &["s"]);
        json_patch::merge(&mut pod, &again);
        world.applied(Kind::Pod, pod).await;
        world.settle().await;
        slow.add_permits(1);
        world.settle().await;
        assert_eq!((world.asked(&key), world.state(&key)), (2, "pending"), "{before:?}, {after:?}");
        slow.add_permits(1);
        world.settle().await;
        let revision = world.down.present(&key).map(|object| object.version.revision.0);
        assert_eq!(revision, after, "{before:?}");
        assert_eq!(world.state(&key), if after.is_some() { "present" } else { "absent" });
    }
}

/// A session's request also reads objects, in addition to reads caused by need.
#[tokio::test(start_paused = true)]
async fn confirmation_read_from_before_a_renewed_need_is_ignored() {
    let key = secret_key("s");
    let world = World::new(&[pod("p", 5, &["s"])]).await;
    assert_eq!(world.state(&key), "absent");
    world.api.lock().secrets = vec![secret("s", 20)];
    let slow = world.slows(&path_of(key.resource(), "d", "s"));
    let answer = world.prove(std::slice::from_ref(&key)).await;
    world.settle().await;
    assert_eq!(world.asked(&key), 2, "when it was needed first, and now");
    world.deleted(Kind::Pod, pod("p", 6, &["s"])).await;
    world.api.lock().secrets.clear();
    world.deleted(Kind::Secret, secret("s", 30)).await;
    let mut anew = pod("p", 31, &["s"]);
    anew["metadata"]["uid"] = "u-again".into();
    world.applied(Kind::Pod, anew).await;
    world.settle().await;
    // First come, first served: the older answer arrives first.
    slow.add_permits(1);
    let proven = answer.await.expect("an answer");
    assert_eq!(proven, Proven { read: Vec::new(), put_off: vec![key.clone()] });
    assert_eq!((world.asked(&key), world.state(&key)), (3, "pending"));
    slow.add_permits(1);
    world.settle().await;
    assert_eq!(world.state(&key), "absent");
}

/// Until a Node exists its pods are ignored, so an earlier list says nothing about them.
#[tokio::test(start_paused = true)]
async fn pod_list_from_before_a_reregistration_is_ignored() {
    let world = World::new(&[]).await;
    let key = ObjectKey::new(Kind::Pod.resource(), "d", "p");
    let node = |uid: &str, revision: u64| {
        json!({"metadata": {"name": "edge-1", "uid": uid, "resourceVersion": revision.to_string(),
            "labels": {"node-role.kubernetes.io/edge": ""}}})
    };
    world.deleted(Kind::Node, node("u-node", 10)).await;
    let slow = world.slows("/api/v1/pods");
    world.applied(Kind::Node, node("u-2", 11)).await;
    world.settle().await;
    let lists = || world.api.lock().asked.iter().filter(|path| *path == "/api/v1/pods").count();
    assert_eq!(lists(), 1);
    let question = world.prove(&[]).await;
    world.settle().await;
    assert_eq!(lists(), 2);
    world.deleted(Kind::Node, node("u-2", 12)).await;
    // The pod watch is ahead of the node watch.
    world.api.lock().pods = vec![pod("p", 14, &[])];
    world.applied(Kind::Pod, pod("p", 14, &[])).await;
    world.settle().await;
    world.applied(Kind::Node, node("u-3", 13)).await;
    world.settle().await;
    slow.add_permits(2);
    world.settle().await;
    assert!(!world.down.is_ready(&self::node()), "both lists are from before");
    slow.add_permits(2);
    assert_eq!(question.await.expect("an answer"), Proven::default());
    world.settle().await;
    assert_eq!((world.down.is_ready(&self::node()), world.state(&key)), (true, "present"));
}

/// A pod is read individually when there is room for it again, or when an event of it was too long.
#[tokio::test]
async fn single_read_has_the_same_size_limit_as_a_list() {
    let mut large = pod("p", 5, &[]);
    large["status"]["many"] = vec![""; 100_000].into();
    let api = Api { pods: vec![large], secrets: vec![secret("s", 6)], ..Api::default() };
    let kube = client(&Arc::new(Mutex::new(api)));
    let is_unread =
        async |key: &ObjectKey| fetch(&kube, key).await.ok().flatten().expect("it is there").is_unread();
    assert!(is_unread(&ObjectKey::new(Kind::Pod.resource(), "d", "p")).await);
    assert!(!is_unread(&secret_key("s")).await);
}
