use serde_json::json;

use super::super::storage::WriteStamp;
use super::*;

fn asked(verb: &str, resource: &str, namespace: &str, name: &str) -> AskedRight {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    AskedRight {
        verb: verb.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..AskedRight::default()
    }
}

fn storage() -> ObjectStorage {
    let mut storage = ObjectStorage::default();
    let pod = json!({
        "metadata": {"namespace": "d", "name": "p", "uid": "u"},
        "spec": {
            "nodeName": "n", "serviceAccountName": "sa", "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        },
    });
    let stamp = WriteStamp { caller: "c", at: Duration::from_secs(10) };
    storage.put(&KindKey::new("", "pods"), "d/p", pod, stamp);
    storage
}

fn may(user: &ApiUser, asked: &AskedRight, seconds: u64) -> bool {
    let (storage, table) = (storage(), RightsTable::default());
    let view = RightsView {
        table: &table,
        storage: &storage,
        clients: &BTreeSet::new(),
        now: Duration::from_secs(seconds),
        lag: Duration::from_secs(2),
    };
    view.check(user, asked).is_ok()
}

#[test]
fn a_node_reads_what_its_pods_refer_to_once_the_authorizer_knows() {
    let (own, other) = (ApiUser::named("system:node:n"), ApiUser::named("system:node:m"));
    for right in [
        asked("get", "secrets", "d", "s"),
        asked("get", "pods", "d", "p"),
        asked("create", "serviceaccounts/token", "d", "sa"),
    ] {
        assert!(may(&own, &right, 12), "{right:?}");
        assert!(!may(&own, &right, 11), "not yet: {right:?}");
        assert!(!may(&other, &right, 12), "{right:?}");
    }
    for right in [
        asked("get", "secrets", "d", "t"),
        asked("get", "secrets", "e", "s"),
        asked("list", "secrets", "d", ""),
        asked("delete", "secrets", "d", "s"),
        asked("list", "pods", "", ""),
        asked("get", "nodes", "", "m"),
        asked("list", "nodes", "", ""),
        asked("delete", "nodes", "", "n"),
        asked("get", "namespaces", "", "d"),
    ] {
        assert!(!may(&own, &right, 20), "{right:?}");
    }
    for right in [
        asked("get", "nodes", "", "n"),
        asked("watch", "services", "", ""),
        asked("patch", "nodes/status", "", "n"),
        asked("create", "events", "default", ""),
        AskedRight { field_selector: "spec.nodeName=n".to_owned(), ..asked("list", "pods", "", "") },
        AskedRight {
            group: "coordination.k8s.io".to_owned(),
            ..asked("update", "leases", "kube-node-lease", "n")
        },
    ] {
        assert!(may(&own, &right, 20), "{right:?}");
    }
}

#[test]
fn a_table_grants_to_users_and_groups() {
    let storage = ObjectStorage::default();
    let table = RightsTable {
        open: false,
        grants: vec![
            RightsGrant::new("cloudcore", &["get", "list"], &[""], &["pods", "nodes/status"]),
            RightsGrant::new("tombolo:edge-nodes", &["*"], &["*"], &["namespaces"]),
            RightsGrant::new("cloudcore", &["list"], &[""], &["configmaps"]).within("k").named(&["a"]),
        ],
    };
    let clients = BTreeSet::from(["admin".to_owned(), "system:node:n".to_owned()]);
    let view = RightsView {
        table: &table,
        storage: &storage,
        clients: &clients,
        now: Duration::ZERO,
        lag: Duration::ZERO,
    };
    let open = RightsTable::default();
    let open = RightsView { table: &open, ..view };
    let all = asked("delete", "secrets", "d", "s");
    assert!(
        open.check(&ApiUser::named("admin"), &all).is_ok()
            && view.check(&ApiUser::named("admin"), &all).is_err()
    );
    assert!(open.check(&ApiUser::named("stranger"), &all).is_err());
    let mut without_group = ApiUser::named("system:node:n");
    without_group.groups.clear();
    assert!(open.check(&without_group, &all).is_err());
    let cloudcore = ApiUser::named("cloudcore");
    let mut node = ApiUser::named("system:node:n");
    assert!(view.check(&cloudcore, &asked("get", "pods", "d", "p")).is_ok());
    assert!(view.check(&cloudcore, &asked("get", "nodes/status", "", "n")).is_ok());
    assert!(view.check(&cloudcore, &asked("get", "nodes", "", "n")).is_err());
    assert!(view.check(&cloudcore, &asked("list", "configmaps", "k", "a")).is_ok());
    assert!(view.check(&cloudcore, &asked("list", "configmaps", "k", "")).is_err());
    assert!(view.check(&cloudcore, &asked("list", "configmaps", "d", "a")).is_err());
    assert!(view.check(&node, &asked("list", "namespaces", "", "")).is_err());
    node.groups.insert("tombolo:edge-nodes".to_owned());
    assert!(view.check(&node, &asked("list", "namespaces", "", "")).is_ok());
    assert_eq!(
        asked("get", "nodes/status", "", "n").refusal("cloudcore", "why"),
        r#"User "cloudcore" cannot get resource "nodes/status" in API group "" at the cluster scope: why"#
    );
}
