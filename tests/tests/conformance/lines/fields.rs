//! Field validation: unknown and duplicate fields of JSON and YAML, in every kind of write.

use super::*;

const ODD: &str = r#"{"zzz":1,"metadata":{"name":"fv","bad":1},"data":{"a":"1","a":"2"},"data":{},"zzz":2,"aaa":{"b":1,"b":2}}"#;
const ODD_YAML: &str =
    "zzz: 1\nmetadata:\n  name: fv\n  bad: 1\ndata:\n  a: \"1\"\n  a: \"2\"\nzzz: 2\naaa: 1\n";
const ODD_WIDGET: &str = r#"{"kind":"Widget","apiVersion":"conformance.example/v1","zzz":1,"metadata":{"name":"fv","bad":1},"spec":{"size":1,"size":2,"more":{"a":1,"a":2}},"aaa":1}"#;
const ODD_PATCH: &str = r#"{"zzz":1.5,"data":{"b":"1","b":"2"},"aaa":{"b":1,"b":[null,true]}}"#;
const ODD_OPERATIONS: &str = r#"[{"op":"add","path":"/data/x","value":{"a":1,"a":2},"value":"y","foo":1}]"#;
const ODD_APPLY: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: fv\ndata:\n  q: \"1\"\n  q: \"2\"\n";

macro_rules! at {
    ($path:literal) => {
        concat!("/api/v1/namespaces/default/configmaps", $path)
    };
}

macro_rules! widgets {
    ($path:literal) => {
        concat!("/apis/conformance.example/v1/namespaces/default/widgets", $path)
    };
}

pub(crate) const LINES: &[Row] = &[
    ("POST", at!("?fieldValidation=Strict"), JSON, ODD),
    ("POST", at!("?fieldValidation=Strict"), YAML, ODD_YAML),
    ("POST", at!("?dryRun=All"), JSON, ODD),
    ("POST", at!("?dryRun=All"), YAML, ODD_YAML),
    ("POST", at!("?dryRun=All"), YAML, r#"{"metadata":{"name":"fw"},"data":{"a":"1","a":"2"}}"#),
    ("POST", at!("?fieldManager=m&fieldValidation=Ignore"), YAML, ODD_YAML),
    ("GET", at!("/fv"), "", ""),
    ("PUT", at!("/fv?fieldValidation=Strict"), JSON, ODD),
    ("PUT", at!("/fv?fieldManager=m"), JSON, ODD),
    ("PATCH", at!("/fv?fieldValidation=Strict"), MERGE, ODD_PATCH),
    ("PATCH", at!("/fv?fieldManager=m"), MERGE, ODD_PATCH),
    ("PATCH", at!("/fv?fieldManager=m&fieldValidation=Ignore"), MERGE, ODD_PATCH),
    ("PATCH", at!("/fv?fieldValidation=Strict"), STRATEGIC, ODD_PATCH),
    ("PATCH", at!("/fv?fieldManager=m"), STRATEGIC, ODD_PATCH),
    ("PATCH", at!("/fv?fieldValidation=Strict"), PATCH, ODD_OPERATIONS),
    ("PATCH", at!("/fv?fieldManager=m"), PATCH, ODD_OPERATIONS),
    ("PATCH", at!("/fv"), MERGE, r#"{"data":{"b":1}}"#),
    ("PATCH", at!("/fv"), STRATEGIC, r#"{"data":{"b":1}}"#),
    ("PATCH", at!("/fv?fieldManager=n&fieldValidation=Strict"), APPLY, ODD_APPLY),
    ("PATCH", at!("/fv?fieldManager=n"), APPLY, ODD_APPLY),
    ("PATCH", at!("/fv?fieldManager=n&fieldValidation=Ignore"), APPLY, ODD_APPLY),
    (
        "PATCH",
        at!("/fv?fieldManager=n"),
        APPLY,
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: fv\nzz: 1\n",
    ),
    ("PATCH", at!("/created?fieldManager=n&fieldValidation=Strict"), APPLY, ODD_APPLY),
    ("POST", widgets!("?fieldValidation=Strict"), JSON, ODD_WIDGET),
    ("POST", widgets!("?fieldManager=m"), JSON, ODD_WIDGET),
    (
        "PATCH",
        widgets!("/fv?fieldValidation=Strict"),
        MERGE,
        r#"{"zz":1,"spec":{"b":1,"b":2},"spec":{"c":1}}"#,
    ),
    ("PATCH", widgets!("/fv?fieldManager=m"), MERGE, r#"{"zz":1,"spec":{"b":1,"b":2},"metadata":{"odd":1}}"#),
    ("PATCH", widgets!("/fv"), STRATEGIC, r#"{"spec":{"size":3}}"#),
    (
        "PATCH",
        widgets!("/fv?fieldManager=n&fieldValidation=Strict"),
        APPLY,
        "apiVersion: conformance.example/v1\nkind: Widget\nmetadata:\n  name: fv\nspec:\n  open:\n    a: 1\n    a: 2\n",
    ),
    (
        "PATCH",
        widgets!("/fv?fieldManager=n&fieldValidation=Strict"),
        APPLY,
        "apiVersion: conformance.example/v1\nkind: Widget\nmetadata:\n  name: fv\nspec:\n  odd: 1\n",
    ),
    ("DELETE", at!("/fv"), "", ""),
    ("DELETE", widgets!("/fv"), "", ""),
];
