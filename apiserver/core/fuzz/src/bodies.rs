//! What the fuzz targets do with their bytes. The stable tests run the same functions for a bounded number of inputs.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::auth::Peer;
use tombolo_apicore::body::Body;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::patch::{PATCHED_LEN_MAX, json_patch, merge_patch, strategic_merge_patch};
use tombolo_apicore::registry::Registry;
use tombolo_apicore::selector::field::FieldSelector;
use tombolo_apicore::selector::label::LabelSelector;
use tombolo_apicore::write::LocalWrites;

/// Separates the requests of an input, and the object of a patch from the patch.
const SEPARATOR: u8 = 0;

/// Part of the answer to a request whose handler has panicked.
const PANICKED: &str = "see the server's log";

/// Answer for paths that are no part of the API, as from kube-apiserver.
const NO_SUCH_PAGE: &str = "404 page not found\n";

/// What is served: every built-in kind and one defined one.
static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
    tombolo_catalog::kinds().with_crd(&definition()).expect("the definition of these tests is right")
});

/// A label or field selector: whatever is understood says the same when it is said twice.
pub fn selector(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let (Ok(once), Ok(twice)) = (LabelSelector::parse(text), LabelSelector::parse(&twice(text))) {
        for labels in [&[][..], &[("app", "till")], &[("app", ""), ("size", "7")]] {
            let of = |key: &str| {
                labels.iter().find(|(name, _)| *name == key).map(|(_, value)| Cow::Borrowed(*value))
            };
            assert_eq!(once.matches(of), twice.matches(of), "{text:?}");
        }
    }
    if let (Ok(once), Ok(twice)) = (FieldSelector::parse(text), FieldSelector::parse(&twice(text))) {
        assert!(twice.fields().count() >= once.fields().count(), "{text:?}");
        assert!(once.fields().all(|field| once.fixed(field) == twice.fixed(field)), "{text:?}");
    }
}

fn twice(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{text},{text}") }
}

/// An object and a patch: what comes out is no larger than an object may be, and a merge that was done is done.
pub fn patch(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == SEPARATOR);
    let (Some(object), Some(patch)) = (parts.next(), parts.next()) else { return };
    let Ok(object @ Value::Object(_)) = serde_json::from_slice::<Value>(object) else { return };
    if let Ok(patched) = json_patch(&object, patch) {
        assert!(serde_json::to_vec(&patched).expect("it is JSON").len() <= PATCHED_LEN_MAX);
    }
    let Ok(patch) = serde_json::from_slice::<Value>(patch) else { return };
    if let Ok(patched) = merge_patch(&object, &patch) {
        assert_eq!(merge_patch(&patched, &patch).expect("it was a patch"), patched);
    }
    let schema = KINDS.builtin_type("apps.v1.Deployment").expect("deployments are built in");
    let _ = strategic_merge_patch(&schema, &object, &patch);
    let same = strategic_merge_patch(&schema, &object, &json!({})).expect("nothing is a patch");
    assert_eq!(same, object);
}

/// Requests, one after the other, each a line `METHOD PATH CONTENT-TYPE ACCEPT` and a body. A refusal is a Status with
/// the code of the answer, no handler panics, and the server goes on answering.
pub fn request(data: &[u8]) {
    // Time stands still but for those who wait: a wait for a revision ends at once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without threads can be had").block_on(async {
        let server = server();
        for input in data.split(|byte| *byte == SEPARATOR) {
            let Some(request) = parse(input) else { continue };
            let json_wanted = request.headers().get("accept").is_none_or(HeaderValue::is_empty);
            judge(server.handle(request, &Peer::default()).await, json_wanted, input).await;
        }
        let healthy = Request::get("/api/v1/namespaces/default/configmaps").body(Full::default());
        let answer = server.handle(healthy.expect("a request"), &Peer::default()).await;
        let body = answer.into_body().collect().await.expect("a whole list").to_bytes();
        let list: Value = serde_json::from_slice(&body).expect("a list is JSON");
        assert_eq!(list["kind"], "ConfigMapList");
    });
}

async fn judge(answer: Response<Body>, json_wanted: bool, input: &[u8]) {
    let code = answer.status().as_u16();
    let shown = || String::from_utf8_lossy(input).into_owned();
    // A watch has no end of its own.
    let collected = tokio::time::timeout(Duration::from_secs(24 * 3600), answer.into_body().collect()).await;
    if code < 400 {
        return;
    }
    let body = collected.expect("a refusal has an end").expect("a refusal is whole").to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(!text.contains(PANICKED), "{}: {text}", shown());
    if text == NO_SUCH_PAGE || !json_wanted {
        return;
    }
    let status: Value = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {}", shown()));
    assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{}", shown());
}

fn parse(input: &[u8]) -> Option<Request<Full<Bytes>>> {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let line = std::str::from_utf8(&input[..end]).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let mut request = Request::builder().method(method).uri(path).header("user-agent", "fuzz/1");
    for (name, value) in [("content-type", words.next()), ("accept", words.next())] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            request = request.header(name, value);
        }
    }
    request.body(Full::new(Bytes::copy_from_slice(input.get(end + 1..).unwrap_or_default()))).ok()
}

fn server() -> ApiServer {
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    ApiServer::builder(Arc::new(store.clone()), Registry::new(KINDS.clone()))
        .writes(Arc::new(LocalWrites::new(Arc::new(store))))
        .rng(StdRng::seed_from_u64(1))
        .build()
}

fn definition() -> Value {
    let whole = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "default": 3},
                    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8, "nullable": true},
                    "port": {"x-kubernetes-int-or-string": true},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port"],
                        "items": {
                            "type": "object",
                            "required": ["port"],
                            "properties": {"port": {"type": "integer"}, "name": {"type": "string"}},
                        },
                    },
                    "any": whole,
                },
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.fuzz.example"},
        "spec": {
            "group": "fuzz.example",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
                },
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.name"}],
            }],
        },
    })
}
