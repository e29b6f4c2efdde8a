//! Who may connect, and the errors for rejected clients.

use std::time::Duration;

use tombolo_link::client::Choice;
use tombolo_link::tls::{ClientTls, ServerTls};
use tombolo_link::{ConnectError, LinkError};

use crate::pki::Ca;
use crate::world::{BOTH, Hub, ending, soon};

fn is_tls(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Tls { .. })
}

async fn refused(hub: &Hub, tls: &ClientTls) -> [ConnectError; 2] {
    let mut errors = Vec::new();
    for choice in BOTH {
        errors.push(hub.dial(tls.clone(), choice).await.expect_err("the hub must refuse"));
    }
    errors.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_of_another_ca_is_not_trusted() {
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let hub = Hub::start(&theirs.server_tls()).await;
    for error in refused(&hub, &ours.client_tls("edge-1")).await {
        assert!(is_tls(&error), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_name_is_not_trusted() {
    let ca = Ca::new("ours");
    let hub = Hub::start(&ca.server_tls()).await;
    for choice in BOTH {
        let mut target = hub.target(choice);
        target.host = "localhost".to_owned();
        let connecting = tombolo_link::client::connect(target, ca.client_tls("edge-1"));
        let error = soon("dialling", connecting).await.unwrap_err();
        assert!(is_tls(&error), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_a_certificate_gets_the_reason() {
    let ca = Ca::new("ours");
    let hub = Hub::start(&ca.server_tls()).await;
    let nobody = ClientTls::new(None, &[ca.certificate()]).unwrap();
    for error in refused(&hub, &nobody).await {
        assert!(is_tls(&error), "{error:?}");
        let text = error.to_string().to_lowercase();
        assert!(text.contains("certificate"), "{text}");
    }
    // Both are counted, possibly after the client receives its error.
    soon("both to be counted", async {
        while hub.incoming.stats().failed() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(hub.incoming.stats().failed(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_ca_is_refused() {
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let hub = Hub::start(&ours.server_tls()).await;
    let stranger = ClientTls::new(Some(theirs.node("edge-1")), &[ours.certificate()]).unwrap();
    for error in refused(&hub, &stranger).await {
        assert!(is_tls(&error), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_names_no_node_is_refused_with_the_reason() {
    let ca = Ca::new("ours");
    let hub = Hub::start(&ca.server_tls()).await;
    let admin = ClientTls::new(Some(ca.client("admin", "system:masters")), &[ca.certificate()]).unwrap();
    let [websocket, quic] = refused(&hub, &admin).await;
    assert!(matches!(websocket, ConnectError::Upgrade { status: 403, .. }), "{websocket:?}");
    assert!(matches!(quic, ConnectError::Protocol { .. }), "{quic:?}");
    for error in [websocket, quic] {
        assert!(error.to_string().contains("must have the organisation system:nodes"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_certificates_and_cas_take_effect_with_the_next_handshake() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let server: ServerTls = old.server_tls();
    let mut hub = Hub::start(&server).await;
    let client = old.client_tls("edge-1");
    for choice in BOTH {
        let mut before = hub.dial(client.clone(), choice).await.unwrap();
        let kept = hub.accept().await;

        server.replace_identity(new.hub()).unwrap();
        assert!(is_tls(&hub.dial(client.clone(), choice).await.unwrap_err()));
        client.replace_server_cas(&[new.certificate()]).unwrap();
        hub.dial(client.clone(), choice).await.unwrap();
        hub.accept().await;

        server.replace_client_cas(&[new.certificate()]).unwrap();
        assert!(is_tls(&hub.dial(client.clone(), choice).await.unwrap_err()));
        client.replace_identity(new.node("edge-2")).unwrap();
        hub.dial(client.clone(), choice).await.unwrap();
        assert_eq!(hub.accept().await.node.as_str(), "edge-2");

        drop(kept);
        let end = ending(&mut before).await;
        assert!(!matches!(end, LinkError::WebSocket(_)), "the old link lives until it is dropped: {end:?}");
        server.replace_identity(old.hub()).unwrap();
        server.replace_client_cas(&[old.certificate()]).unwrap();
        client.replace_identity(old.node("edge-1")).unwrap();
        client.replace_server_cas(&[old.certificate()]).unwrap();
    }
    assert!(server.replace_client_cas(&[]).is_err(), "a hub without trusted authorities is a mistake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_certificate_is_refused() {
    let ca = Ca::new("ours");
    let key = rcgen::KeyPair::generate().unwrap();
    let mixed = tombolo_link::tls::Identity::new(
        vec![ca.certificate()],
        rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
    );
    let error = ServerTls::new(mixed, &[ca.certificate()]).unwrap_err();
    assert!(error.to_string().contains("do not match"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_without_a_listener_fails() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let target = hub.target(Choice::WebSocket);
    hub.trigger.start();
    assert!(soon("the listeners' end", hub.incoming.next()).await.is_none());
    soon("the tasks' end", hub.tasks.shutdown(Duration::from_secs(5))).await.unwrap();
    let connecting = tombolo_link::client::connect(target, ca.client_tls("edge-1"));
    let error = soon("dialling", connecting).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Unreachable { .. }), "{error:?}");
}
