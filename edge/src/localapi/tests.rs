//! How long the cluster's decisions apply, on clocks that the tests set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tombolo_apicore::auth::{AUTHENTICATED_GROUP, Attributes, Identity};
use tombolo_apicore::backend::{Endpoint as _, EndpointRequest, WriteOptions};
use tombolo_apicore::kinds::Kinds;

use tombolo_link::Transport;
use tombolo_proto::frame::{ApiReply, ReplyBody, RequestBody};
use tombolo_proto::ids::NodeId;
use tombolo_proto::object::Resource;

use super::bearer_tokens::BearerTokens;
use super::decisions::Decisions;
use super::documents::Documents;
use super::keys::Keys;
use super::reviews::Reviews;
use super::rights::{AccessDecision, Rights};
use crate::hub::{Command, HubHandle, HubState, SharedHub};
use crate::identity::WallClock;
use crate::store::{FaultyDisk, LogBounds, Sealer, Store};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// A time in the year 2026, in seconds since the Unix epoch.
const TODAY: u64 = 1_790_000_000;

/// A token that no key verifies, with an expiry time far in the future.
const TOKEN: &str = "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjQwMDAwMDAwMDB9.AAAA";

/// What decides at this node, with a cloud that gives one answer to every review.
struct World {
    rights: Rights,
    reviews: Reviews,
    /// The wall clock, in seconds since the Unix epoch.
    wall: Arc<AtomicU64>,
    status: Arc<Mutex<Value>>,
    questions: Arc<AtomicUsize>,
    session: watch::Sender<HubState>,
}

impl World {
    fn new(status: Value) -> Self {
        let disk = Box::new(FaultyDisk::new(1));
        let store = Store::open_on(disk, Sealer::new(&[1; 32]), LogBounds::default()).unwrap().store;
        let (handle, commands, session) = HubHandle::new();
        session.send_modify(|state| state.transport = Some(Transport::Memory));
        let (status, questions) = (Arc::new(Mutex::new(status)), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(answer(commands, Arc::clone(&status), Arc::clone(&questions)));
        let (hub, wall) = (SharedHub::new(handle), Arc::new(AtomicU64::new(TODAY)));
        let seconds = Arc::clone(&wall);
        let clock = WallClock::new(move || UNIX_EPOCH + Duration::from_secs(seconds.load(Ordering::SeqCst)));
        let decisions = Decisions::new(store.clone());
        let documents = Documents { store: store.clone(), hub: hub.clone(), clock: clock.clone() };
        let node = NodeId::parse("edge-a").unwrap();
        let tokens = BearerTokens::new(node, store, hub.clone(), clock.clone(), Keys::load(documents));
        let reviews = Reviews { tokens: Arc::new(tokens), decisions: Arc::clone(&decisions) };
        Self { rights: Rights::new(decisions, hub, clock), reviews, wall, status, questions, session }
    }

    /// Lets time pass on both clocks.
    async fn passes(&self, time: Duration) {
        tokio::time::advance(time).await;
        self.wall.fetch_add(time.as_secs(), Ordering::SeqCst);
    }

    fn away(&self) {
        self.session.send_modify(|state| state.transport = None);
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    async fn review(&self, path: &str, spec: Value) -> (StatusCode, Value) {
        let (_, resource) = path.rsplit_once('/').unwrap();
        let group = path.split('/').nth(2).unwrap();
        let kind = Kinds::builtin().get(&Resource::new(group, "v1", resource)).unwrap().clone();
        let attributes =
            Attributes { path: path.to_owned(), resource: resource.to_owned(), ..asked("create") };
        let body = json!({ "spec": spec });
        let (options, query, authorization) = (WriteOptions::default(), String::new(), None);
        let request = EndpointRequest { attributes, kind, options, body, query, authorization };
        match self.reviews.call(request).await {
            Ok(answer) => answer,
            Err(error) => (error.code, Value::Null),
        }
    }
}

/// Answers reviews as a cloud does.
async fn answer(
    mut commands: mpsc::Receiver<Command>,
    status: Arc<Mutex<Value>>,
    questions: Arc<AtomicUsize>,
) {
    while let Some(command) = commands.recv().await {
        let Command::Request { body: RequestBody::Api(call), reply, .. } = command else { continue };
        questions.fetch_add(1, Ordering::SeqCst);
        let mut review: Value = serde_json::from_slice(&call.body).unwrap();
        review["status"] = status.lock().clone();
        let body = review.to_string().into();
        reply.send(Ok(ReplyBody::Api(ApiReply { code: 201, content_type: call.accept, body })));
    }
}

/// A request of a ServiceAccount for ConfigMaps.
fn asked(verb: &str) -> Attributes {
    Attributes {
        identity: Identity::new("system:serviceaccount:shop:till", &[AUTHENTICATED_GROUP]),
        verb: verb.to_owned(),
        version: "v1".to_owned(),
        resource: "configmaps".to_owned(),
        namespace: "shop".to_owned(),
        is_resource: true,
        ..Attributes::default()
    }
}

fn allowed(allowed: bool) -> Value {
    json!({"allowed": allowed, "reason": "by the rules"})
}

fn refused() -> AccessDecision {
    AccessDecision::Refused("by the rules".to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_permission_is_remembered_for_five_minutes_and_a_refusal_is_not() {
    let (world, get) = (World::new(allowed(true)), asked("get"));
    assert_eq!(world.rights.decide(&get).await, AccessDecision::Allowed);
    *world.status.lock() = allowed(false);
    world.passes(5 * MINUTE - Duration::from_secs(1)).await;
    assert_eq!((world.rights.decide(&get).await, world.questions()), (AccessDecision::Allowed, 1));
    assert_eq!((world.rights.decide(&asked("list")).await, world.questions()), (refused(), 2), "another one");
    world.passes(Duration::from_secs(1)).await;
    assert_eq!(
        (world.rights.decide(&get).await, world.questions()),
        (refused(), 3),
        "the permission has lapsed"
    );
    *world.status.lock() = allowed(true);
    let answer = world.rights.decide(&get).await;
    assert_eq!((answer, world.questions()), (AccessDecision::Allowed, 4), "a permission counts at once");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_a_permission_that_is_remembered() {
    let (world, get) = (World::new(allowed(true)), asked("get"));
    assert_eq!(world.rights.decide(&get).await, AccessDecision::Allowed);
    // As after a read that the cluster has refused.
    world.rights.note(&get, false, "by the rules");
    *world.status.lock() = allowed(false);
    assert_eq!((world.rights.decide(&get).await, world.questions()), (refused(), 2));
}

#[tokio::test(start_paused = true)]
async fn without_a_cloud_a_decision_lapses_after_seven_days() {
    for (status, decision) in [(allowed(true), AccessDecision::Allowed), (allowed(false), refused())] {
        let (world, get) = (World::new(status), asked("get"));
        assert_eq!(world.rights.decide(&get).await, decision);
        world.away();
        world.passes(7 * DAY).await;
        assert_eq!(world.rights.decide(&get).await, decision, "for seven days");
        world.passes(Duration::from_secs(1)).await;
        assert_eq!(world.rights.decide(&get).await, AccessDecision::Unknown, "and no longer");
        assert_eq!(world.questions(), 1);
    }
}

/// Writing every decision again would wear the disk of a device out.
#[tokio::test(start_paused = true)]
async fn the_age_of_a_decision_is_that_of_the_last_answer_within_an_hour() {
    let (world, get) = (World::new(allowed(true)), asked("get"));
    for wait in [Duration::ZERO, 59 * MINUTE] {
        world.passes(wait).await;
        assert_eq!(world.rights.decide(&get).await, AccessDecision::Allowed);
    }
    world.passes(7 * DAY - 59 * MINUTE).await;
    assert_eq!(world.rights.stored(&get), AccessDecision::Allowed);
    world.passes(Duration::from_secs(1)).await;
    assert_eq!(world.rights.stored(&get), AccessDecision::Unknown, "the second answer was not written");

    let world = World::new(allowed(true));
    for wait in [Duration::ZERO, 60 * MINUTE] {
        world.passes(wait).await;
        assert_eq!(world.rights.decide(&get).await, AccessDecision::Allowed);
    }
    world.passes(7 * DAY).await;
    assert_eq!(world.rights.stored(&get), AccessDecision::Allowed, "the second answer was");
    // Another decision is written at once.
    world.rights.note(&get, false, "by the rules");
    assert_eq!(world.rights.stored(&get), refused());
}

#[tokio::test(start_paused = true)]
async fn without_a_cloud_the_answer_to_a_review_lapses_after_seven_days() {
    let reviews = [
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", json!({"user": "till"}), allowed(true)),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"token": TOKEN}),
            json!({"authenticated": true}),
        ),
    ];
    for (path, spec, status) in reviews {
        let world = World::new(status.clone());
        let (code, answer) = world.review(path, spec.clone()).await;
        assert_eq!((code, &answer["status"]), (StatusCode::CREATED, &status), "{path}");
        world.away();
        world.passes(7 * DAY).await;
        let (code, answer) = world.review(path, spec.clone()).await;
        assert_eq!((code, &answer["status"]), (StatusCode::CREATED, &status), "{path}: for seven days");
        world.passes(Duration::from_secs(1)).await;
        assert_eq!(
            world.review(path, spec).await.0,
            StatusCode::SERVICE_UNAVAILABLE,
            "{path}: and no longer"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_reviewed_again_after_five_minutes() {
    let user = json!({"username": "system:serviceaccount:shop:till", "groups": [AUTHENTICATED_GROUP]});
    let world = World::new(json!({"authenticated": true, "user": user}));
    let tokens = &world.reviews.tokens;
    let identity = tokens.identify(TOKEN, None).await.unwrap();
    assert_eq!(identity.user, "system:serviceaccount:shop:till");
    *world.status.lock() = json!({"error": "the account is gone"});
    world.passes(5 * MINUTE - Duration::from_secs(1)).await;
    assert_eq!((tokens.identify(TOKEN, None).await.is_ok(), world.questions()), (true, 1));
    world.passes(Duration::from_secs(1)).await;
    for question in [2, 3] {
        assert_eq!((tokens.identify(TOKEN, None).await.is_ok(), world.questions()), (false, question));
    }
}
