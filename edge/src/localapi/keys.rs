//! The keys of the cluster's token issuer, with which this node verifies tokens of pods. They are fetched through the
//! cloud, refreshed regularly, and kept on disk for use without a cloud connection.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tombolo_apicore::accounts::KeySet;
use tombolo_proto::documents::{ISSUER_PATH, KEY_SET, KEYS_PATH};
use tracing::{debug, warn};

use super::documents::Documents;
use crate::hub::HubState;

/// How often keys are fetched again. The cluster publishes a new key before it uses it.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// Wait after a failure, and the shortest wait when a token names an unknown key.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Time for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The keys of the token issuer.
pub(super) struct Keys {
    documents: Documents,
    current: ArcSwapOption<KeySet>,
    wanted: Notify,
}

impl Keys {
    /// Loads the keys that the store keeps, if any.
    pub(super) fn load(documents: Documents) -> Arc<Self> {
        let current = ArcSwapOption::empty();
        let kept = |path| documents.kept(path).ok().flatten();
        if let (Some(configuration), Some(keys)) = (kept(ISSUER_PATH), kept(KEYS_PATH)) {
            match KeySet::parse(&configuration, &keys) {
                Ok(keys) => current.store(Some(Arc::new(keys))),
                Err(error) => warn!(%error, "cannot use the kept keys of the token issuer"),
            }
        }
        Arc::new(Self { documents, current, wanted: Notify::new() })
    }

    /// The newest keys; none if they were never fetched.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.current.load_full()
    }

    /// Requests a fetch because a key is missing.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Fetches the keys in every session and then regularly, until the agent stops.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut state = self.documents.hub.own().state();
        // The session in which a fetch has failed. Sessions may end at any time, so the first failure is not reported
        // as a warning.
        let mut failed = None;
        loop {
            let Ok(session) = state.wait_for(HubState::online).await.map(|state| state.sessions) else {
                return;
            };
            let wait = match self.fetch().await {
                Ok(()) => REFRESH_INTERVAL,
                Err(error) if failed.replace(session) != Some(session) => {
                    debug!(error, "cannot fetch the keys of the token issuer yet");
                    RETRY_INTERVAL
                }
                Err(error) => {
                    warn!(
                        error,
                        "cannot fetch the keys of the token issuer; without a cloud, tokens of pods cannot be verified"
                    );
                    RETRY_INTERVAL
                }
            };
            let begin = Instant::now();
            tokio::select! {
                () = sleep_until(begin + wait) => {}
                () = async {
                    self.wanted.notified().await;
                    sleep_until(begin + RETRY_INTERVAL).await;
                } => {}
                changed = state.wait_for(|state| state.online() && state.sessions != session) => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn fetch(&self) -> Result<(), String> {
        let configuration = self.documents.fetch(ISSUER_PATH, KEY_SET, TIMEOUT).await?;
        let keys = self.documents.fetch(KEYS_PATH, KEY_SET, TIMEOUT).await?;
        let parsed = KeySet::parse(&configuration, &keys)?;
        for (path, body) in [(ISSUER_PATH, configuration), (KEYS_PATH, keys)] {
            self.documents.keep(path, body).await?;
        }
        self.current.store(Some(Arc::new(parsed)));
        Ok(())
    }
}
