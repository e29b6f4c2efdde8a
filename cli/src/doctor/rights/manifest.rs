//! The rules of the manifests in `deploy/`, split into single rights.

use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;
use tombolo_cloud::bootstrap::NAMESPACE;

/// The Role that cloudcore needs until its objects exist.
const FIRST_START: &str = "tombolo:first-start";

/// One verb on one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) verb: String,
    pub(super) group: String,
    /// `resource` or `resource/subresource`.
    pub(super) resource: String,
    /// Empty for cluster scope.
    pub(super) namespace: String,
    /// Empty for all objects.
    pub(super) name: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, namespace, name } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in {namespace}") }
    }
}

/// A manifest and what it grants.
pub(super) struct Manifest {
    pub(super) file: &'static str,
    pub(super) rights: Vec<Right>,
}

/// Rights of cloudcore itself.
pub(super) fn cloudcore(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/cloudcore/10-rights.yaml");
    Manifest { file: "deploy/cloudcore/10-rights.yaml", rights: rights(text, namespace) }
}

/// Rights of nodes beyond the Node authorizer, which cloudcore uses on their behalf.
pub(super) fn edge_network(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/cloudcore/30-edge-network.yaml");
    Manifest { file: "deploy/cloudcore/30-edge-network.yaml", rights: rights(text, namespace) }
}

/// Rights of the application grid controllers: optional, as these can be off.
pub(super) fn grids(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/optional/grids.yaml");
    Manifest { file: "deploy/optional/grids.yaml", rights: rights(text, namespace) }
}

/// Rights to serve KubeEdge nodes: optional, as there may be none.
pub(super) fn kubeedge_edges(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/optional/kubeedge-edges.yaml");
    Manifest { file: "deploy/optional/kubeedge-edges.yaml", rights: rights(text, namespace) }
}

/// Constrained impersonation.
pub(super) fn constrained(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/cloudcore/20-impersonation.yaml");
    Manifest { file: "deploy/cloudcore/20-impersonation.yaml", rights: rights(text, namespace) }
}

/// Impersonation on servers without the constrained form.
pub(super) fn legacy(namespace: &str) -> Manifest {
    let text = include_str!("../../../../deploy/optional/legacy-impersonation.yaml");
    Manifest { file: "deploy/optional/legacy-impersonation.yaml", rights: rights(text, namespace) }
}

/// Every right of the Roles and ClusterRoles of a manifest, with its namespace replaced by `namespace`.
fn rights(manifest: &str, namespace: &str) -> Vec<Right> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap_or_default();
    // Rights that only the first start needs may be removed after it.
    let lasting = documents.iter().filter(|document| document["metadata"]["name"] != FIRST_START);
    let roles = lasting.filter_map(|document| match document["kind"].as_str() {
        Some("Role") => Some((document, namespace)),
        Some("ClusterRole") => Some((document, "")),
        _ => None,
    });
    let mut rights = Vec::new();
    for (role, home) in roles {
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap_or_default();
        rules.iter().for_each(|rule| take_apart(rule, home, namespace, &mut rights));
    }
    rights
}

fn take_apart(rule: &PolicyRule, home: &str, namespace: &str, rights: &mut Vec<Right>) {
    let none = || vec![String::new()];
    let names = rule.resource_names.clone().filter(|names| !names.is_empty()).unwrap_or_else(none);
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for name in &names {
                let name = if name == NAMESPACE { namespace } else { name };
                rights.extend(rule.verbs.iter().map(|verb| Right {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    namespace: home.to_owned(),
                    name: name.to_owned(),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_manifests_are_read_whole() {
        let optional = [grids("x"), kubeedge_edges("x"), legacy("x")];
        for manifest in [cloudcore("x"), edge_network("x"), constrained("x")].into_iter().chain(optional) {
            assert!(!manifest.rights.is_empty(), "{} grants nothing", manifest.file);
        }
        let own: Vec<String> = cloudcore("hubs").rights.iter().map(ToString::to_string).collect();
        for expected in [
            "watch secrets",
            "patch nodes",
            "get namespaces hubs",
            "create subjectaccessreviews.authorization.k8s.io",
            "list configmaps tombolo-epoch in hubs",
            "update configmaps tombolo-epoch in hubs",
            "update secrets casecret in hubs",
        ] {
            assert!(own.iter().any(|right| right == expected), "{expected} is not in {own:?}");
        }
        assert_eq!(own.len(), 9 + 4 + 4 + 2 + 2 + 2 + 1 + 2 + 16 + 2, "{own:?}");
    }

    #[test]
    fn every_kind_that_grants_rights_is_read() {
        let text =
            "kind: ClusterRole\nrules: [{apiGroups: ['', a], resources: [b, c/d], verbs: [get, list]}]";
        assert_eq!(rights(text, "x").len(), 8);
        assert_eq!(rights(text, "x")[7].to_string(), "list c/d.a");
    }
}
