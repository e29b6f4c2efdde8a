use super::*;

const BUILT_IN: FieldShapes = FieldShapes { built_in: true };

fn manager(operation: &str, name: &str) -> ManagerId {
    ManagerId {
        operation: operation.to_owned(),
        name: name.to_owned(),
        api_version: "v1".to_owned(),
        subresource: String::new(),
    }
}

/// Applies a configuration and records it in the object.
fn apply(live: &Value, config: &Value, name: &str, force: bool) -> Result<Value, FieldConflicts> {
    let mut managers = FieldManagers::of(live);
    let mut merged =
        managers.apply(BUILT_IN, (live, config), &manager("Apply", name), ("2026-01-01T00:00:00Z", force))?;
    managers.write(&mut merged);
    Ok(merged)
}

fn update(live: &Value, change: impl Fn(&mut Value), name: &str) -> Value {
    let mut new = live.clone();
    change(&mut new);
    let mut managers = FieldManagers::of(live);
    managers.update(BUILT_IN, (live, &new), &manager("Update", name), "2026-01-01T00:00:00Z");
    managers.write(&mut new);
    new
}

fn owner(object: &Value, name: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let found = entries.into_iter().find(|entry| entry["manager"] == name);
    found.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

#[test]
fn what_an_applier_no_longer_states_is_removed_and_what_others_own_is_kept() {
    let live = apply(&json!({}), &json!({"data": {"a": "1", "b": "1"}}), "me", false).expect("no conflict");
    let live = update(&live, |object| object["data"]["c"] = "2".into(), "kubectl");
    let live = apply(&live, &json!({"data": {"a": "1"}}), "me", false).expect("no conflict");
    assert_eq!(live["data"], json!({"a": "1", "c": "2"}));
    let live =
        apply(&live, &json!({"data": {"c": "2"}}), "me", false).expect("the same value is no conflict");
    assert_eq!(live["data"], json!({"c": "2"}));
    let live = apply(&live, &json!({"metadata": {"labels": {"x": "y"}}}), "me", false).expect("no conflict");
    assert_eq!(live["data"], json!({"c": "2"}), "it was shared");
}

#[test]
fn a_field_of_another_manager_is_a_conflict_until_it_is_forced() {
    let live =
        update(&json!({}), |object| object["spec"] = json!({"replicas": 1, "paused": true}), "kubectl");
    let config = json!({"spec": {"replicas": 2}});
    let conflicts = apply(&live, &config, "me", false).expect_err("a conflict");
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].0.name, "kubectl");
    assert_eq!(conflicts[0].1, FieldSet::from([vec!["f:spec".to_owned(), "f:replicas".to_owned()]]));
    let live = apply(&live, &config, "me", true).expect("forced");
    assert_eq!(live["spec"], json!({"replicas": 2, "paused": true}));
    assert_eq!(owner(&live, "kubectl"), json!({"f:spec": {"f:paused": {}}}));
    assert_eq!(owner(&live, "me"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn items_of_keyed_lists_are_merged_by_their_keys() {
    let spec = |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let live = apply(&json!({}), &spec(json!([{"name": "a", "image": "1"}, {"name": "b"}])), "me", false);
    let containers = |object: &Value| object["spec"]["template"]["spec"]["containers"].clone();
    let live = update(
        &live.expect("no conflict"),
        |object| {
            let containers = &mut object["spec"]["template"]["spec"]["containers"];
            containers[0]["tty"] = true.into();
            if let Some(list) = containers.as_array_mut() {
                list.insert(0, json!({"name": "injected"}));
            }
        },
        "other",
    );
    let live = apply(&live, &spec(json!([{"name": "a", "image": "2"}])), "me", false).expect("no conflict");
    assert_eq!(containers(&live), json!([{"name": "injected"}, {"name": "a", "image": "2", "tty": true}]));
    let live = apply(&live, &spec(json!([{"name": "a"}])), "me", false).expect("no conflict");
    assert_eq!(containers(&live)[1], json!({"name": "a", "tty": true}));
    let live = apply(&live, &json!({"spec": {"replicas": 1}}), "me", false).expect("no conflict");
    assert_eq!(
        containers(&live),
        json!([{"name": "injected"}, {"name": "a", "tty": true}]),
        "somebody owns a part of it"
    );
}

#[test]
fn a_second_apply_of_the_same_changes_nothing() {
    let config = json!({"metadata": {"labels": {"a": "b"}}, "data": {"x": "1"}});
    let live = apply(&json!({}), &config, "me", false).expect("no conflict");
    let mut managers = FieldManagers::of(&live);
    let before = managers.clone();
    let merged =
        managers.apply(BUILT_IN, (&live, &config), &manager("Apply", "me"), ("2027-01-01T00:00:00Z", true));
    assert_eq!(merged.expect("no conflict"), live);
    assert_eq!(managers, before, "not even the time");
}

#[test]
fn an_update_takes_over_what_it_changes_and_no_more() {
    let live = apply(&json!({}), &json!({"data": {"a": "1", "b": "1"}}), "me", false).expect("no conflict");
    let live = update(&live, |object| object["data"]["a"] = "2".into(), "other");
    assert_eq!(owner(&live, "me"), json!({"f:data": {"f:b": {}}}));
    assert_eq!(owner(&live, "other"), json!({"f:data": {"f:a": {}}}));
    let live = update(&live, |object| object["data"] = json!({"b": "1"}), "third");
    assert_eq!(owner(&live, "other"), Value::Null, "nothing of it is left");
    assert_eq!(owner(&live, "third"), Value::Null, "a removal owns nothing");
}
