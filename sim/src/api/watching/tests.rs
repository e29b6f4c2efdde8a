use super::super::faults::FaultScope;
use super::super::kinds::built_in;
use super::super::rights::RightsTable;
use super::*;

fn pods() -> KindInfo {
    built_in().find(|kind| kind.kind == "Pod").expect("a kind")
}

fn put(state: &mut ModelState, name: &str, node: &str) -> u64 {
    let object =
        json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"nodeName": node}});
    state.put(&pods(), object, "c");
    state.storage.revision()
}

fn state() -> ModelState {
    ModelState::new(1, 0, RightsTable::default())
}

fn open(state: &mut ModelState, query: &str) -> Result<WatchSession, ApiStatus> {
    let params = QueryParams::parse(query);
    let what = collection(("a", "u"), (&pods(), &PathTarget::default()), &params)?;
    WatchSession::open(state, what, &params)
}

/// The events that are ready: type, name or code, and version.
fn told(session: &mut WatchSession, state: &ModelState) -> Vec<(String, String, u64)> {
    let mut all = Vec::new();
    while let WatchStep::Emit(line) = session.step(state) {
        let event: Value = serde_json::from_str(&line).expect("JSON");
        let object = &event["object"];
        let name = object["code"].as_u64().map_or(object::name(object).to_owned(), |code| code.to_string());
        all.push((event["type"].as_str().expect("a type").to_owned(), name, object::version(object)));
    }
    all
}

fn event(kind: &str, name: &str, version: u64) -> (String, String, u64) {
    (kind.to_owned(), name.to_owned(), version)
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_came_after_its_version() {
    let mut state = state();
    let first = put(&mut state, "a", "");
    let mut all = open(&mut state, &format!("resourceVersion={first}")).expect("a watch");
    let mut bound = open(&mut state, "resourceVersion=0&fieldSelector=spec.nodeName!%3D").expect("a watch");
    assert_eq!(told(&mut all, &state), []);
    put(&mut state, "a", "n");
    put(&mut state, "b", "n");
    put(&mut state, "b", "");
    state.remove(&pods(), "d", "a", "c");
    assert_eq!(
        told(&mut all, &state),
        [
            event("MODIFIED", "a", 2),
            event("ADDED", "b", 3),
            event("MODIFIED", "b", 4),
            event("DELETED", "a", 5)
        ]
    );
    assert_eq!(
        told(&mut bound, &state),
        [event("ADDED", "a", 2), event("ADDED", "b", 3), event("DELETED", "b", 4), event("DELETED", "a", 5)],
        "what enters and leaves the selection"
    );
}

#[tokio::test(start_paused = true)]
async fn each_watcher_hears_as_late_as_its_lag() {
    let mut state = state();
    let mut late = open(&mut state, "resourceVersion=0").expect("a watch");
    let what = WatchedCollection { client: "b".to_owned(), ..late.what.clone() };
    let mut prompt = WatchSession::open(&mut state, what, &QueryParams::default()).expect("a watch");
    state.faults.add_lag(FaultScope::of_client("a").on("pods"), Duration::from_secs(5));
    put(&mut state, "a", "");
    assert_eq!(told(&mut prompt, &state).len(), 1);
    assert_eq!(late.step(&state), WatchStep::Wait(Some(Duration::from_secs(5))));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(told(&mut late, &state), [event("ADDED", "a", 1)]);
    put(&mut state, "a", "n");
    assert_eq!(told(&mut late, &state), []);
    state.faults.lift_all();
    assert_eq!(told(&mut late, &state), [event("MODIFIED", "a", 2)], "it catches up");
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_bookmark() {
    let mut state = state();
    put(&mut state, "a", "");
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut session = open(&mut state, query).expect("a watch");
    assert_eq!(told(&mut session, &state), [event("ADDED", "a", 1), event("BOOKMARK", "", 1)]);
    let refused = open(&mut state, "sendInitialEvents=true").expect_err("without a match");
    assert_eq!(refused.code, 422);
    assert_eq!(open(&mut state, "resourceVersion=x").expect_err("no version").code, 400);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let mut state = state();
    let version = put(&mut state, "a", "");
    let query = format!("resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut session = open(&mut state, &query).expect("a watch");
    let nodes = built_in().find(|kind| kind.kind == "Node").expect("a kind");
    state.put(&nodes, json!({"metadata": {"name": "n"}}), "c");
    assert_eq!(session.step(&state), WatchStep::Wait(Some(Duration::from_secs(60))));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(told(&mut session, &state), [event("BOOKMARK", "", 2)], "of the newest revision of all");
    tokio::time::advance(Duration::from_secs(28)).await;
    assert_eq!(told(&mut session, &state).len(), 1);
    assert_eq!(session.step(&state), WatchStep::Wait(Some(Duration::from_secs(90))));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(session.step(&state), WatchStep::End);
}

#[tokio::test(start_paused = true)]
async fn a_version_from_before_the_history_is_expired() {
    let mut state = state();
    put(&mut state, "a", "");
    put(&mut state, "b", "");
    state.storage.compact();
    let mut session = open(&mut state, "resourceVersion=1").expect("it is told in the stream");
    assert_eq!(told(&mut session, &state), [event("ERROR", "410", 0)]);
    assert_eq!(session.step(&state), WatchStep::End);
    let mut session = open(&mut state, "resourceVersion=2").expect("a watch");
    assert_eq!(told(&mut session, &state), []);
}

#[tokio::test(start_paused = true)]
async fn after_a_restored_backup_known_revisions_are_passed_over() {
    let mut state = state();
    put(&mut state, "a", "");
    let known = put(&mut state, "b", "");
    assert!(state.storage.restore(1));
    let mut session = open(&mut state, &format!("resourceVersion={known}")).expect("a watch");
    put(&mut state, "c", "");
    assert_eq!(told(&mut session, &state), [], "its revision was seen in the lost history");
    put(&mut state, "d", "");
    assert_eq!(told(&mut session, &state), [event("ADDED", "d", 3)]);
}

#[tokio::test(start_paused = true)]
async fn watches_break_in_every_way() {
    for (fault, step) in [
        (WatchFault::Closed, WatchStep::End),
        (WatchFault::Cut, WatchStep::Cut),
        (WatchFault::HalfOpen, WatchStep::Wait(None)),
    ] {
        let mut state = state();
        let mut session = open(&mut state, "resourceVersion=0").expect("a watch");
        state.faults.strike(FaultScope::of_resource("pods"), fault);
        put(&mut state, "a", "");
        assert_eq!(session.step(&state), step, "{fault:?}");
        assert_eq!(session.step(&state), step, "{fault:?} for good");
        let mut next = open(&mut state, "resourceVersion=0").expect("a watch");
        assert_eq!(told(&mut next, &state).len(), 1, "{fault:?} befalls open watches alone");
    }
    let mut state = state();
    let mut session = open(&mut state, "resourceVersion=0").expect("a watch");
    state.faults.strike(FaultScope::all(), WatchFault::Expired);
    assert_eq!(told(&mut session, &state), [event("ERROR", "410", 0)]);
    assert_eq!(session.step(&state), WatchStep::End);
    let mut session = open(&mut state, "resourceVersion=0").expect("a watch");
    state.boots += 1;
    assert_eq!(session.step(&state), WatchStep::Cut, "the server was restarted");
}

#[tokio::test(start_paused = true)]
async fn while_only_bookmarks_come_nothing_is_lost() {
    let mut state = state();
    let mut session = open(&mut state, "resourceVersion=0&allowWatchBookmarks=true").expect("a watch");
    let id = state.faults.add_watch(FaultScope::all(), WatchFault::BookmarksOnly);
    put(&mut state, "a", "");
    assert_eq!(told(&mut session, &state), []);
    tokio::time::advance(BOOKMARK_INTERVAL).await;
    assert_eq!(told(&mut session, &state), [event("BOOKMARK", "", 0)], "of what was told");
    state.faults.lift(id);
    assert_eq!(told(&mut session, &state), [event("ADDED", "a", 1)]);
}
