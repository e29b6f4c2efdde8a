//! Warnings about pods and pod templates.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::field::Field;
use super::super::pod::visit;
use super::labels::{node_term, old_label};
use super::{network, paths, volumes};

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Annotations without effect.
const DEAD: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Warnings about a pod, or about a template at a path.
pub(super) fn check(object: &Value, path: &str, warnings: &mut Vec<String>) {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let (spec_path, annotations_path) = (format!("{prefix}spec"), format!("{prefix}metadata.annotations"));
    let spec = Field::root(&spec_path, &object["spec"]);
    let annotations = Field::root(&annotations_path, &object["metadata"]["annotations"]);
    for (key, value) in spec.child("nodeSelector").entries() {
        warnings.extend(old_label(key).map(|advice| format!("{value}: {advice}")));
    }
    nodes(&spec, warnings);
    for (key, advice) in DEAD {
        if annotations.key(key).is_set() {
            warnings.push(format!("{}: {advice}", annotations.key(key)));
        }
    }
    volumes::of_pod(&spec.child("volumes"), warnings);
    paths::overlaps(&spec.child("volumes"), warnings);
    doubles(&spec, warnings);
    fractions(&spec.child("overhead"), warnings);
    if !spec.child("securityContext").child("seccompProfile").is_set()
        && annotations.key(SECCOMP_POD).is_set()
    {
        warnings.push(format!("{}: {NO_SECCOMP}", annotations.key(SECCOMP_POD)));
    }
    visit(&spec, |container| self::container(container, &annotations, &spec, !path.is_empty(), warnings));
    ports(&spec, warnings);
    port_names(&spec, warnings);
    let grace = spec.child("terminationGracePeriodSeconds");
    if grace.int() < 0 {
        warnings.push(format!("{grace}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    pods(&spec, warnings);
    let dns = spec.child("dnsConfig");
    for server in dns.child("nameservers").items() {
        network::address(&server, server.text(), warnings);
    }
    for alias in spec.child("hostAliases").items() {
        network::address(&alias.child("ip"), alias.child("ip").text(), warnings);
    }
}

const NO_SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const NO_APP_ARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

fn nodes(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let affinity = spec.child("affinity");
    let affinity = affinity.child("nodeAffinity");
    let required = affinity.child(REQUIRED);
    for term in required.child("nodeSelectorTerms").items() {
        node_term(&term, false, warnings);
    }
    for term in affinity.child(PREFERRED).items() {
        node_term(&term.child("preference"), true, warnings);
    }
    for constraint in spec.child("topologySpreadConstraints").items() {
        let key = constraint.child("topologyKey");
        if let Some(advice) = old_label(key.text()) {
            warnings.push(format!("{key}: {} is {advice}", key.text()));
        }
        if !constraint.child("labelSelector").is_set() {
            warnings.push(format!("{}: {NO_SELECTOR}", constraint.child("labelSelector")));
        }
    }
}

fn pods(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let affinity = spec.child("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let kind = affinity.child(kind);
        let mut term = |term: &Field<'_, '_>| {
            if !term.child("labelSelector").is_set() {
                warnings.push(format!("{}: {NO_SELECTOR}", term.child("labelSelector")));
            }
        };
        kind.child(REQUIRED).items().for_each(|required| term(&required));
        kind.child(PREFERRED).items().for_each(|preferred| term(&preferred.child("podAffinityTerm")));
    }
}

/// Warns of list entries with duplicate or empty names.
fn doubles(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let mut seen = HashSet::new();
        for item in spec.child(list).items() {
            let name = item.child(field);
            if !seen.insert(name.text()) {
                warnings.push(format!("{name}: duplicate {field} {:?}", name.text()));
            }
        }
    }
    for secret in spec.child("imagePullSecrets").items() {
        if secret.child("name").is_empty() {
            warnings.push(format!("{}: invalid empty name \"\"", secret.child("name")));
        }
    }
}

/// Warns of fractions of bytes.
fn fractions(amounts: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        volumes::fraction(&amounts.key(name), warnings);
    }
}

fn container(
    container: &Field<'_, '_>,
    annotations: &Field<'_, '_>,
    spec: &Field<'_, '_>,
    in_template: bool,
    warnings: &mut Vec<String>,
) {
    let name = container.child("name").text();
    let context = container.child("securityContext");
    let old = format!("{SECCOMP_CONTAINER}{name}");
    if !context.child("seccompProfile").is_set() && annotations.key(&old).is_set() {
        warnings.push(format!("{}: {NO_SECCOMP}", annotations.key(&old)));
    }
    let old = format!("{APP_ARMOR}{name}");
    let of_pod = spec.child("securityContext");
    let same = says_the_same(annotations.key(&old).text(), of_pod.child("appArmorProfile").value());
    if in_template && !context.child("appArmorProfile").is_set() && annotations.key(&old).is_set() && !same {
        warnings.push(format!("{}: {NO_APP_ARMOR}", annotations.key(&old)));
    }
    let resources = container.child("resources");
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            volumes::fraction(&resources.child(list).key(name), warnings);
        }
    }
    let mut seen = HashSet::new();
    for variable in container.child("env").items() {
        let name = variable.child("name").text();
        if seen.insert(name) {
            continue;
        }
        let (reference, value) = (format!("$({name})"), variable.child("value").text());
        if variable.child("valueFrom").is_set() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{variable}: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

fn says_the_same(annotation: &str, profile: &Value) -> bool {
    let kind = profile["type"].as_str().unwrap_or_default();
    match annotation {
        "unconfined" => kind == "Unconfined",
        "runtime/default" => kind == "RuntimeDefault",
        _ => annotation
            .strip_prefix("localhost/")
            .is_some_and(|path| kind == "Localhost" && profile["localhostProfile"] == path),
    }
}

/// Warns of pod annotations that were replaced by container fields.
pub(super) fn app_armor(pod: &Value, warnings: &mut Vec<String>) {
    let annotations = Field::root("metadata.annotations", &pod["metadata"]["annotations"]);
    let spec = Field::root("spec", &pod["spec"]);
    let of_pod = spec.child("securityContext");
    let of_pod = of_pod.child("appArmorProfile");
    visit(&spec, |container| {
        let key = format!("{APP_ARMOR}{}", container.child("name").text());
        let annotation = annotations.key(&key);
        let context = container.child("securityContext");
        let own = context.child("appArmorProfile").is_set();
        if annotation.is_set() && !own && !says_the_same(annotation.text(), of_pod.value()) {
            warnings.push(format!("{annotation}: {NO_APP_ARMOR}"));
        }
    });
}

/// A port seen before: its path, and the host's port and address.
type PortUse<'v> = (String, i64, &'v str);

fn ports(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut all: HashMap<(i64, &str), Vec<PortUse<'_>>> = HashMap::new();
    visit(spec, |container| {
        for port in container.child("ports").items() {
            let (host, ip) = (port.child("hostPort").int(), port.child("hostIP").text());
            let (number, protocol) = (port.child("containerPort").int(), port.child("protocol").text());
            if !ip.is_empty() && host == 0 {
                let name = port.child("name").text();
                warnings.push(format!(
                    "{port}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{ip}}}"
                ));
            }
            let others = all.entry((number, protocol)).or_default();
            for (other, other_host, other_ip) in others.iter() {
                let how = if ip == *other_ip && host == *other_host {
                    "duplicate"
                } else if host == 0 || *other_host == 0 {
                    "overlapping"
                } else if host == *other_host && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{port}: {how} port definition with {other}"));
            }
            others.push((port.path(), host, ip));
        }
    });
}

fn port_names(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut all: HashMap<&str, String> = HashMap::new();
    visit(spec, |container| {
        for port in container.child("ports").items().filter(|port| !port.child("name").is_empty()) {
            let name = port.child("name").text();
            match all.get(name) {
                Some(other) => warnings.push(format!(
                    "{port}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None => drop(all.insert(name, port.path())),
            }
        }
    });
}
