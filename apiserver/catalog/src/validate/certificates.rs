//! Validation of certificate signing requests, and of their updates by subresource (pkg/apis/certificates/validation).

use std::cmp::Ordering;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::field::{Errors, Field};
use super::names;
use super::walk::top;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::value::{at, items};

const SECONDS_MIN: i64 = 600;
const DOMAIN_LEN_MAX: usize = 253;
/// The domain, a slash, and a path of a subdomain and a label.
const SIGNER_LEN_MAX: usize = 2 * DOMAIN_LEN_MAX + 65;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Checks a request.
pub(super) fn check(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = top(object, "spec");
    let request = spec.child("request");
    if !is_request(request.text()) {
        errors.push(request.invalid("PEM block type must be CERTIFICATE REQUEST"));
    }
    let usages = spec.child("usages");
    usages.demand(errors);
    usages.items().for_each(|usage| usage.one_of(&USAGES, errors));
    usages.unique(errors);
    let signer = spec.child("signerName");
    match signer.text() {
        "kubernetes.io/legacy-unknown"
            if old.is_none_or(|old| old["spec"]["signerName"] != *signer.value()) =>
        {
            errors.push(signer.invalid("the legacy signerName is not allowed via this API version"));
        }
        "kubernetes.io/legacy-unknown" => {}
        "" => errors.push(signer.required("")),
        _ => signer_name(&signer, errors),
    }
    let seconds = spec.child("expirationSeconds");
    if seconds.is_set() && seconds.int() < SECONDS_MIN {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(seconds.invalid(detail));
    }
    conditions(&top(object, CONDITIONS), old, errors);
}

/// Whether a text is the base64 form of a PEM block of the right type. The signer decides whether it can issue a
/// certificate for it.
fn is_request(text: &str) -> bool {
    let Ok(bytes) = STANDARD.decode(text) else { return false };
    let Ok(pem) = String::from_utf8(bytes) else { return false };
    let block = pem.split_once("-----BEGIN CERTIFICATE REQUEST-----").map(|(_, rest)| rest);
    let body =
        block.and_then(|rest| rest.split_once("-----END CERTIFICATE REQUEST-----")).map(|(body, _)| body);
    body.is_some_and(|body| {
        let body: String = body.split_whitespace().collect();
        STANDARD.decode(body).is_ok_and(|der| !der.is_empty())
    })
}

fn signer_name(signer: &Field<'_, '_>, errors: &mut Errors) {
    let [domain, path] = signer.text().split('/').collect::<Vec<_>>()[..] else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(signer.invalid(detail));
        return;
    };
    if domain.len() > DOMAIN_LEN_MAX {
        errors.push(FieldError::too_long(signer.path(), DOMAIN_LEN_MAX));
    }
    let mut wrong = |part: &str, grammar: fn(&str) -> Option<String>| {
        let found = part.split('.').find_map(|label| grammar(label).map(|problem| (label, problem)));
        errors.extend(found.map(|(label, problem)| {
            signer.invalid_value(part, format!("validating label {label:?}: {problem}"))
        }));
    };
    wrong(domain, names::dns1123_label);
    wrong(path, names::dns1123_subdomain);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(signer.invalid_value(domain, detail));
    }
    if signer.text().len() > SIGNER_LEN_MAX {
        errors.push(FieldError::too_long(signer.path(), SIGNER_LEN_MAX));
    }
}

/// Each type of condition occurs once, and a request is not both approved and denied, unless the stored conditions
/// already break this.
fn conditions(list: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    let before = old.map_or(&[][..], |old| items(old, &["status", "conditions"]));
    let types = |list: &[Value]| -> HashSet<String> {
        list.iter().filter_map(|condition| condition["type"].as_str()).map(str::to_owned).collect()
    };
    let had = types(before);
    let keeps_doubled = had.len() < before.len();
    let keeps_both = had.contains("Approved") && had.contains("Denied");
    let mut seen = HashSet::new();
    for condition in list.items() {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        if kind.text().is_empty() && !had.contains("") {
            errors.push(kind.required(""));
        }
        match kind.text() {
            "Approved" | "Denied" | "Failed" => status.one_of_required(&["True"], errors),
            _ => status.one_of_required(&["False", "True", "Unknown"], errors),
        }
        let opposite = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(opposite) && !keeps_both {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.push(list.invalid_value(kind.text(), detail));
        }
        if !seen.insert(kind.text()) && !keeps_doubled {
            errors.push(kind.duplicate());
        }
    }
}

const CONDITIONS: &str = "status.conditions";

pub(super) fn update(new: &Value, old: &Value, subresource: &str, errors: &mut Vec<FieldError>) {
    for decision in ["Approved", "Denied", "Failed"] {
        if of(new, decision).len() < of(old, decision).len() {
            let text = format!("updates may not remove a condition of type {decision:?}");
            errors.push(FieldError::forbidden(CONDITIONS, text));
        }
    }
    if subresource != "approval" {
        for decision in ["Approved", "Denied"] {
            let (now, before) = (of(new, decision), of(old, decision));
            let what = match now.len().cmp(&before.len()) {
                Ordering::Greater => "add",
                Ordering::Equal if now != before => "modify",
                _ => continue,
            };
            let text = format!("updates may not {what} a condition of type {decision:?}");
            errors.push(FieldError::forbidden(CONDITIONS, text));
        }
    }
    let (now, before) = (at(new, &["status", "certificate"]), at(old, &["status", "certificate"]));
    if now != before && subresource != "status" {
        errors.push(FieldError::forbidden("status.certificate", "updates may not set certificate content"));
    } else if now != before && !before.is_null() {
        let text = "updates may not modify existing certificate content";
        errors.push(FieldError::forbidden("status.certificate", text));
    }
}

/// The conditions of one type.
fn of<'a>(request: &'a Value, decision: &str) -> Vec<&'a Value> {
    items(request, &["status", "conditions"])
        .iter()
        .filter(|condition| condition["type"] == decision)
        .collect()
}
