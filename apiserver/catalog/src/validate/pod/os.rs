//! Validation of fields that a pod's operating system excludes.

use serde_json::Value;

use super::{Errors, Field, visit};

/// Fields that Windows pods cannot have, and whether they are in the security context.
const OF_LINUX: [(&str, bool); 15] = [
    ("appArmorProfile", true),
    ("seLinuxOptions", true),
    ("hostUsers", false),
    ("hostPID", false),
    ("hostIPC", false),
    ("seccompProfile", true),
    ("fsGroup", true),
    ("fsGroupChangePolicy", true),
    ("sysctls", true),
    ("shareProcessNamespace", false),
    ("runAsUser", true),
    ("runAsGroup", true),
    ("supplementalGroups", true),
    ("supplementalGroupsPolicy", true),
    ("seLinuxChangePolicy", true),
];

const OF_LINUX_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Checks the operating system, and that no field of another one is set.
pub(super) fn check(spec: &Field<'_, '_>, errors: &mut Errors) {
    let os = spec.child("os");
    if !os.is_set() {
        return;
    }
    match os.child("name").text() {
        "" => errors.push(os.child("name").required("")),
        "linux" => linux(spec, errors),
        "windows" => windows(spec, errors),
        name => {
            errors.push(super::FieldError::not_supported(os.path(), name, &["linux", "windows"]));
        }
    }
}

fn linux(spec: &Field<'_, '_>, errors: &mut Errors) {
    let check = |of: &Field<'_, '_>, errors: &mut Errors| {
        let context = of.child("securityContext");
        if context.child("windowsOptions").is_set() {
            let text = "windows options cannot be set for a linux pod";
            errors.push(context.child("windowsOptions").forbidden(text));
        }
    };
    check(spec, errors);
    visit(spec, |container| check(container, errors));
}

fn windows(spec: &Field<'_, '_>, errors: &mut Errors) {
    const WHY: &str = "cannot be set for a windows pod";
    let context = spec.child("securityContext");
    for (name, in_context) in OF_LINUX {
        let field = if in_context { context.child(name) } else { spec.child(name) };
        let given = match field.value() {
            // `false` does not request a host namespace.
            Value::Bool(given) => *given || !name.starts_with("host") || name == "hostUsers",
            Value::Array(items) => !items.is_empty(),
            other => !other.is_null(),
        };
        if given {
            errors.push(field.forbidden(WHY));
        }
    }
    visit(spec, |container| {
        let context = container.child("securityContext");
        for field in OF_LINUX_CONTAINERS {
            if context.child(field).is_set() {
                errors.push(context.child(field).forbidden(WHY));
            }
        }
    });
}
