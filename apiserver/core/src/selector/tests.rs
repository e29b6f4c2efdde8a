use proptest::prelude::*;

use super::label::LabelSelector;
use super::*;

fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
    let selector = LabelSelector::parse(selector).unwrap();
    selector
        .matches(|name| labels.iter().find(|(own, _)| *own == name).map(|(_, value)| Cow::Borrowed(*value)))
}

#[test]
fn label_selectors_select_as_kubernetes_does() {
    let labels = [("app", "web"), ("tier", "front"), ("empty", ""), ("size", "7"), ("x.io/role", "a-b")];
    let table = [
        ("", true),
        ("app=web", true),
        ("app==web", true),
        ("app = web , tier=front", true),
        ("app!=web", false),
        ("none!=web", true),
        ("app in (web, db)", true),
        ("app in (db)", false),
        ("app notin (db,cache)", true),
        ("none notin (db)", true),
        ("none in (db)", false),
        ("app", true),
        ("none", false),
        ("!none", true),
        ("!app", false),
        ("empty=", true),
        ("empty=,app", true),
        ("app=", false),
        ("empty in ()", true),
        ("empty in (,a)", true),
        ("size>6", true),
        ("size > 7", false),
        ("size<8", true),
        ("app>1", false),
        ("x.io/role=a-b", true),
        ("in in (a)", false),
    ];
    for (selector, wanted) in table {
        assert_eq!(selects(selector, &labels), wanted, "{selector}");
        let text = LabelSelector::parse(selector).unwrap().to_string();
        assert_eq!(selects(&text, &labels), wanted, "{selector} written as {text}");
        assert_eq!(LabelSelector::parse(&text).unwrap().to_string(), text, "one spelling of {selector}");
    }
}

#[test]
fn malformed_label_selectors_are_refused_in_the_words_of_the_real_server() {
    let table = [
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a=b,=", "found '=', expected: identifier after ','"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
    ];
    for (selector, wanted) in table {
        assert_eq!(LabelSelector::parse(selector).unwrap_err().to_string(), wanted, "{selector}");
    }
    for selector in ["-a", "a=-b", "/a", "a/", "A_/b/c", "a>b", "a=b=c", &"a".repeat(64), "a=b&c"] {
        assert!(LabelSelector::parse(selector).is_err(), "{selector}");
    }
}

#[test]
fn field_selectors_split_escape_and_compare() {
    let selector = FieldSelector::parse(r"metadata.name=a\,b\=c\\d,spec.x!=y,status==z,").unwrap();
    assert_eq!(selector.fields().collect::<Vec<_>>(), ["metadata.name", "spec.x", "status"]);
    assert_eq!(selector.fixed("metadata.name"), Some(r"a,b=c\d"));
    assert_eq!(selector.fixed("spec.x"), None);
    let with = |x: &'static str| {
        selector.matches_where(
            |_| true,
            move |field| {
                Cow::Borrowed(match field {
                    "metadata.name" => r"a,b=c\d",
                    "spec.x" => x,
                    _ => "z",
                })
            },
        )
    };
    assert!(with("other"));
    assert!(!with("y"));
    let table = [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
    ];
    for (selector, wanted) in table {
        assert_eq!(FieldSelector::parse(selector).unwrap_err().to_string(), wanted);
    }
    for selector in [r"a=\x", r"a=b\", "a=b=c"] {
        assert!(FieldSelector::parse(selector).is_err(), "{selector}");
    }
}

#[test]
fn selectors_are_worded_as_the_stored_version_has_them() {
    let kinds = crate::kinds::Kinds::builtin();
    let events = |group: &str| {
        kinds.get(&tombolo_proto::object::Resource::new(group, "v1", "events")).unwrap().clone()
    };
    let (core, named) = (events(""), events("events.k8s.io"));
    for (served, stored) in [
        ("", ""),
        ("regarding.kind=Pod,reason!=x", "involvedObject.kind=Pod,reason!=x"),
        (r"reportingController=a\,b,type==Normal", r"reportingComponent=a\,b,type=Normal"),
        ("metadata.name=x", "metadata.name=x"),
        ("malformed", "malformed"),
    ] {
        assert_eq!(stored_fields(&named, served), stored);
    }
    assert_eq!(
        stored_fields(&core, "regarding.kind=Pod"),
        "regarding.kind=Pod",
        "the core group has no such field"
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in "[a-z!=<>(),\\\\ ./\\-\u{e9}]{0,40}") {
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
    }

    #[test]
    fn any_value_survives_escaping(value in "[a-z,=\\\\]{0,20}") {
        let escaped = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        let selector = FieldSelector::parse(&format!("f={escaped}")).unwrap();
        prop_assert_eq!(selector.fixed("f"), Some(value.as_str()));
    }
}
