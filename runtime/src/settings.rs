//! Settings files.

use serde::de::DeserializeOwned;

/// Reads settings from YAML.
///
/// # Errors
/// One line that says what is wrong, with line and column.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| without_excerpt(&error.to_string()))
}

/// The first line of a parser's message, which says what is wrong and where. The excerpt of the input that may follow
/// is left out.
fn without_excerpt(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        ports: BTreeMap<String, u16>,
    }

    #[test]
    fn errors_name_line_and_column() {
        let read = |text: &str| from_yaml::<Settings>(text);
        assert_eq!(read("ports:\n  quic: 1").unwrap().ports["quic"], 1);
        for (text, key) in
            [("ports:\n  quic: a", "line 2"), ("port:\n  quic: 1", "line 1"), ("ports:\n  quic: [", "line 2")]
        {
            let message = read(text).unwrap_err();
            assert!(message.contains(key) && !message.contains('\n'), "{text}: {message}");
        }
        let unknown = read("ports: {}\nmore: 1").unwrap_err();
        assert!(unknown.contains("`more`") && unknown.matches("line").count() == 1, "{unknown}");
    }
}
