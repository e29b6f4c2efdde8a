//! Kinds that the cluster defines beyond the built-in ones (custom and aggregated APIs): their discovery and OpenAPI come
//! from the cloud and are kept on disk, so that plain kubectl finds and explains them here, also without a cloud.
//!
//! An idle node asks seldom. Who asks for discovery, or for a kind that is not known, has it asked for anew ([`Pace`] says how
//! often), and who has written a definition finds what has become of it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tombolo_apiserve::auth::{Attributes, Authorizer, Decision};
use tombolo_apiserve::kinds::DeclaredColumns;
use tombolo_apiserve::registry::Registry;
use tombolo_apiserve::selector::field::FieldSelector;
use tombolo_proto::object::Resource;
use tracing::{debug, warn};

use super::definitions::Definitions;
use super::documents::Documents;
use super::openapi::{Kept, OPENAPI, path};
use super::pace::{INTERVAL, Pace};
use crate::hub::HubState;

/// The form in which one document tells of all groups.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const GROUPS: &str = "/apis";

/// How often the documents are asked for without need: they are large for a node that should be quiet.
const REFRESH_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// How old the index of OpenAPI may be for selectors of fields that no document names. An API server publishes documents a
/// moment after the kinds.
const INDEX_AGE_MAX: Duration = INTERVAL;

/// Wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Time for the cloud's answer. Clients of discovery wait for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// OpenAPI documents that are kept, at most.
const DOCUMENTS_MAX: usize = 96;

/// See the module.
pub(super) struct Discovery {
    documents: Documents,
    openapi: Arc<Kept>,
    registry: Registry,
    /// Held while the cloud is asked.
    pace: tokio::sync::Mutex<Pace>,
    /// When a client of this node last wrote a definition.
    written: Mutex<Option<Instant>>,
    /// When the cloud was last asked for the index of OpenAPI.
    index_asked: tokio::sync::Mutex<Option<Instant>>,
    /// What the cloud's index says of each OpenAPI document that is kept.
    indexed: Mutex<BTreeMap<String, String>>,
    /// Of the definitions that were read; no more than there are kinds in discovery.
    columns: Mutex<DeclaredColumns>,
}

impl Discovery {
    /// Serves the kinds that the store keeps.
    pub(super) fn load(documents: Documents, registry: Registry) -> Arc<Self> {
        let discovery = Self {
            openapi: Kept::new(documents.clone()),
            documents,
            registry,
            pace: tokio::sync::Mutex::default(),
            written: Mutex::default(),
            index_asked: tokio::sync::Mutex::default(),
            indexed: Mutex::default(),
            columns: Mutex::default(),
        };
        discovery.serve_kept();
        Arc::new(discovery)
    }

    fn serve_kept(&self) {
        if let Ok(Some(kept)) = self.documents.kept(GROUPS) {
            match serde_json::from_slice(&kept) {
                Ok(groups) => self.serve(&groups),
                Err(error) => warn!(%error, "the kept discovery of the cluster cannot be used"),
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

    /// Whether a kind is served that the cluster defines beyond the built-in ones.
    pub(super) fn is_custom(&self, resource: &Resource) -> bool {
        self.registry.catalog().kinds.get(resource).is_some_and(|kind| kind.custom)
    }

    /// Asks with every session and now and then, until the agent stops.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut state = self.documents.hub.state();
        loop {
            let Ok(session) = state.wait_for(HubState::online).await.map(|state| state.sessions) else {
                return;
            };
            let outcome = self.refresh(&mut *self.pace.lock().await).await;
            let wait = match outcome {
                Ok(()) => REFRESH_INTERVAL,
                Err(error) => {
                    debug!(error, "the discovery of the cluster cannot be fetched");
                    RETRY_INTERVAL
                }
            };
            let changed = state.wait_for(|state| state.online() && state.sessions != session);
            if let Ok(Err(_)) = tokio::time::timeout(wait, changed).await {
                return;
            }
        }
    }

    /// Asks the cloud, unless what was heard last is new enough for who comes now. Who comes while somebody asks waits for the
    /// same answer.
    async fn renew(&self) -> Result<(), String> {
        let mut pace = self.pace.lock().await;
        let written = *self.written.lock();
        let Some(due) = pace.due(Instant::now(), written) else { return Ok(()) };
        tokio::time::sleep_until(due).await;
        self.refresh(&mut pace).await
    }

    async fn refresh(&self, pace: &mut Pace) -> Result<(), String> {
        pace.ask(Instant::now());
        let body = self.documents.fetch(GROUPS, AGGREGATED, TIMEOUT).await?;
        let groups: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if groups["kind"] != "APIGroupDiscoveryList" {
            return Err(format!("{GROUPS} is no APIGroupDiscoveryList"));
        }
        if self.documents.keep(GROUPS, body).await? {
            self.serve(&groups);
            pace.news();
        }
        if self.refresh_documents(Duration::ZERO).await? {
            pace.news();
        }
        Ok(())
    }

    /// Asks for the OpenAPI documents alone, unless that was done less than `age` ago. What they say about kinds that are
    /// served already is served, too. Whether there were others than before.
    async fn refresh_documents(&self, age: Duration) -> Result<bool, String> {
        let news = self.fetch_documents(age).await?;
        if news {
            self.serve_kept();
        }
        Ok(news)
    }

    /// Fetches the OpenAPI documents that have changed, unless that was done less than `age` ago. Whether there were any.
    async fn fetch_documents(&self, age: Duration) -> Result<bool, String> {
        let mut asked = self.index_asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < age) {
            return Ok(false);
        }
        *asked = Some(Instant::now());
        let index = self.documents.fetch(OPENAPI, "application/json", TIMEOUT).await?;
        let index: Value = serde_json::from_slice(&index).map_err(|error| error.to_string())?;
        let mut paths = self.foreign();
        paths.truncate(DOCUMENTS_MAX);
        self.openapi.retain(&paths);
        self.indexed.lock().retain(|path, _| paths.contains(path));
        let mut news = false;
        for path in paths {
            let Some(place) = index["paths"][&path]["serverRelativeURL"].as_str() else { continue };
            let known = self.indexed.lock().get(&path).is_some_and(|known| known == place);
            if known {
                continue;
            }
            match self.fetch_document(&path, place).await {
                Ok(changed) => {
                    news |= changed;
                    self.indexed.lock().insert(path, place.to_owned());
                }
                // One that cannot be had, for example because it is too large, must not hide the others.
                Err(error) => debug!(path, error, "an OpenAPI document cannot be fetched"),
            }
        }
        Ok(news)
    }

    /// Fetches one of them. Whether it is another one than before.
    async fn fetch_document(&self, path: &str, place: &str) -> Result<bool, String> {
        let body = self.documents.fetch(place, "application/json", TIMEOUT).await?;
        self.openapi.keep(path, body).await
    }

    /// Paths of the groups and versions that are not built in, as the index of OpenAPI names them.
    fn foreign(&self) -> Vec<String> {
        let catalog = self.registry.catalog();
        let custom = catalog.kinds.iter().filter(|kind| kind.custom);
        let mut paths: Vec<String> =
            custom.map(|kind| path(&kind.resource.group, &kind.resource.version)).collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Whether a request can only be answered well with the newest documents.
    fn concerns(&self, asked: &Attributes) -> bool {
        if asked.is_resource {
            let resource = Resource::new(&asked.group, &asked.version, &asked.resource);
            let kinds = &self.registry.catalog().kinds;
            // What a cluster adds to a group that is built in is not served here.
            let is_builtin = || kinds.iter().any(|kind| !kind.custom && *kind.resource.group == *asked.group);
            return kinds.get(&resource).is_none() && !is_builtin();
        }
        asked.path.starts_with(GROUPS) || asked.path.starts_with(OPENAPI)
    }

    /// Whether a request changes what kinds there are.
    fn defines(asked: &Attributes) -> bool {
        let definitions = [
            ("apiextensions.k8s.io", "customresourcedefinitions"),
            ("apiregistration.k8s.io", "apiservices"),
        ];
        definitions.contains(&(asked.group.as_str(), asked.resource.as_str()))
            && !matches!(asked.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether a selector names a field of a custom kind of which no document tells.
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

    /// Brings what a request needs to be answered well.
    async fn learn(&self, asked: &Attributes) {
        if Self::defines(asked) {
            *self.written.lock() = Some(Instant::now());
        }
        let mut outcome = Ok(());
        if self.concerns(asked) {
            outcome = self.renew().await;
        }
        if outcome.is_ok() && self.selects_unknown(asked) {
            outcome = self.refresh_documents(INDEX_AGE_MAX).await.map(drop);
        }
        if let Err(error) = outcome {
            debug!(error, "discovery is answered from what was kept");
        }
    }
}

/// Lets a request be judged once the kinds that it may be about are known.
pub(super) struct Informed<A> {
    pub(super) inner: A,
    pub(super) discovery: Arc<Discovery>,
    pub(super) definitions: Arc<Definitions>,
}

impl<A: Authorizer> Authorizer for Informed<A> {
    fn authorize<'a>(&'a self, asked: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(async move {
            let decision = self.inner.authorize(asked).await;
            if decision != Decision::Allow {
                return decision;
            }
            self.discovery.learn(asked).await;
            self.definitions.read(asked).await;
            decision
        })
    }
}
