//! What a session asks before it deletes something at the edge, and what follows from the answer. The test plays the
//! edge controller.

use tombolo_proto::Lane;
use tombolo_proto::frame::{Frame, Hello};
use tombolo_proto::object::{ContentHash, HeldState, ObjectKey, ObjectVersion};

use super::*;
use crate::edgecontroller::{Index, Kind, Proven, TRIM_VERSION};
use crate::kube::RawObject;

/// The watches have shown the node and one of its pods, but no Secret.
fn known() -> Arc<NodeObjectCache> {
    let down = Arc::new(NodeObjectCache::default());
    let mut index = Index::new(Arc::clone(&down));
    index.joined(&node());
    let metadata = |name: &str| json!({"name": name, "namespace": "d", "uid": format!("u-{name}"), "resourceVersion": "1"});
    let pod = json!({"metadata": metadata("p"),
        "spec": {"nodeName": "n", "imagePullSecrets": [{"name": "a"}, {"name": "b"}]}});
    for kind in Kind::ALL {
        index.handle(kind, ObjectEvent::RelistStart);
        let shown = match kind {
            Kind::Node => Some(json!({"metadata": {"name": "n", "uid": "u-n", "resourceVersion": "1"}})),
            Kind::Pod => Some(pod.clone()),
            Kind::ConfigMap | Kind::Secret => None,
        };
        if let Some(object) = shown {
            index.handle(kind, ObjectEvent::Applied(RawObject::new(object)));
        }
        index.handle(kind, ObjectEvent::RelistEnd);
    }
    for name in ["a", "b"] {
        index.fetched(&secret(name), None, None);
    }
    down
}

fn secret(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Secret.resource(), "d", name)
}

/// An edge that reports both Secrets in its inventory.
async fn connect(hub: &Arc<Hub>) -> Link {
    let version = ObjectVersion {
        uid: Uid::parse("x").expect("valid"),
        revision: CloudRevision(3),
        hash: ContentHash(1),
    };
    let held = |name| InventoryEntry { key: secret(name), held: HeldState::Present(version.clone()) };
    let hello = Hello {
        versions: (1, 1),
        node: node(),
        store: StoreId([7; 16]),
        epoch: Some(hub.epoch.load().as_ref().clone()),
        trim_version: TRIM_VERSION,
        features: 0,
        inventory: Inventory::Full(vec![held("a"), held("b")]),
        agent: String::new(),
        instance: 1,
        attestation: bytes::Bytes::new(),
    };
    let (cloud, mut link, _) = mem::pair(node());
    let remote = cloud.peer().remote;
    hub.accept(Accepted { link: cloud, node: node(), remote, transport: Transport::Memory });
    link.send(Lane::Control, Frame::Hello(hello)).expect("the link accepts a hello");
    link.flush().await.expect("taken");
    link
}

/// The keys that the edge is told to be absent within some time.
async fn told_absent(link: &mut Link) -> Vec<ObjectKey> {
    let mut told = Vec::new();
    let listen = async {
        loop {
            match link.next().await {
                LinkEvent::Frame(_, Frame::Deliver(deliver)) => {
                    if let Change::Absent { key } = deliver.change {
                        told.push(key);
                    }
                }
                LinkEvent::Closed(error) => panic!("{error}"),
                _ => {}
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), listen).await;
    told
}

#[tokio::test(start_paused = true)]
async fn postponed_confirmation_is_repeated_on_news_while_the_rest_continues() {
    let (inputs, mut questions) = mpsc::channel(16);
    let hub = hub_of(&scripted(&Arc::new(Rights::default())), known(), inputs);
    let mut link = connect(&hub).await;
    let mut question = async || {
        loop {
            let input = tokio::time::timeout(Duration::from_secs(5), questions.recv()).await.ok()??;
            if let Input::Prove(_, mut keys, answer) = input {
                keys.sort();
                return Some((keys, answer));
            }
        }
    };
    let (asked, answer) = question().await.expect("no object is deleted without confirmation");
    assert_eq!(asked, [secret("a"), secret("b")]);
    answer.send(Proven { read: vec![secret("b")], put_off: vec![secret("a")] }).expect("it waits");
    assert_eq!(told_absent(&mut link).await, [secret("b")], "what is proven is done");
    assert!(question().await.is_none(), "no call is repeated");
    let session = hub.registry.get(&node()).expect("connected");
    session.mailbox.offer(SubscriptionId::NODE, &secret("a"));
    let (asked, answer) = question().await.expect("there is news");
    assert_eq!(asked, [secret("a")]);
    answer.send(Proven { read: asked, put_off: Vec::new() }).expect("it waits");
    assert_eq!(told_absent(&mut link).await, [secret("a")]);
}
