//! The status of the node and its pods as reported by the agent, in pure functions. No status claims that a pod runs,
//! except in a simulation, and then the reason is `Simulated`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Upstream;
use crate::kubelet::AGENT_SUFFIX;
use tombolo_apicore::schema::format::seconds;

#[cfg(test)]
mod tests;

/// Reason of all statuses of a simulation.
pub(super) const SIMULATED: &str = "Simulated";

/// Reason of a pod's status if nothing runs pods.
pub(super) const NO_RUNTIME: &str = "NoContainerRuntime";

/// Condition of a pod that has arrived at its node.
const DELIVERED: &str = "tombolo.io/Delivered";

/// Taint of nodes on which nothing runs pods, to keep schedulers away.
const NO_RUNTIME_TAINT: &str = "tombolo.io/no-runtime";

/// Time that a simulated pod spends in each phase.
const PHASE_TIME: Duration = Duration::from_millis(200);

/// Facts about this machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeFacts {
    pub(super) name: String,
    pub(super) labels: Map<String, Value>,
    pub(super) taints: Vec<Value>,
    pub(super) address: Option<IpAddr>,
    pub(super) cpus: usize,
    pub(super) memory_kib: Option<u64>,
    pub(super) max_pods: u32,
    pub(super) kernel: String,
    pub(super) os_image: String,
    pub(super) machine_id: String,
    pub(super) boot_id: String,
}

impl NodeFacts {
    /// Reads the facts from the system. Unavailable ones stay empty.
    pub(super) fn gather(upstream: &Upstream) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let memory = read("/proc/meminfo");
        let memory =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let os = read("/etc/os-release");
        let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let settings = &upstream.settings;
        Self {
            name: upstream.node.as_str().to_owned(),
            labels: settings.labels.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect(),
            taints: settings.taints.iter().filter_map(|taint| serde_json::to_value(taint).ok()).collect(),
            address: *upstream.address.borrow(),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_kib: memory.and_then(|kib| kib.trim().parse().ok()),
            max_pods: settings.max_pods,
            kernel: read("/proc/sys/kernel/osrelease"),
            os_image: os.unwrap_or_default().trim_matches('"').to_owned(),
            machine_id: read("/etc/machine-id"),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
        }
    }
}

/// The Node object to create.
pub(super) fn node_object(facts: &NodeFacts, simulate: bool, now: Timestamp) -> Value {
    let mut labels = facts.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", facts.name.as_str()),
        ("kubernetes.io/os", std::env::consts::OS),
        ("kubernetes.io/arch", architecture()),
        ("node-role.kubernetes.io/edge", ""),
    ] {
        labels.insert(key.to_owned(), value.into());
    }
    let mut taints = facts.taints.clone();
    if !simulate {
        taints.push(json!({"key": NO_RUNTIME_TAINT, "effect": "NoSchedule"}));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": facts.name, "labels": labels},
        "spec": {"taints": taints},
        "status": node_status(facts, simulate, None, now),
    })
}

/// Labels that describe the node itself. If the Node object exists, the agent corrects them at every start, as the
/// kubelet does (`updateDefaultLabels`). Other labels, and taints, are set at creation and then left to operators.
const DEFAULT_LABELS: [&str; 10] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
];

/// The wanted default labels that the existing Node object lacks or that differ there.
pub(super) fn stale_labels(wanted: &Value, held: &Value) -> Map<String, Value> {
    let labels = |node: &Value| node["metadata"]["labels"].clone();
    let (wanted, held) = (labels(wanted), labels(held));
    let stale = DEFAULT_LABELS.iter().filter_map(|key| {
        let value = wanted.get(*key).filter(|value| held.get(*key) != Some(value))?;
        Some(((*key).to_owned(), value.clone()))
    });
    stale.collect()
}

/// The status of the Node object; `held` is the existing object.
pub(super) fn node_status(facts: &NodeFacts, simulate: bool, held: Option<&Value>, now: Timestamp) -> Value {
    let mut addresses = vec![json!({"type": "Hostname", "address": facts.name})];
    if let Some(address) = facts.address {
        addresses.insert(0, json!({"type": "InternalIP", "address": address.to_string()}));
    }
    let mut resources = json!({"cpu": facts.cpus.to_string(), "pods": facts.max_pods.to_string()});
    if let Some(kib) = facts.memory_kib {
        resources["memory"] = format!("{kib}Ki").into();
    }
    let (runtime, version, reason, message) = if simulate {
        ("False", "simulated://", SIMULATED, "pods are moved through their phases but not run")
    } else {
        ("False", "none://", NO_RUNTIME, "no container runtime is attached: pods are delivered but not run")
    };
    let conditions = [
        ("Ready", "True", "AgentReady", "edgecore is connected to the cloud"),
        ("ContainerRuntime", runtime, reason, message),
    ];
    let conditions = conditions.map(|(kind, status, reason, message)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": seconds(now),
            "lastTransitionTime": transition(held, kind, status, now),
        })
    });
    json!({
        "addresses": addresses,
        "capacity": resources,
        "allocatable": resources,
        "conditions": conditions,
        "nodeInfo": {
            "architecture": architecture(),
            "operatingSystem": std::env::consts::OS,
            "kernelVersion": facts.kernel,
            "osImage": facts.os_image,
            "machineID": facts.machine_id,
            "systemUUID": facts.machine_id,
            "bootID": facts.boot_id,
            "containerRuntimeVersion": version,
            "kubeletVersion": format!("v{}{AGENT_SUFFIX}", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
        },
    })
}

/// Kubernetes' name for this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The transition time of a condition, which is kept while its status stays the same.
fn transition(held: Option<&Value>, kind: &str, status: &str, now: Timestamp) -> String {
    held.and_then(|object| object["status"]["conditions"].as_array())
        .and_then(|conditions| conditions.iter().find(|c| c["type"] == kind && c["status"] == status))
        .and_then(|condition| condition["lastTransitionTime"].as_str())
        .map_or_else(|| seconds(now), str::to_owned)
}

/// The next step for a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Nothing, until it changes.
    Rest,
    /// Report this status (members of a pod's `status`) after this time.
    Status { after: Duration, status: Value },
    /// It was deleted and nothing runs it: its object may be removed.
    Remove,
}

/// The next step for a delivered pod.
pub(super) fn next_step(pod: &Value, simulate: bool, address: Ipv4Addr, now: Timestamp) -> Step {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Step::Remove;
    }
    let status = &pod["status"];
    let phase = status["phase"].as_str().unwrap_or_default();
    let simulated = status["reason"] == SIMULATED;
    if simulate {
        simulated_step(pod, phase, simulated, address, now)
    } else {
        honest_step(pod, phase, simulated, now)
    }
}

fn honest_step(pod: &Value, phase: &str, simulated: bool, now: Timestamp) -> Step {
    let said = pod["status"]["reason"] == NO_RUNTIME;
    // A status of an earlier runtime or simulation must be replaced.
    let ended = matches!(phase, "Succeeded" | "Failed") && !simulated;
    if said || ended {
        return Step::Rest;
    }
    let message = "the pod has arrived at its node, where no container runtime is attached";
    let mut status =
        json!({"phase": "Pending", "reason": NO_RUNTIME, "message": message, "containerStatuses": []});
    status["conditions"] = conditions(
        pod,
        &[(DELIVERED, "True"), ("Ready", "False"), ("ContainersReady", "False")],
        NO_RUNTIME,
        now,
    );
    Step::Status { after: Duration::ZERO, status }
}

fn simulated_step(pod: &Value, phase: &str, simulated: bool, address: Ipv4Addr, now: Timestamp) -> Step {
    let job = pod["metadata"]["ownerReferences"]
        .as_array()
        .is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Job"));
    let (after, next) = match (phase, simulated) {
        (_, false) => (Duration::ZERO, "Pending"),
        ("Pending", true) => (PHASE_TIME, "Running"),
        ("Running", true) if job => (PHASE_TIME, "Succeeded"),
        _ => return Step::Rest,
    };
    let ready = if next == "Running" { "True" } else { "False" };
    let started = pod["status"]["startTime"].as_str().map_or_else(|| seconds(now), str::to_owned);
    let mut status = json!({
        "phase": next,
        "reason": SIMULATED,
        "message": "this pod is simulated: nothing runs",
        "startTime": started,
        "containerStatuses": container_statuses(pod, next, &started, now),
    });
    if next != "Pending" {
        status["podIP"] = address.to_string().into();
        status["podIPs"] = json!([{"ip": address.to_string()}]);
    }
    status["conditions"] = conditions(
        pod,
        &[(DELIVERED, "True"), ("Initialized", "True"), ("Ready", ready), ("ContainersReady", ready)],
        SIMULATED,
        now,
    );
    Step::Status { after, status }
}

fn container_statuses(pod: &Value, phase: &str, started: &str, now: Timestamp) -> Vec<Value> {
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let state = match phase {
        "Pending" => json!({"waiting": {"reason": SIMULATED}}),
        "Running" => json!({"running": {"startedAt": started}}),
        _ => {
            json!({"terminated": {"exitCode": 0, "reason": SIMULATED, "startedAt": started, "finishedAt": seconds(now)}})
        }
    };
    let running = phase == "Running";
    let status = |container: &Value| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": running,
            "started": running,
            "restartCount": 0,
            "state": state,
        })
    };
    containers.iter().map(status).collect()
}

fn conditions(pod: &Value, wanted: &[(&str, &str)], reason: &str, now: Timestamp) -> Value {
    let condition = |(kind, status): &(&str, &str)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "lastTransitionTime": transition(Some(pod), kind, status, now),
        })
    };
    wanted.iter().map(condition).collect()
}

/// The status that clients see: `change` merged into the present status, as the API server would.
pub(super) fn merged(present: &Value, change: &Value) -> Value {
    let mut status = present.as_object().cloned().unwrap_or_default();
    for (member, value) in change.as_object().into_iter().flatten() {
        if member == "conditions" {
            let old = status.get(member).and_then(Value::as_array).cloned().unwrap_or_default();
            let new = value.as_array().cloned().unwrap_or_default();
            let kept = old.into_iter().filter(|old| !new.iter().any(|new| new["type"] == old["type"]));
            status.insert(member.clone(), kept.chain(new.iter().cloned()).collect());
        } else {
            status.insert(member.clone(), value.clone());
        }
    }
    Value::Object(status)
}
