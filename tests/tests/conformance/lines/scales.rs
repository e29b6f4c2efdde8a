//! The scale subresource: reads, updates, patches and server-side apply, and the owner of the count afterwards.

use super::*;

macro_rules! at {
    ($path:literal) => {
        concat!("/apis/apps/v1/namespaces/default/replicasets", $path)
    };
}

pub(crate) const LINES: &[Row] = &[
    (
        "POST",
        at!("?fieldManager=m"),
        JSON,
        r#"{"metadata":{"name":"sc"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"t","operator":"In","values":["y","x"]}]},"template":{"metadata":{"labels":{"a":"b","t":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    ),
    ("GET", at!("/sc/scale"), "", ""),
    ("GET", at!("/none/scale"), "", ""),
    ("PUT", at!("/sc/scale?fieldManager=p"), JSON, r#"{"metadata":{"name":"sc"},"spec":{"replicas":2}}"#),
    ("GET", at!("/sc"), "", ""),
    ("PATCH", at!("/sc/scale?fieldManager=q"), MERGE, r#"{"spec":{"replicas":3}}"#),
    ("PATCH", at!("/sc/scale?fieldManager=q"), STRATEGIC, r#"{"spec":{"replicas":4}}"#),
    (
        "PATCH",
        at!("/sc/scale?fieldManager=q"),
        PATCH,
        r#"[{"op":"replace","path":"/spec/replicas","value":5}]"#,
    ),
    ("GET", at!("/sc"), "", ""),
    (
        "PATCH",
        at!("/sc/scale?fieldManager=r"),
        APPLY,
        "apiVersion: autoscaling/v1\nkind: Scale\nmetadata:\n  name: sc\nspec:\n  replicas: 6\n",
    ),
    (
        "PATCH",
        at!("/sc/scale?fieldManager=r&force=true"),
        APPLY,
        "apiVersion: autoscaling/v1\nkind: Scale\nmetadata:\n  name: sc\nspec:\n  replicas: 6\n",
    ),
    ("GET", at!("/sc"), "", ""),
    (
        "PATCH",
        at!("/sc?fieldManager=s"),
        APPLY,
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: sc\nspec:\n  replicas: 7\n",
    ),
    (
        "PATCH",
        at!("/sc?fieldManager=s&force=true"),
        APPLY,
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: sc\nspec:\n  replicas: 7\n",
    ),
    (
        "PUT",
        at!("/sc/scale"),
        JSON,
        r#"{"metadata":{"name":"sc","resourceVersion":"1"},"spec":{"replicas":2}}"#,
    ),
    ("PUT", at!("/sc/scale"), JSON, r#"{"metadata":{"name":"sc"},"spec":{"replicas":-1}}"#),
    ("PUT", at!("/sc/scale"), JSON, r#"{"metadata":{"name":"other"},"spec":{"replicas":1}}"#),
    ("PUT", at!("/sc/scale"), JSON, r#"{"metadata":{"name":"sc"},"spec":{"replicas":"x"}}"#),
    (
        "PUT",
        at!("/sc/scale?fieldValidation=Strict"),
        JSON,
        r#"{"metadata":{"name":"sc"},"spec":{"replicas":1,"odd":2,"replicas":1}}"#,
    ),
    ("PUT", at!("/none/scale"), JSON, r#"{"metadata":{"name":"none"},"spec":{"replicas":1}}"#),
    ("DELETE", at!("/sc"), "", ""),
];
