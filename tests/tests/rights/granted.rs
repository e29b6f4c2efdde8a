//! The rights that `deploy/` grants to cloudcore against what it asks for: neither is more than the other.

use std::collections::BTreeSet;

use tombolo_testkit::AuditEvent;
use tombolo_tests::rights::{CLOUDCORE, Right, Unused, granted, not_asked, right_of};

/// Granted and not asked for while the table is played, with the reason.
const NOT_PLAYED: [Unused; 12] = [
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

/// Compares what cloudcore asked in its own name, and in the name of nodes, with the manifests.
pub(super) fn check(events: &[AuditEvent]) {
    let asked = events.iter().filter(|event| event.user == CLOUDCORE && !event.resource.is_empty());
    let (own, for_nodes): (Vec<_>, Vec<_>) = asked.partition(|event| event.impersonated.is_none());
    // A request for a node that the role does not cover is refused before it is the node's: 403 in our own name.
    let own: BTreeSet<Right> = own.into_iter().filter(|event| event.code != 403).map(right_of).collect();
    let rbac = granted("rbac.yaml", "").unwrap();
    let followed = granted("edge-network.yaml", "").unwrap();
    let missing: Vec<_> =
        own.iter().filter(|right| !rbac.contains(*right) && !followed.contains(*right)).collect();
    assert!(missing.is_empty(), "asked for and not granted by deploy/cloudcore: {missing:?}");
    let surplus = not_asked(&rbac, &own, &NOT_PLAYED);
    assert!(surplus.is_empty(), "granted by rbac.yaml and never asked for: {surplus:?}");

    let allowed = for_nodes.iter().filter(|event| event.code < 300).map(|event| right_of(event));
    let allowed: BTreeSet<Right> = allowed.collect();
    let on_behalf = granted("impersonation.yaml", ON_BEHALF).unwrap();
    let missing: Vec<_> = allowed.difference(&on_behalf).collect();
    assert!(missing.is_empty(), "done for a node and not granted by impersonation.yaml: {missing:?}");
    let asked: BTreeSet<Right> = for_nodes.into_iter().map(right_of).collect();
    let surplus = not_asked(&on_behalf, &asked, &NOT_PLAYED);
    assert!(surplus.is_empty(), "granted by impersonation.yaml and never asked for: {surplus:?}");
}
