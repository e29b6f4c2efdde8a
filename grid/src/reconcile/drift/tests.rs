use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Types, fields and how lists and maps are merged, according to a kube-apiserver.
const BUILT_IN: &str = include_str!("../../../../apiserver/core/data/builtin.txt");

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
fn lists_without_keys_equal_the_manifest() {
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
fn keyed_items_added_by_others_stay_and_ours_keep_their_order() {
    let extra = json!({"name": "mine", "image": "z"});
    for index in 0..=2 {
        let insert = |pod: &mut Value| pod["containers"].as_array_mut().unwrap().insert(index, extra.clone());
        assert!(!differs(insert), "at {index}");
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
fn atomic_maps_and_structs_equal_the_manifest() {
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

type Types = BTreeMap<&'static str, (bool, Vec<Vec<&'static str>>)>;

const ROOTS: [&str; 4] =
    ["apps.v1.DeploymentSpec", "apps.v1.StatefulSetSpec", "core.v1.ServiceSpec", "meta.v1.ObjectMeta"];

/// kube-apiserver's description of its types: whether each is replaced as a whole, and the words of each field.
fn types() -> Types {
    let mut types = Types::new();
    let mut current = None;
    for line in BUILT_IN.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A field may be called `type`.
        if line.starts_with(' ') {
            if let Some((_, fields)) = current.and_then(|name| types.get_mut(name)) {
                fields.push(words);
            }
            continue;
        }
        current = match words[..] {
            ["type", name, ..] => {
                types.insert(name, (words.contains(&"atomic"), Vec::new()));
                Some(name)
            }
            _ => None,
        };
    }
    assert!(ROOTS.iter().all(|root| types.contains_key(root)));
    types
}

/// The type of a field's elements: the name of a struct, or of another type.
fn inner(kind: &'static str) -> &'static str {
    kind.trim_start_matches("[]").trim_start_matches("{}")
}

/// The tables above match kube-apiserver's description of the types that grids create.
#[test]
fn merge_tables_match_the_api() {
    let types = types();
    let (mut keyed, mut whole, mut unkeyed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    let mut open = ROOTS.to_vec();
    while let Some(name) = open.pop() {
        if !seen.insert(name) {
            continue;
        }
        let Some((_, fields)) = types.get(name) else { continue };
        for field in fields {
            let (name, kind) = (field[0], field[1]);
            let merged = field.iter().find_map(|word| word.strip_prefix("list=map:"));
            let inner = inner(kind);
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

/// All fields of all structs that occur in a child.
pub(crate) fn fields_of_children() -> Vec<Vec<&'static str>> {
    let types = types();
    let (mut seen, mut open, mut all) = (BTreeSet::new(), ROOTS.to_vec(), Vec::new());
    while let Some(name) = open.pop() {
        if let Some((_, fields)) = types.get(name).filter(|_| seen.insert(name)) {
            open.extend(fields.iter().map(|field| inner(field[1])));
            all.extend(fields.iter().cloned());
        }
    }
    all
}

/// The empty value of a field's type, if it has one and is not a list.
fn empty(kind: &str, types: &Types) -> Option<Value> {
    match kind {
        "bool" => Some(json!(false)),
        "int32" | "int64" | "int-or-string" => Some(json!(0)),
        "string" => Some(json!("")),
        _ if kind.starts_with("{}") || types.contains_key(kind) => Some(json!({})),
        _ => None,
    }
}

#[test]
fn empty_value_may_be_missing_only_where_the_api_server_omits_it() {
    let (types, fields) = (types(), fields_of_children());
    let with = |presence: &str, is_meant: &dyn Fn(&str) -> bool| -> BTreeSet<&str> {
        let fields = fields.iter().filter(|field| field[2] == presence && is_meant(field[1]));
        fields.map(|field| field[0]).collect()
    };
    let is_struct = |kind: &str| types.contains_key(kind);
    let is_scalar = |kind: &str| !kind.starts_with("[]") && !kind.starts_with("{}") && !is_struct(kind);
    assert_eq!(LEFT_OUT.split(' ').collect::<BTreeSet<_>>(), with("o", &is_scalar));
    assert_eq!(MAPS.into_iter().collect::<BTreeSet<_>>(), with("o", &|kind| kind.starts_with("{}")));
    assert_eq!(WRITTEN.into_iter().collect::<BTreeSet<_>>(), with("e", &is_struct));
    assert!(with("o", &is_struct).is_empty(), "a struct is written");
    let mut kept = 0;
    for field in &fields {
        let Some(empty) = empty(field[1], &types) else { continue };
        let is_held = holds(field[0], &Value::Null, &empty, Extra::Foreign);
        let is_map = MAPS.contains(&field[0]) && empty.is_object();
        let may_be_missing = is_map || field[0] == CLEARED || (is_left_out(field[0]) && !empty.is_object());
        assert_eq!(is_held, may_be_missing, "{field:?}");
        assert!(field[2] != "o" || may_be_missing, "{field:?}");
        kept += usize::from(field[2] == "k" && !is_held);
    }
    assert!(kept > 100, "{kept}");
}

/// A value that a user stated, and that another user with access to the child has removed or emptied.
#[test]
fn removed_empty_value_is_restored() {
    let (pointer, container) = ("/spec/template/spec", "/spec/template/spec/containers/0");
    for (pointer, name, wanted, instead) in [
        (container, "securityContext", json!({"allowPrivilegeEscalation": false}), json!({})),
        (container, "securityContext", json!({"runAsUser": 0}), json!({})),
        (container, "securityContext", json!({}), Value::Null),
        (pointer, "automountServiceAccountToken", json!(false), Value::Null),
        (pointer, "enableServiceLinks", json!(false), json!(true)),
        (pointer, "hostUsers", json!(false), Value::Null),
        (pointer, "shareProcessNamespace", json!(false), Value::Null),
        (pointer, "terminationGracePeriodSeconds", json!(0), Value::Null),
        ("/spec", "replicas", json!(0), Value::Null),
        ("/spec/template/spec/volumes/0", "emptyDir", json!({}), Value::Null),
        ("/spec/template/metadata", "labels", json!({"edge": ""}), json!({})),
        ("/spec/template/metadata", "annotations", json!({"paused": ""}), Value::Null),
    ] {
        let mut wants = manifest();
        wants["spec"]["template"]["metadata"] = json!({});
        wants["spec"]["template"]["spec"]["volumes"][0] = json!({"name": "v"});
        let mut child = wants.clone();
        wants.pointer_mut(pointer).unwrap()[name] = wanted.clone();
        child.pointer_mut(pointer).unwrap()[name] = wanted;
        assert!(is_applied(&child, &wants), "{name}");
        child.pointer_mut(pointer).unwrap()[name] = instead;
        child["spec"]["template"]["spec"]["volumes"][0]["hostPath"] = json!({"path": "/"});
        assert!(!is_applied(&child, &wants), "{name}");
    }
    // Values that the API server leaves out are not a difference.
    let mut wants = manifest();
    wants["spec"]["paused"] = false.into();
    wants["spec"]["minReadySeconds"] = 0.into();
    wants["spec"]["template"]["spec"]["hostNetwork"] = false.into();
    wants["spec"]["template"]["spec"]["containers"][1]["env"] = json!([{"name": "E", "value": ""}]);
    wants["spec"]["template"]["spec"]["containers"][1]["resources"] = json!({"limits": {}});
    let mut child = stored();
    child["spec"]["template"]["spec"]["containers"][1]["env"] = json!([{"name": "E"}]);
    child["spec"]["template"]["spec"]["containers"][1]["resources"] = json!({});
    assert!(is_applied(&child, &wants));
}

#[test]
fn empty_addition_to_an_owned_part_is_a_difference() {
    assert!(differs(|pod| pod["tolerations"][0]["tolerationSeconds"] = 0.into()), "evicted at once");
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}});
    let mut wants = manifest();
    wants["spec"]["template"]["spec"]["affinity"] =
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let mut child = wants.clone();
    assert!(is_applied(&child, &wants));
    let terms =
        "/spec/template/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    child.pointer_mut(terms).unwrap()["namespaceSelector"] = json!({});
    assert!(!is_applied(&child, &wants), "of all namespaces");
}

/// Makes manifests, and the objects that an API server stores for them: empty values are left out or written,
/// depending on their type.
struct Maker<'a> {
    types: &'a Types,
    choices: std::slice::Iter<'a, u8>,
}

impl Maker<'_> {
    fn chance(&mut self, of: u8) -> u8 {
        self.choices.next().map_or(1, |choice| choice % of)
    }

    /// A struct as it is stated, and as it is stored.
    fn made(&mut self, name: &str, levels: usize) -> (Value, Value) {
        let (mut stated, mut stored) = (json!({}), json!({}));
        for field in &self.types[name].1 {
            let (name, kind, presence) = (field[0], field[1], field[2]);
            let chance = self.chance(4);
            let is_key = ["name", "containerPort", "port", "uid", "ip", "mountPath", "devicePath"]
                .contains(&name)
                || ["topologyKey", "whenUnsatisfiable", "protocol"].contains(&name)
                || (presence == "e" && kind.starts_with("int"));
            let (said, kept) = match (chance, empty(kind, self.types)) {
                _ if name == "managedFields" => continue,
                (_, Some(_)) if is_key && !self.types.contains_key(kind) => {
                    let key = if kind == "string" { json!("x") } else { json!(80) };
                    (key.clone(), key)
                }
                (0, Some(empty)) => (empty.clone(), empty),
                (1, _) if levels > 0 => self.full(kind, levels - 1),
                (_, empty) => {
                    if presence == "e" && !kind.starts_with("[]") {
                        stored[name] = empty.unwrap_or_default();
                    }
                    continue;
                }
            };
            if presence != "o" || !is_empty(&kept) || self.types.contains_key(kind) {
                stored[name] = kept;
            }
            stated[name] = said;
        }
        (stated, stored)
    }

    /// A non-empty value of a type.
    fn full(&mut self, kind: &str, levels: usize) -> (Value, Value) {
        if let Some(of) = kind.strip_prefix("[]") {
            let (stated, stored) = self.full(of, levels);
            return (json!([stated]), json!([stored]));
        }
        if kind.starts_with("{}") {
            let map = json!({"a": "", "b": "x"});
            return (map.clone(), map);
        }
        let plain = match kind {
            "bool" => json!(true),
            "int32" | "int64" | "int-or-string" => json!(7),
            _ if self.types.contains_key(kind) => return self.made(kind, levels),
            _ => json!("x"),
        };
        (plain.clone(), plain)
    }
}

proptest! {
    /// So no child is applied again and again.
    #[test]
    fn api_server_defaults_are_no_difference(
        root in prop::sample::select(&ROOTS[..3]),
        choices in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let types = types();
        let mut maker = Maker { types: &types, choices: choices.iter() };
        let (stated, stored) = maker.made(root, 6);
        let object = |spec: Value| json!({"metadata": {"annotations": {APPLIED: "1"}}, "spec": spec});
        let (stored, stated) = (object(stored), object(stated));
        prop_assert!(is_applied(&stored, &stated), "{stated:#}\nis stored as\n{stored:#}");
    }
}
