//! Deletions, and the answers of each kind to them.

use super::*;

pub(crate) const LINES: &[Row] = &[
    // Lists and deletions.
    ("GET", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    ("GET", "/api/v1/namespaces/default/secrets?fieldSelector=type=Opaque,metadata.name!=x", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/none", "", ""),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a",
        JSON,
        r#"{"preconditions":{"resourceVersion":"1"}}"#,
    ),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"propagationPolicy":"Bogus"}"#),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a",
        JSON,
        r#"{"propagationPolicy":"Foreground","orphanDependents":true}"#,
    ),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a?dryRun=All", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a?propagationPolicy=Foreground", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a", "", ""),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/a?fieldManager=m",
        MERGE,
        r#"{"metadata":{"finalizers":null}}"#,
    ),
    ("GET", "/api/v1/namespaces/default/configmaps/a", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/ssa?gracePeriodSeconds=5", "", ""),
    ("DELETE", "/apis/apps/v1/namespaces/default/deployments/d?propagationPolicy=Orphan", "", ""),
    ("DELETE", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    ("GET", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    // Kinds whose updates create objects, or must name the UID of what they replace, and whose deletion returns the
    // deleted object.
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/new",
        JSON,
        r#"{"metadata":{"name":"new"},"spec":{"holderIdentity":"you"}}"#,
    ),
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/new",
        JSON,
        r#"{"metadata":{"name":"new","resourceVersion":"0"},"spec":{"holderIdentity":"you"}}"#,
    ),
    (
        "PUT",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/r?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
    ),
    (
        "PUT",
        "/apis/node.k8s.io/v1/runtimeclasses/rc?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"rc"},"handler":"h"}"#,
    ),
    ("PUT", "/apis/node.k8s.io/v1/runtimeclasses/rc", JSON, r#"{"metadata":{"name":"rc"},"handler":"h"}"#),
    (
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"sc"},"provisioner":"x.example/y"}"#,
    ),
    ("DELETE", "/apis/storage.k8s.io/v1/storageclasses/sc", "", ""),
    (
        "POST",
        "/apis/storage.k8s.io/v1/csidrivers?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"cd.example"},"spec":{}}"#,
    ),
    (
        "PUT",
        "/apis/storage.k8s.io/v1/csidrivers/cd.example",
        JSON,
        r#"{"metadata":{"name":"cd.example"},"spec":{}}"#,
    ),
    ("DELETE", "/apis/storage.k8s.io/v1/csidrivers/cd.example", "", ""),
];
