//! Compares the rights that `deploy/` grants to cloudcore with its requests: the rights must be exactly those in use.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tombolo_testkit::AuditEvent;
use tombolo_tests::rights::{CLOUDCORE, Right, Unused, granted, not_asked, right_of};
use tombolo_tests::source::{documents, root};

/// Rights that the table does not use, with the reason.
const NOT_PLAYED: [Unused; 8] = [
    ("get", "rules.kubeedge.io", "rules", NO_RULES),
    ("patch", "rules.kubeedge.io", "rules", NO_RULES),
    ("update", "", "configmaps", "the epoch after a restore"),
    ("create", "", "events", "an event on a Node: two machines with one identity"),
    ("list", "", "persistentvolumes", NO_VOLUMES),
    ("watch", "", "persistentvolumes", NO_VOLUMES),
    ("list", "", "persistentvolumeclaims", NO_VOLUMES),
    ("watch", "", "persistentvolumeclaims", NO_VOLUMES),
];

const NO_RULES: &str = "the cluster has no rules: tests/tests/rules.rs plays them";

const NO_VOLUMES: &str = "no KubeEdge edge requests a volume by itself: tests/tests/kubeedge plays one";

/// The prefix of verbs in a role for impersonated requests.
const ON_BEHALF: &str = "impersonate-on:arbitrary-node:";

/// Compares cloudcore's own requests, and those that it made for nodes, with the manifests.
pub(super) fn check(events: &[AuditEvent]) {
    let asked = events.iter().filter(|event| event.user == CLOUDCORE && !event.resource.is_empty());
    let (own, for_nodes): (Vec<_>, Vec<_>) = asked.partition(|event| event.impersonated.is_none());
    // A request for a node that the role does not cover is denied before it becomes the node's: 403 with cloudcore's
    // own identity.
    let own: BTreeSet<Right> = own.into_iter().filter(|event| event.code != 403).map(right_of).collect();
    let rbac = granted("cloudcore/10-rights.yaml", "").unwrap();
    let followed = granted("cloudcore/30-edge-network.yaml", "").unwrap();
    let missing: Vec<_> =
        own.iter().filter(|right| !rbac.contains(*right) && !followed.contains(*right)).collect();
    assert!(missing.is_empty(), "used but not granted by deploy/cloudcore: {missing:?}");
    let surplus = not_asked(&rbac, &own, &NOT_PLAYED);
    assert!(surplus.is_empty(), "granted by 10-rights.yaml but never used: {surplus:?}");

    let allowed = for_nodes.iter().filter(|event| event.code < 300).map(|event| right_of(event));
    let allowed: BTreeSet<Right> = allowed.collect();
    let on_behalf = granted("cloudcore/20-impersonation.yaml", ON_BEHALF).unwrap();
    let missing: Vec<_> = allowed.difference(&on_behalf).collect();
    assert!(missing.is_empty(), "used for a node but not granted by impersonation.yaml: {missing:?}");
    let asked: BTreeSet<Right> = for_nodes.into_iter().map(right_of).collect();
    let surplus = not_asked(&on_behalf, &asked, &NOT_PLAYED);
    assert!(surplus.is_empty(), "granted by impersonation.yaml but never used: {surplus:?}");
}

/// Additional rights for KubeEdge edges.
#[test]
fn kubeedge_rights_cover_config_maps_of_one_namespace() {
    let manifest = documents(&root().join("deploy/optional/kubeedge-edges.yaml")).unwrap();
    let kinds: Vec<_> =
        manifest.iter().map(|one| json!([one["kind"], one["metadata"]["namespace"]])).collect();
    assert_eq!(kinds, [json!(["Role", "kubeedge"]), json!(["RoleBinding", "kubeedge"])]);
    let verbs = json!(["get", "create", "update"]);
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    assert_eq!(manifest[0]["rules"], rules);
    assert_eq!(manifest[1]["roleRef"]["name"], manifest[0]["metadata"]["name"]);
    let account = json!({"kind": "ServiceAccount", "name": "tombolo-cloudcore", "namespace": "kubeedge"});
    assert_eq!(manifest[1]["subjects"], json!([account]));
}

/// All objects that deploy/cloudcore/30-edge-network.yaml lets every node read: API group, resource, and names if only
/// these may be read. The embedded server reads the same file.
const EDGE_NETWORK: [(&str, &str, &[&str]); 11] = [
    ("", "services", &[]),
    ("", "endpoints", &[]),
    ("", "namespaces", &[]),
    ("", "nodes", &[]),
    ("discovery.k8s.io", "endpointslices", &[]),
    ("superedge.io", "statefulsetgrids", &[]),
    ("networking.k8s.io", "servicecidrs", &[]),
    ("node.k8s.io", "runtimeclasses", &[]),
    ("storage.k8s.io", "csidrivers", &[]),
    ("storage.k8s.io", "csinodes", &[]),
    // The columns of the grids, for kubectl on a node.
    ("apiextensions.k8s.io", "customresourcedefinitions", &["statefulsetgrids.superedge.io"]),
];

/// All combinations in a rule, one verb, group and resource at a time.
fn expanded(rule: &Value) -> Vec<Value> {
    let members: Vec<&str> = rule.as_object().unwrap().keys().map(String::as_str).collect();
    let known = ["apiGroups", "resourceNames", "resources", "verbs"];
    assert!(members.iter().all(|member| known.contains(member)), "{rule}");
    let list = |member: &str| rule[member].as_array().cloned().unwrap_or_default();
    let mut rights = Vec::new();
    for verb in list("verbs") {
        for group in list("apiGroups") {
            let of = |resource| json!([verb, group, resource, list("resourceNames")]);
            rights.extend(list("resources").into_iter().map(of));
        }
    }
    rights
}

/// One cluster's run does not use all rights of every node, so an excess of rights would not be noticed there.
#[test]
fn edge_network_has_exactly_the_listed_rights() {
    let manifest = documents(&root().join("deploy/cloudcore/30-edge-network.yaml")).unwrap();
    let rules = manifest.iter().flat_map(|document| document["rules"].as_array().into_iter().flatten());
    let mut granted: Vec<String> = rules.flat_map(expanded).map(|right| right.to_string()).collect();
    let mut expected: Vec<String> = EDGE_NETWORK
        .into_iter()
        .flat_map(|(group, resource, names)| {
            ["get", "list", "watch"].map(|verb| json!([verb, group, resource, names]).to_string())
        })
        .collect();
    granted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(granted, expected);

    let kinds: Vec<&Value> = manifest.iter().map(|document| &document["kind"]).collect();
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding"]);
    assert_eq!(manifest[1]["roleRef"]["name"], manifest[0]["metadata"]["name"]);
    let subjects = manifest[1]["subjects"].as_array().unwrap().iter();
    let subjects: Vec<_> = subjects.map(|one| json!([one["kind"], one["namespace"], one["name"]])).collect();
    assert_eq!(
        subjects,
        [
            json!(["Group", null, "tombolo:edge-nodes"]),
            json!(["ServiceAccount", "kubeedge", "tombolo-cloudcore"])
        ],
        "a group that the API server assigns to nobody"
    );
}
