//! Kinds that the cluster defines beyond the built-in ones (custom and aggregated APIs). Their discovery and OpenAPI
//! documents come from the cloud and are kept on disk, so that plain kubectl finds and explains them here, also without
//! a cloud connection.
//!
//! Clients wait only for discovery. The OpenAPI documents are large and are fetched in the background, one at a time.
//!
//! An idle node rarely asks the cloud. A client request for discovery or for an unknown kind triggers a new query
//! ([`Pace`] limits how often), and a client that has written a definition finds the new kind.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::kinds::DeclaredColumns;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::selector::field::FieldSelector;
use tombolo_proto::documents::{DISCOVERY, GROUPS_PATH};
use tombolo_proto::object::Resource;
use tombolo_runtime::host;
use tracing::{debug, warn};

use super::documents::Documents;
use super::groups::gathered;
use super::index::Index;
use super::openapi::{Kept, OPENAPI, path};
use super::pace::{INTERVAL, Pace};
use crate::hub::{HubState, KindsPublisher};

/// How often discovery and the documents are refreshed without a trigger. It is rare because the documents are large
/// for an idle node.
const REFRESH_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// How old the OpenAPI index may be for field selectors that no document declares. An API server publishes documents a
/// moment after the kinds.
const INDEX_AGE_MAX: Duration = INTERVAL;

/// Wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Time for the cloud's answer. Clients of discovery wait for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client waits for a query, including one in progress for another client; then it is answered from known
/// data.
const CLIENT_WAIT_MAX: Duration = TIMEOUT.saturating_add(INTERVAL);

/// Time for the lists of all groups, when there is no single document. No client waits for it.
const GATHER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for an OpenAPI document, for which no client waits. It may have 4 MiB, and other traffic shares the link.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Wait before documents that could not be fetched are requested again.
const DOCUMENT_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// OpenAPI documents that are kept, at most.
const DOCUMENTS_MAX: usize = 96;

/// The query of the cloud for discovery, of which one runs at a time.
struct Query {
    /// Held while the cloud is asked.
    asking: Arc<tokio::sync::Mutex<()>>,
    /// The outcome of the last query, sent when `asking` is released.
    outcome: watch::Sender<Result<(), String>>,
}

/// Keeps the cluster's discovery and OpenAPI documents.
pub(super) struct Discovery {
    documents: Documents,
    openapi: Arc<Kept>,
    registry: Registry,
    pace: Mutex<Pace>,
    query: Query,
    /// When a client of this node last wrote a definition.
    written: Mutex<Option<Instant>>,
    /// When the OpenAPI index was last requested.
    index_asked: tokio::sync::Mutex<Option<Instant>>,
    /// The published OpenAPI documents, and which of them are kept.
    index: Mutex<Index>,
    /// Held while one of them is fetched.
    fetching: tokio::sync::Mutex<()>,
    /// Notified when a client's request has refreshed discovery, after which there may be other documents.
    wanted: Notify,
    /// The columns of the definitions that were read. Bounded by the number of kinds in discovery.
    columns: Mutex<DeclaredColumns>,
    /// Publishes the kinds to the session, which may request a refresh.
    kinds: KindsPublisher,
}

impl Discovery {
    /// Serves the kinds that the store keeps.
    pub(super) fn load(documents: Documents, registry: Registry, kinds: KindsPublisher) -> Arc<Self> {
        let discovery = Self {
            openapi: Kept::new(documents.clone()),
            index: Mutex::new(Index::load(&documents)),
            documents,
            registry,
            pace: Mutex::default(),
            query: Query { asking: Arc::default(), outcome: watch::Sender::new(Ok(())) },
            written: Mutex::default(),
            index_asked: tokio::sync::Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            wanted: Notify::new(),
            columns: Mutex::default(),
            kinds,
        };
        discovery.serve_kept();
        Arc::new(discovery)
    }

    fn serve_kept(&self) {
        if let Ok(Some(kept)) = self.documents.kept(GROUPS_PATH) {
            match serde_json::from_slice(&kept) {
                Ok(groups) => {
                    self.kinds.publish(&kept);
                    self.serve(&groups);
                }
                Err(error) => warn!(%error, "cannot use the kept discovery of the cluster"),
            }
        }
    }

    fn serve(&self, groups: &Value) {
        let columns = self.columns.lock().clone();
        let Ok(()) = self.registry.update(|kinds| {
            let documents = Arc::clone(&self.openapi) as _;
            Ok::<_, Infallible>(kinds.with_discovered(groups, &columns, documents))
        });
    }

    /// Shows the objects of a definition with its columns from now on.
    pub(super) fn declare(&self, definition: &Value) {
        if self.columns.lock().declare(definition) {
            self.serve_kept();
        }
    }

    /// Whether this is a served kind beyond the built-in ones.
    pub(super) fn is_custom(&self, resource: &Resource) -> bool {
        self.registry.catalog().kinds.get(resource).is_some_and(|kind| kind.custom)
    }

    /// Asks the cloud in every session and then from time to time, until the agent stops.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut state = self.documents.hub.own().state();
        loop {
            let Ok(session) = state.wait_for(HubState::online).await.map(|state| state.sessions) else {
                return;
            };
            let asking = Arc::clone(&self.query.asking).lock_owned().await;
            let mut wait = match self.ask(asking, Instant::now()).await {
                Ok(()) => self.bring_documents().await,
                Err(error) => {
                    debug!(error, "cannot fetch the discovery of the cluster");
                    RETRY_INTERVAL
                }
            };
            loop {
                let other = async {
                    let changed = state.wait_for(|state| state.online() && state.sessions != session);
                    changed.await.map(drop)
                };
                tokio::select! {
                    changed = other => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = sleep(wait) => break,
                    () = self.wanted.notified() => {}
                    () = self.kinds.wanted.notified() => {
                        if let Err(error) = self.renew().await {
                            debug!(error, "received an unknown kind, and cannot fetch discovery");
                        }
                        continue;
                    }
                }
                wait = self.bring_documents().await;
            }
        }
    }

    /// Asks the cloud, unless the last answer is new enough. Callers that arrive during a query wait for its outcome.
    /// The query continues in a task of its own when its callers stop waiting.
    async fn renew(self: &Arc<Self>) -> Result<(), String> {
        loop {
            let mut outcome = self.query.outcome.subscribe();
            let asking = Arc::clone(&self.query.asking).try_lock_owned();
            let is_first = asking.is_ok();
            if let Ok(asking) = asking {
                let written = *self.written.lock();
                let Some(due) = self.pace.lock().due(Instant::now(), written) else { return Ok(()) };
                let own = Arc::clone(self);
                host::spawn(async move {
                    if own.ask(asking, due).await.is_ok() {
                        own.wanted.notify_one();
                    }
                });
            }
            let ended = outcome.changed().await;
            if is_first || ended.is_err() {
                return outcome.borrow().clone();
            }
        }
    }

    /// Asks the cloud when it is due, and sends the outcome to all waiting callers.
    async fn ask(&self, asking: OwnedMutexGuard<()>, due: Instant) -> Result<(), String> {
        sleep_until(due).await;
        let outcome = self.refresh().await;
        // Released first, so that notified callers can acquire it.
        drop(asking);
        let _ = self.query.outcome.send_replace(outcome.clone());
        outcome
    }

    async fn refresh(&self) -> Result<(), String> {
        self.pace.lock().ask(Instant::now());
        let body = self.documents.fetch(GROUPS_PATH, DISCOVERY, TIMEOUT).await?;
        let groups: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let (groups, body) = match groups["kind"].as_str() {
            Some("APIGroupDiscoveryList") => (groups, body),
            Some("APIGroupList") => {
                let whole = timeout(GATHER_TIMEOUT, self.gather(&groups)).await;
                let whole = whole.map_err(|_| "the lists of resources take too long".to_owned())?;
                let text = whole.to_string().into();
                (whole, text)
            }
            _ => return Err(format!("{GROUPS_PATH} is not a list of groups")),
        };
        self.kinds.publish(&body);
        if self.documents.keep(GROUPS_PATH, body).await? {
            self.serve(&groups);
            self.pace.lock().news();
        }
        Ok(())
    }

    /// Gathers the kinds from a cloud that does not serve them in one document.
    async fn gather(&self, groups: &Value) -> Value {
        let kept = self.documents.kept(GROUPS_PATH).ok().flatten();
        let before = kept.and_then(|kept| serde_json::from_slice(&kept).ok()).unwrap_or_default();
        let catalog = self.registry.catalog();
        let known =
            |name: &str| catalog.kinds.iter().any(|kind| !kind.custom && *kind.resource.group == *name);
        let ask = |path: String| async move {
            let body = self.documents.fetch(&path, "application/json", TIMEOUT).await?;
            serde_json::from_slice::<Value>(&body).map_err(|error| error.to_string())
        };
        gathered(groups, &before, known, ask).await
    }

    /// Fetches the OpenAPI documents that have changed. Returns how long to wait before the next time.
    async fn bring_documents(&self) -> Duration {
        if let Err(error) = self.ask_index(Duration::ZERO).await {
            debug!(error, "cannot fetch the index of the cluster's OpenAPI documents");
            return RETRY_INTERVAL;
        }
        let (mut news, mut wait) = (false, REFRESH_INTERVAL);
        for path in self.foreign() {
            match self.bring_document(&path, DOCUMENT_TIMEOUT).await {
                Ok(changed) => news |= changed,
                // A document that cannot be fetched, for example because it is too large, must not block the others.
                Err(error) => {
                    debug!(path, error, "cannot fetch an OpenAPI document");
                    wait = DOCUMENT_RETRY_INTERVAL;
                }
            }
        }
        if news {
            self.serve_kept();
            self.pace.lock().news();
        }
        wait
    }

    /// Fetches the OpenAPI index, unless that was done less than `age` ago.
    async fn ask_index(&self, age: Duration) -> Result<(), String> {
        let mut asked = self.index_asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        *asked = Some(Instant::now());
        let index = self.documents.fetch(OPENAPI, "application/json", TIMEOUT).await?;
        let index: Value = serde_json::from_slice(&index).map_err(|error| error.to_string())?;
        let paths = self.foreign();
        self.openapi.retain(&paths);
        self.index.lock().publish(&index, &paths);
        Ok(())
    }

    /// Fetches a document if it differs from the kept one. Returns whether it has changed.
    async fn bring_document(&self, path: &str, time: Duration) -> Result<bool, String> {
        let _one_at_a_time = self.fetching.lock().await;
        let due = self.index.lock().due(path, Instant::now());
        let Some(url) = due else { return Ok(false) };
        let body = self.documents.fetch(&url, "application/json", time).await;
        let outcome = match body {
            Ok(body) => self.openapi.keep(path, body).await,
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            self.index.lock().missed(path, Instant::now() + DOCUMENT_RETRY_INTERVAL);
            return outcome;
        }
        let known = self.index.lock().got(path, url);
        known.keep(&self.documents).await?;
        outcome
    }

    /// Fetches the document of one kind for a waiting client. A fetch in progress is completed first.
    async fn explain(&self, path: &str) -> Result<(), String> {
        self.ask_index(INDEX_AGE_MAX).await?;
        if self.bring_document(path, TIMEOUT).await? {
            self.serve_kept();
        }
        Ok(())
    }

    /// Paths of the groups and versions that are not built in, as in the OpenAPI index.
    fn foreign(&self) -> Vec<String> {
        let catalog = self.registry.catalog();
        let custom = catalog.kinds.iter().filter(|kind| kind.custom);
        let mut paths: Vec<String> =
            custom.map(|kind| path(&kind.resource.group, &kind.resource.version)).collect();
        paths.sort();
        paths.dedup();
        paths.truncate(DOCUMENTS_MAX);
        paths
    }

    /// Whether a request needs the newest discovery.
    fn concerns(&self, asked: &Attributes) -> bool {
        if asked.is_resource {
            let resource = Resource::new(&asked.group, &asked.version, &asked.resource);
            let kinds = &self.registry.catalog().kinds;
            // Kinds that a cluster adds to a built-in group are not served here.
            let is_builtin = || kinds.iter().any(|kind| !kind.custom && *kind.resource.group == *asked.group);
            return kinds.get(&resource).is_none() && !is_builtin();
        }
        asked.path.starts_with(GROUPS_PATH) || asked.path.starts_with(OPENAPI)
    }

    /// Whether a request changes the set of kinds.
    fn defines(asked: &Attributes) -> bool {
        let definitions = [
            ("apiextensions.k8s.io", "customresourcedefinitions"),
            ("apiregistration.k8s.io", "apiservices"),
        ];
        definitions.contains(&(asked.group.as_str(), asked.resource.as_str()))
            && !matches!(asked.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether a field selector names a field of a custom kind that no document declares.
    fn selects_unknown(&self, asked: &Attributes) -> bool {
        if !asked.is_resource || asked.field_selector.is_empty() {
            return false;
        }
        let resource = Resource::new(&asked.group, &asked.version, &asked.resource);
        let catalog = self.registry.catalog();
        let Some(kind) = catalog.kinds.get(&resource).filter(|kind| kind.custom) else { return false };
        let selector = FieldSelector::parse(&asked.field_selector).unwrap_or_default();
        selector.fields().any(|field| !kind.is_selectable(field))
    }

    /// Fetches the data that a request needs. It fails when the cluster's discovery was never fetched, so that it is
    /// unknown whether the kind exists.
    pub(super) async fn learn(self: &Arc<Self>, asked: &Attributes) -> Result<(), String> {
        if Self::defines(asked) {
            *self.written.lock() = Some(Instant::now());
        }
        let mut outcome = Ok(());
        if self.concerns(asked) {
            outcome = timeout(CLIENT_WAIT_MAX, self.renew())
                .await
                .unwrap_or_else(|_| Err("the cloud has not sent its discovery in time".to_owned()));
            if asked.is_resource && matches!(self.documents.kept(GROUPS_PATH), Ok(None)) {
                let name = Resource::new(&asked.group, &asked.version, &asked.resource);
                return Err(format!("{name} are not known here: this node has not heard from the cloud yet"));
            }
        }
        if outcome.is_ok() && self.selects_unknown(asked) {
            let explained = timeout(TIMEOUT, self.explain(&path(&asked.group, &asked.version))).await;
            outcome = explained.unwrap_or_else(|_| Err("an OpenAPI document takes too long".to_owned()));
        }
        if let Err(error) = outcome {
            debug!(error, "discovery is answered from kept data");
        }
        Ok(())
    }
}
