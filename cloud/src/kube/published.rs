//! Documents that the API server publishes to every authenticated user: version, discovery, OpenAPI, and the keys of
//! its tokens. All nodes get the same documents, so one cached copy answers them all.
//!
//! A copy is used only for a few seconds: long enough for a fleet that reconnects, too short for a client to miss a new
//! kind. Where all nodes look for a document, a 404 is cached as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use http::Method;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tombolo_proto::NodeId;
use tombolo_proto::documents::{DISCOVERY, ISSUER_PATH, KEY_SET, KEYS_PATH, WARM_SET};

use super::call::class_of;
use super::call_limits::Class;
use super::coalesced::{Common, Got, Wanted};
use super::{Answer, ApiCall, CallError, Caller, Kube, Room};
use crate::metrics::Label;

/// How long a copy is served without a new request.
const FRESH: Duration = Duration::from_secs(5);

/// Maximum bytes of all copies. A document that does not fit is requested each time.
const COPIES_LEN_MAX: usize = 8 * 1024 * 1024;

/// Longest path with query that is cached, in bytes.
const PATH_LEN_MAX: usize = 512;

/// Path of the API server's list of OpenAPI documents, each with the hash of its present version.
const OPENAPI_LIST: &str = "/openapi/v3";

/// The query that Kubernetes clients send with discovery requests.
const USUAL_QUERY: &str = "timeout=32s";

/// The `Accept` values for which copies are kept. Requests with other values are passed through: a peer must not be
/// able to create arbitrary copies.
const FORMS: [&str; 8] = [
    "",
    DISCOVERY,
    KEY_SET,
    "application/json",
    "application/json, */*",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
];

/// Paths of the keys of the cluster's service-account tokens (OpenID Connect discovery).
pub(crate) const ISSUER_PATHS: [&str; 2] = [ISSUER_PATH, KEYS_PATH];

/// Whether a path leads to a document. Documents are not resources, and the right to act as a node covers only
/// resources.
pub(crate) fn is_document(path: &str) -> bool {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version" | "api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => true,
        ["openapi", ..] => true,
        _ => ISSUER_PATHS.contains(&path),
    }
}

/// Whether this is a document in a form that all clients request in the same way. Otherwise a client could fill the
/// cache with invented requests.
fn has_copy(call: &ApiCall) -> bool {
    let usual = match call.path_and_query.split_once('?') {
        None => true,
        Some(_) if has_hash(call) => true,
        Some((_, query)) => query == USUAL_QUERY,
    };
    let short = call.path_and_query.len() <= PATH_LEN_MAX;
    usual && short && is_document(call.path()) && FORMS.contains(&&*call.accept)
}

/// Whether this requests a particular version of a document. The list of documents contains the valid versions.
fn has_hash(call: &ApiCall) -> bool {
    let parts = call.path_and_query.split_once('?');
    parts.is_some_and(|(path, query)| path.starts_with("/openapi/v3/") && query.starts_with("hash="))
}

/// Whether all nodes look up the kinds of this group version here, whether it exists or not. Other group versions may
/// be invented by a peer.
fn is_looked_for_by_all(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", "apis", group, version] = parts.as_slice() else { return false };
    WARM_SET.iter().any(|(known, of, _)| known == group && of == version)
}

#[derive(Debug, Default)]
struct DocumentCopy {
    answer: Common<Answer>,
    len: AtomicUsize,
}

/// Copies, by path with query and by `Accept` value.
#[derive(Debug, Default)]
pub(super) struct Published {
    copies: DashMap<(String, String), Arc<DocumentCopy>>,
    answers: Family<Label, Counter>,
    bytes: Gauge,
}

impl Published {
    pub(super) fn register(&self, registry: &mut Registry) {
        let text = "Published documents sent to nodes, by whether the copy was used or the API server asked";
        registry.register("documents", text, self.answers.clone());
        let text = "Bytes of the copies of published documents, at most 8388608";
        registry.register("document_bytes", text, self.bytes.clone());
    }

    fn count(&self, kind: &'static str) {
        self.answers.get_or_create(&Label { kind }).inc();
    }

    /// Keeps an answer as a copy if it is a document and there is room.
    fn keep(
        &self,
        call: &ApiCall,
        copy: &DocumentCopy,
        answer: &Result<Option<Answer>, CallError>,
    ) -> Option<Answer> {
        let Ok(Some(answer)) = answer else { return None };
        let is_document = answer.code == 200 || answer.code == 404 && is_looked_for_by_all(call.path());
        if !is_document || self.len() + answer.body.len() > COPIES_LEN_MAX {
            return None;
        }
        copy.len.store(answer.body.len(), Ordering::Relaxed);
        Some(answer.clone())
    }

    /// Whether there is a copy already, or a fresh copy of the list of OpenAPI documents contains this one. Otherwise a
    /// client could fill the cache with invented hashes.
    fn names(&self, call: &ApiCall) -> bool {
        let quoted = format!("\"{}\"", call.path_and_query);
        let is_listed = |form: &str| {
            let list = self.copies.get(&(OPENAPI_LIST.to_owned(), form.to_owned()));
            let list = list.and_then(|list| list.answer.younger(FRESH));
            list.is_some_and(|list| std::str::from_utf8(&list.body).is_ok_and(|text| text.contains(&quoted)))
        };
        let own = (call.path_and_query.clone(), call.accept.clone());
        self.copies.contains_key(&own) || FORMS.iter().any(|form| is_listed(form))
    }

    fn len(&self) -> usize {
        self.copies.iter().map(|copy| copy.len.load(Ordering::Relaxed)).sum()
    }
}

impl Kube {
    /// Reads a document with cloudcore's identity, for any authenticated client. `node` is the requesting node.
    ///
    /// # Errors
    /// [`CallError`] when there is neither a fresh copy nor an answer.
    pub async fn document(&self, node: Option<&NodeId>, call: ApiCall) -> Result<Answer, CallError> {
        self.document_that(node, call, |_| true).await
    }

    /// The same. A copy that does not suit is requested again.
    ///
    /// # Errors
    /// As [`Kube::document`].
    pub(crate) async fn document_that(
        &self,
        node: Option<&NodeId>,
        call: ApiCall,
        suits: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, CallError> {
        let caller = node.map_or(Caller::Own, Caller::OwnFor);
        let is_made_up = has_hash(&call) && !self.published.names(&call);
        if call.method != Method::GET || !has_copy(&call) || is_made_up {
            return self.call(caller, call).await;
        }
        let (limit, class, room) = (call.timeout, class_of(&call)?, Room::current());
        let (room, suits) = (room.as_ref(), &suits);
        let attempt = || async {
            let answer = self.copied(caller, class, call.clone(), (room, suits)).await?;
            let Some(answer) = answer else { return Ok(None) };
            // A copy that a node has not read yet stays in memory even after it has expired.
            let fits = room.map_or(Ok(true), |room| room.grow(answer.body.len()))?;
            Ok(fits.then_some(answer))
        };
        let answer = self.in_turn(caller, class, room, attempt);
        tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut(limit))?
    }

    /// The copy, or an answer that becomes the copy. None when a large answer must wait for its turn; others do not
    /// wait meanwhile.
    async fn copied(
        &self,
        caller: Caller<'_>,
        class: Class,
        call: ApiCall,
        (room, suits): (Option<&Room>, &impl Fn(&Answer) -> bool),
    ) -> Result<Option<Answer>, CallError> {
        let published = &self.published;
        let name = (call.path_and_query.clone(), call.accept.clone());
        let copy: Arc<DocumentCopy> = Arc::clone(&*published.copies.entry(name).or_default());
        let ask = || {
            copy.len.store(0, Ordering::Relaxed);
            self.attempt(caller, Some(class), call.clone(), room)
        };
        let keep = |answer: &_| published.keep(&call, &copy, answer);
        let mut got = copy.answer.ask(Wanted::Younger(FRESH), ask, keep).await;
        if matches!(&got, Got::Common(answer) if !suits(answer)) {
            got = copy.answer.ask(Wanted::New, ask, keep).await;
        }
        let answer = match got {
            Got::Common(answer) => {
                published.count("copy");
                return Ok(Some(answer));
            }
            Got::Own(answer) => answer,
        };
        published.count("asked");
        // Drops copies that were not requested lately. Copies with a running request are skipped.
        published.copies.retain(|_, copy| !copy.answer.is_idle(FRESH));
        published.bytes.set(i64::try_from(published.len()).unwrap_or(i64::MAX));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tombolo_proto::documents::IN_EVERY_SESSION;

    use tokio::time::Instant;

    use super::*;

    /// An API server that counts its requests, and whose documents have this length.
    fn counted(len: usize) -> (Kube, Arc<AtomicU64>, Arc<AtomicBool>) {
        let (asked, away) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counter, gone) = (Arc::clone(&asked), Arc::clone(&away));
        let service = tower::service_fn(move |request: Request<Body>| {
            counter.fetch_add(1, Ordering::SeqCst);
            let known = !request.uri().path().contains("nothing") && !gone.load(Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let response = Response::builder().status(if known { 200 } else { 404 });
                Ok::<_, tower::BoxError>(response.body(Body::from(vec![b' '; len]))?)
            }
        });
        (Client::new(service, "default").into(), asked, away)
    }

    #[tokio::test(start_paused = true)]
    async fn reconnecting_fleet_requests_each_document_once() {
        let (kube, asked, _) = counted(100);
        let paths = ["/version", "/api", "/apis", "/openapi/v2", "/openid/v1/jwks", "/apis/apps/v1"];
        let nodes = (0..2000).map(|node| kube.document(None, ApiCall::get(paths[node % paths.len()])));
        for answer in futures::future::join_all(nodes).await {
            assert_eq!(answer.expect("an answer").code, 200);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 6);
        tokio::time::advance(FRESH).await;
        kube.document(None, ApiCall::get("/api")).await.expect("an answer");
        assert_eq!(asked.load(Ordering::SeqCst), 7, "a copy is requested again");
        assert_eq!(kube.published.copies.len(), 1, "the others are dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn documents_requested_in_every_session_are_cached() {
        let (kube, asked, _) = counted(100);
        for _ in 0..20 {
            for (path, form) in IN_EVERY_SESSION {
                let call = ApiCall { accept: form.to_owned(), ..ApiCall::get(path) };
                kube.document(None, call).await.expect("an answer");
            }
        }
        assert_eq!(asked.load(Ordering::SeqCst), IN_EVERY_SESSION.len() as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn invented_requests_are_not_cached() {
        let (kube, asked, away) = counted(100);
        let odd = ApiCall { accept: "application/x-17".to_owned(), ..ApiCall::get("/api") };
        for call in [
            odd,
            ApiCall::get("/apis/nothing/v1"),
            ApiCall::get("/api/v1/nodes"),
            ApiCall::get(format!("/openapi/v3/a?hash={}", "x".repeat(600))),
            ApiCall::get("/openapi/v3/a?hash=x&y=1"),
            ApiCall::get("/openapi/v2?hash=x"),
            ApiCall::get("/api?x"),
        ] {
            for _ in 0..2 {
                kube.document(None, call.clone()).await.expect("an answer");
            }
        }
        assert_eq!((asked.load(Ordering::SeqCst), kube.published.copies.len()), (14, 0));
        kube.document(None, ApiCall::get("/api")).await.expect("an answer");
        tokio::time::advance(FRESH).await;
        away.store(true, Ordering::SeqCst);
        assert_eq!(
            kube.document(None, ApiCall::get("/api")).await.expect("an answer").code,
            404,
            "no stale copy is returned"
        );
        assert_eq!(kube.published.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn published_document_cache_stays_within_its_bytes() {
        let (kube, asked, _) = counted(COPIES_LEN_MAX / 3);
        for _ in 0..2 {
            for name in ["a", "b", "c", "d", "e"] {
                kube.document(None, ApiCall::get(format!("/openapi/v3/{name}"))).await.expect("an answer");
                assert!(kube.published.len() <= COPIES_LEN_MAX);
            }
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3 + 2 * 2, "two had no room");
        assert_eq!(kube.published.bytes.get(), 3 * (COPIES_LEN_MAX as i64 / 3), "the metric shows them");
    }

    /// The API server lists its documents, but returns a document for any hash.
    #[tokio::test(start_paused = true)]
    async fn hashed_documents_are_cached_only_if_published() {
        let asked = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&asked);
        let client = crate::kube::tests::double::answering(move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            let list =
                serde_json::json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=AB"}}});
            async move { (200, list) }
        });
        let kube: Kube = client.into();
        let count = async |path: &str| {
            for _ in 0..5 {
                assert_eq!(kube.document(None, ApiCall::get(path)).await.expect("an answer").code, 200);
            }
            (asked.swap(0, Ordering::SeqCst), kube.published.copies.len())
        };
        assert_eq!(count("/openapi/v3/api/v1?hash=AB").await, (5, 0), "the list was not read");
        assert_eq!(count("/openapi/v3").await, (1, 1));
        assert_eq!(count("/openapi/v3/api/v1?hash=AB").await, (1, 2));
        for made_up in ["api/v1?hash=A", "api/v1?hash=", "api/v1?hash=AB&x=1", "x?hash=AB"] {
            assert_eq!(count(&format!("/openapi/v3/{made_up}")).await, (5, 2), "{made_up}");
        }
        tokio::time::advance(FRESH).await;
        assert_eq!(count("/openapi/v3/api/v1?hash=AB").await, (1, 1), "it is known, and its list is dropped");
    }

    /// An API server that answers every request with this code after some time, and counts the requests.
    fn saying(code: &Arc<AtomicU16>) -> (Kube, Arc<AtomicU64>) {
        let (asked, code) = (Arc::<AtomicU64>::default(), Arc::clone(code));
        let counter = Arc::clone(&asked);
        let client = crate::kube::tests::double::answering(move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            let code = code.load(Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                (code, serde_json::json!({"code": code}))
            }
        });
        (client.into(), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn missing_common_document_is_cached() {
        let code = Arc::new(AtomicU16::new(404));
        let (kube, asked) = saying(&code);
        let get = |path: &str| kube.document(None, ApiCall::get(path));
        for _ in 0..20 {
            assert_eq!(get("/apis/superedge.io/v1").await.expect("an answer").code, 404);
        }
        assert_eq!((asked.swap(0, Ordering::SeqCst), kube.published.copies.len()), (1, 1));
        for path in [
            "/apis/superedge.io",
            "/apis/superedge.io/v2",
            "/apis/a/v1",
            "/api/v1",
            "/openapi/v3/apis/superedge.io/v1",
        ] {
            for _ in 0..2 {
                assert_eq!(get(path).await.expect("an answer").code, 404, "{path}");
            }
            assert_eq!((asked.swap(0, Ordering::SeqCst), kube.published.copies.len()), (2, 1), "{path}");
        }
        for other in [400, 401, 403, 405, 410, 429, 500, 503] {
            code.store(other, Ordering::SeqCst);
            tokio::time::advance(FRESH).await;
            for _ in 0..2 {
                assert_eq!(get("/apis/superedge.io/v1").await.expect("an answer").code, other);
            }
            assert_eq!(
                asked.swap(0, Ordering::SeqCst),
                2,
                "no caller gets {other}, the answer to another query"
            );
        }
    }

    /// A custom resource definition is created while a fleet looks for it.
    #[tokio::test(start_paused = true)]
    async fn stale_copy_is_replaced_when_a_client_misses_something() {
        let code = Arc::new(AtomicU16::new(404));
        let (kube, asked) = saying(&code);
        let begin = Instant::now();
        let looks = |number: u64| {
            let (kube, code) = (&kube, &code);
            async move {
                tokio::time::sleep(Duration::from_millis(number)).await;
                let there = code.load(Ordering::SeqCst);
                let call = ApiCall::get("/apis/superedge.io/v1");
                let answer = kube.document_that(None, call, |answer| answer.code == 200).await;
                let said = answer.expect("an answer").code;
                assert!(
                    said == there || said == 200,
                    "{said} to the one who came at {number} ms, when it was {there}"
                );
            }
        };
        let made = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            code.store(200, Ordering::SeqCst);
        };
        futures::future::join(futures::future::join_all((0..2000).map(looks)), made).await;
        let (asked, time) = (asked.load(Ordering::SeqCst), begin.elapsed());
        assert!(asked <= 6 && time < Duration::from_secs(4), "{asked} requests in {time:?}");
    }
}
