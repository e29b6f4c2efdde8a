//! A model of the Kubernetes API, as kube-apiserver 1.36 answers it (docs/reference/kubernetes.md). It uses nothing of
//! the product.
//!
//! It runs in the process and thread of the simulation. Time passes only with tokio's clock, and what is random comes
//! from the caller's seed, so a run can be repeated. The product talks to it through a [`kube::Client`]; plans act
//! through [`ApiActor`], which no fault concerns. Answers are JSON: the model writes no Protobuf and no tables.

mod actor;
mod admission;
mod calls;
mod clock;
mod controllers;
mod convert;
mod defaults;
mod deletes;
mod documents;
mod faults;
mod fields;
mod kinds;
mod knobs;
mod managers;
mod object;
mod parse;
mod patches;
mod rbac;
mod reads;
mod references;
mod reviews;
mod rights;
mod selectors;
mod serve;
mod shapes;
mod state;
mod status;
mod storage;
mod strategic;
mod tokens;
mod validation;
mod watching;
mod writes;

pub use actor::ApiActor;
pub use controllers::ModelControllers;
pub use faults::{CallFault, FaultId, FaultRate, FaultScope, WatchFault};
pub use kinds::KindKey;
pub use rights::{ApiUser, AskedRight, RightsGrant, RightsTable};
pub use state::ModelEvent;
pub use status::ApiStatus;
pub use storage::{ChangeType, ObjectChange};

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

use rights::MASTERS;
use serve::{ClientIdentity, SharedModel, serve};
use state::{IssuedToken, ModelState};

/// Settings of a model.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Seed of UIDs, generated names, and faults with a probability.
    pub seed: u64,
    /// Wall clock at the start, in Unix seconds.
    pub epoch: i64,
    /// Rights beside those of stored roles and of the Node authorizer.
    pub rights: RightsTable,
    /// Whether the server knows constrained impersonation (docs/reference/kubernetes.md#impersonation).
    pub constrained_impersonation: bool,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            epoch: 1_767_225_600,
            rights: RightsTable::default(),
            constrained_impersonation: true,
        }
    }
}

/// The model. Clones are the same one.
#[derive(Debug, Clone)]
pub struct ModelApi {
    model: Arc<SharedModel>,
}

/// The namespaces that kube-apiserver creates.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Namespace of a client that names none.
const DEFAULT_NAMESPACE: &str = "default";

impl ModelApi {
    /// A server with its own namespaces and nothing else. Must be called in the runtime of the simulation.
    #[must_use]
    pub fn new(config: ModelConfig) -> Self {
        let mut state = ModelState::new(config.seed, config.epoch, config.rights);
        state.constrained_impersonation = config.constrained_impersonation;
        let api = Self { model: Arc::new(SharedModel::new(state)) };
        let server = api.actor("system:apiserver");
        for name in SYSTEM_NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            // Nothing refuses the first objects of an empty server.
            server.create(&namespace).ok();
        }
        api
    }

    /// A client of this user, who also gives it its name.
    #[must_use]
    pub fn client(&self, user: &str) -> Client {
        self.client_as(user, user)
    }

    /// A client with a name of its own, by which faults tell it from others of the same user.
    #[must_use]
    pub fn client_as(&self, name: &str, user: &str) -> Client {
        self.model.change(|state| state.clients.insert(user.to_owned()));
        let identity = ClientIdentity { name: name.to_owned(), user: ApiUser::named(user) };
        let model = Arc::clone(&self.model);
        let service = tower::service_fn(move |request| serve(Arc::clone(&model), identity.clone(), request));
        Client::new(service, DEFAULT_NAMESPACE)
    }

    /// Somebody who acts at once and without faults: a user, a controller, or a kubelet with its own rights.
    #[must_use]
    pub fn actor(&self, user: &str) -> ApiActor {
        let mut user = ApiUser::named(user);
        if user.node().is_none() {
            user.groups.insert(MASTERS.to_owned());
        }
        ApiActor::new(Arc::clone(&self.model), user)
    }

    /// The controllers that complete what an API server begins.
    #[must_use]
    pub fn controllers(&self) -> ModelControllers {
        ModelControllers::new(self.clone())
    }

    /// Tells a function of everything that happens from now on, when it happens. It must not call the model.
    pub fn observe(&self, observer: impl FnMut(ModelEvent) + Send + 'static) {
        self.model.state.lock().observers.add(Box::new(observer));
    }

    /// Told of every change of the model.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.model.news()
    }

    /// All writes since the start, also those that a restored backup took back.
    #[must_use]
    pub fn history(&self) -> Vec<Arc<ObjectChange>> {
        self.history_from(0)
    }

    /// The writes from this one on, by their number.
    #[must_use]
    pub fn history_from(&self, first: usize) -> Vec<Arc<ObjectChange>> {
        let state = self.model.state.lock();
        state.storage.recorded().get(first..).unwrap_or_default().to_vec()
    }

    /// All writes of one object.
    #[must_use]
    pub fn history_of(&self, kind: &KindKey, namespace: &str, name: &str) -> Vec<Arc<ObjectChange>> {
        let is_it = |change: &Arc<ObjectChange>| {
            change.kind == *kind && change.namespace == namespace && change.name == name
        };
        self.history().into_iter().filter(is_it).collect()
    }

    /// An object as it is now.
    #[must_use]
    pub fn object(&self, kind: &KindKey, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let state = self.model.state.lock();
        let found = state.kind_of(kind)?;
        state.object(&found, namespace, name).cloned()
    }

    /// The objects of a kind as they are now.
    #[must_use]
    pub fn objects(&self, kind: &KindKey) -> Vec<Arc<Value>> {
        self.model.state.lock().storage.all(kind).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// All objects as they are now.
    #[must_use]
    pub fn everything(&self) -> Vec<(KindKey, Arc<Value>)> {
        let state = self.model.state.lock();
        state.storage.everything().map(|(kind, object)| (kind.clone(), Arc::clone(object))).collect()
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.model.state.lock().storage.revision()
    }

    /// The newest revision when so much time had passed since the start.
    #[must_use]
    pub fn revision_at(&self, elapsed: Duration) -> u64 {
        let state = self.model.state.lock();
        let lag = state.clock.elapsed().saturating_sub(elapsed);
        state.storage.revision_seen(state.clock.elapsed(), lag)
    }

    /// Number of watches whose connection is half open and whose client has not noticed.
    #[must_use]
    pub fn half_open_watches(&self) -> usize {
        Arc::strong_count(&self.model.state.lock().half_open) - 1
    }

    /// Number of backups that were restored.
    #[must_use]
    pub fn era(&self) -> u64 {
        self.model.state.lock().storage.era()
    }

    /// Whether a user may do something now.
    #[must_use]
    pub fn may(&self, user: &ApiUser, asked: &AskedRight) -> bool {
        self.model.state.lock().check(user, asked).is_ok()
    }

    /// A token of a ServiceAccount that no pod is bound to, valid for so long.
    #[must_use]
    pub fn issue_token(&self, namespace: &str, account: &str, lasts: Duration) -> String {
        self.model.change(|state| {
            let until = state.clock.unix_seconds() + i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX / 2);
            let user = ApiUser::named(&format!("system:serviceaccount:{namespace}:{account}"));
            let audiences = vec!["https://kubernetes.default.svc".to_owned()];
            let (pod, account) = (String::new(), String::new());
            tokens::issue(state, IssuedToken { user, audiences, until, pod, account })
        })
    }
}
