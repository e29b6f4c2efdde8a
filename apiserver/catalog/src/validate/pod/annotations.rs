//! Validation of annotations that were replaced by fields.

use serde_json::Value;

use super::paths::relative_path;
use super::{Errors, Field, MIRROR, scheduling, visit};
use tombolo_apicore::value::{at, text};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Checks the annotations of a pod or template; `path` is that of the annotations.
pub(super) fn check(metadata: &Value, spec: &Value, path: &str, errors: &mut Errors) {
    let Some(annotations) = metadata["annotations"].as_object() else { return };
    let root = Field::root(path, &metadata["annotations"]);
    let mirror = root.key(MIRROR);
    if mirror.is_set() && text(spec, &["nodeName"]).is_empty() {
        errors.push(mirror.invalid("must set spec.nodeName if mirror pod annotation is set"));
    }
    let tolerations = root.child(TOLERATIONS);
    if !tolerations.is_empty() {
        match serde_json::from_str::<Value>(tolerations.text()) {
            Ok(list) => scheduling::tolerations(&Field::root(&tolerations.path(), &list), errors),
            Err(error) => errors.push(root.invalid_value(TOLERATIONS, error.to_string())),
        }
    }
    let cost = root.key(DELETION_COST);
    if cost.is_set() && !is_number(cost.text()) {
        errors.push(cost.invalid("must be a 32bit integer"));
    }
    for key in annotations.keys() {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(&root.child(key), errors);
        }
        if let Some(container) = key.strip_prefix(APP_ARMOR) {
            app_armor(spec, container, &root.key(key), errors);
        }
    }
}

fn is_number(text: &str) -> bool {
    let bare = text.strip_prefix('-').unwrap_or(text);
    text.parse::<i32>().is_ok()
        && !text.starts_with('+')
        && (text == "0" || text.starts_with('-') || !bare.starts_with('0'))
}

fn seccomp(profile: &Field<'_, '_>, errors: &mut Errors) {
    match profile.text() {
        "runtime/default" | "docker/default" | "unconfined" => {}
        text => match text.strip_prefix("localhost/") {
            Some(path) => {
                let path = Value::from(path);
                relative_path(&Field::root(&profile.path(), &path), errors);
            }
            None => errors.push(profile.invalid("must be a valid seccomp profile")),
        },
    }
}

fn app_armor(spec: &Value, container: &str, profile: &Field<'_, '_>, errors: &mut Errors) {
    let mut found = false;
    visit(&Field::root("", spec), |other| found |= other.child("name").text() == container);
    if !found {
        errors.push(profile.invalid_value(container, "container not found"));
    }
    let known = matches!(profile.text(), "" | "runtime/default" | "unconfined");
    if !known && !profile.text().starts_with("localhost/") {
        errors.push(profile.invalid(format!("invalid AppArmor profile name: {:?}", profile.text())));
    }
}

/// An annotation and its field must agree.
pub(super) fn fields_match(metadata: &Value, spec: &Field<'_, '_>, errors: &mut Errors) {
    let annotation = |key: &str| at(metadata, &["annotations"]).get(key).and_then(Value::as_str);
    let context = spec.child("securityContext");
    let profile = context.child("seccompProfile");
    agree("seccomp", annotation(SECCOMP_POD), profile.value(), &profile, errors);
    visit(spec, |container| {
        let context = container.child("securityContext");
        let profile = context.child("seccompProfile");
        let key = format!("{SECCOMP_CONTAINER}{}", container.child("name").text());
        agree("seccomp", annotation(&key), profile.value(), &profile, errors);
    });
    if spec.value()["os"]["name"] == "windows" {
        return;
    }
    visit(spec, |container| {
        let own = container.child("securityContext");
        let own = own.child("appArmorProfile");
        let key = format!("{APP_ARMOR}{}", container.child("name").text());
        let of_pod = &spec.value()["securityContext"]["appArmorProfile"];
        let profile = if own.is_set() { own.value() } else { of_pod };
        agree("apparmor", annotation(&key), profile, &own, errors);
    });
}

fn agree(what: &str, annotation: Option<&str>, profile: &Value, shown: &Field<'_, '_>, errors: &mut Errors) {
    let Some(annotation) = annotation else { return };
    let (kind, path) = (text(profile, &["type"]), text(profile, &["localhostProfile"]));
    let local = annotation.strip_prefix("localhost/");
    let fits = match kind {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => local.is_some(),
        _ => return,
    };
    if !fits {
        let text = format!("{what} type in annotation and field must match");
        errors.push(shown.child("type").forbidden(&text));
    } else if kind == "Localhost" && local != Some(path) {
        let text = format!("{what} profile in annotation and field must match");
        errors.push(shown.child("localhostProfile").forbidden(&text));
    }
}

/// Checks which annotations of a pod an update changes.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (at(new, &["metadata", "annotations"]), at(old, &["metadata", "annotations"]));
    let root = Field::root("metadata.annotations", now);
    let watched = |key: &str| key == MIRROR || key.starts_with(APP_ARMOR);
    let what = |key: &str| if key == MIRROR { "mirror pod annotation" } else { "AppArmor annotations" };
    for (key, value) in before.as_object().into_iter().flatten() {
        if watched(key) && now.get(key) != Some(value) {
            errors.push(root.key(key).forbidden(&format!("may not remove or update {}", what(key))));
        }
    }
    for key in now.as_object().into_iter().flat_map(serde_json::Map::keys) {
        if watched(key) && before.get(key).is_none() {
            errors.push(root.key(key).forbidden(&format!("may not add {}", what(key))));
        }
    }
    // Checked once more, as in kube-apiserver: its list of causes has these errors twice.
    check(&new["metadata"], &new["spec"], "metadata.annotations", errors);
}
