//! Validation of events of both API groups (pkg/apis/core/validation/events.go). Errors of the newer group name the
//! fields of the older one, because kube-apiserver converts both to one kind.

use serde_json::Value;

use super::IMMUTABLE;
use super::field::{Errors, Field};
use super::walk::top;

const NAME_LEN_MAX: usize = 128;
const NOTE_LEN_MAX: usize = 1024;

/// Immutable fields of an `events.k8s.io` event: the name there, and the name in errors.
const KEPT: [(&str, &str); 13] = [
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// Names of fields that both groups name differently: object, reporter and message.
struct EventFieldNames {
    object: &'static str,
    reporter: &'static str,
    message: &'static str,
}

/// Checks an event.
pub(super) fn check(group: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let newer = group == "events.k8s.io";
    let names = match newer {
        true => EventFieldNames { object: "regarding", reporter: "reportingController", message: "note" },
        false => {
            EventFieldNames { object: "involvedObject", reporter: "reportingComponent", message: "message" }
        }
    };
    both(object, &names, errors);
    match (newer, old) {
        (false, _) => {}
        (true, None) => newer_create(object, errors),
        (true, Some(old)) => newer_update(object, old, errors),
    }
}

fn both(object: &Value, names: &EventFieldNames, errors: &mut Errors) {
    let namespace = top(object, "metadata.namespace").text();
    let about = object[names.object]["namespace"].as_str().unwrap_or_default();
    let timed = top(object, "eventTime").is_set();
    let fits = match (about.is_empty(), timed) {
        (true, false) => matches!(namespace, "" | "default"),
        (true, true) => matches!(namespace, "default" | "kube-system"),
        (false, false) => about == namespace,
        (false, true) => true,
    };
    if !fits {
        let field = Field::root("involvedObject.namespace", &Value::Null);
        errors.push(field.invalid_value(about, "does not match event.namespace"));
    }
    if !timed {
        return;
    }
    let reporter = top(object, names.reporter);
    if reporter.text().is_empty() {
        errors.push(reporter.required(""));
    }
    reporter.grammar(super::names::qualified_name, errors);
    for field in ["reportingInstance", "action", "reason"] {
        let field = top(object, field);
        if field.text().is_empty() {
            errors.push(field.required(""));
        }
        at_most(&field, NAME_LEN_MAX, errors);
    }
    at_most(&Field::root("message", &object[names.message]), NOTE_LEN_MAX, errors);
}

fn at_most(field: &Field<'_, '_>, max: usize, errors: &mut Errors) {
    if field.text().len() > max {
        errors.push(field.invalid_value("", format!("can have at most {max} characters")));
    }
}

fn newer_create(object: &Value, errors: &mut Errors) {
    series(object, errors);
    let time = top(object, "eventTime");
    if !time.is_set() {
        errors.push(time.required(""));
    }
    let kind = top(object, "type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        errors.push(kind.invalid_value("", format!("has invalid value: {}", kind.text())));
    }
    for (field, shown) in &KEPT[3..7] {
        if !top(object, field).is_empty() && object[*field] != 0 {
            errors.push(Field::root(shown, &Value::Null).invalid_value("", "needs to be unset"));
        }
    }
}

fn newer_update(object: &Value, old: &Value, errors: &mut Errors) {
    if object["series"] != old["series"] {
        series(object, errors);
    }
    for (field, shown) in KEPT {
        if object[field] != old[field] {
            let field = match &object[field] {
                // An absent value is shown as an empty text, except the event time, which is a pointer in Go.
                Value::Null if old[field].is_string() && field != "eventTime" => "".into(),
                value => value.clone(),
            };
            errors.push(Field::root(shown, &field).invalid(IMMUTABLE));
        }
    }
}

fn series(object: &Value, errors: &mut Errors) {
    let series = top(object, "series");
    if !series.is_set() {
        return;
    }
    let (count, last) = (series.child("count"), series.child("lastObservedTime"));
    if count.int() < 2 {
        errors.push(count.invalid_value("", "should be at least 2"));
    }
    if !last.is_set() {
        errors.push(last.required(""));
    }
}
