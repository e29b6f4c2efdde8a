//! Subcommands of kubectl that know the types of the objects that they send: they use only protobuf.

use serde_json::Value;
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip};

use crate::harness::Server;

/// A command, and how to read the object that it created.
const CREATIONS: &[(&str, &str)] = &[
    ("create namespace shop", "namespace/shop"),
    ("create configmap colours --from-literal=a=red --from-literal=b=blue", "configmap/colours"),
    ("create secret generic door --from-literal=word=open --type=shop.example/door", "secret/door"),
    ("create serviceaccount till", "serviceaccount/till"),
    ("create deployment web --image=web:1 --replicas=3 --port=8080", "deployment/web"),
    ("create service clusterip front --tcp=80:8080 --tcp=443:https", "service/front"),
    ("create service externalname far --external-name=far.example --tcp=80", "service/far"),
    ("create role reader --verb=get,list --resource=pods,deployments.apps", "role/reader"),
    ("create clusterrole paths --verb=get --non-resource-url=/metrics", "clusterrole/paths"),
    (
        "create rolebinding reading --role=reader --serviceaccount=default:till --user=ann",
        "rolebinding/reading",
    ),
    ("create clusterrolebinding paths --clusterrole=paths --group=staff", "clusterrolebinding/paths"),
    ("create job once --image=once:1 -- run fast", "job/once"),
    ("create cronjob nightly --image=night:1 --schedule=@daily --restart=Never -- clean", "cronjob/nightly"),
    ("create ingress door --class=web --rule=shop.example/*=front:80,tls=door", "ingress/door"),
    ("create poddisruptionbudget steady --selector=app=web --min-available=50%", "pdb/steady"),
    ("create quota limited --hard=pods=5,requests.cpu=500m --scopes=NotTerminating", "quota/limited"),
    ("create priorityclass high --value=1000 --description=first", "priorityclass/high"),
    ("autoscale deployment web --min=1 --max=5 --cpu=80%", "hpa/web"),
];

/// Removes the fields that a server sets by itself.
fn comparable(mut object: Value) -> Value {
    let kind = object["kind"].clone();
    let root = object.as_object_mut().unwrap();
    root.remove("status");
    let metadata = root["metadata"].as_object_mut().unwrap();
    for key in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "annotations"] {
        metadata.remove(key);
    }
    if kind == "Job" {
        metadata.remove("labels");
    }
    let Some(spec) = root.get_mut("spec").and_then(Value::as_object_mut) else { return object };
    match kind.as_str() {
        Some("Service") => spec.retain(|key, _| !key.starts_with("clusterIP")),
        Some("Job") => {
            spec.remove("selector");
            spec["template"]["metadata"].as_object_mut().unwrap().remove("labels");
        }
        _ => {}
    }
    object
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_subcommands_store_the_same_objects_as_on_kube_apiserver() {
    cluster_or_skip!("embedded::kubectl_subcommands_store_the_same_objects_as_on_kube_apiserver");
    let plane =
        ControlPlane::start(ControlPlaneOptions { controllers: false, ..ControlPlaneOptions::default() })
            .await
            .unwrap();
    let server = Server::start().await;
    let mut differences = Vec::new();
    for (command, object) in CREATIONS {
        server.kubectl_ok(&words(command), "").await;
        let real = plane.kubectl(&words(command)).unwrap();
        assert!(real.status.success(), "{command}: {}", String::from_utf8_lossy(&real.stderr));
        let read = ["get", object, "-o", "json"];
        let own: Value = serde_json::from_str(&server.kubectl_ok(&read, "").await).unwrap();
        let real: Value = serde_json::from_slice(&plane.kubectl(&read).unwrap().stdout).unwrap();
        let (own, real) = (comparable(own), comparable(real));
        if own != real {
            differences.push(format!("{command}\n  real {real}\n  own  {own}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Existing objects are refused with the same message.
    let again = words("create deployment web --image=web:1");
    let own = server.kubectl(&again, "").await;
    let real = plane.kubectl(&again).unwrap();
    assert!(!own.status.success());
    assert_eq!(String::from_utf8_lossy(&own.stderr), String::from_utf8_lossy(&real.stderr));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_and_tokens_are_answered() {
    cluster_or_skip!("embedded::questions_and_tokens_are_answered");
    let server = Server::start().await;
    assert_eq!(server.kubectl_ok(&words("auth can-i create pods"), "").await.trim(), "yes");
    let refused = server.kubectl(&words("auth can-i create pods --as=ann"), "").await;
    assert_eq!(String::from_utf8_lossy(&refused.stdout).trim(), "no");
    let all = server.kubectl_ok(&words("auth can-i --list"), "").await;
    assert!(all.contains("*.*"), "{all}");
    let who = server.kubectl_ok(&words("auth whoami -o jsonpath={.status.userInfo.groups}"), "").await;
    assert!(who.contains("system:masters"), "{who}");
    server.kubectl_ok(&words("create serviceaccount till"), "").await;
    let token = server.kubectl_ok(&words("create token till --duration=20m"), "").await;
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    server.stop().await;
}
