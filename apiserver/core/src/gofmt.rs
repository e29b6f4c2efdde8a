//! Formats values as Go does, for messages copied from kube-apiserver.

use std::fmt::Write as _;

use serde_json::Value;

/// Formats like `%v`: `map[a:1 b:[x y]]`, without quotes, members sorted by name.
pub fn value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", join(items.iter().map(self::value))),
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            format!(
                "map[{}]",
                join(sorted.into_iter().map(|(name, item)| format!("{name}:{}", self::value(item))))
            )
        }
        scalar => scalar.to_string(),
    }
}

/// Formats like `%#v`: `map[string]interface {}{"a":1}`, with strings in quotes.
pub fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            let texts = sorted.into_iter().map(|(name, item)| format!("{name:?}:{}", syntax(item)));
            format!("map[string]interface {{}}{{{}}}", texts.collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// Formats a string like `%q`, which escapes unprintable characters differently than Rust.
pub fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for next in text.chars() {
        match next {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\'' => out.push(next),
            '\n' | '\r' | '\t' => out.extend(next.escape_debug()),
            '\0'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(next));
            }
            _ => out.extend(next.escape_debug()),
        }
    }
    out.push('"');
    out
}

/// The `%T` of a value that was parsed from JSON.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn texts_are_quoted_as_go_does() {
        let quoted = super::quoted("a\"b\\c'\n\t\0\u{1b}\u{7f}\u{b}é");
        assert_eq!(quoted, r#""a\"b\\c'\n\t\x00\x1b\x7f\vé""#);
    }

    #[test]
    fn values_are_written_as_go_does() {
        let written = super::value(&json!({"b": [1, "x", null], "a": {"c": true}}));
        assert_eq!(written, "map[a:map[c:true] b:[1 x <nil>]]");
        let syntax = super::syntax(&json!({"b": [1, "x"], "a": {"c": true}}));
        assert_eq!(
            syntax,
            r#"map[string]interface {}{"a":map[string]interface {}{"c":true}, "b":[]interface {}{1, "x"}}"#
        );
    }
}
