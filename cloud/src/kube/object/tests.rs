use proptest::prelude::*;
use serde_json::json;

use super::*;
use tombolo_apicore::tree::TREE_BYTES_MAX;

/// Number of empty strings that a list may have; each is counted as 64 bytes.
const STRINGS_MAX: usize = LARGE_TREE_BYTES_MAX / 64;

#[test]
fn identity_is_read_and_missing_parts_are_named() {
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "42"});
    let object = RawObject::new(json!({"metadata": metadata}));
    let resource = Resource::new("", "v1", "pods");
    assert_eq!(object.key(&resource), ObjectKey::new(resource, "shop", "web"));
    assert_eq!(object.uid().expect("uid"), Uid::parse("u-1").expect("valid"));
    assert_eq!(object.revision().expect("revision"), CloudRevision(42));
    let nameless = RawObject::new(json!({"metadata": {"name": "web", "namespace": "shop"}}));
    assert_eq!(nameless.uid().expect_err("none").to_string(), "object shop/web has no usable metadata.uid");
    assert!(nameless.revision().is_err());
}

/// An API server stores JSON that is nested ten thousand levels deep; serde_json reads 128 levels.
#[test]
fn too_deeply_nested_object_affects_no_other() {
    let deep = |levels: usize| format!("{}{}", r#"{"f:a":"#.repeat(levels), "0") + &"}".repeat(levels);
    let object = |name: &str, fields: &str, data: &str| {
        let metadata =
            format!(r#"{{"name":"{name}","uid":"u","resourceVersion":"4","managedFields":{fields}}}"#);
        format!(r#"{{"kind":"Thing","metadata":{metadata},"data":{data}}}"#)
    };
    let most = deep(LEVELS_MAX - 1);
    let items = [
        object("a", &deep(9000), "7"),
        object("b", "[]", &deep(200)),
        object("c", "[]", &most),
        object("d", "[]", &deep(LEVELS_MAX)),
    ];
    let list = format!(r#"{{"metadata":{{}},"items":[{}]}}"#, items.join(","));
    let list: kube::core::ObjectList<RawObject> = serde_json::from_str(&list).expect("a list");
    let unread: Vec<bool> = list.items.iter().map(RawObject::is_unread).collect();
    assert_eq!(unread, [false, true, false, true]);
    assert!(list.items.iter().all(|object| object.uid().is_ok()), "the object's identity is known");
    let passed_on = format!(r#"[{{"items":[{}]}}]"#, list.items[2].value());
    assert!(serde_json::from_str::<Value>(&passed_on).is_ok());
    let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "4"});
    let whole = json!({"kind": "Thing", "metadata": metadata, "data": 7});
    assert_eq!(*list.items[0].value(), whole, "managedFields are left out");
    let error = list.items[1].clone().into_whole().expect_err("not read").to_string();
    assert!(error.contains("/b cannot be read") && error.contains("recursion"), "{error}");
    let event = format!(r#"{{"type":"ADDED","object":{}}}"#, items[0]);
    let event: kube::core::WatchEvent<RawObject> = serde_json::from_str(&event).expect("an event");
    assert!(matches!(event, kube::core::WatchEvent::Added(object) if *object.value() == whole));
}

#[test]
fn managed_fields_are_known_by_name_at_any_depth() {
    let deep = "{\"f:a\":".repeat(9000) + "0" + &"}".repeat(9000);
    let writer =
        format!(r#"{{"manager":"m","operation":"Apply","fieldsV1":{{"f:spec":{deep},"f:status":{{}}}}}}"#);
    let text = format!(r#"{{"metadata":{{"name":"a","managedFields":[{writer},{{"manager":"n"}}]}}}}"#);
    let object: RawObject = serde_json::from_str(&text).expect("an object");
    let fields = json!({"f:spec": {}, "f:status": {}});
    let expected = json!([{"manager": "m", "operation": "Apply", "fieldsV1": fields}, {"manager": "n"}]);
    assert_eq!(object.value()["metadata"]["managedFields"], expected);
}

/// An API server stores a list of half a million empty strings from any user who may write the object.
#[test]
fn object_that_would_expand_too_much_is_not_parsed_and_affects_no_other() {
    let list = |count: usize| format!("[{}0]", r#""","#.repeat(count));
    let object = |name: &str, labels: &str, status: &str| {
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"4","labels":{labels}}},"status":{status}}}"#
        )
    };
    let text = format!(r#""{}""#, r#",[{\""#.repeat(200_000));
    let labels: Vec<String> = (0..STRINGS_MAX).map(|number| format!(r#""l{number}":"""#)).collect();
    for (name, labels, status, is_read) in [
        ("many", "{}", list(500_000), false),
        ("few", "{}", list(STRINGS_MAX - 100), true),
        ("text", "{}", text, true),
        ("labels", &*format!("{{{}}}", labels.join(",")), "{}".to_owned(), false),
    ] {
        let object: RawObject = serde_json::from_str(&object(name, labels, &status)).expect("an object");
        assert_eq!((!object.is_unread(), object.metadata.name.as_deref()), (is_read, Some(name)));
        assert_eq!(object.revision().expect("known").0, 4, "{name}");
        let metadata = &object.value()["metadata"];
        assert_eq!(
            metadata.get("labels").is_some(),
            is_read || name == "many",
            "{name} is not read, but keeps its identity and its labels if they are few"
        );
    }
    let writers = format!("[{}{{}}]", "{},".repeat(STRINGS_MAX));
    let metadata = format!(r#"{{"name":"a","uid":"u","managedFields":{writers}}}"#);
    let object: RawObject =
        serde_json::from_str(&format!(r#"{{"metadata":{metadata}}}"#)).expect("an object");
    assert!(object.uid().is_ok() && object.value()["metadata"].get("managedFields").is_none());
}

/// A node writes its Node, and every watcher of the Node reads it.
#[test]
fn kinds_that_nodes_write_have_a_smaller_parse_limit() {
    let object = |part: &str, count: usize| {
        format!(r#"{{"metadata":{{"name":"n","uid":"u"}},"status":{{"x":[{}0]}}}}"#, part.repeat(count))
    };
    for (part, most) in [(r#""","#, 32_000), (r#"{"":0},"#, 2_900), (r#"{"a":{}},"#, 1_500)] {
        let read = |count| {
            let object = RawObject::read(&object(part, count), TREE_BYTES_MAX).expect("an object");
            (object.is_unread(), object.metadata.name)
        };
        assert_eq!(read(most), (false, Some("n".to_owned())), "{part}");
        assert_eq!(read(most * 5 / 4), (true, Some("n".to_owned())), "{part}");
    }
}

#[test]
fn node_references_and_owner_of_an_unparsed_pod_are_known() {
    let many = (0..STRINGS_MAX).map(|number| format!(r#","l{number}":"""#)).collect::<String>();
    let pod = |annotation: &str, spec: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"p","uid":"u","annotations":{{"{annotation}":""{many}}}}},"spec":{spec}}}"#
        );
        let pod: RawObject = serde_json::from_str(&text).expect("an object");
        assert!(pod.is_unread());
        pod.into_value()
    };
    let spec = json!({"nodeName": "n", "volumes": [{"secret": {"secretName": "s"}}]});
    let metadata = json!({"name": "p", "uid": "u"});
    assert_eq!(pod("x", &spec.to_string()), json!({"metadata": metadata, "spec": spec}));
    assert_eq!(pod(MIRROR, "{}")["metadata"]["annotations"], json!({MIRROR: ""}));
    let large = format!(r#"{{"nodeName":"n","args":[{}0]}}"#, "0,".repeat(STRINGS_MAX));
    assert_eq!(pod("x", &large), json!({"metadata": metadata, "spec": {"nodeName": "n"}}));
    let grown = format!(r#"{{"containers":[{{}}],"ephemeralContainers":[{}0]}}"#, "0,".repeat(STRINGS_MAX));
    assert_eq!(pod("x", &grown), json!({"metadata": metadata, "spec": {"containers": [{}]}}));
}

#[test]
fn unparsed_pod_being_deleted_keeps_its_smaller_parts() {
    let many = (0..STRINGS_MAX).map(|number| format!(r#","l{number}":"""#)).collect::<String>();
    let read = |marks: &str, labels: &str, annotations: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"p","uid":"u",{marks}"finalizers":["f"],"labels":{{"a":"b"{labels}}},"annotations":{{"c":"d"{annotations}}}}},"spec":{{"nodeName":"n"}},"status":[{}0]}}"#,
            "0,".repeat(STRINGS_MAX)
        );
        let pod: RawObject = serde_json::from_str(&text).expect("an object");
        assert!(pod.is_unread());
        pod.into_value()
    };
    let marks = r#""deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":30,"#;
    let mut metadata = json!({"name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 30, "finalizers": ["f"], "labels": {"a": "b"}, "annotations": {"c": "d"}});
    let spec = json!({"nodeName": "n"});
    assert_eq!(read(marks, "", ""), json!({"metadata": metadata, "spec": spec}));
    json_patch::merge(&mut metadata, &json!({ "labels": null }));
    assert_eq!(read(marks, &many, ""), json!({"metadata": metadata, "spec": spec}));
    let running = json!({"name": "p", "uid": "u", "labels": {"a": "b"}});
    assert_eq!(read("", "", ""), json!({"metadata": running, "spec": spec}));
}

/// JSON of all kinds as text: duplicate fields, names with escapes, deep nesting.
fn json_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_filter("JSON", |value| value.is_finite()).prop_map(|value| format!("{value:e}")),
        any::<String>().prop_map(|text| json!(text).to_string()),
        Just(r#""\u003ca\u00e9\ud83d\ude00\/""#.to_owned()),
        (110_usize..130).prop_map(|levels| "[".repeat(levels) + &"]".repeat(levels)),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let members = prop::collection::vec((name_text(), inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(" ,"))),
            members.prop_map(|members| object_text(&members)),
        ]
    })
}

fn name_text() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 8] =
        ["managedFields", "fieldsV1", "name", "uid", "na\\u006de", "metad\\u0061ta", "a", ""];
    prop_oneof![
        prop::sample::select(&KNOWN[..]).prop_map(|name| format!("\"{name}\"")),
        any::<String>().prop_map(|name| json!(name).to_string())
    ]
}

fn object_text(members: &[(String, String)]) -> String {
    let members: Vec<_> = members.iter().map(|(name, value)| format!("{name} : {value}")).collect();
    format!("{{{}}}", members.join(","))
}

proptest! {
    /// An object is the same in whichever way its text is parsed, and equal to what serde_json reads, except for
    /// managedFields.
    #[test]
    fn object_is_equal_in_both_parse_paths(
        mut metadata in prop::collection::vec((name_text(), json_text()), 0..6),
        mut members in prop::collection::vec((name_text(), json_text()), 0..6),
        index in any::<prop::sample::Index>(),
    ) {
        metadata.push((r#""uid""#.to_owned(), r#""u""#.to_owned()));
        let index = index.index(members.len() + 1);
        members.insert(index, (r#""metadata""#.to_owned(), object_text(&metadata)));
        let text = object_text(&members);
        let careful = read_with_care(&text, LARGE_TREE_BYTES_MAX);
        let short = read_short(&text, TREE_BYTES_MAX);
        let plain: Option<Value> = serde_json::from_str(&text).ok();
        if let Some(short) = short {
            let careful = careful.expect("it is read at once");
            prop_assert!(careful.unread.is_none());
            prop_assert_eq!(careful.value(), &Value::from(short.clone()));
            let without = |mut object: Value| {
                object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
                object
            };
            prop_assert_eq!(without(short.into()), without(plain.expect("JSON")));
        } else if let (Ok(careful), Some(_)) = (careful, plain) {
            prop_assert!(careful.unread.is_some(), "what is not read at once is nested too deep: {}", text);
        }
    }
}

/// A measurement: `cargo test -p tombolo-cloud --lib -- --ignored --nocapture time_to_read_an_ordinary_pod`.
#[test]
#[ignore = "a measurement"]
fn time_to_read_an_ordinary_pod() {
    let fields: Map<String, Value> =
        (0..40).map(|number| (format!("f:field{number}"), json!({"f:a": {}, "f:b": {"f:c": {}}}))).collect();
    let writer = json!({"manager": "kubelet", "operation": "Update", "fieldsV1": fields});
    let container = json!({"name": "c", "image": "registry.example/app:1.0", "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let metadata = json!({"name": "web-5d9c7b6f4-abcde", "namespace": "shop", "uid": "u", "resourceVersion": "4",
        "labels": {"app": "web"}, "managedFields": [writer.clone(), writer]});
    let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": vec![container; 8]}, "status": {"phase": "Running"}})
    .to_string();
    let time = |read: &dyn Fn()| {
        let begun = std::time::Instant::now();
        (0..2000).for_each(|_| read());
        begun.elapsed() / 2000
    };
    for _ in 0..3 {
        let short = time(&|| drop(read_short(&text, TREE_BYTES_MAX).expect("an object")));
        let careful = time(&|| drop(read_with_care(&text, LARGE_TREE_BYTES_MAX).expect("an object")));
        println!("{} bytes: at once {short:?}, with care {careful:?}", text.len());
    }
}

#[test]
fn json_without_metadata_is_no_object() {
    assert!(serde_json::from_str::<RawObject>("{}").is_err());
    assert!(serde_json::from_str::<RawObject>("[]").is_err());
}
