//! Paths and parameters of reads, and lists.

use super::*;

pub(crate) const LINES: &[Row] = &[
    // Paths and parameters.
    ("GET", "/api/v1/namespaces/default/nothings", "", ""),
    ("GET", "/apis/apps/v1/nothings", "", ""),
    ("GET", "/api/v1/pods/x", "", ""),
    ("GET", "/api/v1/namespaces/x/nodes", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps/a/b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?limit=x", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20in", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a=b%20c", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=-a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a=-b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%3Ex", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20in%20(b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=!", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=%3D", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?fieldSelector=a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?fieldSelector=spec.x=a", "", ""),
    ("GET", "/api/v1/pods?fieldSelector=spec.x=a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersion=x", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersion=-1", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Exact", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Foo&resourceVersion=1", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Exact&resourceVersion=0", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?sendInitialEvents=true", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&sendInitialEvents=true", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&resourceVersionMatch=NotOlderThan", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps/none", "", ""),
    ("GET", "/apis/apps/v1/namespaces/default/deployments/none", "", ""),
    ("DELETE", "/api/v1/namespaces", "", ""),
    ("POST", "/api/v1/configmaps", JSON, "{}"),
    ("POST", "/api/v1/namespaces/default/configmaps/a", JSON, "{}"),
];
