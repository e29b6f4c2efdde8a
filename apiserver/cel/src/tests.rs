use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::limits::{CALL_COST_MAX, EXPRESSION_DEPTH_MAX};
use crate::schema::declare;
use crate::types::Type;
use crate::{Environment, EvaluationError, Variable, Variables};

struct Given(HashMap<&'static str, (Value, Type)>);

impl Variables for Given {
    fn get<'a>(&'a self, name: &str) -> Option<Variable<'a>> {
        self.0.get(name).map(|(value, ty)| Variable::Json(value, ty))
    }
}

fn given(schema: &Value, value: Value) -> (Environment, Given) {
    let ty = declare(schema, false).unwrap().ty;
    let environment = Environment::new(vec![("self".to_owned(), ty.clone())]);
    (environment, Given(HashMap::from([("self", (value, ty))])))
}

fn dynamic(value: Value) -> (Environment, Given) {
    let environment = Environment::new(vec![("self".to_owned(), Type::DYN)]);
    (environment, Given(HashMap::from([("self", (value, Type::DYN))])))
}

fn evaluate(text: &str) -> Result<Value, String> {
    let (environment, given) = dynamic(json!({"list": [1, 2, 3], "name": "abc"}));
    let expression = environment.compile(text)?;
    expression.evaluate_json(&given, CALL_COST_MAX).result.map_err(|error| error.to_string())
}

#[test]
fn functions_return_what_kube_apiserver_returns() {
    let cases = [
        ("1 + 2 * 3", json!(7)),
        (
            "[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2, 1].exists_one(x, x == 2)",
            json!(true),
        ),
        ("[1, 2, 3].filter(x, x > 1).map(x, x * 2)", json!([4, 6])),
        ("[1, 2, 3].map(x, x > 1, x * 2)", json!([4, 6])),
        ("size('äb') + size([1]) + size({'a': 1})", json!(4)),
        ("[3, 1, 2].isSorted() || [1, 1, 2].isSorted()", json!(true)),
        ("[3, 1, 2].sum() + [3, 1].min() + [3, 1].max()", json!(10)),
        ("[1, 2, 2].indexOf(2) + [1, 2, 2].lastIndexOf(2)", json!(3)),
        ("'hello'.indexOf('l') + 'hello'.lastIndexOf('l')", json!(5)),
        ("'a-b-c'.split('-')", json!(["a", "b", "c"])),
        ("'abc'.split('')", json!(["a", "b", "c"])),
        ("'a-b-c'.split('-', 2)", json!(["a", "b-c"])),
        ("['a', 'b'].join('/')", json!("a/b")),
        ("'aXbX'.replace('X', 'y') + 'aXbX'.replace('X', 'y', 1)", json!("aybyaybX")),
        ("'AbC'.lowerAscii() + ' x '.trim() + 'abc'.substring(1)", json!("abcxbc")),
        ("'%s is %d'.format(['x', dyn(3)])", json!("x is 3")),
        ("'ab1cd22'.find('[0-9]+') + string('ab1cd22'.findAll('[0-9]+').size())", json!("12")),
        ("'abc'.matches('^a.c$') && matches('abc', 'b')", json!(true)),
        (
            "sets.contains([1, 2, 3], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && !sets.intersects([1], [2])",
            json!(true),
        ),
        ("url('https://user@example.com:80/a/b?x=1&x=2').getHost()", json!("example.com:80")),
        ("url('https://example.com:80/a%20b?x=1&x=2').getEscapedPath()", json!("/a%20b")),
        ("url('https://[::1]:80/').getHostname() + url('https://a:80/').getPort()", json!("::180")),
        ("url('https://a/?x=1&x=2').getQuery()", json!({"x": ["1", "2"]})),
        ("isURL('/a') && !isURL('a b')", json!(true)),
        (
            "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && !isIP('1.2.3') && ip.isCanonical('::1')",
            json!(true),
        ),
        (
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
            json!(true),
        ),
        (
            "string(cidr('10.1.2.3/8').masked()) + string(cidr('10.1.2.3/8').prefixLength())",
            json!("10.0.0.0/88"),
        ),
        (
            "quantity('1Gi').isGreaterThan(quantity('500Mi')) && quantity('1k').asInteger() == 1000",
            json!(true),
        ),
        ("quantity('1').add(quantity('2')).sub(1).compareTo(quantity('2'))", json!(0)),
        ("isQuantity('10x') || quantity('1500m').isInteger()", json!(false)),
        ("semver('1.2.3').isLessThan(semver('1.10.0')) && semver('v01.2', true).minor() == 2", json!(true)),
        ("format.dns1123Label().validate('Not_A_Label').hasValue()", json!(true)),
        (
            "format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
            json!(false),
        ),
        (
            "timestamp('2024-01-02T03:04:05Z').getMonth() + timestamp('2024-01-02T03:04:05Z').getHours('+01:00')",
            json!(4),
        ),
        (
            "timestamp('2024-01-02T00:00:00Z') + duration('1h') == timestamp('2024-01-02T01:00:00Z')",
            json!(true),
        ),
        ("string(duration('1h1.5s')) + string(duration('90m').getHours())", json!("3601.5s1")),
        ("optional.of(1).orValue(2) + optional.none().orValue(2) + self.?missing.orValue(4)", json!(7)),
        ("has(self.name) && !has(self.other) && 'name' in self && 2 in self.list", json!(true)),
        (
            "[1, 2] == self.list.filter(x, x < 3) && self.list == [1, 2, 3] && self.list + [4] == [1, 2, 3, 4]",
            json!(true),
        ),
        (
            "[[1], [2, 3]].flatten() == [1, 2, 3] && [1, 1, 2].distinct() == [1, 2] && lists.range(2) == [0, 1]",
            json!(true),
        ),
        (
            "[3, 1, 2].sort() == [1, 2, 3] && [1, 2].reverse() == [2, 1] && [1, 2, 3].slice(1, 2) == [2]",
            json!(true),
        ),
        ("[{'a': 2}, {'a': 1}].sortBy(x, x.a)[0].a", json!(1)),
        ("type(1) == int && type('') == string && type(self.list) == list", json!(true)),
        ("jsonpatch.escapeKey('a/b~c')", json!("a~1b~0c")),
        ("false && 1 / 0 == 1", json!(false)),
        ("[0, 1].exists(x, 1 / x == 1)", json!(true)),
    ];
    for (text, wanted) in cases {
        assert_eq!(evaluate(text), Ok(wanted), "{text}");
    }
}

#[test]
fn comprehensions_of_two_variables_see_index_and_element_or_key_and_value() {
    let cases = [
        ("[1, 2, 3].all(i, v, i < v) && !{'a': 'b', 'c': 'c'}.all(k, v, k != v)", json!(true)),
        ("{'a': ['ab'], 'c': ['cd']}.all(k, vs, vs.all(v, v.startsWith(k)))", json!(true)),
        ("[1, 2, 4].exists(i, v, v == 1024 && i == 10)", json!(false)),
        ("[0, 1].exists(i, v, 1 / v == i)", json!(true)),
        ("[1, 1, 2, 2].existsOne(i, v, i == 2 && v == 2) && ![1, 1].exists_one(i, v, v == 1)", json!(true)),
        ("[1, 2, 3].transformList(i, v, i * v + v)", json!([1, 4, 9])),
        ("self.list.transformList(i, v, i % 2 == 0, i * v + v)", json!([1, 9])),
        ("{'a': 1}.transformList(k, v, k + string(v))", json!(["a1"])),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v + 1)", json!({"b": 3})),
        ("[1, 2].transformMap(i, v, v * 2) == {0: 2, 1: 4}", json!(true)),
        ("self.transformMap(k, v, k == 'name', v)", json!({"name": "abc"})),
        ("{'a': 'b'}.transformMapEntry(k, v, {v: k})", json!({"b": "a"})),
        ("['x', 'y'].transformMapEntry(i, v, i > 0, {v: i})", json!({"y": 1})),
        (
            "[[1, 2], [3]].transformList(i, vs, vs.transformList(j, v, i * 10 + j * 100 + v))",
            json!([[1, 102], [13]]),
        ),
        ("[[5], [6]].transformList(i, vs, vs.transformList(i, v, i))", json!([[0], [0]])),
        ("[1, 2].all(i, v, [v].all(i, i > 0) && i < v)", json!(true)),
        ("[].all(i, v, false) && [].transformMap(i, v, v) == {}", json!(true)),
    ];
    for (text, wanted) in cases {
        assert_eq!(evaluate(text), Ok(wanted), "{text}");
    }
    let refused = [
        ("[1].all(i, i, true)", "duplicate variable name: i"),
        ("[1].all(i.x, v, true)", "argument must be a simple name"),
        ("['a', 'a'].transformMapEntry(i, v, {v: i})", "insert failed: key a already exists"),
        ("[1].transformMapEntry(i, v, v)", "no matching overload"),
        ("[1].transformList(i, v, v + 'a')", "no matching overload"),
        ("(1).all(i, v, true)", "cannot be range of a comprehension"),
        ("[1].all(i, v, true) && i == 1", "undeclared reference to 'i'"),
    ];
    for (text, why) in refused {
        let error = evaluate(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn errors_have_the_texts_of_kube_apiserver() {
    let cases = [
        ("self.missing == 1", "no such key: missing"),
        ("self.name + self.list[0] == ''", "no such overload"),
        ("self.list[7]", "index out of bounds: 7"),
        ("1 / (self.list[0] - 1)", "division by zero"),
        ("9223372036854775807 + self.list[0]", "integer overflow"),
    ];
    for (text, wanted) in cases {
        assert_eq!(evaluate(text), Err(wanted.to_owned()), "{text}");
    }
}

fn schema() -> Value {
    let text = json!({"type": "string", "maxLength": 10});
    json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "text": text, "flag": {"type": "boolean"}, "ratio": {"type": "number"},
        "a-b": {"type": "integer"}, "namespace": text, "when": {"type": "string", "format": "date-time"},
        "span": {"type": "string", "format": "duration"}, "port": {"x-kubernetes-int-or-string": true},
        "list": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
        "map": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "string"}},
        "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }})
}

#[test]
fn expressions_are_checked_against_the_schema() {
    let (environment, _) = given(&schema(), json!({}));
    for fine in [
        "self.n > 1 && self.a__dash__b == 2 && self.__namespace__ == 'x' && self.ratio > 1",
        "self.list.all(x, x > 0) && self.map.all(k, self.map[k] != '') && has(self.raw)",
        "self.when < timestamp('2024-01-01T00:00:00Z') && self.span > duration('1s')",
        "self.port == 1 || self.port == '1%'",
        "(has(self.text) ? self.text : 'x').size() > 1",
        "dyn(self.n) == 'x'",
    ] {
        assert!(environment.compile(fine).is_ok(), "{fine}: {:?}", environment.compile(fine).err());
    }
    for (wrong, why) in [
        ("self.z == 100", "undefined field 'z'"),
        ("other == 1", "undeclared reference to 'other'"),
        ("self.n == 'x'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.n.startsWith('x')", "found no matching overload for 'startsWith' applied to 'int.(string)'"),
        ("self.text.nothing()", "undeclared reference to 'nothing'"),
        ("self.n.all(x, true)", "cannot be range of a comprehension"),
        ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'"),
        ("self = 42", "Syntax error"),
        ("self.n ==", "Syntax error"),
        ("self.n.x", "does not support field selection"),
        ("Object{a: 1} == 1", "undeclared reference to 'Object'"),
        ("self.raw.x == 1", "undefined field 'x'"),
    ] {
        let error = environment.compile(wrong).map(|_| ()).unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
        assert!(error.starts_with("ERROR: <input>:1:"), "{wrong}: {error}");
    }
}

#[test]
fn values_have_the_types_of_their_schema() {
    let value = json!({
        "n": 1, "ratio": 2, "a-b": 3, "when": "2024-01-01T00:00:00Z", "span": "1h", "port": "50%",
        "list": [1, 2], "map": {"x-y": "z"},
    });
    let (environment, given) = given(&schema(), value);
    for text in [
        "self.ratio / 4.0 == 0.5",
        "self.a__dash__b == 3",
        "self.when.getFullYear() == 2024",
        "self.span == duration('60m')",
        "type(self.port) == string && self.port.endsWith('%')",
        "'x-y' in self.map && self.map['x-y'] == 'z'",
        "self == self && self.list == [1, 2] && [1, 2] == self.list",
    ] {
        let expression = environment.compile(text).unwrap();
        assert_eq!(expression.evaluate_bool(&given, CALL_COST_MAX).result, Ok(true), "{text}");
    }
}

#[test]
fn sets_and_maps_are_equal_in_any_order_and_their_sums_have_each_element_once() {
    let schema = json!({"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
        "same": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
        "plain": {"type": "array", "items": {"type": "integer"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
            "items": {"type": "object", "properties": {"key": {"type": "string"}, "v": {"type": "integer"}}}},
    }});
    let (environment, given) = given(
        &schema,
        json!({
            "set": [1, 2, 3], "same": [3, 1, 2], "plain": [3, 2, 1],
            "map": [{"key": "a", "v": 1}, {"key": "b", "v": 2}],
        }),
    );
    let cases = [
        ("self.set == self.same && self.set == self.plain && self.set == [2, 3, 1]", true),
        ("self.plain == self.set || [2, 3, 1] == self.set", false),
        ("self.set == [1, 2] || self.set == [1, 2, 4] || self.set != [3, 2, 1]", false),
        ("self.map == self.map.filter(e, e.v == 2) + self.map.filter(e, e.v == 1)", true),
        ("self.map.filter(e, e.v == 2) + self.map.filter(e, e.v == 1) == self.map", false),
        ("self.map == self.map.filter(e, e.v > 1)", false),
        ("self.set + [2, 5] == [1, 2, 3, 5] && (self.set + [5, 5]).size() == 4", true),
        ("(self.set + [4]) == [4, 3, 2, 1]", true),
        ("self.map + self.map.filter(e, e.v == 2) == self.map", true),
        ("self.plain + [3] == [3, 2, 1, 3]", true),
    ];
    for (text, wanted) in cases {
        let expression = environment.compile(text).unwrap();
        assert_eq!(expression.evaluate_bool(&given, CALL_COST_MAX).result, Ok(wanted), "{text}");
    }
}

#[test]
fn values_of_different_kinds_are_not_equal() {
    let (environment, given) = dynamic(json!({"name": "a", "list": ["a", {"a": 1}], "map": {"a": 1}}));
    for text in [
        "self.map == 1",
        "1 == self.map",
        "self.map == self.list",
        "self.list == self.map",
        "self.map == [self.name]",
        "self.list == self.name",
        "self.list == {'a': 1}",
        "[self.name] == self.map",
        "self == null",
        "2 in self.list",
        "self.list.exists(x, x == 5)",
    ] {
        let expression = environment.compile(text).unwrap();
        assert_eq!(expression.evaluate_json(&given, CALL_COST_MAX).result, Ok(json!(false)), "{text}");
    }
}

#[test]
fn estimates_follow_the_sizes_of_the_schema() {
    let numbers = |most: Option<u64>| {
        let mut list = json!({"type": "array", "items": {"type": "integer"}});
        if let Some(most) = most {
            list["maxItems"] = most.into();
        }
        json!({"type": "object", "properties": {"list": list}})
    };
    let cost = |schema: &Value, text: &str| given(schema, json!({})).0.compile(text).unwrap().cost_max();
    let quadratic = "self.list.all(x, self.list.all(y, y == x))";
    assert!(cost(&numbers(Some(725)), quadratic) < crate::limits::RULE_ESTIMATE_MAX);
    assert!(cost(&numbers(None), quadratic) > crate::limits::RULE_ESTIMATE_MAX);
    assert!(cost(&numbers(Some(10)), "self.list.size() > 1") < 10);
}

#[test]
fn an_evaluation_ends_when_it_has_cost_enough() {
    let (environment, given) = dynamic(json!({"list": vec![20; 725], "text": "x".repeat(100_000)}));
    for text in [
        "self.list.all(x, self.list.all(y, y == x))",
        "self.list.all(x, self.list.all(y, y == x)) || true",
        "self.list.map(x, self.list.map(y, [x, y])).size() > 0",
        "self.list.exists_one(x, self.list.exists_one(y, y == -1))",
        "self.list.filter(x, self.list.filter(y, y == x).size() > 0).size() > 0",
        "self.text.replace('', self.text).replace('', self.text).size() > 0",
        "self.list.map(x, self.text + self.text).size() > 0",
        "lists.range(1000000).all(a, lists.range(1000000).all(b, true))",
        "self.list.all(x, !self.text.matches('(a*)*b'))",
        "self.list.all(x, self.text == self.text)",
        "self.text.split('').all(x, self.text.split('').all(y, true))",
        "self.list.map(x, self.text).join('').size() > 0",
        "self.list.all(x, '%s'.format([self.text]).size() > 0)",
        "lists.range(2000).all(x, sets.contains(lists.range(2000), lists.range(2000)))",
    ] {
        let result = environment.compile(text).unwrap().evaluate_bool(&given, CALL_COST_MAX).result;
        assert_eq!(result, Err(EvaluationError::CostExceeded), "{text}");
    }
}

#[test]
fn no_expression_is_too_deep_for_the_stack_of_a_worker() {
    let chain = |count: usize, part: &str, last: &str| part.repeat(count) + last;
    let texts = [
        chain(8000, "1+", "1") + " > 0",
        chain(5000, "(", "1"),
        chain(3000, "true ? true : ", "true"),
        "self".to_owned() + &".a".repeat(8000),
        chain(5000, "[", "1") + &"]".repeat(5000),
    ];
    for text in &texts {
        assert!(dynamic(json!({})).0.compile(text).is_err(), "{}", &text[..20]);
    }
    let worker = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let deepest = worker.spawn(|| {
        let (environment, given) = dynamic(json!({"list": [1]}));
        let mut found = 0;
        for count in 1..EXPRESSION_DEPTH_MAX {
            for text in [
                "1+".repeat(count) + "1 > 0",
                "true ? true : ".repeat(count) + "true",
                "self.list.all(x, ".repeat(count) + "true" + &")".repeat(count),
                "[".repeat(count) + "1" + &"]".repeat(count) + " == [1]",
            ] {
                if let Ok(expression) = environment.compile(&text) {
                    let _ = expression.evaluate_bool(&given, CALL_COST_MAX);
                    found = found.max(count);
                }
            }
        }
        found
    });
    assert!(deepest.unwrap().join().unwrap() > 20);
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("self".to_owned()),
        Just("self.list".to_owned()),
        Just("self.name".to_owned()),
        Just("1".to_owned()),
        Just("'a'".to_owned()),
        Just("true".to_owned()),
        Just("x".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("duration('1h')".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let operator = prop::sample::select(vec!["+", "-", "*", "/", "%", "==", "<", "in", "&&", "||"]);
        let macros = prop::sample::select(vec!["all", "exists", "exists_one", "filter", "map", "sortBy"]);
        let methods = prop::sample::select(vec![
            "size()",
            "sum()",
            "min()",
            "isSorted()",
            "split('')",
            "join()",
            "matches('a+')",
            "replace('', 'bb')",
            "substring(1)",
            "charAt(0)",
            "indexOf('a')",
            "flatten()",
            "distinct()",
            "sort()",
            "reverse()",
            "slice(0, 1)",
            "getHours()",
            "orValue(1)",
            "format([1])",
            "lowerAscii()",
        ]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (inner.clone(), macros, inner.clone()).prop_map(|(a, m, b)| format!("{a}.{m}(x, {b})")),
            (inner.clone(), methods).prop_map(|(a, m)| format!("{a}.{m}")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|all| format!("[{}]", all.join(", "))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}[{b}]")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
        ]
    })
}

proptest! {
    #[test]
    fn no_expression_panics_and_every_one_ends(text in expression()) {
        let (environment, given) = dynamic(json!({"list": [3, 1, 2, "a", null, {"x": [1]}], "name": "aäb"}));
        if let Ok(expression) = environment.compile(&text) {
            let evaluation = expression.evaluate_json(&given, 100_000);
            let internal = EvaluationError::Failed(crate::expression::INTERNAL.to_owned());
            prop_assert_ne!(evaluation.result, Err(internal), "{}", text);
        }
    }

    #[test]
    fn no_text_panics_the_parser(text in "[ -~äé\\n]{0,60}") {
        if let Err(error) = dynamic(json!({})).0.compile(&text) {
            prop_assert!(!error.contains("the parser failed"), "{}: {}", text, error);
        }
    }
}
