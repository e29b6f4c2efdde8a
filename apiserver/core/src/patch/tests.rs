use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::blocking::LARGE;
use crate::kinds::Kinds;

/// Loaded once: property tests need it a few hundred times.
static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::builtin);

fn pod_schema() -> Schema {
    KINDS.by_kind("", "v1", "Pod").unwrap().schema().clone()
}

/// The cases of RFC 7386, appendix A.
#[test]
fn merge_patch_follows_the_table_of_the_rfc() {
    let cases = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ];
    for (original, patch, expected) in cases {
        let mut value = original.clone();
        merge(&mut value, &patch);
        assert_eq!(value, expected, "{original} patched with {patch}");
    }
}

fn pod() -> Value {
    json!({"spec": {
        "containers": [
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
            {"name": "b", "image": "b:1"},
        ],
        "tolerations": [{"key": "k"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }, "metadata": {"finalizers": ["x/y"], "labels": {"l": "1"}}})
}

/// Name of the case, patch, path in the result, value there.
type Case = (&'static str, Value, &'static str, Value);

fn check(cases: &[Case]) {
    for (name, patch, pointer, expected) in cases {
        let patched = strategic_merge_patch(&pod_schema(), &pod(), patch).unwrap();
        assert_eq!(patched.pointer(pointer), Some(expected), "{name}");
    }
}

#[test]
fn strategic_patches_merge_lists_by_key() {
    check(&[
        (
            "an item changes",
            json!({"spec": {"containers": [{"name": "b", "image": "b:2"}]}}),
            "/spec/containers/1/image",
            json!("b:2"),
        ),
        (
            "an item of an inner list is removed",
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}]}]}}),
            "/spec/containers/0/env",
            json!([{"name": "Y", "value": "2"}]),
        ),
        (
            "an item is added before those that the patch does not name",
            json!({"spec": {"containers": [{"name": "c", "image": "c:1"}]}}),
            "/spec/containers/0/name",
            json!("c"),
        ),
        (
            "a list is replaced",
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c", "image": "c:1"}]}}),
            "/spec/containers",
            json!([{"name": "c", "image": "c:1"}]),
        ),
        (
            "a list without merge strategy is replaced",
            json!({"spec": {"tolerations": [{"key": "other"}]}}),
            "/spec/tolerations",
            json!([{"key": "other"}]),
        ),
    ]);
}

#[test]
fn strategic_patches_follow_their_directives() {
    check(&[
        (
            "scalars are added",
            json!({"metadata": {"finalizers": ["a/b", "x/y"]}}),
            "/metadata/finalizers",
            json!(["a/b", "x/y"]),
        ),
        (
            "scalars are deleted",
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/y"]}}),
            "/metadata/finalizers",
            json!([]),
        ),
        (
            "the order is set",
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "b", "image": "b:3"}],
            }}),
            "/spec/containers/0/image",
            json!("b:3"),
        ),
        (
            "keys are retained",
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
            "/spec/volumes/0",
            json!({"name": "v", "hostPath": {"path": "/x"}}),
        ),
        ("null removes", json!({"metadata": {"labels": {"l": null}}}), "/metadata/labels", json!({})),
        (
            "an object is replaced",
            json!({"metadata": {"labels": {"$patch": "replace", "n": "2"}}}),
            "/metadata/labels",
            json!({"n": "2"}),
        ),
    ]);
}

#[test]
fn an_item_without_its_key_is_refused() {
    let patch = json!({"spec": {"containers": [{"image": "x"}]}});
    let error = strategic_merge_patch(&pod_schema(), &json!({}), &patch).unwrap_err();
    assert_eq!(error.to_string(), "map: map[image:x] does not contain declared merge key: name");
    assert_eq!(error.code(), 500);
}

#[test]
fn json_patches_are_as_lenient_as_those_of_kube_apiserver() {
    let object = json!({"a": [1, 2], "b": {"c": 1}});
    let cases = [
        (r#"{"op":"remove","path":"/a/-1"}"#, json!({"a": [1], "b": {"c": 1}})),
        (r#"{"op":"replace","path":"/a/-2","value":7}"#, json!({"a": [7, 2], "b": {"c": 1}})),
        (r#"{"op":"add","path":"/a/-1","value":3}"#, json!({"a": [1, 2, 3], "b": {"c": 1}})),
        (r#"{"op":"move","from":"/a/0","path":"/a/-1"}"#, json!({"a": [2, 1], "b": {"c": 1}})),
        (r#"{"op":"replace","path":"/b/d","value":2}"#, json!({"a": [1, 2], "b": {"c": 1, "d": 2}})),
        (r#"{"op":"test","path":"/b/d","value":null}"#, object.clone()),
    ];
    for (operation, expected) in cases {
        assert_eq!(json_patch(&object, format!("[{operation}]").as_bytes()), Ok(expected), "{operation}");
    }
    for refused in [r#"{"op":"remove","path":"/a/-3"}"#, r#"{"op":"replace","path":"/a/2","value":1}"#] {
        assert_eq!(json_patch(&object, format!("[{refused}]").as_bytes()), Err(PatchError::Rejected));
    }
    assert_eq!(json_patch(&object, b"null"), Ok(object));
}

#[test]
fn json_patches_are_bounded_and_all_or_nothing() {
    let object = json!({"a": [1, 2], "b": {"c": 1}});
    let patched = json_patch(
        &object,
        br#"[{"op":"test","path":"/b/c","value":1},{"op":"add","path":"/a/-","value":3}]"#,
    );
    assert_eq!(patched.unwrap(), json!({"a": [1, 2, 3], "b": {"c": 1}}));
    let failed =
        json_patch(&object, br#"[{"op":"remove","path":"/a"},{"op":"test","path":"/b/c","value":2}]"#)
            .unwrap_err();
    assert_eq!(failed.code(), 422);
    assert_eq!(json_patch(&object, b"{}").unwrap_err().code(), 400);
    assert_eq!(json_patch(&object, br#"[{"op":"jump"}]"#).unwrap_err().code(), 422);
    assert_eq!(json_patch(&object, b"[7]").unwrap_err().code(), 400);
    let many = json!(vec![json!({"op": "test", "path": "/b/c", "value": 1}); OPERATIONS_MAX + 1]).to_string();
    assert_eq!(json_patch(&object, many.as_bytes()).unwrap_err().code(), 413);
    let doubling = json!(vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 60]).to_string();
    assert_eq!(json_patch(&object, doubling.as_bytes()).unwrap_err(), PatchError::CopiesTooMuch);
    let nesting = json!(vec![json!({"op": "copy", "from": "", "path": "/b/x"}); 200]).to_string();
    assert_eq!(json_patch(&object, nesting.as_bytes()).unwrap_err().code(), 422);
}

/// A short patch that names a large value repeatedly fails after a bounded number of bytes.
#[test]
fn amount_that_one_patch_moves_and_merges_is_bounded() {
    let large = "x".repeat(PATCHED_LEN_MAX / 2);
    let object = json!({"data": {"a": large}, "list": vec![0; 100_000]});
    let patch = |operation: Value, count: usize| {
        json_patch(&object, json!(vec![operation; count]).to_string().as_bytes())
    };
    let to_and_fro = |times: usize| {
        let pair = [("/data", "/x"), ("/x", "/data")];
        let moves = pair.map(|(from, path)| json!({"op": "move", "from": from, "path": path}));
        json_patch(&object, Value::from(vec![moves; times].concat()).to_string().as_bytes())
    };
    assert_eq!(to_and_fro(8).as_ref(), Ok(&object));
    assert_eq!(to_and_fro(100).err(), Some(PatchError::TooMuchWork));
    let inserted = patch(json!({"op": "add", "path": "/list/0", "value": 0}), 5_000);
    assert_eq!(inserted.err(), Some(PatchError::TooMuchWork));
    let appended = patch(json!({"op": "add", "path": "/list/-", "value": 0}), 5_000).unwrap();
    assert_eq!(appended["list"].as_array().map(Vec::len), Some(105_000));

    let object = json!({"spec": {"containers": [{"name": "a", "image": large}]}});
    let named = |count: usize| {
        let items = vec![json!({"name": "a", "tty": true}); count];
        strategic_merge_patch(&pod_schema(), &object, &json!({"spec": {"containers": items}}))
    };
    assert_eq!(named(2).unwrap()["spec"]["containers"][0]["tty"], true);
    assert_eq!(named(4).err(), Some(PatchError::TooMuchWork));
    assert_eq!(PatchError::TooMuchWork.code(), 413);
}

/// Sets are merged, reduced and compared without searching one for each item of the other, which would take an hour.
#[test]
fn large_sets_are_merged_in_linear_time() {
    const ITEMS: usize = 200_000;
    let names = |first: usize| -> Value {
        (first..first + ITEMS).map(|number| Value::from(number.to_string())).collect()
    };
    let pod = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let (old, new) = (pod(names(0)), pod(names(ITEMS / 2)));
    let schema = pod_schema();
    let merged = strategic_merge_patch(&schema, &old, &new).unwrap();
    assert_eq!(merged["metadata"]["finalizers"].as_array().map(Vec::len), Some(ITEMS / 2 * 3));
    let patch = strategic_merge_difference(&schema, &old, &new);
    let reduced = strategic_merge_patch(&schema, &old, &patch).unwrap();
    assert_eq!(reduced["metadata"]["finalizers"].as_array().map(Vec::len), Some(ITEMS));
    let keys: Vec<Value> = (0..ITEMS).map(|number| number.to_string().into()).collect();
    let mut labels: serde_json::Map<String, Value> =
        (0..ITEMS).map(|number| (number.to_string(), "".into())).collect();
    labels.insert("$retainKeys".to_owned(), keys.into());
    strategic_merge_patch(&schema, &json!({}), &json!({"metadata": {"labels": labels}})).unwrap();
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(0)),
        Just(json!(0.0)),
        Just(json!(-0.0)),
        Just(json!("0")),
        Just(Value::Null),
        Just(json!({"a": 0, "b": 1})),
        Just(json!({"b": 1, "a": 0.0})),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    let keys = prop_oneof![
        Just("spec"),
        Just("containers"),
        Just("name"),
        Just("env"),
        Just("metadata"),
        Just("finalizers"),
        Just("$patch"),
        Just("$retainKeys"),
        Just("$setElementOrder/containers"),
        Just("$deleteFromPrimitiveList/finalizers"),
        Just("image"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop_oneof![Just("delete"), Just("replace"), Just("merge"), Just("a"), Just("b"), Just("name")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((keys.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

/// Names without repetition, so that lists are valid as associative lists.
fn containers() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::btree_map("[a-e]", "[a-z]{1,3}", 0..5)
        .prop_map(|map| map.into_iter().map(|(name, image)| json!({"name": name, "image": image})).collect())
}

/// The text of a value that takes many times its length in memory.
fn many_parts(parts: usize) -> String {
    format!("[{}0]", r#"{"":0},"#.repeat(parts))
}

/// An object with this innermost value.
fn deep(levels: usize, bottom: &str) -> Value {
    let text = format!("{}{bottom}{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn json_patch_copies_are_counted_by_their_memory() {
    let copies = |parts: usize, count: usize| {
        let copies: String =
            (0..count).map(|n| format!(r#",{{"op":"copy","from":"/x","path":"/x{n}"}}"#)).collect();
        let patch = format!(r#"[{{"op":"add","path":"/x","value":{}}}{copies}]"#, many_parts(parts));
        json_patch(&json!({}), patch.as_bytes()).map(|_| patch.len())
    };
    assert_eq!(copies(7_000, 60), Err(PatchError::CopiesTooMuch), "50 KB would become 270 MiB");
    assert!(copies(500, 9).is_ok() && copies(500, 10) == Err(PatchError::CopiesTooMuch));
    assert!(copies(0, 5_000).is_ok(), "small ones are not many");
    let text = json!({"x": "a".repeat(COPIED_MAX / 4)});
    let copy = |n: usize| json!({"op": "copy", "from": "/x", "path": format!("/x{n}")});
    let patched = json_patch(&text, Value::from_iter((0..5).map(copy)).to_string().as_bytes());
    assert_eq!(patched, Err(PatchError::CopiesTooMuch), "texts count, too");
}

#[test]
fn copy_limit_of_a_patch_is_known_before_parsing() {
    let plain = br#"[{"op":"replace","path":"/a","value":1}]"#;
    assert_eq!(copied_max(plain), 0);
    for copy in
        [r#"[{"op":"copy","from":"/a","path":"/b"}]"#, r#"[{"op":"\u0063opy","from":"/a","path":"/b"}]"#]
    {
        assert_eq!(copied_max(copy.as_bytes()), COPIED_MAX, "{copy}");
        assert!(json_patch(&json!({"a": 1}), copy.as_bytes()).is_ok());
    }
    assert!(operations_work(plain, 10_000) < LARGE, "one operation on an object is little work");
    let many = format!("[{}0]", r#"{"op":"move","from":"/a","path":"/b"},"#.repeat(1000));
    assert!(operations_work(many.as_bytes(), 10_000) > LARGE, "many of them are not");
}

#[test]
fn merge_holds_deeply_nested_values_once() {
    if !alone(module_path!(), "merge_holds_deeply_nested_values_once") {
        return;
    }
    let (old, schema) = (deep(100, &format!(r#"{{"b":{}}}"#, many_parts(10_000))), pod_schema());
    let patch = deep(100, r#"{"c":1}"#);
    let growth = Growth::begin();
    let patched = strategic_merge_patch(&schema, &old, &patch).unwrap();
    let grown = growth.most() / 1024 / 1024;
    assert!(grown < 64, "{grown} MiB");
    assert_eq!(patched, merge_patch(&old, &patch).unwrap());
}

proptest! {
    /// The reference result: each item is searched for among all others.
    #[test]
    fn sets_are_merged_and_reduced_by_equality(
        old in prop::collection::vec(scalar(), 0..6),
        new in prop::collection::vec(scalar(), 0..6),
    ) {
        let mut united = old.clone();
        for item in &new {
            if !united.contains(item) {
                united.push(item.clone());
            }
        }
        prop_assert_eq!(strategic::scalars(&old, &new), united);
        let mut reduced = json!({"l": old}).as_object().cloned().unwrap_or_default();
        strategic::delete_from("l", &Value::from(new.clone()), &mut reduced);
        let left: Vec<Value> = old.iter().filter(|item| !new.contains(item)).cloned().collect();
        prop_assert_eq!(&reduced["l"], &Value::from(left));
    }

    #[test]
    fn arbitrary_patches_never_panic(object in json_value(), patch in json_value()) {
        let schema = pod_schema();
        let _ = strategic_merge_patch(&schema, &object, &patch);
        let _ = merge_patch(&object, &patch);
        let _ = json_patch(&object, patch.to_string().as_bytes());
    }

    #[test]
    fn strategic_patch_is_idempotent(old in containers(), new in containers()) {
        let schema = pod_schema();
        let object = json!({"spec": {"containers": old}});
        let patch = json!({"spec": {"containers": new}});
        let once = strategic_merge_patch(&schema, &object, &patch).unwrap();
        let twice = strategic_merge_patch(&schema, &once, &patch).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn merge_patch_result_contains_the_patch(object in json_value(), patch in json_value()) {
        let mut patched = object;
        merge(&mut patched, &patch);
        let mut again = patched.clone();
        merge(&mut again, &patch);
        prop_assert_eq!(patched, again);
    }
}
