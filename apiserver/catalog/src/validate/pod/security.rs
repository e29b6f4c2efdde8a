//! Validation of the security contexts of pods and containers.

use std::collections::HashSet;

use super::paths::relative_path;
use super::{Errors, Field, windows};

const ID_MAX: i64 = i32::MAX as i64;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// Maximum length of a profile's path in bytes.
const PROFILE_LEN_MAX: usize = 4095;
/// Maximum length of a kernel parameter's name in bytes.
const SYSCTL_LEN_MAX: usize = 253;

/// Checks the security context of a pod.
pub(super) fn of_pod(spec: &Field<'_, '_>, errors: &mut Errors) {
    let context = spec.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        context.child(field).within(0, ID_MAX, errors);
    }
    for group in context.child("supplementalGroups").items() {
        group.within(0, ID_MAX, errors);
    }
    let shared = context.with("shareProcessNamespace", &spec.value()["shareProcessNamespace"]);
    if shared.is_true() && spec.child("hostPID").is_true() {
        errors.push(shared.invalid("ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    sysctls(spec, &context.child("sysctls"), errors);
    context.child("fsGroupChangePolicy").one_of(&["Always", "OnRootMismatch"], errors);
    seccomp(&context.child("seccompProfile"), errors);
    windows::options(&context.child("windowsOptions"), errors);
    app_armor(&context.child("appArmorProfile"), errors);
    context.child("supplementalGroupsPolicy").one_of(&["Merge", "Strict"], errors);
    context.child("seLinuxChangePolicy").one_of(&["Recursive"], errors);
}

/// Checks the security context of a container.
pub(super) fn of_container(context: &Field<'_, '_>, host_users: bool, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        context.child(field).within(0, ID_MAX, errors);
    }
    let mount = context.child("procMount");
    mount.one_of(&["Default", "Unmasked"], errors);
    if host_users && mount.text() == "Unmasked" {
        errors.push(mount.invalid("`hostUsers` must be false to use `Unmasked`"));
    }
    seccomp(&context.child("seccompProfile"), errors);
    if context.value()["allowPrivilegeEscalation"] == false {
        if context.child("privileged").is_true() {
            let text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(context.invalid(text));
        }
        let capabilities = context.child("capabilities");
        if capabilities.child("add").list().iter().any(|one| one == "CAP_SYS_ADMIN") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(context.invalid(text));
        }
    }
    windows::options(&context.child("windowsOptions"), errors);
    app_armor(&context.child("appArmorProfile"), errors);
}

fn seccomp(profile: &Field<'_, '_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (kind, path) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "" => errors.push(kind.required("type is required when seccompProfile is set")),
        _ => kind.one_of(&PROFILE_TYPES, errors),
    }
    match (kind.text() == "Localhost", path.is_set()) {
        (true, false) => errors.push(path.required("must be set when seccomp type is Localhost")),
        (true, true) => relative_path(&path, errors),
        (false, true) => {
            let text = "can only be set when seccomp type is Localhost";
            errors.push(path.invalid_value(profile.value().clone(), text));
        }
        (false, false) => {}
    }
}

fn app_armor(profile: &Field<'_, '_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (kind, path) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "Localhost" if path.text().trim().is_empty() && path.text().is_empty() => {
            errors.push(path.required("must be set when AppArmor type is Localhost"));
        }
        "Localhost" => {
            if path.text().trim() != path.text() {
                errors.push(path.invalid("must not be padded with whitespace"));
            }
            if path.text().len() > PROFILE_LEN_MAX {
                errors.push(super::FieldError::too_long(path.path(), PROFILE_LEN_MAX));
            }
        }
        "RuntimeDefault" | "Unconfined" if path.is_set() => {
            errors.push(path.invalid("can only be set when AppArmor type is Localhost"));
        }
        "" => errors.push(kind.required("type is required when appArmorProfile is set")),
        _ => kind.one_of(&PROFILE_TYPES, errors),
    }
}

fn sysctls(spec: &Field<'_, '_>, list: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for sysctl in list.items() {
        let name = sysctl.child("name");
        if name.is_empty() {
            errors.push(name.required(""));
        } else if !is_sysctl(name.text()) {
            let text = format!(
                "must have at most {SYSCTL_LEN_MAX} characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            errors.push(name.invalid(text));
        } else if seen.contains(name.text()) {
            errors.push(name.duplicate());
        }
        let of_host = match namespace(name.text()) {
            "net" => "hostNetwork",
            "ipc" => "hostIPC",
            _ => "",
        };
        if !of_host.is_empty() && spec.child(of_host).is_true() {
            errors.push(name.invalid(format!("may not be specified when '{of_host}' is true")));
        }
        seen.insert(name.text());
    }
}

fn is_sysctl(name: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    let fits =
        |part: &str| edge(part.as_bytes().first()) && edge(part.as_bytes().last()) && part.bytes().all(inner);
    name.len() <= SYSCTL_LEN_MAX && name.split(['.', '/']).all(fits)
}

/// The kernel namespace of a parameter; empty if it has none.
fn namespace(name: &str) -> &'static str {
    const OF_IPC: [&str; 11] = [
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
        "fs.mqueue",
    ];
    // The first separator in the name, a dot or a slash, is the one between its parts.
    let name = match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name.replace('.', "/").replace('/', "."),
        _ => name.to_owned(),
    };
    match name.as_str() {
        name if name == "net" || name.starts_with("net.") => "net",
        name if OF_IPC.contains(&name) || name.starts_with("fs.mqueue.") => "ipc",
        _ => "",
    }
}
