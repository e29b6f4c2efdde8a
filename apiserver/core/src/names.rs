//! The syntax of names, labels and ports, with Kubernetes' error messages.

const LABEL_DNS1123: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_DNS1123: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const SUBDOMAIN_UNDERSCORE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
const LABEL_DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// A DNS label: up to 63 characters of `a-z0-9-`. `None` when valid, otherwise the error.
#[must_use]
pub fn dns1123_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    if is_label(text, false) {
        return None;
    }
    let dotted = dns1123_subdomain(text).is_none();
    Some(if dotted { "must not contain dots" } else { LABEL_DNS1123 }.to_owned())
}

/// DNS labels joined by dots, up to 253 bytes. `None` when valid, otherwise the error.
#[must_use]
pub fn dns1123_subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 characters".to_owned());
    }
    (!text.split('.').all(|label| is_label(label, false))).then(|| SUBDOMAIN_DNS1123.to_owned())
}

/// A DNS label that starts with a letter. `None` when valid, otherwise the error.
#[must_use]
pub fn dns1035_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    (!is_label(text, true)).then(|| LABEL_DNS1035.to_owned())
}

/// A name that can be one segment of a path, as for rbac objects. `None` when valid, otherwise the error.
#[must_use]
pub fn path_segment(text: &str) -> Option<String> {
    match text {
        "." | ".." => Some(format!("may not be '{text}'")),
        _ => ['/', '%'].into_iter().find(|c| text.contains(*c)).map(|c| format!("may not contain '{c}'")),
    }
}

/// A label key or similar: an optional DNS prefix, a slash and a name. Returns all errors.
#[must_use]
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else if prefix.len() > 253 {
                problems.push("prefix part must be no more than 253 bytes".to_owned());
            } else if let Some(problem) = dns1123_subdomain(prefix) {
                // This syntax counts bytes.
                let problem = problem.replace("253 characters", "253 bytes");
                problems.push(format!("prefix part {problem}"));
            }
            *name
        }
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED_NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_word(name) {
        problems.push(format!("name part {QUALIFIED_NAME}"));
    }
    problems
}

/// A label value. Returns all errors.
#[must_use]
pub fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !text.is_empty() && !is_word(text) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// A key of a ConfigMap or Secret. `None` when valid, otherwise the error.
#[must_use]
pub fn config_key(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 characters".to_owned());
    }
    match text {
        "." => return Some("must not be '.'".to_owned()),
        ".." => return Some("must not be '..'".to_owned()),
        _ if text.starts_with("..") => return Some("must not start with '..'".to_owned()),
        _ => {}
    }
    let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    (!fits).then(|| CONFIG_KEY.to_owned())
}

/// The name of a port: up to 15 characters of `a-z0-9-`, at least one letter. Returns all errors.
#[must_use]
pub fn port_name(text: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    if text.len() > 15 {
        problems.push("must be no more than 15 characters");
    }
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || !text.bytes().all(fits) {
        problems.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)");
    }
    if text.contains("--") {
        problems.push("must not contain consecutive hyphens");
    }
    if text.starts_with('-') || text.ends_with('-') {
        problems.push("must not begin or end with a hyphen");
    }
    problems
}

/// The beginning of a DNS subdomain, to which a suffix is appended. `None` when valid, otherwise the error.
#[must_use]
pub fn dns1123_prefix(text: &str) -> Option<String> {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => dns1123_subdomain(rest.trim_end_matches('-')),
        _ => dns1123_subdomain(text),
    }
}

/// A DNS subdomain that may contain underscores. `None` when valid, otherwise the error.
#[must_use]
pub fn dns1123_subdomain_underscore(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 characters".to_owned());
    }
    let fits = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label);
        is_label(&rest.replace('_', "-"), false)
    };
    (!text.split('.').all(fits)).then(|| SUBDOMAIN_UNDERSCORE.to_owned())
}

/// The name of an environment variable. `None` when valid, otherwise the error.
#[must_use]
pub fn environment_variable(text: &str) -> Option<String> {
    const TEXT: &str =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    let fits = |b: u8| b != b'=' && (b.is_ascii_graphic() || b == b' ');
    (!text.bytes().all(fits)).then(|| TEXT.to_owned())
}

/// The name of an HTTP header. `None` when valid, otherwise the error.
#[must_use]
pub fn http_header(text: &str) -> Option<String> {
    const TEXT: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
    let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    (!fits).then(|| TEXT.to_owned())
}

fn is_label(text: &str, letter_first: bool) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 253
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| inner(*b))
        && (!letter_first || bytes[0].is_ascii_lowercase())
}

fn is_word(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}
