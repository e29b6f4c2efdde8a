use serde_json::json;

use super::*;
use crate::kinds::Kinds;
use crate::kinds::strategy::NoStrategy;

/// Knows three expressions: `small` (a number below ten), `kept` (equal to the old value) and `dear` (uses up the
/// budget).
#[derive(Debug)]
struct Toy;

#[derive(Debug)]
struct ToyRule(String);

impl RuleEngine for Toy {
    fn compile(&self, site: &RuleSite<'_>) -> Result<Compiled, Vec<FieldError>> {
        let refused = |why: &str| Err(vec![FieldError::invalid("rule", site.rule["rule"].clone(), why)]);
        match site.rule["rule"].as_str() {
            Some("small") if site.schema["type"] != "integer" => refused("compilation failed: not a number"),
            Some(rule @ ("small" | "kept" | "dear")) => {
                let is_transition = rule == "kept";
                Ok(Compiled { rule: Arc::new(ToyRule(rule.to_owned())), cost: 1, is_transition })
            }
            _ => refused("compilation failed: unknown"),
        }
    }
}

impl CompiledRule for ToyRule {
    fn check(&self, value: &Value, old: Option<&Value>, budget: &mut Budget) -> Result<(), RuleFailure> {
        let fine = match self.0.as_str() {
            "small" => value.as_i64().is_some_and(|number| number < 10),
            "kept" => old.is_none_or(|old| old == value),
            _ => budget.spend(COST_MAX / 2 + 1),
        };
        let failure = || RuleFailure {
            kind: ErrorKind::Invalid,
            field: String::new(),
            value: Some(crate::value::json_type(value).into()),
            message: format!("{} is broken", self.0),
            consequence: Consequence::Refused,
        };
        if fine { Ok(()) } else { Err(failure()) }
    }
}

fn rules(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"rule": text})).collect()
}

fn definition(spec: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "metadata": {"name": "toys.x.io"},
        "spec": {
            "group": "x.io", "scope": "Namespaced",
            "names": {"kind": "Toy", "listKind": "ToyList", "plural": "toys", "singular": "toy"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    })
}

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "x.io/v1", "kind": "Toy", "spec": spec,
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"},
    })
}

#[test]
fn rule_is_enforced_on_writes_and_sees_the_old_value() {
    let spec = json!({"type": "object", "properties": {
        "n": {"type": "integer", "x-kubernetes-validations": rules(&["small"])},
        "named": {
            "type": "object",
            "additionalProperties": {"type": "integer", "x-kubernetes-validations": rules(&["small"])},
        },
        "parts": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"},
                "size": {"type": "integer", "x-kubernetes-validations": rules(&["kept"])},
            }},
        },
    }});
    let kinds = Kinds::builtin_with(&NoStrategy, Arc::new(Toy)).with_crd(&definition(&spec)).unwrap();
    let kind = kinds.by_kind("x.io", "v1", "Toy").unwrap();
    let old = object(&json!({"n": 1, "parts": [{"name": "x", "size": 1}, {"name": "y", "size": 2}]}));
    assert_eq!(kind.validate_create(&old), []);
    let moved = object(&json!({"n": 9, "parts": [{"name": "y", "size": 2}, {"name": "z", "size": 7}]}));
    assert_eq!(kind.validate_update(&moved, &old, "").errors, []);
    let broken = object(&json!({"n": 10, "named": {"a": 11}, "parts": [{"name": "y", "size": 3}]}));
    let found = kind.validate_update(&broken, &old, "").errors;
    let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.n", "spec.named[a]", "spec.parts[0].size"]);
    assert_eq!(found[0].detail, "small is broken");
}

#[test]
fn rules_run_on_values_over_a_limit_but_not_on_values_of_another_type() {
    let spec = json!({"type": "object", "properties": {
        "n": {"type": "integer", "multipleOf": 2, "x-kubernetes-validations": rules(&["small"])},
    }});
    let kinds = Kinds::builtin_with(&NoStrategy, Arc::new(Toy)).with_crd(&definition(&spec)).unwrap();
    let kind = kinds.by_kind("x.io", "v1", "Toy").unwrap();
    let details = |spec: Value| -> Vec<String> {
        kind.validate_create(&object(&spec)).into_iter().map(|error| error.detail).collect()
    };
    let odd = details(json!({"n": 11}));
    assert!(odd.len() == 2 && odd[1] == "small is broken", "{odd:?}");
    let mistyped = details(json!({"n": "x"}));
    assert!(mistyped.len() == 2 && mistyped[1].starts_with("some validation rules were not"), "{mistyped:?}");
}

#[test]
fn rules_of_one_object_share_a_budget() {
    let dear = json!({"type": "integer", "x-kubernetes-validations": rules(&["dear"])});
    let spec = json!({"type": "object", "properties": {"a": dear.clone(), "b": dear}});
    let kinds = Kinds::builtin_with(&NoStrategy, Arc::new(Toy)).with_crd(&definition(&spec)).unwrap();
    let kind = kinds.by_kind("x.io", "v1", "Toy").unwrap();
    assert_eq!(kind.validate_create(&object(&json!({"a": 1}))), []);
    let found = kind.validate_create(&object(&json!({"a": 1, "b": 1})));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].field, "spec.b");
}

#[test]
fn definition_with_an_unsupported_rule_is_refused() {
    let spec = json!({"type": "string", "x-kubernetes-validations": rules(&["kept", "small", "other"])});
    let paths = |kinds: Kinds| {
        let errors = kinds.with_crd(&definition(&spec)).unwrap_err();
        errors.into_iter().map(|error| (error.field, error.kind)).collect::<Vec<_>>()
    };
    let at = |index: usize| {
        format!("spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[{index}].rule")
    };
    let toy = paths(Kinds::builtin_with(&NoStrategy, Arc::new(Toy)));
    assert_eq!(toy, [(at(1), ErrorKind::Invalid), (at(2), ErrorKind::Invalid)]);
    let none = paths(Kinds::builtin());
    assert_eq!(none.len(), 3);
    assert!(none.iter().all(|(_, kind)| *kind == ErrorKind::Forbidden));
}
