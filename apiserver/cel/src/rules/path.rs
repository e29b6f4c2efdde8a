//! `fieldPath` of rules: field names and map keys, such as `.spec.labels['a.b']`.

use serde_json::Value;

/// Parses a path whose fields are in a schema. Returns it in the form of field errors.
pub(super) fn read(text: &str, schema: &Value) -> Option<String> {
    let (mut schema, mut rest, mut out) = (schema, text, String::new());
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('.') {
            Some(after) => {
                let end = after.find(['.', '[', ']']).filter(|end| *end > 0).unwrap_or(after.len());
                let (name, after) = after.split_at(end);
                (name.to_owned(), after)
            }
            None => quoted(rest.strip_prefix("['")?)?,
        };
        let property = schema["properties"].get(&name);
        match (property, schema["additionalProperties"].is_object()) {
            (Some(found), _) if !name.is_empty() => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&name);
                schema = found;
            }
            (None, true) => {
                out.push_str(&format!("[{name}]"));
                schema = &schema["additionalProperties"];
            }
            _ => return None,
        }
        rest = after;
    }
    Some(out)
}

/// Parses a quoted key. Returns it with the text after its bracket.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => return text[at + 1..].strip_prefix(']').map(|after| (name, after)),
            '\\' => name.push(match chars.next()?.1 {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                c @ ('\'' | '\\') => c,
                _ => return None,
            }),
            c => name.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read;

    #[test]
    fn field_paths_exist_in_the_schema() {
        let schema = json!({"properties": {
            "spec": {"properties": {"a.b": {}, "labels": {"additionalProperties": {"type": "string"}}}},
        }});
        assert_eq!(read(".spec", &schema).as_deref(), Some("spec"));
        assert_eq!(read(".spec['a.b']", &schema).as_deref(), Some("spec.a.b"));
        assert_eq!(read(".spec.labels['x\\'y']", &schema).as_deref(), Some("spec.labels[x'y]"));
        for wrong in ["spec", ".other", ".spec.", ".spec[0]", ".spec['a.b'", ".spec['\\q']", "['spec"] {
            assert_eq!(read(wrong, &schema), None, "{wrong}");
        }
    }
}
