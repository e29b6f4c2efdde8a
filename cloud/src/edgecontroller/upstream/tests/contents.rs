//! Contents crafted by a node to take many times their length.

use base64::Engine as _;

use super::*;

/// A client whose API server records what it receives, and has this object everywhere.
fn bodies_of(object: &Value) -> (Client, Arc<Mutex<Vec<Vec<u8>>>>) {
    let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let (seen, object) = (Arc::clone(&bodies), object.clone());
    let client = answering(move |call, body| {
        if call.method != http::Method::GET {
            seen.lock().push(body.to_vec());
        }
        let object = object.clone();
        async move { (200, object) }
    });
    (client, bodies)
}

/// An object that a node sends is forwarded as it was written: nothing here takes many times its length.
#[tokio::test]
async fn forwarded_content_is_byte_identical() {
    use {Operation as Op, ResourceType as Type};
    let text = format!(r#"{{"z": 1.50, "x":[{}0], "a":1}}"#, r#"{"":0},"#.repeat(20_000));
    for (operation, at) in [
        (Op::Insert, path("d", Type::Pod, "p")),
        (Op::Insert, path("kube-node-lease", Type::Lease, "n")),
        (Op::Update, path("kube-node-lease", Type::Lease, "n")),
        (Op::Query, path("d", Type::ServiceAccountToken, "s")),
        (Op::Insert, path("d", Type::Event, "e")),
        (Op::Update, path("d", Type::Event, "e")),
        (Op::Delete, path("d", Type::Pod, "p")),
        (Op::Insert, path("", Type::CertificateSigningRequest, "c")),
    ] {
        let mut request = message(operation, at, &json!(null));
        request.content = Content::from_json(&bytes::Bytes::from(text.clone())).expect("JSON");
        let what = request.route.clone();
        let (client, bodies) = bodies_of(&json!({}));
        upstream(client).answer_message(&node(), request, None).await;
        assert_eq!(*bodies.lock(), [text.as_bytes()], "{what:?}");
    }
}

#[tokio::test]
async fn content_that_would_expand_too_much_is_refused() {
    use {Operation as Op, ResourceType as Type};
    let many = |part: &str| part.repeat(440_000);
    let label = format!(r#"{{"metadata":{{"labels":{{"a":[{}0]}}}}}}"#, many(r#"{"":0},"#));
    let status = format!(r#"{{"UID":"u","Name":"p","Status":{{"conditions":[{}{{}}]}}}}"#, many("{},"));
    let option = format!("{{\"x\":[{}0]}}", r#"{"":0},"#.repeat(300_000));
    let option = base64::engine::general_purpose::STANDARD.encode(option);
    let record = |option: &str, error: &str| {
        format!(
            r#"{{"ID":"1","Key":"/core/v1/pods/d/a","Verb":"delete","Option":"{option}","Status":"InApplying","Error":{{"ErrStatus":[{error}0]}}}}"#
        )
    };
    for (operation, at, content) in [
        (Op::Insert, path("", Type::Node, "n"), label.clone()),
        (Op::Update, path("", Type::Node, "n"), label),
        (Op::Update, path("d", Type::NodeStatus, "n"), status.clone()),
        (Op::Update, path("d", Type::PodStatus, "p"), status),
        (Op::Update, path("d", Type::PodStatus, ""), format!("[{}0]", "0,".repeat(1_600_000))),
        // A record of MetaServer: its route is not examined.
        (Op::Response, path("d", Type::Pod, "p"), record(&option, "")),
        (Op::Response, path("d", Type::Pod, "p"), record("", &many(r#"{"":0},"#))),
    ] {
        let is_application = operation == Op::Response;
        let mut request = message(operation, at, &json!(null));
        request.content = Content::from_json(&bytes::Bytes::from(content)).expect("JSON");
        let what = request.route.clone();
        let live = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}});
        let (client, bodies) = bodies_of(&live);
        let reply = match is_application {
            true => {
                let asked = application::take_record(&mut request);
                upstream(client).answer_application(&node(), &request, asked, None).await
            }
            false => upstream(client).answer_message(&node(), request, None).await.0,
        };
        let text = String::from_utf8_lossy(reply.content.as_json()).into_owned();
        assert!(
            text.contains("send fewer") && (is_application || text.len() < 1000),
            "{what:?}: {:.200}",
            text
        );
        assert!(bodies.lock().is_empty(), "{what:?}: nothing is written");
    }
}
