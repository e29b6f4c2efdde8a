#![allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]

use super::*;

fn path(words: &[&str]) -> Path {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn entry(manager: &str, operation: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

#[test]
fn claimed_fields_belong_only_to_the_applier() {
    let volume = path(&["f:spec", "f:volumes", r#"k:{"name":"v"}"#, "f:emptyDir"]);
    let of_volume = |below: Value| json!({"f:spec": {"f:volumes": {r#"k:{"name":"v"}"#: below}}});
    let theirs = of_volume(json!({".": {}, "f:emptyDir": {"f:sizeLimit": {}}, "f:name": {}}));
    let managed = json!([
        entry("us", "Apply", json!({"f:spec": {"f:replicas": {}}})),
        entry("a-user", "Update", theirs),
        entry("another", "Update", of_volume(json!({"f:emptyDir": {}}))),
        entry("us", "Update", json!({"f:spec": {"f:paused": {}}})),
    ]);
    let wanted = json!([
        entry("a-user", "Update", of_volume(json!({".": {}, "f:name": {}}))),
        entry("us", "Update", json!({"f:spec": {"f:paused": {}}})),
        entry(
            "us",
            "Apply",
            json!({"f:spec": {
                "f:replicas": {},
                "f:volumes": {r#"k:{"name":"v"}"#: {"f:emptyDir": {}}},
            }})
        ),
    ]);
    let claims = claimed(&managed, std::slice::from_ref(&volume), "us", "apps/v1");
    assert_eq!(claims, wanted);
    assert_eq!(claimed(&claims, &[volume], "us", "apps/v1"), claims, "once is enough");
}

#[test]
fn first_apply_adds_an_owner_and_keeps_members() {
    let strategy = path(&["f:spec", "f:strategy", "f:rollingUpdate"]);
    let claim = |managed: &Value| claimed(managed, std::slice::from_ref(&strategy), "us", "apps/v1");
    let ours = |fields: Value| json!([entry("us", "Apply", fields)]);
    for managed in [Value::Null, json!([])] {
        assert_eq!(claim(&managed), ours(json!({"f:spec": {"f:strategy": {"f:rollingUpdate": {}}}})));
    }
    for (before, after) in [
        (json!({"f:strategy": {}}), json!({"f:strategy": {".": {}, "f:rollingUpdate": {}}})),
        (
            json!({"f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}}),
            json!({"f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}}}),
        ),
    ] {
        assert_eq!(claim(&ours(json!({"f:spec": before}))), ours(json!({"f:spec": after})));
    }
    // A part of a field that a manager owns as a whole stays that manager's: no part is named there that could be
    // taken.
    let whole = json!([entry("a-user", "Update", json!({"f:spec": {}}))]);
    assert_eq!(claim(&whole)[0], whole[0]);
}
