//! Validation of volume mounts and block devices of containers.

use std::collections::{HashMap, HashSet};

use super::paths::{no_backsteps, relative_path};
use super::{Errors, Field, PodSpecContext};

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
const RECURSIVE: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];

/// Names and paths of a list of mounts or devices.
fn used<'v>(list: &Field<'_, 'v>, path: &str) -> HashMap<&'v str, &'v str> {
    let both = |item: Field<'_, 'v>| (item.child("name").text(), item.child(path).text());
    list.items().map(both).collect()
}

/// Checks the mounts of a container.
pub(super) fn mounts(container: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    let (list, devices) = (container.child("volumeMounts"), container.child("volumeDevices"));
    let devices = used(&devices, "devicePath");
    let mut seen = HashSet::new();
    for mount in list.items() {
        let (name, path) = (mount.child("name"), mount.child("mountPath"));
        name.demand(errors);
        if !context.volumes.contains_key(name.text()) {
            errors.push(name.not_found(""));
        }
        path.demand(errors);
        if !seen.insert(path.text()) {
            errors.push(path.invalid_value(path.text(), "must be unique"));
        }
        if devices.contains_key(name.text()) {
            errors.push(name.invalid_value(name.text(), "must not already exist in volumeDevices"));
        }
        if devices.values().any(|device| *device == path.text()) {
            errors.push(path.invalid("must not already exist as a path in volumeDevices"));
        }
        details(&list, &mount, container, errors);
    }
}

/// Checks the other fields of a mount. kube-apiserver reports these errors at the list, not at the mount.
fn details(list: &Field<'_, '_>, mount: &Field<'_, '_>, container: &Field<'_, '_>, errors: &mut Errors) {
    let at_list = |name: &'static str| list.with(name, &mount.value()[name]);
    let (path, expression) = (mount.child("subPath"), mount.child("subPathExpr"));
    if !path.is_empty() {
        relative_path(&at_list("subPath"), errors);
    }
    if !expression.is_empty() {
        if !path.is_empty() {
            errors.push(expression.invalid("subPathExpr and subPath are mutually exclusive"));
        }
        relative_path(&at_list("subPathExpr"), errors);
    }
    let propagation = at_list("mountPropagation");
    propagation.one_of(&PROPAGATIONS, errors);
    let privileged = container.child("securityContext");
    let privileged = privileged.child("privileged").is_true();
    if propagation.text() == "Bidirectional" && !privileged {
        let text = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(propagation.forbidden(text));
    }
    let recursive = at_list("recursiveReadOnly");
    recursive.one_of(&RECURSIVE, errors);
    if matches!(recursive.text(), "Enabled" | "IfPossible") {
        if !mount.child("readOnly").is_true() {
            errors.push(recursive.forbidden("may only be specified when readOnly is true"));
        }
        if propagation.is_set() && propagation.text() != "None" {
            let text = "may only be specified when mountPropagation is None or not specified";
            errors.push(recursive.forbidden(text));
        }
    }
}

/// Checks the block devices of a container.
pub(super) fn devices(container: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    let (list, mounts) = (container.child("volumeDevices"), container.child("volumeMounts"));
    let mounts = used(&mounts, "mountPath");
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for device in list.items() {
        let (name, path) = (device.child("name"), device.child("devicePath"));
        name.demand(errors);
        if names.contains(name.text()) {
            errors.push(name.invalid("must be unique"));
        }
        match context.volumes.get(name.text()) {
            Some(true) => {}
            Some(false) => {
                let text =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(name.invalid(text));
            }
            None => errors.push(name.not_found("")),
        }
        path.demand(errors);
        if paths.contains(path.text()) {
            errors.push(path.invalid_value(path.text(), "must be unique"));
        }
        let mut backsteps = Errors::new();
        no_backsteps(&path, &mut backsteps);
        match backsteps.is_empty() {
            true => drop(paths.insert(path.text())),
            false => errors.push(path.invalid("can not contain backsteps ('..')")),
        }
        if mounts.contains_key(name.text()) {
            errors.push(name.invalid_value(name.text(), "must not already exist in volumeMounts"));
        }
        if mounts.values().any(|mount| *mount == path.text()) {
            errors.push(path.invalid_value(path.text(), "must not already exist as a path in volumeMounts"));
        }
        if !name.is_empty() {
            names.insert(name.text());
        }
    }
}
