//! The Pod Security policy in the labels of a namespace.

use std::fmt;

use serde_json::Value;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::version;

/// Prefix of the labels.
const PREFIX: &str = "pod-security.kubernetes.io/";

/// Minor version of the newest rules: those of the Kubernetes version that is served.
fn newest() -> u32 {
    version::numbers().1
}

/// How strict the rules are, least strict first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

/// Rules of a level as they were in one minor version of Kubernetes; `None` for the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rules {
    pub(super) level: Level,
    version: Option<u32>,
}

impl Rules {
    /// The minor version whose rules apply.
    pub(super) fn minor(self) -> u32 {
        self.version.map_or_else(newest, |minor| minor.min(newest()))
    }

    /// Whether both have rules of the same version.
    pub(super) fn same_version(self, other: Self) -> bool {
        self.version == other.version
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            None => write!(f, "{level}:latest"),
            Some(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// The rules that are enforced and those that cause warnings. Rules for the audit log are left out, because the log has
/// no annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Policy {
    pub(super) enforce: Rules,
    pub(super) warn: Rules,
}

impl Policy {
    /// The policy of a namespace, and errors for its invalid labels. An invalid `enforce` label counts as `restricted`,
    /// an invalid `warn` label as `privileged`.
    pub(super) fn of(namespace: &Value) -> (Self, Vec<FieldError>) {
        let labels = namespace.pointer("/metadata/labels");
        let label = |name: &str| labels.and_then(|labels| labels.get(format!("{PREFIX}{name}"))?.as_str());
        let mut errors = Vec::new();
        let mut mode = |name: &str, otherwise: Level| {
            let level = label(name).map(|text| {
                Level::parse(text).ok_or_else(|| {
                    errors.push(wrong(name, text, "must be one of privileged, baseline, restricted"));
                    otherwise
                })
            });
            let version = format!("{name}-version");
            let minor = label(&version).map(|text| {
                parse_version(text).unwrap_or_else(|| {
                    errors.push(wrong(&version, text, "must be \"latest\" or \"v1.x\""));
                    None
                })
            });
            (level, minor)
        };
        let (enforce, enforce_version) = mode("enforce", Level::Restricted);
        mode("audit", Level::Privileged);
        let (warn, warn_version) = mode("warn", Level::Privileged);
        let given = |level: Result<Level, Level>| level.unwrap_or_else(|otherwise| otherwise);
        let enforced = Rules {
            level: enforce.map(given).unwrap_or_default(),
            version: enforce_version.unwrap_or_default(),
        };
        let mut warned =
            Rules { level: warn.map(given).unwrap_or_default(), version: warn_version.unwrap_or_default() };
        if warn.is_none() && matches!(enforce, Some(Ok(_))) && enforced.level > warned.level {
            // Users who create Deployments are warned that their pods will be refused.
            warned.level = enforced.level;
            if warn_version.is_none() {
                warned.version = enforced.version;
            }
        }
        (Self { enforce: enforced, warn: warned }, errors)
    }
}

fn wrong(name: &str, text: &str, detail: &str) -> FieldError {
    FieldError::invalid(format!("metadata.labels[{PREFIX}{name}]"), text, detail)
}

/// `latest` (no minor version) or `v1.x`.
#[expect(clippy::option_option, reason = "the outer one says whether the text is a version at all")]
fn parse_version(text: &str) -> Option<Option<u32>> {
    if text == "latest" {
        return Some(None);
    }
    let minor = text.strip_prefix("v1.")?;
    let canonical = minor == "0" || !minor.starts_with(['0', '+']);
    minor.parse().ok().filter(|_| canonical).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(labels: &[(&str, &str)]) -> (String, String, usize) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(name, value)| (format!("{PREFIX}{name}"), json!(value))).collect();
        let (policy, errors) = Policy::of(&json!({"metadata": {"labels": labels}}));
        (policy.enforce.to_string(), policy.warn.to_string(), errors.len())
    }

    #[test]
    fn labels_make_a_policy() {
        let (privileged, restricted) = ("privileged:latest", "restricted:latest");
        for (labels, enforce, warn, wrong) in [
            (&[][..], privileged, privileged, 0),
            (&[("enforce", "restricted")], restricted, restricted, 0),
            (&[("enforce", "baseline"), ("enforce-version", "v1.24")], "baseline:v1.24", "baseline:v1.24", 0),
            (&[("enforce", "baseline"), ("warn", "privileged")], "baseline:latest", privileged, 0),
            (&[("enforce", "strict")], restricted, privileged, 1),
            (&[("warn", "strict"), ("audit", "strict")], privileged, privileged, 2),
            (&[("enforce-version", "v1.01")], privileged, privileged, 1),
            (&[("warn", "baseline"), ("warn-version", "v1.99999999999")], privileged, "baseline:latest", 1),
        ] {
            assert_eq!(read(labels), (enforce.to_owned(), warn.to_owned(), wrong), "{labels:?}");
        }
    }

    #[test]
    fn future_versions_use_the_present_rules() {
        let (policy, _) = Policy::of(&json!({"metadata": {"labels": {
            "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.99",
        }}}));
        assert_eq!(policy.enforce.minor(), newest());
        assert_eq!(policy.enforce.to_string(), "baseline:v1.99");
    }
}
