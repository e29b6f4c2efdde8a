use serde_json::json;
use tombolo_apicore::auth::Identity;

use crate::nodes::NODES_GROUP;

use super::*;

fn graph() -> Graph {
    let mut graph = Graph::default();
    let pod = |node: &str, suffix: &str| {
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "serviceAccountName": format!("account-{suffix}"),
            "volumes": [{"name": "s", "secret": {"secretName": format!("secret-{suffix}")}}]}})
    };
    graph.apply("pods", "shop", "pod-a", Some(&pod("a", "a")));
    graph.apply("pods", "shop", "pod-b", Some(&pod("b", "b")));
    for node in ["a", "b"] {
        let owned = json!({"spec": {"nodeName": node}});
        graph.apply("resourceslices", "", &format!("slice-{node}"), Some(&owned));
        graph.apply("volumeattachments", "", &format!("attachment-{node}"), Some(&owned));
    }
    graph
}

/// Parses `verb resource[/subresource] [namespace/]name [fieldSelector]`, requested by node `a`; `-` is no name.
fn asked(line: &str) -> Attributes {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (verb, resource, object, selector) = (word(), word(), word(), word());
    let (group, resource) = resource.rsplit_once(':').unwrap_or(("", resource));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    Attributes {
        identity: Identity::new("system:node:a", &["system:nodes", "system:authenticated"]),
        verb: verb.into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.trim_start_matches('-').into(),
        is_resource: true,
        field_selector: selector.into(),
        ..Attributes::default()
    }
}

#[test]
fn node_authorizer_allows_exactly_what_a_node_needs() {
    let graph = graph();
    let rules = [Rule {
        verbs: vec!["get".into(), "list".into(), "watch".into()],
        api_groups: vec![String::new()],
        resources: vec!["services".into()],
        ..Rule::default()
    }];
    let cases = [
        ("get secrets shop/secret-a", true),
        ("watch secrets shop/secret-a", true),
        ("get secrets shop/secret-b", false),
        ("list secrets shop/-", false),
        ("list secrets -", false),
        ("update secrets shop/secret-a", false),
        ("get secrets home/secret-a", false),
        ("get configmaps shop/unknown", false),
        ("get pods shop/pod-a", true),
        ("get pods shop/pod-b", false),
        ("list pods -", false),
        ("list pods - spec.nodeName=a", true),
        ("list pods - spec.nodeName==a", true),
        ("list pods - status.phase=Running,spec.nodeName=a", true),
        ("list pods - spec.nodeName=b", false),
        (r"list pods - spec.nodeName=b\,spec.nodeName=a", false),
        ("list pods - status.phase!=x,!", false),
        ("list pods - spec.nodeName=a,!", false),
        ("list pods - spec.nodeName=b,spec.nodeName=a", true),
        ("list pods - spec.nodeName!=a", false),
        ("watch pods shop/pod-a", true),
        ("create pods shop/-", true),
        ("update pods shop/pod-a", false),
        ("patch pods/status shop/pod-b", true),
        ("get pods/log shop/pod-a", false),
        ("create pods/eviction shop/pod-a", true),
        ("get nodes a", true),
        ("get nodes b", false),
        ("list nodes -", false),
        ("patch nodes a", true),
        ("delete nodes a", false),
        ("patch nodes/status a", true),
        ("create serviceaccounts/token shop/account-a", true),
        ("create serviceaccounts/token shop/account-b", false),
        ("get serviceaccounts shop/account-a", true),
        ("update serviceaccounts shop/account-a", false),
        ("get coordination.k8s.io:leases kube-node-lease/a", true),
        ("get coordination.k8s.io:leases kube-node-lease/b", false),
        ("create coordination.k8s.io:leases kube-node-lease/-", true),
        ("create coordination.k8s.io:leases default/-", false),
        ("list coordination.k8s.io:leases kube-node-lease/-", false),
        ("get storage.k8s.io:csinodes a", true),
        ("get storage.k8s.io:csinodes b", false),
        ("get resource.k8s.io:resourceslices slice-a", true),
        ("update resource.k8s.io:resourceslices slice-a", true),
        ("patch resource.k8s.io:resourceslices slice-a", true),
        ("delete resource.k8s.io:resourceslices slice-a", true),
        ("get resource.k8s.io:resourceslices slice-b", false),
        ("update resource.k8s.io:resourceslices slice-b", false),
        ("patch resource.k8s.io:resourceslices slice-b", false),
        ("delete resource.k8s.io:resourceslices slice-b", false),
        ("get resource.k8s.io:resourceslices unknown", false),
        ("get resource.k8s.io:resourceslices shop/slice-a", false),
        ("get resource.k8s.io:resourceslices/status slice-a", false),
        ("create resource.k8s.io:resourceslices -", true),
        ("list resource.k8s.io:resourceslices -", false),
        ("list resource.k8s.io:resourceslices - spec.nodeName=a", true),
        ("watch resource.k8s.io:resourceslices - spec.nodeName=a", true),
        ("deletecollection resource.k8s.io:resourceslices - spec.nodeName=a", true),
        ("list resource.k8s.io:resourceslices - spec.nodeName=b", false),
        ("watch resource.k8s.io:resourceslices - spec.nodeName=b", false),
        ("deletecollection resource.k8s.io:resourceslices - spec.nodeName=b", false),
        ("bind resource.k8s.io:resourceslices slice-a", false),
        ("get storage.k8s.io:volumeattachments attachment-a", true),
        ("get storage.k8s.io:volumeattachments attachment-b", false),
        ("get storage.k8s.io:volumeattachments shop/attachment-a", false),
        ("list storage.k8s.io:volumeattachments -", false),
        ("get services shop/x", true),
        ("create services shop/-", false),
        ("list discovery.k8s.io:endpointslices -", false),
    ];
    for (line, allowed) in cases {
        let decision = authorize(&graph, &rules, &asked(line));
        assert_eq!(decision == Decision::Allow, allowed, "{line}: {decision:?}");
    }
}

#[test]
fn only_members_of_the_nodes_group_are_nodes() {
    let graph = graph();
    let mut asked = asked("get secrets shop/secret-a");
    asked.identity.groups.clear();
    assert_eq!(authorize(&graph, &[], &asked), Decision::NoOpinion(String::new()));
    asked.identity = Identity::new("system:node:", &[NODES_GROUP]);
    assert_eq!(
        authorize(&graph, &[], &asked),
        Decision::NoOpinion("unknown node for user \"system:node:\"".into())
    );
}

#[test]
fn refusals_are_worded_as_clients_know_them() {
    let graph = graph();
    for (line, reason) in [
        ("get secrets shop/secret-b", "no relationship found between node 'a' and this object"),
        ("list secrets -", "can only read namespaced object of this type"),
        ("list secrets shop/-", "No Object name found"),
        ("list nodes -", "node 'a' cannot read all nodes, only its own Node object"),
        ("get nodes b", "node 'a' cannot read 'b', only its own Node object"),
        ("list pods -", "can only list/watch pods with spec.nodeName field selector"),
        (
            "list resource.k8s.io:resourceslices -",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        ("get resource.k8s.io:resourceslices -", "No Object name found"),
        ("get resource.k8s.io:resourceslices/status slice-a", "cannot authorize ResourceSlice subresources"),
    ] {
        assert_eq!(authorize(&graph, &[], &asked(line)), Decision::NoOpinion(reason.into()), "{line}");
    }
}
