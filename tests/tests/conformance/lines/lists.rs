//! Lists of kinds whose items include their types, and of kinds whose items do not.

use super::*;

pub(crate) const LINES: &[Row] = &[
    // Lists of other kinds: only those of custom resources include the type of each item.
    ("GET", "/api/v1/namespaces/default/events", "", ""),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases?limit=1", "", ""),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases?fieldSelector=metadata.name=new", "", ""),
    (
        "POST",
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}"#,
    ),
    ("GET", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", "", ""),
    (
        "POST",
        "/apis/conformance.example/v1/namespaces/default/widgets?fieldManager=m",
        JSON,
        r#"{"kind":"Widget","apiVersion":"conformance.example/v1","metadata":{"name":"w"},"spec":{"size":1}}"#,
    ),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets", "", ""),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets?fieldSelector=spec.size=1", "", ""),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets?fieldSelector=spec.size!=1", "", ""),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets?fieldSelector=spec.size=01", "", ""),
    ("GET", "/apis/conformance.example/v1beta1/namespaces/default/widgets?fieldSelector=spec.size=1", "", ""),
    ("GET", "/apis/conformance.example/v1beta1/namespaces/default/widgets", "", ""),
    ("GET", "/apis/conformance.example/v1beta1/namespaces/default/widgets/w", "", ""),
    ("DELETE", "/apis/conformance.example/v1/namespaces/default/widgets?labelSelector=!x", "", ""),
];
