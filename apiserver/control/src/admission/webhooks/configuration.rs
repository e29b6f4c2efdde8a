//! The webhooks that are configured now.

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

/// Configurations of webhooks that may change objects, and of those that may only refuse them.
pub(super) const MUTATING: &str = "mutatingwebhookconfigurations";
pub(super) const VALIDATING: &str = "validatingwebhookconfigurations";

/// Time that a webhook has when its configuration does not say, in seconds (Kubernetes default).
const TIMEOUT_SECONDS: u64 = 10;

/// One webhook, as its configuration describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Webhook {
    pub(super) name: String,
    pub(super) client_config: ClientConfig,
    #[serde(default)]
    pub(super) rules: Vec<Rule>,
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

/// Where a webhook is, and who vouches for it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientConfig {
    pub(super) url: Option<String>,
    pub(super) service: Option<Service>,
    /// PEM in base64; without it the machine's authorities count.
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

/// Requests that a webhook wants to see.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Rule {
    pub(super) operations: Vec<String>,
    pub(super) api_groups: Vec<String>,
    pub(super) api_versions: Vec<String>,
    pub(super) resources: Vec<String>,
    pub(super) scope: Option<String>,
}

impl Webhook {
    /// Whether a request goes on when the webhook cannot be asked.
    pub(super) fn fails_open(&self) -> bool {
        self.failure_policy.as_deref() == Some("Ignore")
    }

    /// Whether it also sees requests for other versions of the resources that its rules name.
    pub(super) fn wants_equivalents(&self) -> bool {
        self.match_policy.as_deref() != Some("Exact")
    }

    /// Whether it may be asked about requests that change nothing.
    pub(super) fn allows_dry_run(&self) -> bool {
        matches!(self.side_effects.as_deref(), Some("None" | "NoneOnDryRun"))
    }

    /// Whether it is asked again when others have changed the object.
    pub(super) fn is_reinvoked(&self) -> bool {
        self.reinvocation_policy.as_deref() == Some("IfNeeded")
    }

    /// How long it may take.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.unwrap_or(TIMEOUT_SECONDS))
    }
}

/// All webhooks, kept up to date with every stored configuration before it becomes visible. Grows with stored
/// configurations, nothing else. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index(Arc<RwLock<Hooks>>);

/// Webhooks by the name of their configuration: that is the order in which they are asked.
#[derive(Debug, Default)]
struct Hooks {
    mutating: BTreeMap<String, Vec<Arc<Webhook>>>,
    validating: BTreeMap<String, Vec<Arc<Webhook>>>,
}

impl Index {
    /// Takes in an object as it is now stored, or its removal.
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

    /// The webhooks that may change objects, in order.
    pub(super) fn mutating(&self) -> Vec<Arc<Webhook>> {
        self.0.read().mutating.values().flatten().cloned().collect()
    }

    /// The webhooks that may refuse objects.
    pub(super) fn validating(&self) -> Vec<Arc<Webhook>> {
        self.0.read().validating.values().flatten().cloned().collect()
    }
}

/// What cannot be read was not let in by validation.
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
