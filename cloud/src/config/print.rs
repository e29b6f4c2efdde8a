//! The configurations that `--defaultconfig` and `--minconfig` print.

use super::raw::RawConfig;

/// What most installations set: where edges find this cloudcore, and which cluster it serves.
const MIN_CONFIG: &str = "\
# cloudcore reads this file with --config. Keys that are left out have the values that --defaultconfig prints.
# Host names and IP addresses by which edges reach this cloudcore; left empty, the addresses of this machine.
advertise: []
# Kubeconfig of the cluster; null takes the service account of the pod.
kubeconfig: null
# Nodes connected at a time.
nodeLimit: 1000
";

/// Every key with its default value.
///
/// # Errors
/// Never for this text: the error is the serializer's.
pub fn default_config() -> Result<String, serde_saphyr::SerializeError> {
    let keys = serde_saphyr::to_string(&RawConfig::default())?;
    Ok(format!(
        "# cloudcore reads this file with --config. docs/operations.md says what each key means.\n{keys}"
    ))
}

/// The few keys that most installations set.
#[must_use]
pub fn min_config() -> &'static str {
    MIN_CONFIG
}
