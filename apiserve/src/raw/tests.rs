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
fn refuses_what_is_no_object() {
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
fn replaces_the_api_version_only_when_it_differs() {
    let body = br#"{"kind":"A","apiVersion":"x.io/v1","metadata":{}}"#;
    assert_eq!(with_api_version(body, "x.io/v1"), None);
    assert_eq!(
        with_api_version(body, "x.io/v2").unwrap(),
        r#"{"kind":"A","apiVersion":"x.io/v2","metadata":{}}"#
    );
    assert_eq!(with_api_version(b"junk", "v1"), None);
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
            prop::collection::btree_map("(metadata|resourceVersion|apiVersion|[a-z]{1,3})", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn setting_the_revision_in_place_equals_setting_it_in_the_parsed_object(
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
}
