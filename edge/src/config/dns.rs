//! Settings of names.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Names of this node's unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DnsConfig {
    /// The hosts file of uniform names for CoreDNS, which the agent owns; none turns it off.
    pub hosts_path: Option<PathBuf>,
    /// Seconds after which the whole file is computed and compared again.
    pub full_sync_seconds: u64,
    /// The cluster's domain.
    pub cluster_domain: String,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            hosts_path: Some("/data/edge/hosts".into()),
            full_sync_seconds: 30,
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

impl DnsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |field: &'static str, problem: &str| {
            Err(ConfigError::Value { field, problem: problem.to_owned() })
        };
        if self.hosts_path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return wrong("dns.hostsPath", "must be an absolute path");
        }
        if !(1..=3600).contains(&self.full_sync_seconds) {
            return wrong("dns.fullSyncSeconds", "must be between 1 and 3600");
        }
        let is_label = |label: &str| {
            let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            (1..=63).contains(&label.len()) && label.chars().all(inside)
        };
        if !self.cluster_domain.split('.').all(is_label) {
            return wrong(
                "dns.clusterDomain",
                "must be a DNS name without a dot at its end, as cluster.local",
            );
        }
        Ok(())
    }

    /// How often the whole file is computed.
    #[must_use]
    pub fn full_sync(&self) -> Duration {
        Duration::from_secs(self.full_sync_seconds)
    }
}
