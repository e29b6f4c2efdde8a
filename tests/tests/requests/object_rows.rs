//! Rows about the objects that pods need.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tombolo_tests::raw::{Names, signing_request};

use super::Stage;
use super::peer::Form;

/// Queries for an object that a bound pod refers to, for one that only the neighbour's pod refers to, and for one
/// without a pod.
async fn queries(stage: &Stage, word: &str, kind: &str, [mine, theirs, nobody]: [&str; 3]) {
    let found = stage.ask_patiently("query", mine, &Value::Null).await;
    let object = found.object(mine, kind);
    let live = stage.live(word, object["metadata"]["name"].as_str().unwrap());
    assert_eq!(object["metadata"]["uid"], live["metadata"]["uid"]);
    for other in [theirs, nobody] {
        stage.peer.ask("query", other, Value::Null).await.refused(Form::Sentence);
    }
    let whole_set = mine.rsplit_once('/').unwrap().0;
    let (_, all) = stage.peer.ask("query", whole_set, Value::Null).await.refused(Form::Sentence);
    assert!(all.contains("names no object"), "{all}");
    stage.peer.ask("update", mine, object.clone()).await.refused(Form::Sentence);
}

pub(crate) async fn configmap_and_secret(stage: &Stage) {
    for (word, kind, ending) in [("configmap", "ConfigMap", ""), ("secret", "Secret", "-secret")] {
        let paths = ["mine", "theirs", "nobody"].map(|name| stage.path(word, &format!("{name}{ending}")));
        queries(stage, word, kind, paths.each_ref().map(String::as_str)).await;
    }
}

pub(crate) async fn volumes(stage: &Stage) {
    let claims = ["mine", "theirs", "nobody"].map(|name| stage.path("persistentvolumeclaim", name));
    let claims = claims.each_ref().map(String::as_str);
    queries(stage, "persistentvolumeclaim", "PersistentVolumeClaim", claims).await;
    // The namespace in a path is ignored if the kind has none.
    for (word, kind, namespace) in [
        ("persistentvolume", "PersistentVolume", "null"),
        ("volumeattachment", "VolumeAttachment", "default"),
    ] {
        let paths = ["mine", "theirs", "nobody"]
            .map(|name| format!("{namespace}/{word}/{}", stage.cluster_name(name)));
        queries(stage, word, kind, paths.each_ref().map(String::as_str)).await;
    }
}

pub(crate) async fn serviceaccounttoken(stage: &Stage) {
    let (peer, own) = (&stage.peer, stage.path("serviceaccounttoken", "default"));
    let bound_to = |pod: &str| {
        let uid = stage.live("pod", pod)["metadata"]["uid"].clone();
        json!({"metadata": {"creationTimestamp": null}, "spec": {"audiences": null, "expirationSeconds": 3607,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}},
            "status": {"token": "", "expirationTimestamp": null}})
    };
    let given = stage.ask_patiently("query", &own, &bound_to("mine")).await;
    let token = given.object(&own, "TokenRequest")["status"]["token"].as_str().unwrap().to_owned();
    assert_eq!(given.version, "", "an answer with a version would wait for its acknowledgement");
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "mine", "{claims}");
    peer.ask("query", &own, bound_to("theirs")).await.refused(Form::Sentence);
    peer.ask("query", &stage.path("serviceaccounttoken", "nobody"), bound_to("mine"))
        .await
        .refused(Form::Sentence);
    peer.ask("query", "kube-system/serviceaccounttoken/default", bound_to("mine"))
        .await
        .refused(Form::Sentence);
    for content in [Value::Null, json!("no request"), json!({"spec": {"boundObjectRef": 3}})] {
        peer.ask("query", &own, content).await.refused(Form::Sentence);
    }
}

pub(crate) async fn certificatesigningrequest(stage: &Stage) {
    let peer = &stage.peer;
    let name = stage.cluster_name("serving");
    let own = format!("default/certificatesigningrequest/{name}");
    let request = |node: &str| {
        let common = format!("system:node:{node}");
        let names = Names { common: &common, organisations: &["system:nodes"], dns: &[] };
        let (der, _) = signing_request(&names).unwrap();
        let base64 = STANDARD.encode(der);
        let pem =
            format!("-----BEGIN CERTIFICATE REQUEST-----\n{base64}\n-----END CERTIFICATE REQUEST-----\n");
        json!({"metadata": {"name": name}, "spec": {"request": STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"]}})
    };
    let created = peer.ask("insert", &own, request(&stage.name)).await;
    assert_eq!(created.wrapped(&own)["spec"]["username"], format!("system:node:{}", stage.name));
    let live = stage.live("certificatesigningrequest", &name);
    assert_eq!(live["metadata"]["uid"], created.content["Object"]["metadata"]["uid"]);
    let found = peer.ask("query", &own, Value::Null).await;
    assert_eq!(found.object(&own, "CertificateSigningRequest")["metadata"]["name"], *name);
    let again = peer.ask("insert", &own, request(&stage.name)).await;
    assert_eq!((again.refused(Form::Change).0, again.reason()), (409, "AlreadyExists"));
    // The API server names the requests of the edge's own server.
    let (unnamed, mut generated) = ("default/certificatesigningrequest/", request(&stage.name));
    generated["metadata"] = json!({"generateName": "csr-"});
    let created = peer.ask("insert", unnamed, generated).await;
    let given = created.wrapped(unnamed)["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(
        given.starts_with("csr-") && stage.live("certificatesigningrequest", &given).is_object(),
        "{given}"
    );
    peer.ask("query", unnamed, Value::Null).await.refused(Form::Sentence);
    let nobody = peer.ask("query", "default/certificatesigningrequest/nobody", Value::Null).await;
    nobody.refused(Form::Sentence);
    for content in [json!("no request"), json!({"metadata": {"name": "x"}, "spec": {"request": "%"}})] {
        let malformed = peer.ask("insert", "default/certificatesigningrequest/x", content).await;
        assert!((400..500).contains(&malformed.refused(Form::Change).0), "{malformed:?}");
    }
    assert_eq!(stage.live("certificatesigningrequest", "x"), Value::Null);
}
