//! The configurations printed by `--defaultconfig` and `--minconfig`.

use super::raw::RawConfig;

/// The keys that most installations set: where edges reach this cloudcore, and which cluster it serves.
const MIN_CONFIG: &str = "\
# cloudcore reads this file with --config. Omitted keys have the values that --defaultconfig prints.
# Host names and IP addresses by which edges reach this cloudcore; if empty, the addresses of this machine.
advertise: []
# Kubeconfig of the cluster; null means the service account of the pod.
kubeconfig: null
# Maximum number of nodes connected at a time.
nodeLimit: 1000
";

/// All keys with their default values.
///
/// # Errors
/// Never for this text; the error type is the serializer's.
pub fn default_config() -> Result<String, serde_saphyr::SerializeError> {
    let keys = serde_saphyr::to_string(&RawConfig::default())?;
    Ok(format!("# cloudcore reads this file with --config. docs/operations.md explains each key.\n{keys}"))
}

/// The few keys that most installations set.
#[must_use]
pub fn min_config() -> &'static str {
    MIN_CONFIG
}
