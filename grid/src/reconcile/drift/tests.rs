use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;

/// Types, fields and how lists and maps are merged, as a kube-apiserver says it.
const BUILT_IN: &str = include_str!("../../../../apiserve/data/builtin.txt");

fn manifest() -> Value {
    json!({
        "metadata": {"annotations": {APPLIED: "1"}, "labels": {"a": "b"}},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "edge", "operator": "Exists"}, {"key": "slow", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "c", "image": "x", "args": ["--a", "--b"], "command": ["run"],
                        "env": [{"name": "ONE", "value": "1"}, {"name": "TWO", "value": "$(ONE)"}],
                        "envFrom": [{"configMapRef": {"name": "m"}}],
                        "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}],
                        "resources": {"limits": {"cpu": "1"}},
                    },
                    {"name": "d", "image": "y"},
                ],
                "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
            }},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        },
    })
}

/// The child as an API server stores it.
fn stored() -> Value {
    let mut child = manifest();
    let mut set = |pointer: &str, name: &str, value: Value| child.pointer_mut(pointer).unwrap()[name] = value;
    let container = "/spec/template/spec/containers/0";
    set("/spec", "replicas", 1.into());
    set("/spec/template", "metadata", json!({"creationTimestamp": null}));
    set("/spec/template/spec", "restartPolicy", "Always".into());
    set(container, "imagePullPolicy", "IfNotPresent".into());
    set(&format!("{container}/ports/0"), "protocol", "TCP".into());
    set("/spec/template/spec/volumes/0/projected", "defaultMode", 420.into());
    let token = "/spec/template/spec/volumes/0/projected/sources/0/serviceAccountToken";
    set(token, "expirationSeconds", 3600.into());
    let claim = "/spec/volumeClaimTemplates/0";
    set(claim, "apiVersion", "v1".into());
    set(claim, "kind", "PersistentVolumeClaim".into());
    set(claim, "status", json!({"phase": "Pending"}));
    set(&format!("{claim}/metadata"), "creationTimestamp", Value::Null);
    set(&format!("{claim}/spec"), "volumeMode", "Filesystem".into());
    child
}

/// Whether a change of the stored child is a difference.
fn differs(change: impl FnOnce(&mut Value)) -> bool {
    let mut child = stored();
    change(&mut child["spec"]["template"]["spec"]);
    !is_applied(&child, &manifest())
}

#[test]
fn defaults_of_the_api_server_are_no_difference() {
    assert!(is_applied(&stored(), &manifest()));
}

#[test]
fn lists_without_keys_hold_what_the_manifest_states_and_nothing_else() {
    let list = |field: &str, value: Value| differs(|pod| pod["containers"][0][field] = value);
    assert!(list("args", json!(["--a", "--b", "--c"])), "appended");
    assert!(list("args", json!(["--evil", "--a", "--b"])), "put in front");
    assert!(list("args", json!(["--b", "--a"])), "reordered");
    assert!(list("args", json!(["--a"])) && list("args", json!(["--a", "--a"])) && list("args", Value::Null));
    assert!(list("command", json!(["run", "sh"])));
    assert!(list("envFrom", json!([{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}])));
    assert!(list("envFrom", json!([{"prefix": "P", "configMapRef": {"name": "m"}}])), "within an item");
    assert!(differs(|pod| pod["tolerations"].as_array_mut().unwrap().push(json!({"operator": "Exists"}))));
    assert!(differs(|pod| pod["tolerations"].as_array_mut().unwrap().reverse()));
    assert!(differs(|pod| pod["tolerations"][0]["tolerationSeconds"] = 5.into()));
    assert!(differs(
        |pod| pod["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] = "x".into()
    ));
}

#[test]
fn items_with_keys_that_others_added_stay_and_our_own_keep_their_order() {
    let extra = json!({"name": "mine", "image": "z"});
    for place in 0..=2 {
        let insert = |pod: &mut Value| pod["containers"].as_array_mut().unwrap().insert(place, extra.clone());
        assert!(!differs(insert), "at {place}");
    }
    assert!(differs(|pod| pod["containers"].as_array_mut().unwrap().reverse()));
    assert!(differs(|pod| drop(pod["containers"].as_array_mut().unwrap().pop())));
    let env = |value: Value| differs(|pod| pod["containers"][0]["env"] = value);
    let (one, two) = (json!({"name": "ONE", "value": "1"}), json!({"name": "TWO", "value": "$(ONE)"}));
    assert!(!env(json!([one, {"name": "MORE", "value": "x"}, two])));
    assert!(env(json!([two, one])), "a variable refers to those before it");
    assert!(env(json!([one, {"name": "TWO", "value": "2"}])));
    let udp = |pod: &mut Value| pod["containers"][0]["ports"][1]["protocol"] = "SCTP".into();
    assert!(differs(udp), "the protocol is a part of the key");
}

#[test]
fn maps_and_structs_that_are_replaced_as_a_whole_hold_nothing_else() {
    assert!(differs(|pod| pod["nodeSelector"]["disk"] = "".into()));
    assert!(!differs(|pod| pod["containers"][0]["resources"]["limits"]["memory"] = "1Gi".into()));
    let mut child = stored();
    child["spec"]["selector"]["matchLabels"]["more"] = "x".into();
    assert!(!is_applied(&child, &manifest()));
    let service = |spec: Value| json!({"metadata": {"annotations": {APPLIED: "1"}}, "spec": spec});
    let wanted = service(json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}));
    let port = json!({"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30080});
    let live =
        json!({"selector": {"app": "web"}, "ports": [port], "clusterIPs": ["10.0.0.1"], "type": "NodePort"});
    assert!(is_applied(&service(live.clone()), &wanted));
    let mut other = live.clone();
    other["selector"]["pod"] = "one".into();
    assert!(!is_applied(&service(other), &wanted), "its requests would reach other pods");
    let mut other = live;
    other["ports"].as_array_mut().unwrap().push(json!({"port": 81, "protocol": "TCP", "targetPort": 81}));
    assert!(is_applied(&service(other), &wanted), "a port of somebody else's");
}

#[test]
fn labels_and_annotations_of_others_stay() {
    let mut child = stored();
    child["metadata"]["labels"]["theirs"] = "x".into();
    child["metadata"]["annotations"]["theirs"] = "x".into();
    assert!(is_applied(&child, &manifest()));
    child["metadata"]["labels"]["a"] = "c".into();
    assert!(!is_applied(&child, &manifest()));
}

/// The tables above are what kube-apiserver says of the types that grids make.
#[test]
fn the_tables_are_those_of_the_api() {
    let mut types: BTreeMap<&str, (bool, Vec<Vec<&str>>)> = BTreeMap::new();
    let mut current = None;
    for line in BUILT_IN.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["type", name, ..] => {
                types.insert(name, (words.contains(&"atomic"), Vec::new()));
                current = Some(name);
            }
            _ if line.starts_with(' ') => {
                if let Some((_, fields)) = current.and_then(|name| types.get_mut(name)) {
                    fields.push(words);
                }
            }
            _ => current = None,
        }
    }
    let (mut keyed, mut whole, mut unkeyed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    let roots =
        ["apps.v1.DeploymentSpec", "apps.v1.StatefulSetSpec", "core.v1.ServiceSpec", "meta.v1.ObjectMeta"];
    let mut open = roots.to_vec();
    assert!(roots.iter().all(|root| types.contains_key(root)));
    while let Some(name) = open.pop() {
        if !seen.insert(name) {
            continue;
        }
        let Some((_, fields)) = types.get(name) else { continue };
        for field in fields {
            let (name, kind) = (field[0], field[1]);
            let merged = field.iter().find_map(|word| word.strip_prefix("list=map:"));
            let inner = kind.trim_start_matches("[]").trim_start_matches("{}");
            let is_struct_of_its_own =
                !kind.starts_with("[]") && types.get(inner).is_some_and(|(atomic, _)| *atomic);
            if let Some(keys) = merged {
                keyed.insert((name, keys.to_owned()));
                open.push(inner);
            } else if field.contains(&"map=atomic") || is_struct_of_its_own {
                whole.insert(name);
            } else if kind.starts_with("[]") {
                unkeyed.insert(name);
            } else {
                open.push(inner);
            }
        }
    }
    let names = |keys: &Keys| keys.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
    let known: BTreeSet<(&str, String)> = KEYED.iter().map(|(field, keys)| (*field, names(keys))).collect();
    assert_eq!(known, keyed);
    assert_eq!(WHOLE.into_iter().collect::<BTreeSet<_>>(), whole);
    let both: Vec<_> = known.iter().filter(|(field, _)| unkeyed.contains(field)).collect();
    assert!(both.is_empty(), "{both:?} have keys in one type and none in another");
}
