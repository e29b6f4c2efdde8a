//! Converts names of JSON fields to identifiers in expressions (Kubernetes convention for `x-kubernetes-validations`).

use tombolo_apicore::schema::rules::RESERVED_WORDS;

/// The identifier of a field; `None` if no expression can name it.
pub(crate) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if RESERVED_WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let (taken, text) = match first {
            _ if rest.starts_with("__") => (2, "__underscores__"),
            '.' => (1, "__dot__"),
            '-' => (1, "__dash__"),
            '/' => (1, "__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => (1, &rest[..1]),
            _ => return None,
        };
        out.push_str(text);
        rest = &rest[taken..];
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn names_are_escaped_as_kube_apiserver_does() {
        let cases = [
            ("replicas", Some("replicas")),
            ("namespace", Some("__namespace__")),
            ("redact__d", Some("redact__underscores__d")),
            ("foo-bar", Some("foo__dash__bar")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("int", Some("int")),
            ("x$y", None),
            ("1x", None),
            ("", None),
        ];
        for (name, wanted) in cases {
            assert_eq!(escape(name).as_deref(), wanted, "{name}");
        }
    }
}
