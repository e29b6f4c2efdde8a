//! Level Baseline: forbids known ways to escape from a container.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{PodSecurityViolation, Subject, forbidden, named, plural, quoted, setters};
use crate::objects::{items, text};

/// Annotations that were used before AppArmor had fields.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Capabilities that containers may add, which they have by default.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Safe sysctls, with the minor version since which they are allowed.
const SYSCTLS: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

/// SELinux types of containers, with the minor version since which they are allowed.
const SE_LINUX_TYPES: [(u32, &str); 5] = [
    (0, ""),
    (0, "container_t"),
    (0, "container_init_t"),
    (0, "container_kvm_t"),
    (31, "container_engine_t"),
];

pub(super) fn app_armor(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let allowed = |profile: &str| matches!(profile, "RuntimeDefault" | "Localhost");
    let (pod, containers, values) = forbidden(subject, "/appArmorProfile/type", |profile| !allowed(profile));
    let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
    let annotations = subject.metadata.get("annotations").and_then(Value::as_object).into_iter().flatten();
    let annotated: Vec<String> = annotations
        .filter(|(name, _)| name.starts_with(APP_ARMOR))
        .map(|(name, value)| (name, value.as_str().unwrap_or_default()))
        .filter(|(_, value)| {
            !value.is_empty() && *value != "runtime/default" && !value.starts_with("localhost/")
        })
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    let mut by: Vec<String> = setters(pod, &containers).into_iter().collect();
    if !annotated.is_empty() {
        by.push(plural("annotation", "annotations", annotated.len()));
        values.extend(annotated);
    }
    (!by.is_empty()).then(|| {
        let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
        let detail =
            format!("{} must not set AppArmor profile type to {}", by.join(" and "), quoted(&values));
        PodSecurityViolation { reason, detail }
    })
}

pub(super) fn capabilities(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let mut added = BTreeSet::new();
    let bad = subject.bad(|container| {
        let own = items(container, "/securityContext/capabilities/add").iter().filter_map(Value::as_str);
        let before =
            own.clone().filter(|name| !CAPABILITIES.contains(name)).map(|name| added.insert(name)).count();
        before > 0
    });
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&bad),
            quoted(&added)
        );
        PodSecurityViolation::new("non-default capabilities", detail)
    })
}

pub(super) fn host_namespaces(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| subject.spec.get(*field) == Some(&Value::Bool(true)))
        .map(|field| format!("{field}=true"));
    let shared: Vec<String> = shared.collect();
    (!shared.is_empty()).then(|| PodSecurityViolation::new("host namespaces", shared.join(", ")))
}

pub(super) fn host_path_volumes(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let volumes = items(subject.spec, "/volumes").iter().filter(|volume| volume["hostPath"].is_object());
    let bad: Vec<&str> = volumes.map(|volume| text(volume, "/name")).collect();
    (!bad.is_empty()).then(|| {
        let detail = format!("{} {}", plural("volume", "volumes", bad.len()), quoted(&bad));
        PodSecurityViolation::new("hostPath volumes", detail)
    })
}

pub(super) fn host_ports(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let mut ports = BTreeSet::new();
    let bad = subject.bad(|container| {
        let own = items(container, "/ports").iter().filter_map(|port| port["hostPort"].as_u64());
        own.filter(|port| *port != 0).map(|port| ports.insert(port.to_string())).count() > 0
    });
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.iter().cloned().collect::<Vec<_>>().join(", ")
        );
        PodSecurityViolation::new("hostPort", detail)
    })
}

pub(super) fn host_probes(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    const HANDLERS: [&str; 5] =
        ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
    let mut hosts = BTreeSet::new();
    let mut bad = subject.bad(|container| {
        let handlers = HANDLERS.iter().filter_map(|handler| container.pointer(handler));
        let own =
            handlers.flat_map(|handler| [text(handler, "/httpGet/host"), text(handler, "/tcpSocket/host")]);
        own.filter(|host| !host.is_empty()).map(|host| hosts.insert(host)).count() > 0
    });
    bad.sort_unstable();
    bad.dedup();
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(&hosts)
        );
        PodSecurityViolation::new("probe or lifecycle host", detail)
    })
}

pub(super) fn privileged(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let is_set =
        |container: &Value| container.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    let bad = subject.bad(is_set);
    (!bad.is_empty()).then(|| {
        PodSecurityViolation::new(
            "privileged",
            format!("{} must not set securityContext.privileged=true", named(&bad)),
        )
    })
}

pub(super) fn proc_mount(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let mut types = BTreeSet::new();
    let bad = subject.bad(|container| {
        let own = container.pointer("/securityContext/procMount").and_then(Value::as_str);
        own.filter(|own| *own != "Default").map(|own| types.insert(own)).is_some()
    });
    (!bad.is_empty()).then(|| {
        let detail = format!("{} must not set securityContext.procMount to {}", named(&bad), quoted(&types));
        PodSecurityViolation::new("procMount", detail)
    })
}

pub(super) fn proc_mount_or_user_namespace(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    if minor >= 35 && subject.has_user_namespace() {
        return None;
    }
    proc_mount(subject, minor)
}

pub(super) fn se_linux(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    let mut types = BTreeSet::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |holder: &Value| {
        let Some(options) = holder.pointer("/securityContext/seLinuxOptions").filter(|own| own.is_object())
        else {
            return false;
        };
        let kind = text(options, "/type");
        let type_is_bad = !SE_LINUX_TYPES.iter().any(|(since, own)| *own == kind && minor >= *since);
        if type_is_bad {
            types.insert(kind.to_owned());
        }
        let (has_user, has_role) = (!text(options, "/user").is_empty(), !text(options, "/role").is_empty());
        user |= has_user;
        role |= has_role;
        type_is_bad || has_user || has_role
    };
    let pod = is_bad(subject.spec);
    let containers = subject.bad(is_bad);
    let by = setters(pod, &containers)?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!("{by} set forbidden securityContext.seLinuxOptions: {}", what.join("; "));
    Some(PodSecurityViolation::new("seLinuxOptions", detail))
}

pub(super) fn seccomp(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    if minor < 19 {
        return seccomp_annotations(subject);
    }
    let allowed = |profile: &str| matches!(profile, "RuntimeDefault" | "Localhost");
    let (pod, containers, values) = forbidden(subject, "/seccompProfile/type", |profile| !allowed(profile));
    let by = setters(pod, &containers)?;
    let detail = format!("{by} must not set securityContext.seccompProfile.type to {}", quoted(&values));
    Some(PodSecurityViolation::new("seccompProfile", detail))
}

/// Checks the annotations that were used before profiles had fields.
fn seccomp_annotations(subject: Subject<'_>) -> Option<PodSecurityViolation> {
    let allowed = |value: &str| {
        matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/")
    };
    let containers = subject.containers().map(|container| text(container, "/name"));
    let names = containers.map(|name| format!("container.seccomp.security.alpha.kubernetes.io/{name}"));
    let names = names.chain(["seccomp.security.alpha.kubernetes.io/pod".to_owned()]);
    let bad: BTreeSet<String> = names
        .filter_map(|name| {
            let value = subject.metadata.get("annotations")?.get(&name)?.as_str()?;
            (!allowed(value)).then(|| format!("{name}={value:?}"))
        })
        .collect();
    (!bad.is_empty()).then(|| {
        let texts = bad.iter().cloned().collect::<Vec<_>>().join(", ");
        let detail = format!("forbidden {} {texts}", plural("annotation", "annotations", bad.len()));
        PodSecurityViolation::new("seccompProfile", detail)
    })
}

pub(super) fn sysctls(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    let names = items(subject.spec, "/securityContext/sysctls").iter().map(|sysctl| text(sysctl, "/name"));
    let allowed = |name: &str| SYSCTLS.iter().any(|(since, own)| *own == name && minor >= *since);
    let bad: Vec<&str> = names.filter(|name| !allowed(name)).collect();
    (!bad.is_empty()).then(|| PodSecurityViolation::new("forbidden sysctls", bad.join(", ")))
}

pub(super) fn windows_host_process(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let is_set = |holder: &Value| {
        holder.pointer("/securityContext/windowsOptions/hostProcess") == Some(&Value::Bool(true))
    };
    let by = setters(is_set(subject.spec), &subject.bad(is_set))?;
    let detail = format!("{by} must not set securityContext.windowsOptions.hostProcess=true");
    Some(PodSecurityViolation::new("hostProcess", detail))
}
