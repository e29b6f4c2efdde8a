//! The configured webhooks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use tombolo_apicore::store::Stored;

use crate::admission::policies::conditions::Conditions;

/// Group of the configurations.
pub(crate) const GROUP: &str = "admissionregistration.k8s.io";

/// Configurations of mutating and of validating webhooks.
pub(super) const MUTATING: &str = "mutatingwebhookconfigurations";
pub(super) const VALIDATING: &str = "validatingwebhookconfigurations";

/// Default timeout of a webhook, in seconds (Kubernetes default).
const TIMEOUT_SECONDS: u64 = 10;

/// One webhook, as its configuration describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Webhook {
    pub(super) name: String,
    pub(super) client_config: ClientConfig,
    #[serde(default)]
    pub(super) rules: Vec<WebhookRule>,
    failure_policy: Option<String>,
    match_policy: Option<String>,
    #[serde(default)]
    pub(super) namespace_selector: Value,
    #[serde(default)]
    pub(super) object_selector: Value,
    #[serde(default)]
    pub(super) match_conditions: Conditions,
    side_effects: Option<String>,
    timeout_seconds: Option<u64>,
    #[serde(default)]
    pub(super) admission_review_versions: Vec<String>,
    reinvocation_policy: Option<String>,
}

/// Where a webhook is, and the certificate authority for it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientConfig {
    pub(super) url: Option<String>,
    pub(super) service: Option<Service>,
    /// PEM in base64. Without it, the system's certificate authorities are trusted.
    pub(super) ca_bundle: Option<String>,
}

/// A Service in front of a webhook.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Service {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) path: Option<String>,
    pub(super) port: Option<u16>,
}

/// A rule: the requests for which a webhook is called.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WebhookRule {
    pub(super) operations: Vec<String>,
    pub(super) api_groups: Vec<String>,
    pub(super) api_versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: Option<String>,
}

impl Webhook {
    /// Whether a request continues when the call to the webhook fails.
    pub(super) fn fails_open(&self) -> bool {
        self.failure_policy.as_deref() == Some("Ignore")
    }

    /// Whether it is also called for requests to other versions of the resources in its rules.
    pub(super) fn wants_equivalents(&self) -> bool {
        self.match_policy.as_deref() != Some("Exact")
    }

    /// Whether it may be called for dry runs.
    pub(super) fn allows_dry_run(&self) -> bool {
        matches!(self.side_effects.as_deref(), Some("None" | "NoneOnDryRun"))
    }

    /// Whether it is called again when other webhooks changed the object.
    pub(super) fn is_reinvoked(&self) -> bool {
        self.reinvocation_policy.as_deref() == Some("IfNeeded")
    }

    /// Timeout of a call.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.unwrap_or(TIMEOUT_SECONDS))
    }
}

/// All webhooks. A change to a configuration is applied here before it becomes visible. Grows only with the stored
/// configurations. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index(Arc<RwLock<Hooks>>);

/// Webhooks by the name of their configuration, which is the order of the calls.
#[derive(Debug, Default)]
struct Hooks {
    mutating: BTreeMap<String, Vec<Arc<Webhook>>>,
    validating: BTreeMap<String, Vec<Arc<Webhook>>>,
}

impl Index {
    /// Applies a change: an object as it is now stored, or its removal.
    pub(crate) fn apply(&self, stored: &Stored, deleted: bool) {
        let resource = stored.key.resource();
        if &*resource.group != GROUP {
            return;
        }
        let mut hooks = self.0.write();
        let configurations = match &*resource.name {
            MUTATING => &mut hooks.mutating,
            VALIDATING => &mut hooks.validating,
            _ => return,
        };
        if deleted {
            configurations.remove(stored.key.name());
        } else {
            configurations.insert(stored.key.name().to_owned(), read(stored));
        }
    }

    /// The mutating webhooks, in order.
    pub(super) fn mutating(&self) -> Vec<Arc<Webhook>> {
        self.0.read().mutating.values().flatten().cloned().collect()
    }

    /// The validating webhooks.
    pub(super) fn validating(&self) -> Vec<Arc<Webhook>> {
        self.0.read().validating.values().flatten().cloned().collect()
    }
}

/// Reads a configuration. Validation refuses configurations that cannot be read, so errors are only logged.
fn read(stored: &Stored) -> Vec<Arc<Webhook>> {
    #[derive(Deserialize)]
    struct Configuration {
        #[serde(default)]
        webhooks: Vec<Arc<Webhook>>,
    }
    match serde_json::from_slice::<Configuration>(&stored.body()) {
        Ok(configuration) => configuration.webhooks,
        Err(error) => {
            tracing::warn!(key = %stored.key, %error, "a webhook configuration cannot be read and is not used");
            Vec::new()
        }
    }
}
