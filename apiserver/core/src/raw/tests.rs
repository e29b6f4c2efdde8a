use proptest::prelude::*;

use super::*;

fn revised(text: &str) -> String {
    String::from_utf8(with_revision(text.as_bytes(), Revision(7)).unwrap().to_vec()).unwrap()
}

#[test]
fn sets_the_revision_wherever_it_is() {
    let table = [
        (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
        (r#"{"metadata":{"resourceVersion":null}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
        (r#"{"metadata":{ }}"#, r#"{"metadata":{"resourceVersion":"7" }}"#),
        (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"resourceVersion":"7","name":"a"}}"#),
        (
            r#"{"a":{"metadata":{"resourceVersion":"1"}},"metadata":{"x":{"resourceVersion":"2"},"resourceVersion": "33"},"b":1}"#,
            r#"{"a":{"metadata":{"resourceVersion":"1"}},"metadata":{"x":{"resourceVersion":"2"},"resourceVersion": "7"},"b":1}"#,
        ),
    ];
    for (given, wanted) in table {
        assert_eq!(revised(given), wanted);
    }
}

#[test]
fn refuses_what_is_not_an_object() {
    for text in [
        "",
        "[]",
        "{}",
        "null",
        r#"{"metadata":null}"#,
        r#"{"metadata":[]}"#,
        r#"{"metadata":3}"#,
        r#"["v1",{}]"#,
        r#"{"metadata":["1"]}"#,
    ] {
        assert!(with_revision(text.as_bytes(), Revision(1)).is_err(), "{text}");
    }
}

#[test]
fn texts_begin_with_the_type_and_their_parts_are_found() {
    let object = serde_json::json!({
        "data": {"kind": "x"}, "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "annotations": {"resourceVersion": "1"}, "resourceVersion": "7"},
    });
    let text = object_text(&object);
    let layout = Layout::of(&text).unwrap();
    assert_eq!(
        std::str::from_utf8(&text[layout.rest()..]).unwrap(),
        r#""metadata":{"annotations":{"resourceVersion":"1"},"name":"a","resourceVersion":"7"},"data":{"kind":"x"}}"#
    );
    let metadata: serde_json::Value = serde_json::from_slice(layout.metadata(&text)).unwrap();
    assert_eq!(metadata, object["metadata"]);
    assert_eq!(layout.revised(&text, Revision(1000)), with_revision(&text, Revision(1000)).unwrap());
    assert_eq!(
        without_type(&text).unwrap(),
        [b"{", &text[layout.rest()..]].concat(),
        "both ways to leave the type out agree"
    );
}

#[test]
fn other_texts_have_no_layout() {
    for text in [
        "",
        "[]",
        r#"{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"1"}}"#,
        r#"{"kind":"A\"","apiVersion":"v1","metadata":{"resourceVersion":"1"}}"#,
        r#"{"kind":"A","apiVersion":"v1","data":{},"metadata":{"resourceVersion":"1"}}"#,
        r#"{"kind":"A","apiVersion":"v1","metadata":[{"resourceVersion":"1"}]}"#,
        r#"{"kind":"A","apiVersion":"v1","metadata":{}}"#,
        r#"{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"1""#,
        r#"{"kind":"A","apiVersion":"v1""#,
    ] {
        assert_eq!(Layout::of(text.as_bytes()), None, "{text}");
    }
    assert_eq!(without_type(b"[1]"), None);
    assert_eq!(without_type(b"{"), None);
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "[a-z\"\\\\{}:,\u{e9}]{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(
                "(metadata|resourceVersion|apiVersion|kind|[a-z]{1,3}|\"|\\\\)",
                inner,
                0..4
            )
            .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn revision_set_in_place_equals_revision_set_in_the_parsed_object(
        mut object in json(), number in any::<u64>(), pretty in any::<bool>()
    ) {
        let text = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) }.unwrap();
        let outcome = with_revision(&text, Revision(number));
        let fits = object.get("metadata").is_some_and(serde_json::Value::is_object);
        prop_assert_eq!(outcome.is_ok(), fits);
        if let Ok(revised) = outcome {
            object["metadata"]["resourceVersion"] = number.to_string().into();
            let found: serde_json::Value = serde_json::from_slice(&revised).unwrap();
            prop_assert_eq!(found, object);
            prop_assert_eq!(revision(&revised), number.to_string());
        }
    }

    #[test]
    fn texts_are_rewritten_without_losing_a_member(object in json(), pretty in any::<bool>()) {
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        prop_assert_eq!(&read(&object_text(&object)), &object);
        let text = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) }.unwrap();
        let mut wanted = object;
        let members = wanted.as_object_mut();
        prop_assert_eq!(without_type(&text).is_some(), members.is_some());
        if let Some(members) = members {
            members.remove("kind");
            members.remove("apiVersion");
            prop_assert_eq!(read(&without_type(&text).unwrap()), wanted);
        }
    }
}

#[test]
fn the_head_comes_first_and_the_rest_stays_in_order() {
    let moved = |text: &'static str| head_first(&Bytes::from_static(text.as_bytes()));
    let sorted = r#"{"addressType":"IPv4", "apiVersion":"v1","z":[1, 2.50],"kind":"K","metadata":{"resourceVersion":"7","x":1},"a":null}"#;
    let first = moved(sorted).unwrap();
    assert_eq!(
        first,
        r#"{"kind":"K","apiVersion":"v1","metadata":{"resourceVersion":"7","x":1},"addressType":"IPv4","z":[1, 2.50],"a":null}"#
    );
    assert!(Layout::of(&first).is_some());
    assert_eq!(head_first(&first).unwrap().as_ptr(), first.as_ptr(), "what is in order is not copied");
    let partly = r#"{"kind":"K","apiVersion":"v1","spec":{},"metadata":{}}"#;
    assert_eq!(moved(partly).unwrap(), r#"{"kind":"K","apiVersion":"v1","metadata":{},"spec":{}}"#);
    assert_eq!(moved(r#"{"b":1,"a":2}"#).unwrap(), r#"{"b":1,"a":2}"#);
    for bad in ["", "[]", "null", "{", r#"{"kind":"K""#] {
        assert_eq!(moved(bad), None, "{bad}");
    }
}
