use super::*;

fn now() -> Timestamp {
    "2026-11-21T05:00:00Z".parse().unwrap()
}

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);

fn pod(status: &Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": status,
    })
}

/// Does all steps of a pod. Returns the phases on the way.
fn walk(mut pod: Value, simulate: bool) -> (Vec<String>, Value) {
    let mut phases = Vec::new();
    for _ in 0..10 {
        match next_step(&pod, simulate, ADDRESS, now()) {
            Step::Status { status, .. } => {
                pod["status"] = merged(&pod["status"], &status);
                phases.push(pod["status"]["phase"].as_str().unwrap().to_owned());
            }
            Step::Rest => return (phases, pod),
            Step::Remove => panic!("not deleted"),
        }
    }
    panic!("the walk does not end: {phases:?}");
}

#[test]
fn without_a_runtime_no_pod_is_reported_as_running() {
    for status in [
        json!({}),
        json!({"phase": "Pending"}),
        json!({"phase": "Running", "reason": SIMULATED}),
        json!({"phase": "Running"}),
    ] {
        let (phases, pod) = walk(pod(&status), false);
        assert_eq!(phases, ["Pending"]);
        assert_eq!(pod["status"]["reason"], NO_RUNTIME);
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!(NO_RUNTIME)));
    }
    assert_eq!(walk(pod(&json!({"phase": "Succeeded"})), false).0, [] as [String; 0]);
}

#[test]
fn every_simulated_phase_is_marked() {
    let (phases, running) = walk(pod(&json!({"phase": "Pending"})), true);
    assert_eq!(phases, ["Pending", "Running"]);
    assert_eq!(running["status"]["reason"], SIMULATED);
    assert_eq!(running["status"]["podIP"], "10.1.2.3");
    assert_eq!(running["status"]["containerStatuses"][0]["ready"], true);
    let mut job = pod(&json!({}));
    job["metadata"]["ownerReferences"] = json!([{"kind": "Job", "name": "j"}]);
    let (phases, job) = walk(job, true);
    assert_eq!(phases, ["Pending", "Running", "Succeeded"]);
    assert_eq!(job["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
}

#[test]
fn deleted_pods_are_released() {
    for simulate in [false, true] {
        let mut pod = pod(&json!({"phase": "Running"}));
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T05:00:00Z".into();
        assert_eq!(next_step(&pod, simulate, ADDRESS, now()), Step::Remove);
    }
}

#[test]
fn conditions_of_others_survive_a_report() {
    let present = json!({"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}], "qosClass": "BestEffort"});
    let change = json!({"conditions": [{"type": "Ready", "status": "False"}], "phase": "Pending"});
    assert_eq!(
        merged(&present, &change),
        json!({"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}], "qosClass": "BestEffort", "phase": "Pending"})
    );
}

#[test]
fn a_condition_keeps_its_time_while_it_stays() {
    let held = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    assert_eq!(transition(Some(&held), "Ready", "True", now()), "2020-01-01T00:00:00Z");
    assert_eq!(transition(Some(&held), "Ready", "False", now()), "2026-11-21T05:00:00Z");
    assert_eq!(transition(None, "Ready", "True", now()), "2026-11-21T05:00:00Z");
}

#[test]
fn nodes_without_a_runtime_keep_schedulers_away() {
    let facts = NodeFacts {
        name: "edge-a".to_owned(),
        labels: Map::new(),
        taints: vec![json!({"key": "own", "effect": "NoExecute"})],
        address: Some(IpAddr::V4(ADDRESS)),
        cpus: 2,
        memory_kib: Some(1024),
        max_pods: 110,
        kernel: String::new(),
        os_image: String::new(),
        machine_id: String::new(),
        boot_id: String::new(),
    };
    let honest = node_object(&facts, false, now());
    assert_eq!(honest["spec"]["taints"][1]["key"], NO_RUNTIME_TAINT);
    assert_eq!(honest["status"]["conditions"][1]["reason"], NO_RUNTIME);
    assert_eq!(honest["status"]["addresses"][0]["address"], "10.1.2.3");
    assert_eq!(honest["status"]["capacity"]["memory"], "1024Ki");
    let simulated = node_object(&facts, true, now());
    assert_eq!(simulated["spec"]["taints"].as_array().unwrap().len(), 1);
    assert_eq!(simulated["status"]["conditions"][1]["reason"], SIMULATED);
}

#[test]
fn default_labels_are_corrected_and_others_kept() {
    let wanted = json!({"metadata": {"labels": {
        "kubernetes.io/hostname": "edge-a", "kubernetes.io/arch": "arm64", "topology.kubernetes.io/zone": "north",
        "team": "ours", "node-role.kubernetes.io/edge": ""}}});
    let held = json!({"metadata": {"labels": {
        "kubernetes.io/hostname": "edge-a", "kubernetes.io/arch": "amd64", "team": "theirs"}}});
    let stale = stale_labels(&wanted, &held);
    let expected = json!({"kubernetes.io/arch": "arm64", "topology.kubernetes.io/zone": "north"});
    assert_eq!(Value::Object(stale), expected);
    assert!(stale_labels(&wanted, &wanted).is_empty());
}
