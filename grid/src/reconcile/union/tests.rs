use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::reconcile::drift::tests::fields_of_children;

/// Conflicting members, as texts.
fn found(live: &Value, stated: &Value) -> Vec<String> {
    let spec = |pod: &Value| json!({"spec": {"template": {"spec": pod}}});
    let paths = in_the_way(&spec(live), &spec(stated));
    let start = ["f:spec", "f:template", "f:spec"];
    paths
        .into_iter()
        .map(|path| {
            assert_eq!(path[..3], start);
            path[3..].join(" ")
        })
        .collect()
}

#[test]
fn other_union_members_conflict_with_the_stated_one() {
    let volume = |source: Value| json!({"volumes": [{"name": "other", "emptyDir": {}}, source]});
    let container =
        |part: Value| json!({"containers": [{"name": "c", "image": "x", "args": [], "own": part}]});
    let named = |name: &str, part: Value| {
        let mut pod = container(Value::Null);
        pod["containers"][0][name] = part;
        pod
    };
    const IN_C: &str = r#"f:containers k:{"name":"c"}"#;
    for (live, stated, wanted) in [
        (
            volume(json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}})),
            volume(json!({"name": "v", "hostPath": {"path": "/a"}})),
            r#"f:volumes k:{"name":"v"} f:emptyDir"#.to_owned(),
        ),
        (
            volume(json!({"name": "v", "hostPath": {"path": "/a"}})),
            volume(json!({"name": "v", "emptyDir": {}})),
            r#"f:volumes k:{"name":"v"} f:hostPath"#.to_owned(),
        ),
        (
            named("env", json!([{"name": "E", "value": "1"}])),
            named("env", json!([{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}])),
            format!(r#"{IN_C} f:env k:{{"name":"E"}} f:value"#),
        ),
        (
            named("env", json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s"}}}])),
            named("env", json!([{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "m"}}}])),
            format!(r#"{IN_C} f:env k:{{"name":"E"}} f:valueFrom f:secretKeyRef"#),
        ),
        (
            named("livenessProbe", json!({"httpGet": {"port": 80, "scheme": "HTTP"}, "periodSeconds": 10})),
            named("livenessProbe", json!({"exec": {"command": ["true"]}})),
            format!("{IN_C} f:livenessProbe f:httpGet"),
        ),
        (
            named("lifecycle", json!({"preStop": {"sleep": {"seconds": 1}}})),
            named("lifecycle", json!({"preStop": {"exec": {"command": ["true"]}}})),
            format!("{IN_C} f:lifecycle f:preStop f:sleep"),
        ),
        (
            named("volumeMounts", json!([{"mountPath": "/m", "name": "v", "subPath": "a"}])),
            named("volumeMounts", json!([{"mountPath": "/m", "name": "v", "subPathExpr": "b"}])),
            format!(r#"{IN_C} f:volumeMounts k:{{"mountPath":"/m"}} f:subPath"#),
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}}),
            json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}),
            "f:securityContext f:seccompProfile f:localhostProfile".to_owned(),
        ),
    ] {
        assert_eq!(found(&live, &stated), [wanted], "{live} {stated}");
        assert!(found(&stated, &stated).is_empty(), "{stated}");
    }
    let strategy = |strategy: Value| json!({"spec": {"strategy": strategy}});
    let rolling = strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}));
    let paths = in_the_way(&rolling, &strategy(json!({"type": "Recreate"})));
    assert_eq!(paths, [["f:spec", "f:strategy", "f:rollingUpdate"]]);
}

#[test]
fn other_fields_of_others_do_not_conflict() {
    let probe = |probe: Value| json!({"containers": [{"name": "c", "livenessProbe": probe}]});
    for (live, stated) in [
        // No member is stated, or the same one; fields that exclude no others do not matter.
        (probe(json!({"exec": {"command": ["a"]}})), probe(json!({"periodSeconds": 5}))),
        (
            probe(json!({"exec": {"command": ["a"]}, "periodSeconds": 5})),
            probe(json!({"exec": {"command": ["b"]}})),
        ),
        // A volume and a container that the template does not state.
        (
            json!({"volumes": [{"name": "mine", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/a"}}]}),
        ),
        (probe(json!({"exec": {"command": ["a"]}})), json!({"containers": [{"name": "d"}]})),
        (json!({"volumes": null}), json!({"volumes": [{"name": "v", "emptyDir": {}}]})),
        (
            json!({"volumes": [{"name": "v", "emptyDir": null}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/a"}}]}),
        ),
    ] {
        assert!(found(&live, &stated).is_empty(), "{live} {stated}");
    }
    let strategy = |strategy: Value| json!({"spec": {"strategy": strategy}});
    let rolling = strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}));
    for stated in [json!({"type": "RollingUpdate"}), json!({})] {
        assert!(in_the_way(&rolling, &strategy(stated)).is_empty());
    }
}

/// The table names fields that children have.
#[test]
fn unions_match_the_api() {
    let fields = fields_of_children();
    let names: BTreeSet<&str> = fields.iter().map(|field| field[0]).collect();
    for (field, choice) in UNIONS {
        let members: Vec<&str> = match choice {
            Choice::Of(members) | Choice::But(members) => members.to_vec(),
            Choice::With(_, member) => vec!["type", member],
        };
        for name in members.iter().chain([&field]) {
            assert!(names.contains(name), "{field}: {name}");
        }
    }
}
