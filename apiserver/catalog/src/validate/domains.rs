//! Grammars of names with a domain: of controllers (`acme.io/controller`), webhooks and drivers.

use super::field::{Errors, Field};
use super::{FieldError, names};

const DRIVER_NAME_LEN_MAX: usize = 63;
const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

/// Reports a text that is not a path below a domain, such as `acme.io/foo`.
pub(super) fn prefixed_path(at: &Field<'_, '_>, errors: &mut Errors) {
    let text = at.text();
    if text.is_empty() {
        errors.push(at.required(""));
        return;
    }
    let Some((host, path)) = text.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty())
    else {
        errors.push(at.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"));
        return;
    };
    if let Some(problem) = names::dns1123_subdomain(host) {
        errors.push(at.invalid_value(host, problem));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(fits) {
        errors.push(at.invalid_value(path, PATH));
    }
}

/// Reports a text that is not a domain of at least three parts.
pub(super) fn fully_qualified(at: &Field<'_, '_>, errors: &mut Errors) {
    qualified(at, at.text(), 3, "three", errors);
}

/// Reports a text that is not a domain name of at least two parts; a trailing dot is allowed.
pub(super) fn host(at: &Field<'_, '_>, errors: &mut Errors) {
    let name = at.text().strip_suffix('.').unwrap_or(at.text());
    let before = errors.len();
    qualified(at, name, 2, "two", errors);
    if errors.len() == before {
        let wrong =
            name.split('.').find_map(|part| names::dns1123_label(part).map(|problem| (part, problem)));
        errors.extend(wrong.map(|(part, problem)| at.invalid_value(part, problem)));
    }
}

fn qualified(at: &Field<'_, '_>, name: &str, parts_min: usize, number: &str, errors: &mut Errors) {
    if at.text().is_empty() {
        errors.push(at.required(""));
    } else if let Some(problem) = names::dns1123_subdomain(name) {
        errors.push(at.invalid_value(name, problem));
    } else if name.split('.').count() < parts_min {
        let detail = format!("should be a domain with at least {number} segments separated by dots");
        errors.push(at.invalid_value(name, detail));
    }
}

/// The problem with a host name whose first label is a wildcard.
pub(super) fn wildcard_subdomain(text: &str) -> Option<String> {
    let is_wildcard = text.strip_prefix("*.").is_some_and(|rest| names::dns1123_subdomain(rest).is_none());
    (!is_wildcard).then(|| WILDCARD.to_owned())
}

/// Reports a text that is not a driver name: a domain, in upper or lower case.
pub(super) fn driver(at: &Field<'_, '_>, errors: &mut Errors) {
    driver_name(at, at.text(), errors);
}

/// The same for a name that is part of a value.
pub(super) fn driver_name(at: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(at.required(""));
        return;
    }
    if name.len() > DRIVER_NAME_LEN_MAX {
        errors.push(FieldError::too_long(at.path(), DRIVER_NAME_LEN_MAX));
    }
    let problem = names::dns1123_subdomain(&name.to_lowercase());
    errors.extend(problem.map(|problem| at.invalid_value(name, problem)));
}

/// Reports a text that is not the name of a provisioner.
pub(super) fn provisioner(at: &Field<'_, '_>, errors: &mut Errors) {
    match at.text() {
        "" => errors.push(at.required("")),
        name => {
            let problems = names::qualified_name(&name.to_lowercase()).into_iter();
            errors.extend(problems.map(|why| at.invalid_value(name.to_lowercase(), why)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(check: fn(&Field<'_, '_>, &mut Errors), text: &str) -> Vec<String> {
        let (value, mut errors) = (json!(text), Vec::new());
        check(&Field::root("p", &value), &mut errors);
        errors.iter().map(FieldError::body).collect()
    }

    #[test]
    fn names_with_domains_have_all_their_parts() {
        assert!(problems(prefixed_path, "acme.io/foo").is_empty());
        assert_eq!(problems(prefixed_path, "foo").len(), 1);
        assert_eq!(problems(prefixed_path, "a b/c d").len(), 2);
        assert!(problems(fully_qualified, "a.b.c").is_empty() && problems(host, "a.b.").is_empty());
        assert_eq!(problems(fully_qualified, "a.b").len(), 1);
        assert_eq!(problems(host, "a").len(), 1);
        assert!(problems(driver, "CSI.example").is_empty());
        assert_eq!(problems(driver, ""), ["Required value"]);
        assert_eq!(wildcard_subdomain("*.a.b"), None);
        assert!(wildcard_subdomain("*.*.b").is_some() && wildcard_subdomain("a.b").is_some());
    }
}
