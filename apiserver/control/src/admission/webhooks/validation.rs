//! Validation of webhook configurations. A webhook that could never be called is refused: it would silently protect
//! nothing.

use std::collections::HashSet;

use http::Uri;
use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::blocking::run_blocking;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::status::ApiError;

use super::caller::certificates;
use super::configuration::{GROUP, MUTATING, VALIDATING};
use super::review::VERSIONS;
use crate::admission::policies::conditions;
use crate::objects::{items, text};

/// Allowed timeouts of a webhook, in seconds.
const TIMEOUT_SECONDS: std::ops::RangeInclusive<u64> = 1..=30;

/// Checks a new or changed configuration.
///
/// # Errors
/// 422 with every invalid field.
pub(super) async fn admit(request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    let is_configuration = asked.group == GROUP && [MUTATING, VALIDATING].contains(&asked.resource.as_str());
    let (true, Operation::Create | Operation::Update) = (is_configuration, request.operation) else {
        return Ok(());
    };
    let Some(configuration) = request.object.as_deref() else { return Ok(()) };
    let errors = run_blocking(&asked.payer, || errors(configuration, asked.resource == MUTATING)).await?;
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(GROUP, &request.kind.kind, request.name, &errors))
}

fn errors(configuration: &Value, mutating: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names = HashSet::new();
    for (index, webhook) in items(configuration, "/webhooks").iter().enumerate() {
        let at = format!("webhooks[{index}]");
        check_webhook(webhook, &at, mutating, &mut errors);
        let name = text(webhook, "/name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
    }
    errors
}

fn check_webhook(webhook: &Value, at: &str, mutating: bool, errors: &mut Vec<FieldError>) {
    check_name(text(webhook, "/name"), at, errors);
    for (index, rule) in items(webhook, "/rules").iter().enumerate() {
        check_rule(rule, &format!("{at}.rules[{index}]"), errors);
    }
    let mut one_of = |field: &str, supported: &[&str]| {
        let given = text(webhook, &format!("/{field}"));
        if !given.is_empty() && !supported.contains(&given) {
            errors.push(FieldError::not_supported(format!("{at}.{field}"), given, supported));
        }
    };
    one_of("failurePolicy", &["Fail", "Ignore"]);
    one_of("matchPolicy", &["Equivalent", "Exact"]);
    one_of("sideEffects", &["None", "NoneOnDryRun"]);
    if mutating {
        one_of("reinvocationPolicy", &["IfNeeded", "Never"]);
    }
    if text(webhook, "/sideEffects").is_empty() {
        let detail = "must specify one of None, NoneOnDryRun";
        errors.push(FieldError::required(format!("{at}.sideEffects"), detail));
    }
    if let Some(seconds) = webhook.get("timeoutSeconds").filter(|seconds| !seconds.is_null())
        && !seconds.as_u64().is_some_and(|seconds| TIMEOUT_SECONDS.contains(&seconds))
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{at}.timeoutSeconds"), seconds.clone(), detail));
    }
    check_client(&webhook["clientConfig"], &format!("{at}.clientConfig"), errors);
    check_versions(
        items(webhook, "/admissionReviewVersions"),
        &format!("{at}.admissionReviewVersions"),
        errors,
    );
    errors.extend(conditions::wrong(items(webhook, "/matchConditions"), &format!("{at}.matchConditions")));
}

/// Checks a name: it must have at least three parts, each valid in host names.
fn check_name(name: &str, at: &str, errors: &mut Vec<FieldError>) {
    let field = format!("{at}.name");
    if name.is_empty() {
        return errors.push(FieldError::required(field, ""));
    }
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(letter) && !part.starts_with('-') && !part.ends_with('-')
    };
    if !name.split('.').all(part) {
        let detail = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                      and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                      validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        errors.push(FieldError::invalid(field, name, detail));
    } else if name.split('.').count() < 3 {
        errors.push(FieldError::invalid(
            field,
            name,
            "should be a domain with at least three segments separated by dots",
        ));
    }
}

fn check_rule(rule: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let alone = [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")];
    for (field, words) in alone {
        let list = items(rule, &format!("/{field}"));
        if list.is_empty() {
            errors.push(FieldError::required(format!("{at}.{field}"), ""));
        } else if list.len() > 1 && list.contains(&json!("*")) {
            let detail = format!("if '*' is present, must not specify other {words}");
            errors.push(FieldError::invalid(format!("{at}.{field}"), json!(list), detail));
        }
    }
    let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (index, operation) in items(rule, "/operations").iter().enumerate() {
        if !operations.iter().any(|own| operation == own) {
            let field = format!("{at}.operations[{index}]");
            errors.push(FieldError::not_supported(field, operation.clone(), &operations));
        }
    }
    let resources = items(rule, "/resources");
    if resources.is_empty() {
        errors.push(FieldError::required(format!("{at}.resources"), ""));
    }
    for (index, _) in resources.iter().enumerate().filter(|(_, resource)| *resource == "") {
        errors.push(FieldError::required(format!("{at}.resources[{index}]"), ""));
    }
    if resources.len() > 1 && resources.contains(&json!("*/*")) {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(format!("{at}.resources"), json!(resources), detail));
    }
    let whole = |resource: &Value| resource.as_str().is_some_and(|own| own != "*" && !own.contains('/'));
    if resources.contains(&json!("*")) && resources.iter().any(whole) {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(format!("{at}.resources"), json!(resources), detail));
    }
    let scopes = ["*", "Cluster", "Namespaced"];
    let scope = text(rule, "/scope");
    if !scope.is_empty() && !scopes.contains(&scope) {
        errors.push(FieldError::not_supported(format!("{at}.scope"), scope, &scopes));
    }
}

fn check_client(client: &Value, at: &str, errors: &mut Vec<FieldError>) {
    match (client.get("url").and_then(Value::as_str), client.get("service").filter(|own| own.is_object())) {
        (Some(url), None) => check_url(url, &format!("{at}.url"), errors),
        (None, Some(service)) => {
            for field in ["name", "namespace"] {
                if text(service, &format!("/{field}")).is_empty() {
                    errors.push(FieldError::required(format!("{at}.service.{field}"), ""));
                }
            }
            let port = service.get("port").filter(|port| !port.is_null());
            if let Some(port) =
                port.filter(|port| !port.as_u64().is_some_and(|port| (1..=65_535).contains(&port)))
            {
                let detail = "port is not valid: must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(format!("{at}.service.port"), port.clone(), detail));
            }
            let path = text(service, "/path");
            if !path.is_empty() && (!path.starts_with('/') || path.parse::<Uri>().is_err()) {
                let detail = "must start with a '/'";
                errors.push(FieldError::invalid(format!("{at}.service.path"), path, detail));
            }
        }
        _ => errors.push(FieldError::required(at, "exactly one of url or service is required")),
    }
    let bundle = text(client, "/caBundle");
    if !bundle.is_empty()
        && let Err(why) = certificates(bundle)
    {
        errors.push(FieldError::invalid(format!("{at}.caBundle"), "<bundle>", why));
    }
}

fn check_url(url: &str, at: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let Ok(uri) = url.parse::<Uri>() else {
        return errors.push(FieldError::required(at, format!("url must be a valid URL{FORM}")));
    };
    let scheme = uri.scheme_str().unwrap_or_default();
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(at, scheme, detail));
    }
    if uri.host().unwrap_or_default().is_empty() {
        errors.push(FieldError::invalid(at, "", format!("host must be specified{FORM}")));
    }
    if let Some((user, _)) = uri.authority().and_then(|authority| authority.as_str().rsplit_once('@')) {
        errors.push(FieldError::invalid(at, user, "user information is not permitted in the URL"));
    }
    if let Some((_, fragment)) = url.split_once('#') {
        errors.push(FieldError::invalid(at, fragment, "fragments are not permitted in the URL"));
    }
    if let Some(query) = uri.query() {
        errors.push(FieldError::invalid(at, query, "query parameters are not permitted in the URL"));
    }
}

fn check_versions(versions: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    let known = VERSIONS.join(", ");
    if versions.is_empty() {
        return errors.push(FieldError::required(at, format!("must specify one of {known}")));
    }
    for (index, version) in
        versions.iter().enumerate().filter(|(index, one)| versions[..*index].contains(one))
    {
        errors.push(FieldError::invalid(format!("{at}[{index}]"), version.clone(), "duplicate version"));
    }
    if !versions.iter().any(|version| VERSIONS.iter().any(|own| version == own)) {
        let detail = format!("must include at least one of {known}");
        errors.push(FieldError::invalid(at, json!(versions), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Value {
        json!({
            "name": "w.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://example.org/check"},
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/status"],
            }],
        })
    }

    fn wrong(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut webhook = webhook();
        change(&mut webhook);
        errors(&json!({"webhooks": [webhook]}), true).iter().map(|error| error.field.clone()).collect()
    }

    #[test]
    fn webhook_that_could_not_be_called_is_refused() {
        assert!(wrong(|_| {}).is_empty());
        let fields = [
            ("/name", json!("short"), "webhooks[0].name"),
            ("/sideEffects", json!("Some"), "webhooks[0].sideEffects"),
            ("/timeoutSeconds", json!(31), "webhooks[0].timeoutSeconds"),
            ("/admissionReviewVersions", json!(["v2"]), "webhooks[0].admissionReviewVersions"),
            (
                "/matchConditions",
                json!([{"name": "a", "expression": "object"}, {"name": "b", "expression": "1"}]),
                "webhooks[0].matchConditions[1].expression",
            ),
            ("/clientConfig", json!({}), "webhooks[0].clientConfig"),
            ("/clientConfig", json!({"url": "http://a/b"}), "webhooks[0].clientConfig.url"),
            ("/clientConfig", json!({"url": "https://a/b?c"}), "webhooks[0].clientConfig.url"),
            (
                "/clientConfig",
                json!({"url": "https://a/b", "caBundle": "AAAA"}),
                "webhooks[0].clientConfig.caBundle",
            ),
            (
                "/clientConfig",
                json!({"service": {"name": "a"}}),
                "webhooks[0].clientConfig.service.namespace",
            ),
            ("/rules/0/operations", json!(["*", "CREATE"]), "webhooks[0].rules[0].operations"),
            ("/rules/0/operations", json!(["create"]), "webhooks[0].rules[0].operations[0]"),
            ("/rules/0/resources", json!(["*", "pods"]), "webhooks[0].rules[0].resources"),
        ];
        for (pointer, value, field) in fields {
            let found = wrong(|webhook| {
                let (parent, name) = pointer.rsplit_once('/').unwrap();
                webhook.pointer_mut(parent).unwrap()[name] = value.clone();
            });
            assert_eq!(found, [field], "{pointer}: {value}");
        }
        let twice = errors(&json!({"webhooks": [webhook(), webhook()]}), false);
        assert_eq!(twice[0].field, "webhooks[1].name");
    }
}
