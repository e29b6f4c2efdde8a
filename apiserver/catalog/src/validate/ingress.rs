//! Validation of Ingresses (pkg/apis/networking/validation).

use serde_json::Value;

use super::addresses::sloppy;
use super::field::{Errors, Field};
use super::networking::{port_number, reference};
use super::walk::top;
use super::{FieldError, addresses, domains, names};
use tombolo_apicore::value::{at, items, text};

/// Annotation that named the class before the field existed.
const CLASS: &str = "kubernetes.io/ingress.class";

/// Parts that a rule's path may not contain, because servers interpret them differently.
const BAD_PARTS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDS: [&str; 2] = ["/..", "/."];

/// Checks an Ingress. Stored names from before a check existed are kept.
pub(super) fn check(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = top(object, "spec");
    let (rules, backend) = (spec.child("rules"), spec.child("defaultBackend"));
    if rules.is_empty() && !backend.is_set() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(spec.invalid_value(rules.value().clone(), detail));
    }
    if backend.is_set() {
        self::backend(&backend, errors);
    }
    rules.items().for_each(|one| rule(&one, errors));
    let keeps_secrets = old.is_some_and(|old| {
        let secrets = items(old, &["spec", "tls"]).iter().map(|tls| text(tls, &["secretName"]));
        secrets.into_iter().any(|name| secret_problem(name).is_some())
    });
    for tls in spec.child("tls").items() {
        tls.child("hosts").items().for_each(|one| host(&one, errors));
        if !keeps_secrets {
            tls.child("secretName").grammar(secret_problem, errors);
        }
    }
    let class = spec.child("ingressClassName");
    if class.is_set() {
        class.grammar(names::dns1123_subdomain, errors);
    }
    let annotation = at(object, &["metadata", "annotations", CLASS]);
    if old.is_none() && class.is_set() && annotation.as_str().is_some_and(|named| named != class.text()) {
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(FieldError::invalid(format!("annotations.{CLASS}"), annotation.clone(), detail));
    }
}

fn secret_problem(name: &str) -> Option<String> {
    if name.is_empty() { None } else { names::dns1123_subdomain(name) }
}

fn host(host: &Field<'_, '_>, errors: &mut Errors) {
    match host.text().contains('*') {
        true => host.grammar(domains::wildcard_subdomain, errors),
        false => host.grammar(names::dns1123_subdomain, errors),
    }
}

fn rule(rule: &Field<'_, '_>, errors: &mut Errors) {
    let name = rule.child("host");
    if sloppy(name.text()).is_some() {
        errors.push(name.invalid("must be a DNS name, not an IP address"));
    }
    if !name.text().is_empty() {
        host(&name, errors);
    }
    let http = rule.child("http");
    if !http.is_set() {
        return;
    }
    let paths = http.child("paths");
    if paths.is_empty() {
        errors.push(paths.required(""));
    }
    paths.items().for_each(|one| path(&one, errors));
}

fn path(one: &Field<'_, '_>, errors: &mut Errors) {
    let (kind, path) = (one.child("pathType"), one.child("path"));
    if !kind.is_set() {
        return errors.push(kind.required("pathType must be specified"));
    }
    let text = path.text();
    let mut wrong = |detail: String| errors.push(path.invalid_value(text, detail));
    match kind.text() {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                wrong("must be an absolute path".to_owned());
            }
            for part in BAD_PARTS.iter().filter(|part| text.contains(**part)) {
                wrong(format!("must not contain '{part}'"));
            }
            for end in BAD_ENDS.iter().filter(|end| text.ends_with(**end)) {
                wrong(format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" if !text.is_empty() && !text.starts_with('/') => {
            wrong("must be an absolute path".to_owned());
        }
        "ImplementationSpecific" => {}
        _ => errors.push(kind.not_supported(&["Exact", "ImplementationSpecific", "Prefix"])),
    }
    backend(&one.child("backend"), errors);
}

fn backend(backend: &Field<'_, '_>, errors: &mut Errors) {
    let (service, resource) = (backend.child("service"), backend.child("resource"));
    let wrong = |detail: &str| backend.invalid_value("", detail);
    match (service.is_set(), resource.is_set()) {
        (true, true) => errors.push(wrong("cannot set both resource and service backends")),
        (false, true) => reference(&resource, errors),
        (true, false) => {
            service.child("name").check_required(names::dns1123_label, errors);
            let (name, number) = (service.below("port.name"), service.below("port.number"));
            match (!name.text().is_empty(), number.int() != 0) {
                (true, true) => errors.push(wrong("cannot set both port name & port number")),
                (true, false) => name.grammar(names::port_name, errors),
                (false, true) => port_number(&number, errors),
                (false, false) => errors.push(backend.required("port name or number is required")),
            }
        }
        (false, false) => errors.push(wrong("resource or service backend is required")),
    }
}

/// Checks the load balancer addresses in the status.
pub(super) fn status(new: &Value, old: &Value, errors: &mut Errors) {
    const POINTS: [&str; 3] = ["status", "loadBalancer", "ingress"];
    let before: Vec<&str> = items(old, &POINTS).iter().map(|point| text(point, &["ip"])).collect();
    for point in top(new, "status.loadBalancer.ingress").items() {
        let (address, name) = (point.child("ip"), point.child("hostname"));
        if !address.text().is_empty() && !before.contains(&address.text()) {
            addresses::address(&address, address.text(), errors);
        }
        if !name.text().is_empty() {
            name.grammar(names::dns1123_subdomain, errors);
        }
        if sloppy(name.text()).is_some() {
            errors.push(name.invalid("must be a DNS name, not an IP address"));
        }
    }
}
