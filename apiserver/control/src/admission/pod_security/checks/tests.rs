use serde_json::json;

use super::super::policy::Policy;
use super::*;

fn rules(level: &str, version: &str) -> Rules {
    let labels = json!({
        "pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/enforce-version": version,
    });
    Policy::of(&json!({"metadata": {"labels": labels}})).0.enforce
}

fn found(level: &str, version: &str, pod: &Value) -> Vec<(String, String)> {
    let all = findings(rules(level, version), Subject::of(pod));
    all.into_iter().map(|finding| (finding.reason, finding.detail)).collect()
}

fn hardened() -> Value {
    json!({"spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "a", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        }}],
    }})
}

#[test]
fn hardened_pod_passes_all_levels() {
    for level in ["privileged", "baseline", "restricted"] {
        assert_eq!(found(level, "latest", &hardened()), [], "{level}");
    }
}

#[test]
fn ordinary_pod_fails_only_the_strictest_level() {
    let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
    assert_eq!(found("baseline", "latest", &pod), []);
    let restricted = found("restricted", "latest", &pod);
    let expected = [
        (
            "allowPrivilegeEscalation != false",
            "containers \"a\", \"b\" must set securityContext.allowPrivilegeEscalation=false",
        ),
        (
            "unrestricted capabilities",
            "containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"]",
        ),
        ("runAsNonRoot != true", "pod or containers \"a\", \"b\" must set securityContext.runAsNonRoot=true"),
        (
            "seccompProfile",
            "pod or containers \"a\", \"b\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\"",
        ),
    ];
    assert_eq!(restricted, expected.map(|(reason, detail)| (reason.to_owned(), detail.to_owned())));
}

#[test]
fn each_container_escape_is_detected() {
    let changes: [(&str, Value, &str, &str); 15] = [
        ("/spec/hostNetwork", json!(true), "host namespaces", "hostNetwork=true"),
        (
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
            "restricted volume types",
            "volume \"v\" uses restricted volume type \"hostPath\"",
        ),
        (
            "/spec/containers/0/ports",
            json!([{"hostPort": 80}, {"hostPort": 8}, {"containerPort": 1}]),
            "hostPort",
            "container \"a\" uses hostPorts 8, 80",
        ),
        (
            "/spec/containers/0/livenessProbe",
            json!({"httpGet": {"host": "h"}}),
            "probe or lifecycle host",
            "container \"a\" uses probe or lifecycle host \"h\"",
        ),
        (
            "/spec/containers/0/securityContext/privileged",
            json!(true),
            "privileged",
            "container \"a\" must not set securityContext.privileged=true",
        ),
        (
            "/spec/containers/0/securityContext/procMount",
            json!("Unmasked"),
            "procMount",
            "container \"a\" must not set securityContext.procMount to \"Unmasked\"",
        ),
        (
            "/spec/securityContext/seLinuxOptions",
            json!({"type": "t", "user": "u"}),
            "seLinuxOptions",
            "pod set forbidden securityContext.seLinuxOptions: type \"t\"; user may not be set",
        ),
        (
            "/spec/containers/0/securityContext/seccompProfile",
            json!({"type": "Unconfined"}),
            "seccompProfile",
            "container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\"",
        ),
        ("/spec/securityContext/sysctls", json!([{"name": "kernel.x"}]), "forbidden sysctls", "kernel.x"),
        (
            "/spec/securityContext/windowsOptions",
            json!({"hostProcess": true}),
            "hostProcess",
            "pod must not set securityContext.windowsOptions.hostProcess=true",
        ),
        (
            "/spec/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
            "forbidden AppArmor profile",
            "pod must not set AppArmor profile type to \"Unconfined\"",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
            "unrestricted capabilities",
            "container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add",
        ),
        (
            "/spec/containers/0/securityContext/runAsUser",
            json!(0),
            "runAsUser=0",
            "container \"a\" must not set runAsUser=0",
        ),
        (
            "/spec/securityContext/runAsNonRoot",
            json!(false),
            "runAsNonRoot != true",
            "pod must not set securityContext.runAsNonRoot=false",
        ),
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(true),
            "allowPrivilegeEscalation != false",
            "container \"a\" must set securityContext.allowPrivilegeEscalation=false",
        ),
    ];
    for (pointer, value, reason, detail) in changes {
        let mut pod = hardened();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[name] = value;
        assert_eq!(
            found("restricted", "latest", &pod),
            [(reason.to_owned(), detail.to_owned())],
            "{pointer}"
        );
    }
}

#[test]
fn pinned_versions_use_the_rules_of_their_time() {
    let sysctl = json!({"spec": {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}}});
    assert_eq!(found("baseline", "v1.31", &sysctl).len(), 1);
    assert_eq!(found("baseline", "v1.32", &sysctl), []);
    let annotated = json!({
        "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}, "spec": {},
    });
    assert_eq!(found("baseline", "v1.18", &annotated).len(), 1);
    assert_eq!(found("baseline", "v1.19", &annotated), []);
    let mut user_namespace = hardened();
    user_namespace["spec"]["hostUsers"] = json!(false);
    user_namespace["spec"]["securityContext"]["runAsUser"] = json!(0);
    assert_eq!(found("restricted", "v1.34", &user_namespace).len(), 1);
    assert_eq!(found("restricted", "v1.35", &user_namespace), []);
}
