use serde_json::json;

use super::*;

fn usage(group: &str, resource: &str, object: &Value) -> String {
    Item { group, resource, object }.usage().to_string()
}

/// The expected amounts are those of kube-apiserver's evaluators.
#[test]
fn pod_quota_usage_is_the_sum_of_its_containers() {
    let needs = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": "2"}});
    let pod = json!({"spec": {
        "containers": [{"name": "a", "resources": needs("500m")}, {"name": "b", "resources": needs("1")}],
        "initContainers": [
            {"name": "stays", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"name": "starts", "resources": {"requests": {"cpu": "3", "example.com/gpu": "2"}}}],
        "overhead": {"memory": "1Mi"}}});
    assert_eq!(
        usage("", "pods", &pod),
        "count/pods=1,cpu=3100m,limits.cpu=4,memory=2049Mi,pods=1,requests.cpu=3100m,requests.example.com/gpu=2,\
         requests.memory=2049Mi"
    );
    let over = json!({"spec": pod["spec"], "status": {"phase": "Succeeded"}});
    assert_eq!(usage("", "pods", &over), "count/pods=1");
    let whole =
        json!({"spec": {"resources": {"requests": {"cpu": "4"}}, "containers": pod["spec"]["containers"]}});
    assert!(usage("", "pods", &whole).contains(",cpu=4,"));
}

#[test]
fn services_and_claims_use_ports_storage_and_devices() {
    let ports = json!([{"port": 80, "nodePort": 30080}, {"port": 81}]);
    let balancer =
        json!({"spec": {"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}});
    let expected = "count/services=1,services=1,services.loadbalancers=1,services.nodeports=1";
    assert_eq!(usage("", "services", &balancer), expected);
    let claim =
        json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1500m"}}}});
    assert_eq!(
        usage("", "persistentvolumeclaims", &claim),
        "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
         gold.storageclass.storage.k8s.io/requests.storage=2,persistentvolumeclaims=1,requests.storage=2"
    );
    let devices = json!({"spec": {"devices": {"requests": [
        {"exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
        {"firstAvailable": [
            {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3},
            {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]}]}}});
    let expected = "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=5";
    assert_eq!(usage("resource.k8s.io", "resourceclaims", &devices), expected);
    assert_eq!(usage("", "secrets", &json!({})), "count/secrets=1,secrets=1");
    assert_eq!(usage("apps", "deployments", &json!({})), "count/deployments.apps=1");
}

#[test]
fn names_belong_to_the_kinds_that_use_them() {
    let cases = [
        ("", "pods", "requests.memory", true),
        ("", "pods", "requests.example.com/gpu", true),
        ("", "pods", "requests.storage", false),
        ("", "pods", "count/pods", true),
        ("", "persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", true),
        ("", "persistentvolumeclaims", ".storageclass.storage.k8s.io/requests.storage", false),
        ("", "configmaps", "configmaps", true),
        ("apps", "deployments", "deployments", false),
        ("apps", "deployments", "count/deployments.apps", true),
        ("apps", "deployments", "count/deployments", false),
    ];
    for (group, resource, name, expected) in cases {
        assert_eq!(tracks(group, resource, name), expected, "{group}/{resource} {name}");
    }
}

#[test]
fn quota_scopes_select_pods() {
    let scoped = |scopes: Value| json!({"spec": scopes, "status": {"hard": {"pods": "1"}}});
    let counts =
        |quota: &Value, pod: &Value| Item { group: "", resource: "pods", object: pod }.counts_against(quota);
    let idle = json!({"spec": {"containers": [{"name": "a"}], "priorityClassName": "high"}});
    let busy = json!({"spec": {"activeDeadlineSeconds": 5,
        "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}});
    let cases = [
        (json!({"scopes": ["BestEffort"]}), [true, false]),
        (json!({"scopes": ["NotBestEffort"]}), [false, true]),
        (json!({"scopes": ["Terminating"]}), [false, true]),
        (json!({"scopes": ["NotTerminating", "BestEffort"]}), [true, false]),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), [false, false]),
        (priority("In", &["high"]), [true, false]),
        (priority("NotIn", &["high"]), [false, true]),
        (priority("DoesNotExist", &[]), [false, true]),
        (json!({}), [true, true]),
    ];
    for (scopes, expected) in cases {
        let quota = scoped(scopes.clone());
        assert_eq!([counts(&quota, &idle), counts(&quota, &busy)], expected, "{scopes}");
    }
    let quota = scoped(json!({"scopes": ["BestEffort"]}));
    let services = json!({"spec": quota["spec"], "status": {"hard": {"services": "1"}}});
    assert!(!Item { group: "", resource: "services", object: &json!({}) }.counts_against(&services));
}

fn priority(operator: &str, values: &[&str]) -> Value {
    json!({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
}

#[test]
fn affinity_to_other_namespaces_is_a_scope() {
    let quota = json!({"spec": {"scopes": ["CrossNamespacePodAffinity"]}, "status": {"hard": {"pods": "0"}}});
    let pod = |term: Value| {
        json!({"spec": {"containers": [], "affinity": {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}})
    };
    let counts = |pod: &Value| Item { group: "", resource: "pods", object: pod }.counts_against(&quota);
    assert!(counts(&pod(json!({"topologyKey": "a", "namespaces": ["other"]}))));
    assert!(counts(&pod(json!({"topologyKey": "a", "namespaceSelector": {}}))));
    assert!(!counts(&pod(json!({"topologyKey": "a"}))));
}
