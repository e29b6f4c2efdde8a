//! How cloudcore starts while its API server is busy, unreachable, or refuses requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::kube::tests::double::answering;

/// The calls made, as method and path.
type Calls = Arc<Mutex<Vec<String>>>;

/// A small cluster. `refuse` returns the status code with which to refuse a call, given the call and how often it was
/// made before.
fn cluster(refuse: impl Fn(&str, usize) -> Option<u16> + Clone + Send + Sync + 'static) -> (Kube, Calls) {
    let (calls, objects) = (Calls::default(), Arc::new(Mutex::new(BTreeMap::new())));
    objects.lock().insert(
        "/api/v1/namespaces/kube-system".to_owned(),
        json!({"metadata": {"name": "kube-system", "uid": "c", "resourceVersion": "1"}}),
    );
    let seen = Arc::clone(&calls);
    let client = answering(move |call, body| {
        let line = format!("{} {}", call.method, call.uri.path());
        let before = seen.lock().iter().filter(|seen| **seen == line).count();
        seen.lock().push(line.clone());
        let answer = match refuse(&line, before) {
            Some(code) => refusal(code),
            None => {
                let object = serde_json::from_slice(&body).unwrap_or_default();
                stored(&mut objects.lock(), &call.method, call.uri.path(), object)
            }
        };
        async move { answer }
    });
    (client.into(), calls)
}

fn refusal(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "" };
    let message = format!("code {code}");
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}))
}

fn stored(objects: &mut BTreeMap<String, Value>, method: &Method, path: &str, object: Value) -> (u16, Value) {
    let revision = (objects.len() + 1).to_string();
    match *method {
        Method::GET if path.ends_with("/configmaps") => {
            let items: Vec<_> =
                objects.iter().filter(|(at, _)| at.starts_with(path)).map(|(_, one)| one).collect();
            (200, json!({"metadata": {"resourceVersion": revision}, "items": items}))
        }
        Method::POST => {
            let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
            if objects.contains_key(&path) { refusal(409) } else { (201, put(objects, path, object)) }
        }
        Method::PUT => (200, put(objects, path.to_owned(), object)),
        _ => objects.get(path).map_or_else(|| refusal(404), |object| (200, object.clone())),
    }
}

fn put(objects: &mut BTreeMap<String, Value>, path: String, mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = (objects.len() + 1).to_string().into();
    objects.insert(path, object.clone());
    object
}

async fn built(kube: Kube) -> (Result<Bound, AppError>, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let config = Config { shared_token: true, ..Config::local(folder.path()) };
    (App::build(config, kube).await, folder)
}

/// Each call is refused once, with every status code by which a server says that it is busy.
#[tokio::test(start_paused = true)]
async fn every_start_step_waits_for_a_busy_api_server() {
    for code in [429, 500, 503, 504] {
        let (kube, calls) = cluster(move |_, before| (before == 0).then_some(code));
        let (bound, _folder) = built(kube).await;
        assert!(bound.is_ok(), "{code}: {:?}", bound.err());
        let calls = calls.lock();
        assert!(calls.iter().any(|call| call.contains("objectsyncs")), "to its end: {calls:?}");
    }
}

/// The intervals between requests grow.
#[tokio::test(start_paused = true)]
async fn busy_server_is_retried_at_growing_intervals() {
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = Arc::clone(&ready);
    let (kube, calls) = cluster(move |_, _| (!is_ready.load(Ordering::SeqCst)).then_some(503));
    let mut building = Box::pin(built(kube));
    let began = Instant::now();
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut building).await.is_err(), "it waits");
    let made = calls.lock().len();
    assert!((8..=13).contains(&made), "{made}: after 0.2, 0.4, 0.8, 1.6, 3.2, 6.4 and then each 10 s");
    ready.store(true, Ordering::SeqCst);
    let (bound, _folder) = building.await;
    assert!(bound.is_ok() && began.elapsed() < Duration::from_secs(71), "{:?}", bound.err());
}

#[tokio::test(start_paused = true)]
async fn permanent_error_ends_the_start() {
    let refused: [(&str, &[u16]); 3] = [
        ("/secrets/casecret", &[401, 403]),
        ("/namespaces/kube-system", &[401, 403, 404]),
        ("objectsyncs", &[401, 403]),
    ];
    for (at, codes) in refused {
        for code in codes {
            let (at, code) = (at.to_owned(), *code);
            let (kube, calls) = cluster({
                let at = at.clone();
                move |line, _| line.ends_with(&at).then_some(code)
            });
            let (bound, _folder) = built(kube).await;
            let error = bound.err().expect("an error").to_string();
            assert!(error.contains(&format!("code {code}")), "{at}: {error}");
            let asked = calls.lock().iter().filter(|line| line.ends_with(&at)).count();
            assert_eq!(asked, 1, "{at} {code}");
        }
    }
}
