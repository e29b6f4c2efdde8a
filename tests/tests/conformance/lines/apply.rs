//! Server-side apply.

use super::*;

pub(crate) const LINES: &[Row] = &[
    // Server-side apply.
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=one",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"1"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two&force=true",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2","r":"3"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa","managedFields":[{"manager":"x"}]}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa","resourceVersion":"1"}}"#,
    ),
];
