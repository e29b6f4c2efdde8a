//! Values as the Go verb `%v` writes them, which messages of kube-apiserver contain.

use serde_json::Value;

/// `map[a:1 b:[x y]]`: without quotes, members sorted by name.
pub(crate) fn value(value: &Value) -> String {
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

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn values_are_written_as_go_does() {
        let written = super::value(&json!({"b": [1, "x", null], "a": {"c": true}}));
        assert_eq!(written, "map[a:map[c:true] b:[1 x <nil>]]");
    }
}
