//! Validation of probes and lifecycle hooks.

use serde_json::Value;

use super::super::names;
use super::{Errors, Field, port_or_name};

/// Checks a probe. Only readiness probes may require more than one success.
pub(super) fn probe(probe: &Field<'_, '_>, one_success: bool, errors: &mut Errors) {
    if !probe.is_set() {
        return;
    }
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], None, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        probe.child(field).non_negative(errors);
    }
    let grace = probe.child("terminationGracePeriodSeconds");
    if grace.is_set() && grace.int() <= 0 {
        errors.push(grace.invalid("must be greater than 0"));
    }
    let threshold = probe.child("successThreshold");
    if one_success && threshold.int() != 1 {
        errors.push(threshold.invalid_value(threshold.int(), "must be 1"));
    }
    if !one_success && grace.is_set() {
        errors.push(grace.invalid("must not be set for readinessProbes"));
    }
}

/// Checks the lifecycle hooks: after the start and before the stop.
pub(super) fn lifecycle(lifecycle: &Field<'_, '_>, grace: Option<i64>, errors: &mut Errors) {
    for moment in ["postStart", "preStop"] {
        let moment = lifecycle.child(moment);
        if moment.is_set() {
            handler(&moment, &["exec", "httpGet", "tcpSocket", "sleep"], grace, errors);
        }
    }
}

/// Exactly one of the actions must be set.
fn handler(handler: &Field<'_, '_>, actions: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut given = false;
    for name in actions {
        let action = handler.child(name);
        if !action.is_set() {
            continue;
        }
        if given {
            errors.push(action.forbidden("may not specify more than 1 handler type"));
            continue;
        }
        given = true;
        match *name {
            "exec" => drop(action.child("command").demand(errors)),
            "httpGet" => http_get(&action, errors),
            "sleep" => sleep(&action, grace, errors),
            _ => port_or_name(&action.child("port"), errors),
        }
    }
    if !given {
        errors.push(handler.required("must specify a handler type"));
    }
}

fn http_get(action: &Field<'_, '_>, errors: &mut Errors) {
    action.child("path").demand(errors);
    port_or_name(&action.child("port"), errors);
    let scheme = action.child("scheme");
    if !["HTTP", "HTTPS"].contains(&scheme.text()) {
        errors.push(scheme.not_supported(&["HTTP", "HTTPS"]));
    }
    let headers = action.child("httpHeaders");
    for header in headers.items() {
        let name = header.child("name").text();
        if let Some(problem) = names::http_header(name) {
            errors.push(headers.invalid_value(name, problem));
        }
    }
}

fn sleep(action: &Field<'_, '_>, grace: Option<i64>, errors: &mut Errors) {
    let seconds = action.child("seconds").int();
    if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
        let text = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(action.invalid_value(Value::from(seconds), text));
    }
}
