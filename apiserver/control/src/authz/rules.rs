//! A rule of a Role or ClusterRole, and the requests that it matches (Kubernetes: RBAC policy rules).

use serde::Deserialize;
use serde_json::Value;
use tombolo_apicore::auth::Attributes;

/// A policy rule: either about resources or about paths.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rule {
    /// Verbs; `*` is all.
    pub(crate) verbs: Vec<String>,
    /// API groups; `*` is all.
    pub(crate) api_groups: Vec<String>,
    /// `resource`, `resource/subresource`, `*/subresource` or `*`.
    pub(crate) resources: Vec<String>,
    /// Object names; empty is all.
    pub(crate) resource_names: Vec<String>,
    /// Paths that are not resources; a trailing `*` is a prefix.
    #[serde(rename = "nonResourceURLs")]
    pub(crate) non_resource_urls: Vec<String>,
}

impl Rule {
    /// The rules of a Role or ClusterRole. Rules that cannot be read grant nothing.
    pub(crate) fn all_of(role: &Value) -> Vec<Self> {
        let rules = role.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        rules.iter().filter_map(|rule| Self::deserialize(rule).ok()).collect()
    }

    /// Whether the rule allows a request.
    pub(crate) fn allows(&self, asked: &Attributes) -> bool {
        if !any(&self.verbs, &asked.verb) {
            return false;
        }
        if !asked.is_resource {
            return self.non_resource_urls.iter().any(|url| path_matches(url, &asked.path));
        }
        any(&self.api_groups, &asked.group)
            && self.resources.iter().any(|own| resource_matches(own, &asked.resource, &asked.subresource))
            && (self.resource_names.is_empty() || self.resource_names.contains(&asked.name))
    }
}

fn any(own: &[String], asked: &str) -> bool {
    own.iter().any(|own| own == "*" || own == asked)
}

/// Whether a path of a rule matches or includes another path. Several trailing stars count as one (Kubernetes
/// `NonResourceURLMatches`).
pub(super) fn path_matches(own: &str, path: &str) -> bool {
    own == path || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))
}

/// Matches `*`, the resource with its subresource, or `*/subresource`. In a review, the resource itself may be called
/// `pods/log`.
fn resource_matches(own: &str, resource: &str, subresource: &str) -> bool {
    if own == "*" {
        return true;
    }
    if subresource.is_empty() {
        return own == resource;
    }
    let rest = own.strip_suffix(subresource).and_then(|own| own.strip_suffix('/'));
    rest.is_some_and(|own| own == "*" || own == resource)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn resources_subresources_and_names() {
        let rule = |resources: &[&str], names: &[&str]| {
            let role = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": resources, "resourceNames": names}]});
            Rule::all_of(&role).remove(0)
        };
        let cases: [(&[&str], &[&str], Attributes, bool); 14] = [
            (&["pods"], &[], asked("get", "", "pods", "a"), true),
            (&["pods"], &[], asked("get", "", "pods/status", "a"), false),
            (&["pods/status"], &[], asked("get", "", "pods/status", "a"), true),
            (&["pods/status"], &[], asked("get", "", "pods", "a"), false),
            (&["*/status"], &[], asked("get", "", "nodes/status", "a"), true),
            (&["*/status"], &[], asked("get", "", "nodes", "a"), false),
            (&["*"], &[], asked("get", "", "nodes/status", "a"), true),
            (&["pods"], &[], asked("get", "apps", "pods", "a"), false),
            (&["pods"], &[], asked("list", "", "pods", ""), false),
            (&["pods"], &["a"], asked("get", "", "pods", "a"), true),
            (&["pods"], &["a"], asked("get", "", "pods", ""), false),
            (&["pods"], &["*"], asked("get", "", "pods", "a"), false),
            (&["pods/*"], &[], asked("get", "", "pods/status", "a"), false),
            (&["*s"], &[], asked("get", "", "pods", "a"), false),
        ];
        for (resources, names, asked, allowed) in cases {
            assert_eq!(rule(resources, names).allows(&asked), allowed, "{resources:?} {names:?} {asked:?}");
        }
    }

    #[test]
    fn paths() {
        let role =
            json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/metrics/*", "/logs/**"]}]});
        let rule = Rule::all_of(&role).remove(0);
        for (path, allowed) in [
            ("/healthz", true),
            ("/healthz/etcd", false),
            ("/metrics/slis", true),
            ("/metrics", false),
            ("/logs/a", true),
            ("/logs", false),
        ] {
            let asked = Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
            assert_eq!(rule.allows(&asked), allowed, "{path}");
        }
    }
}
