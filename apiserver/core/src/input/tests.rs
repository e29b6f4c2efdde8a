use super::*;

#[test]
fn media_types_decide_how_a_body_is_read() {
    assert_eq!(parse("", br#"{"a":1}"#).unwrap()["a"], 1);
    assert_eq!(parse("application/yaml", b"a: 1\nb: [x]").unwrap()["b"][0], "x");
    assert_eq!(parse("application/yaml", br#"{"a": 1}"#).unwrap()["a"], 1);
    assert_eq!(parse("application/vnd.kubernetes.protobuf", b"k8s").unwrap_err().code.as_u16(), 415);
    assert_eq!(patch_type("application/json", false).unwrap_err().code.as_u16(), 415);
    assert_eq!(patch_type("application/merge-patch+json", false).unwrap(), PatchType::Merge);
}

#[test]
fn duplicate_yaml_keys_are_reported_with_their_line() {
    let text = b"\na: 1\nspec:\n  b: x\n  b: z\n  c:\n  - d: 1\n    d:\n      e: 2\na: 2\n";
    let (value, strict) = parse_yaml(text).unwrap();
    assert_eq!(value, serde_json::json!({"a": 2, "spec": {"b": "z", "c": [{"d": {"e": 2}}]}}));
    let lines = ["line 5: key \"b\" already set in map", "line 9: key \"d\" already set in map"];
    assert_eq!(strict.warnings().take(2).collect::<Vec<_>>(), lines);
    assert!(strict.message().ends_with("\n  line 10: key \"a\" already set in map"), "{}", strict.message());
}

#[test]
fn yaml_with_too_many_values_is_refused_in_favour_of_json() {
    let items = crate::tree::YAML_NODES_MAX;
    // The list itself counts as one node.
    let fits = parse("application/yaml", "- 1\n".repeat(items - 1).as_bytes()).expect("as many as fit");
    assert_eq!(fits.as_array().map(Vec::len), Some(items - 1));
    let error = parse("application/yaml", "- 1\n".repeat(items).as_bytes()).expect_err("one more");
    assert_eq!(error.code.as_u16(), 400);
    assert!(error.message.contains("more than 65536 names and values: send it as JSON"), "{}", error.message);
    let json = format!(r#"{{"items":[{}1]}}"#, "1,".repeat(items));
    assert!(parse("application/apply-patch+yaml", json.as_bytes()).is_ok(), "as clients write it");
}

#[test]
fn deep_or_broken_bodies_are_refused() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_yaml = format!("a: {deep}");
    for (kind, text) in [
        ("application/json", deep.as_str()),
        ("application/yaml", deep_yaml.as_str()),
        ("application/json", "{"),
        ("application/yaml", "a: [b"),
        ("application/yaml", "a: &x [*x]"),
    ] {
        assert_eq!(parse(kind, text.as_bytes()).unwrap_err().code.as_u16(), 400);
    }
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let list = vec![format!("*a{}", level - 1); 9].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{list}]\n"));
    }
    assert_eq!(parse("application/yaml", bomb.as_bytes()).unwrap_err().code.as_u16(), 400);
}
