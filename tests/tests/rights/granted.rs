//! The rights that `deploy/` grants to cloudcore against what it asks for: neither is more than the other.

use std::collections::BTreeSet;

use serde_json::Value;
use tombolo_testkit::AuditEvent;
use tombolo_tests::source::{documents, root};

/// Verb, API group and resource.
type Right = (String, String, String);

/// cloudcore as the API server knows it.
pub(super) const CLOUDCORE: &str = "system:serviceaccount:kubeedge:cloudcore";

/// Granted and not asked for while the table is played, with the reason.
const NOT_PLAYED: [(&str, &str, &str, &str); 12] = [
    ("list", "rules.kubeedge.io", "rules", NO_RULES),
    ("watch", "rules.kubeedge.io", "rules", NO_RULES),
    ("get", "rules.kubeedge.io", "rules", NO_RULES),
    ("patch", "rules.kubeedge.io", "rules", NO_RULES),
    ("list", "rules.kubeedge.io", "ruleendpoints", NO_RULES),
    ("watch", "rules.kubeedge.io", "ruleendpoints", NO_RULES),
    ("update", "", "configmaps", "the epoch after a restore, and the ledgers of stock nodes"),
    ("update", "", "secrets", "the next join token"),
    ("list", "", "persistentvolumes", NO_VOLUMES),
    ("watch", "", "persistentvolumes", NO_VOLUMES),
    ("list", "", "persistentvolumeclaims", NO_VOLUMES),
    ("watch", "", "persistentvolumeclaims", NO_VOLUMES),
];

const NO_RULES: &str = "the cluster has no rules: tests/tests/rules.rs plays them";

const NO_VOLUMES: &str = "no stock edge asks for a volume of its own: tests/tests/stock plays one";

/// What a role adds to a verb for impersonated requests.
const ON_BEHALF: &str = "impersonate-on:arbitrary-node:";

/// Rights in a manifest, those with this prefix without it, the others for an empty prefix.
fn granted(manifest: &str, prefix: &str) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for document in documents(&root().join("deploy/cloudcore").join(manifest)).unwrap() {
        for rule in document["rules"].as_array().into_iter().flatten() {
            for verb in texts(&rule["verbs"]).filter_map(|verb| verb.strip_prefix(prefix)) {
                for group in texts(&rule["apiGroups"]) {
                    let resources = texts(&rule["resources"]);
                    rights.extend(
                        resources.map(|resource| (verb.to_owned(), group.to_owned(), resource.to_owned())),
                    );
                }
            }
        }
    }
    rights
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn right_of(event: &AuditEvent) -> Right {
    (event.verb.clone(), event.group.clone(), event.resource.clone())
}

/// Compares what cloudcore asked in its own name, and in the name of nodes, with the manifests.
pub(super) fn check(events: &[AuditEvent]) {
    let asked = events.iter().filter(|event| event.user == CLOUDCORE && !event.resource.is_empty());
    let (own, for_nodes): (Vec<_>, Vec<_>) = asked.partition(|event| event.impersonated.is_none());
    // A request for a node that the role does not cover is refused before it is the node's: 403 in our own name.
    let own: BTreeSet<Right> = own.into_iter().filter(|event| event.code != 403).map(right_of).collect();
    let rbac = granted("rbac.yaml", "");
    let followed = granted("edge-network.yaml", "");
    let missing: Vec<_> =
        own.iter().filter(|right| !rbac.contains(*right) && !followed.contains(*right)).collect();
    assert!(missing.is_empty(), "asked for and not granted by deploy/cloudcore: {missing:?}");
    let surplus = not_asked(&rbac, &own);
    assert!(surplus.is_empty(), "granted by rbac.yaml and never asked for: {surplus:?}");

    let allowed = for_nodes.iter().filter(|event| event.code < 300).map(|event| right_of(event));
    let allowed: BTreeSet<Right> = allowed.collect();
    let on_behalf = granted("impersonation.yaml", ON_BEHALF);
    let missing: Vec<_> = allowed.difference(&on_behalf).collect();
    assert!(missing.is_empty(), "done for a node and not granted by impersonation.yaml: {missing:?}");
    let asked: BTreeSet<Right> = for_nodes.into_iter().map(right_of).collect();
    let surplus = not_asked(&on_behalf, &asked);
    assert!(surplus.is_empty(), "granted by impersonation.yaml and never asked for: {surplus:?}");
}

fn not_asked<'a>(granted: &'a BTreeSet<Right>, asked: &BTreeSet<Right>) -> Vec<&'a Right> {
    let excused = |right: &Right| {
        let (verb, group, resource) = right;
        NOT_PLAYED
            .iter()
            .any(|(v, g, r, _)| (v, g, r) == (&verb.as_str(), &group.as_str(), &resource.as_str()))
    };
    granted.iter().filter(|right| !asked.contains(*right) && !excused(right)).collect()
}
