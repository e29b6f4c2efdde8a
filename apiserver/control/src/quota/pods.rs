//! The use by pods: the requests and limits of their containers together.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tombolo_apicore::schema::Quantity;

use super::Amounts;
use crate::objects::{items, text};

/// Limits that pods count against, beside `count/pods` and those of huge pages and extended resources.
const NAMES: [&str; 10] = [
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "pods",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Limits for which every container must set a request or limit. kube-apiserver's source calls this rule a mistake and
/// keeps it.
const MUST_BE_SAID: [&str; 6] =
    ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// Resources with quotas by their own name, by requests and by limits.
const COMPUTE: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

const HUGE_PAGES: &str = "hugepages-";

/// Whether pods count against the limit of this name.
pub(super) fn tracks(name: &str) -> bool {
    let asked = name.strip_prefix("requests.");
    NAMES.contains(&name)
        || name.starts_with(HUGE_PAGES)
        || asked.is_some_and(|asked| asked.starts_with(HUGE_PAGES) || is_extended(asked))
}

/// Whether a resource is an extended resource: it has a domain other than that of Kubernetes.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// The use by a pod. A pod that has ended, or whose deletion is overdue, uses nothing.
pub(super) fn usage(pod: &Value) -> Amounts {
    if is_over(pod, jiff::Timestamp::now()) {
        return Amounts::default();
    }
    of_compute(&total(pod, "requests"), &total(pod, "limits"))
}

fn is_over(pod: &Value, now: jiff::Timestamp) -> bool {
    if matches!(text(pod, "/status/phase"), "Failed" | "Succeeded") {
        return true;
    }
    let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    let deleted = text(pod, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>().ok();
    let (Some(grace), Some(deleted)) = (grace, deleted) else { return false };
    now.as_second() > deleted.as_second().saturating_add(grace)
}

/// Requests and limits by their names in quotas.
fn of_compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::default();
    used.set("pods", Quantity::whole(1));
    for name in COMPUTE {
        if let Some(asked) = requests.get(name) {
            used.set(name, asked);
            used.set(format!("requests.{name}"), asked);
        }
        if let Some(allowed) = limits.get(name) {
            used.set(format!("limits.{name}"), allowed);
        }
    }
    for name in requests.names() {
        let asked = requests.get(name).unwrap_or(Quantity::ZERO);
        if name.starts_with(HUGE_PAGES) {
            used.set(name, asked);
        }
        if name.starts_with(HUGE_PAGES) || is_extended(name) {
            used.set(format!("requests.{name}"), asked);
        }
    }
    used
}

/// Requests or limits of a whole pod, including its overhead.
fn total(pod: &Value, list: &str) -> Amounts {
    let mut sum = together(pod, list);
    let overhead = Amounts::read(pod.pointer("/spec/overhead"));
    // The overhead adds no limit for a resource that has none.
    let counted = overhead.only(|name| list == "requests" || sum.get(name).is_some());
    sum.add(&counted);
    sum
}

/// Requests or limits (`list`) of all containers together, or the largest sum of an init container and the sidecars
/// that started before it, if that is greater. Values at pod level override both.
pub(crate) fn together(pod: &Value, list: &str) -> Amounts {
    let of = |container: &Value| Amounts::read(container.pointer(&format!("/resources/{list}")));
    let mut sum = Amounts::default();
    for container in items(pod, "/spec/containers") {
        sum.add(&of(container));
    }
    let (mut staying, mut starting) = (Amounts::default(), Amounts::default());
    for container in items(pod, "/spec/initContainers") {
        let mut own = of(container);
        if text(container, "/restartPolicy") == "Always" {
            sum.add(&own);
            staying.add(&own);
            own = staying.clone();
        } else {
            own.add(&staying);
        }
        starting.raise(&own);
    }
    sum.raise(&starting);
    let own = Amounts::read(pod.pointer(&format!("/spec/resources/{list}")));
    for name in own.names().filter(|name| is_pod_level(name)) {
        sum.set(name, own.get(name).unwrap_or(Quantity::ZERO));
    }
    sum
}

/// Whether a resource can be set at pod level.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES)
}

fn says_for_itself(pod: &Value) -> bool {
    ["requests", "limits"]
        .iter()
        .any(|list| Amounts::read(pod.pointer(&format!("/spec/resources/{list}"))).names().any(is_pod_level))
}

/// The containers that lack required requests or limits, worded as in kube-apiserver.
pub(super) fn unsaid(pod: &Value, limits: &Amounts) -> Option<String> {
    let must: Vec<&str> = MUST_BE_SAID.into_iter().filter(|name| limits.get(name).is_some()).collect();
    if must.is_empty() || says_for_itself(pod) {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers")) {
        let list = |list: &str| Amounts::read(container.pointer(list));
        let said = of_compute(&list("/resources/requests"), &list("/resources/limits"));
        for name in must.iter().filter(|name| said.get(name).is_none()) {
            missing.entry(name).or_default().insert(text(container, "/name"));
        }
    }
    let each = missing.iter().map(|(name, containers)| {
        format!("{name} for: {}", containers.iter().copied().collect::<Vec<_>>().join(","))
    });
    (!missing.is_empty()).then(|| format!("must specify {}", each.collect::<Vec<_>>().join("; ")))
}

/// Whether the pod has a deadline: scope `Terminating`.
pub(super) fn has_deadline(pod: &Value) -> bool {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

/// Whether the pod has no requests and limits of cpu or memory: scope `BestEffort`.
pub(super) fn is_best_effort(pod: &Value) -> bool {
    let containers = items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers"));
    !containers.chain(pod.get("spec")).any(|part| {
        ["/resources/requests", "/resources/limits"].iter().any(|list| {
            Amounts::read(part.pointer(list)).nonzero().names().any(|name| matches!(name, "cpu" | "memory"))
        })
    })
}

/// Whether the pod has affinity terms across namespaces: scope `CrossNamespacePodAffinity`.
pub(super) fn has_affinity_across_namespaces(pod: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|affinity| {
        let list = |name: &str| items(pod, &format!("/spec/affinity/{affinity}/{name}"));
        let required = list("requiredDuringSchedulingIgnoredDuringExecution").iter();
        let preferred = list("preferredDuringSchedulingIgnoredDuringExecution").iter();
        let terms = required.chain(preferred.filter_map(|weighted| weighted.get("podAffinityTerm")));
        terms
            .into_iter()
            .any(|term| !items(term, "/namespaces").is_empty() || term.get("namespaceSelector").is_some())
    })
}
