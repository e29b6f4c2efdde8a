//! The subset of JSONPath that CustomResourceDefinitions use: fields, indexes, wildcards and simple filters.

use serde_json::Value;

/// Maximum number of steps of a path, which comes from a client.
const STEPS_MAX: usize = 64;

/// A compiled path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<JsonPathStep>);

#[derive(Debug, Clone, PartialEq)]
enum JsonPathStep {
    Field(String),
    Index(i64),
    All,
    Filter { path: Vec<String>, equals: bool, value: Value },
}

impl JsonPath {
    /// Compiles `.spec.items[0].name`, `.status.conditions[?(@.type=="Ready")].status`, `.metadata.labels['a.b/c']`.
    ///
    /// # Errors
    /// What is wrong with the path.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut parser = Parser { rest: inner.strip_prefix('$').unwrap_or(inner), steps: Vec::new() };
        if !parser.rest.starts_with(['.', '[']) {
            return Err("is not a simple json path starting with .".to_owned());
        }
        while !parser.rest.is_empty() {
            parser.step()?;
            if parser.steps.len() > STEPS_MAX {
                return Err(format!("has more than {STEPS_MAX} steps"));
            }
        }
        Ok(Self(parser.steps))
    }

    /// The first value that the path reaches.
    pub(crate) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        find(&self.0, value)
    }
}

fn find<'a>(steps: &[JsonPathStep], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match step {
        JsonPathStep::Field(name) => find(rest, value.get(name)?),
        JsonPathStep::Index(index) => {
            let items = value.as_array()?;
            let at = match usize::try_from(*index) {
                Ok(at) => at,
                Err(_) => items.len().checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?,
            };
            find(rest, items.get(at)?)
        }
        JsonPathStep::All => match value {
            Value::Array(items) => items.iter().find_map(|item| find(rest, item)),
            Value::Object(map) => map.values().find_map(|item| find(rest, item)),
            _ => None,
        },
        JsonPathStep::Filter { path, equals, value: wanted } => {
            let matches = |item: &&Value| {
                let found = path.iter().try_fold(*item, |item, name| item.get(name));
                found.is_some_and(|found| (found == wanted) == *equals)
            };
            value.as_array()?.iter().filter(matches).find_map(|item| find(rest, item))
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    steps: Vec<JsonPathStep>,
}

impl Parser<'_> {
    fn step(&mut self) -> Result<(), String> {
        if let Some(rest) = self.rest.strip_prefix('.') {
            if rest.starts_with('.') {
                return Err("recursive descent is not supported".to_owned());
            }
            self.rest = rest;
            if rest.is_empty() || rest.starts_with('[') {
                return Ok(());
            }
            return self.field();
        }
        match self.rest.strip_prefix('[') {
            Some(rest) => {
                let end = closing(rest).ok_or("unterminated array")?;
                let inner = rest[..end].trim();
                let step = bracket(inner)?;
                self.steps.push(step);
                self.rest = &rest[end + 1..];
                Ok(())
            }
            None => Err(format!("unexpected character at {:?}", self.rest)),
        }
    }

    fn field(&mut self) -> Result<(), String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, escaped)) => name.push(escaped),
                    None => return Err("ends with a backslash".to_owned()),
                },
                '.' | '[' => {
                    end = at;
                    break;
                }
                ' ' | '{' | '}' | '(' | ')' | ']' => return Err(format!("unexpected character {c:?}")),
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        self.steps.push(if name == "*" { JsonPathStep::All } else { JsonPathStep::Field(name) });
        Ok(())
    }
}

/// Position of the closing bracket; brackets in quotes do not count.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Result<JsonPathStep, String> {
    if inner == "*" {
        return Ok(JsonPathStep::All);
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter);
    }
    if let Some(name) = unquote(inner) {
        return Ok(JsonPathStep::Field(name.to_owned()));
    }
    inner.parse().map(JsonPathStep::Index).map_err(|_| format!("invalid array index {inner}"))
}

fn parse_filter(text: &str) -> Result<JsonPathStep, String> {
    let (left, equals, right) = if let Some((left, right)) = text.split_once("==") {
        (left, true, right)
    } else if let Some((left, right)) = text.split_once("!=") {
        (left, false, right)
    } else {
        return Err(format!("unsupported filter {text}"));
    };
    let path = left.trim().strip_prefix("@.").ok_or_else(|| format!("unsupported filter {text}"))?;
    let right = right.trim();
    let value = match unquote(right) {
        Some(text) => Value::String(text.to_owned()),
        None => serde_json::from_str(right).map_err(|_| format!("unsupported filter {text}"))?,
    };
    Ok(JsonPathStep::Filter { path: path.split('.').map(str::to_owned).collect(), equals, value })
}

fn unquote(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_values() {
        let value = json!({
            "spec": {"replicas": 3, "list": [{"a": 1}, {"a": 2}], "x.y/z": "dotted"},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let cases = [
            (".spec.replicas", json!(3)),
            ("{.spec.replicas}", json!(3)),
            (".spec.list[1].a", json!(2)),
            (".spec.list[-1].a", json!(2)),
            (".spec.list[*].a", json!(1)),
            (".spec['x.y/z']", json!("dotted")),
            (".spec.x\\.y/z", json!("dotted")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type != 'A')].status", json!("True")),
        ];
        for (path, expected) in cases {
            assert_eq!(JsonPath::parse(path).unwrap().first(&value), Some(&expected), "{path}");
        }
        assert_eq!(JsonPath::parse(".spec.list[9].a").unwrap().first(&value), None);
    }

    #[test]
    fn invalid_json_paths_are_refused() {
        for path in ["", "spec", "..a", ".a[", ".a[b]", ".a[?(x)]", ".a b", ".a\\"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
