//! The checks of the Pod Security Standards, in the order in which their findings are reported.

mod baseline;
mod restricted;

use std::collections::BTreeSet;

use serde_json::Value;

use super::policy::{Level, Rules};
use crate::objects::{items, text};

/// A finding of a check: a reason and its detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodSecurityViolation {
    pub(super) reason: String,
    pub(super) detail: String,
}

impl PodSecurityViolation {
    fn new(reason: &str, detail: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), detail: detail.into() }
    }
}

/// Metadata and spec of a pod or of a pod template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

impl<'a> Subject<'a> {
    /// Takes both from a pod or a pod template.
    pub(super) fn of(pod: &'a Value) -> Self {
        Self { metadata: &pod["metadata"], spec: &pod["spec"] }
    }

    fn containers(self) -> impl Iterator<Item = &'a Value> {
        let lists = ["/initContainers", "/containers", "/ephemeralContainers"];
        lists.into_iter().flat_map(move |list| items(self.spec, list))
    }

    /// The names of the containers for which `is_bad` holds.
    fn bad(self, mut is_bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers()
            .filter(|container| is_bad(container))
            .map(|container| text(container, "/name"))
            .collect()
    }

    fn is_windows(self) -> bool {
        text(self.spec, "/os/name") == "windows"
    }

    fn has_user_namespace(self) -> bool {
        self.spec.get("hostUsers") == Some(&Value::Bool(false))
    }
}

type CheckFunction = fn(Subject<'_>, u32) -> Option<PodSecurityViolation>;

/// One check: its level, the first minor version that has it, and the version since which level Restricted has another
/// check instead.
struct Check {
    level: Level,
    since: u32,
    /// First minor version in which level Restricted has a stricter check instead.
    replaced_since: Option<u32>,
    run: CheckFunction,
}

const fn baseline(since: u32, run: CheckFunction) -> Check {
    Check { level: Level::Baseline, since, replaced_since: None, run }
}

const fn replaced(since: u32, run: CheckFunction) -> Check {
    Check { level: Level::Baseline, since: 0, replaced_since: Some(since), run }
}

const fn restricted(since: u32, run: CheckFunction) -> Check {
    Check { level: Level::Restricted, since, replaced_since: None, run }
}

const CHECKS: [Check; 19] = [
    baseline(0, baseline::app_armor),
    replaced(22, baseline::capabilities),
    baseline(0, baseline::host_namespaces),
    replaced(0, baseline::host_path_volumes),
    baseline(0, baseline::host_ports),
    baseline(34, baseline::host_probes),
    baseline(0, baseline::privileged),
    replaced(35, baseline::proc_mount_or_user_namespace),
    baseline(0, baseline::se_linux),
    replaced(19, baseline::seccomp),
    baseline(0, baseline::sysctls),
    baseline(0, baseline::windows_host_process),
    restricted(8, restricted::privilege_escalation),
    restricted(22, restricted::capabilities),
    restricted(35, baseline::proc_mount),
    restricted(0, restricted::volumes),
    restricted(0, restricted::run_as_non_root),
    restricted(23, restricted::run_as_user),
    restricted(19, restricted::seccomp),
];

/// All violations of the rules by a pod.
pub(super) fn findings(rules: Rules, subject: Subject<'_>) -> Vec<PodSecurityViolation> {
    let minor = rules.minor();
    let counts = |check: &&Check| {
        let replaced = check.replaced_since.is_some_and(|since| minor >= since);
        rules.level >= check.level && minor >= check.since && !(rules.level == Level::Restricted && replaced)
    };
    CHECKS.iter().filter(counts).filter_map(|check| (check.run)(subject, minor)).collect()
}

fn plural(singular: &str, many: &str, count: usize) -> String {
    (if count == 1 { singular } else { many }).to_owned()
}

fn quoted<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    texts.into_iter().map(|text| format!("\"{}\"", text.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
fn named(containers: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", containers.len()), quoted(containers))
}

/// Names the pod, the containers, or both, where they set a forbidden value; `None` when none does.
fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    let mut setters: Vec<String> = pod.then(|| "pod".to_owned()).into_iter().collect();
    if !containers.is_empty() {
        setters.push(named(containers));
    }
    (!setters.is_empty()).then(|| setters.join(" and "))
}

/// The values at a path below `securityContext` for which `is_bad` holds: whether the pod sets one, the containers that
/// set one, and the values.
fn forbidden<'a>(
    subject: Subject<'a>,
    pointer: &str,
    is_bad: impl Fn(&str) -> bool,
) -> (bool, Vec<&'a str>, BTreeSet<&'a str>) {
    let mut values = BTreeSet::new();
    let mut bad = |holder: &'a Value| {
        let value = holder.pointer(&format!("/securityContext{pointer}")).and_then(Value::as_str);
        let found = value.filter(|value| is_bad(value));
        values.extend(found);
        found.is_some()
    };
    let pod = bad(subject.spec);
    let containers = subject.bad(bad);
    (pod, containers, values)
}

#[cfg(test)]
mod tests;
