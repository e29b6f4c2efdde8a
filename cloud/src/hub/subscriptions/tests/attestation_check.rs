//! What a hello attests of the cloud's history, before it is answered. The test plays the keeper of the epoch.

use bytes::Bytes;
use tombolo_proto::Lane;
use tombolo_proto::frame::{Frame, Goodbye, GoodbyeReason, Hello, features};

use super::*;
use crate::epoch::ClaimOutcome;

/// Shorter than a hello may be held back.
const A_WHILE: Duration = Duration::from_secs(3);

fn attested(hub: &Hub, revision: u64) -> Bytes {
    attester().attest(&hub.epoch.load().cluster, progress(revision))
}

/// A connection on which an edge has sent a hello with this attestation.
fn greet(hub: &Arc<Hub>, attestation: Bytes) -> Link {
    let (cloud, mut link, _) = mem::pair(node());
    let remote = cloud.peer().remote;
    hub.accept(Accepted { link: cloud, node: node(), remote, transport: Transport::Memory });
    link.send(Lane::Control, Frame::Hello(hello(hub, attestation))).expect("the link accepts a hello");
    link
}

fn hello(hub: &Hub, attestation: Bytes) -> Hello {
    Hello {
        versions: (1, 1),
        node: node(),
        store: StoreId([7; 16]),
        epoch: Some(hub.epoch.load().as_ref().clone()),
        trim_version: 1,
        features: features::ATTESTATION,
        inventory: Inventory::Full(Vec::new()),
        agent: String::new(),
        instance: 1,
        attestation,
    }
}

/// The next frame within some time.
async fn heard(link: &mut Link, time: Duration) -> Option<Frame> {
    let listen = async {
        loop {
            match link.next().await {
                LinkEvent::Frame(_, frame) => return frame,
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(time, listen).await.ok()
}

async fn silent_hub() -> Arc<Hub> {
    hub(&scripted(&Arc::new(Rights::default())))
}

#[tokio::test(start_paused = true)]
async fn edge_ahead_of_the_cloud_is_welcomed_once_the_cloud_caught_up() {
    let hub = silent_hub().await;
    let mut link = greet(&hub, attested(&hub, 900));
    assert_eq!(heard(&mut link, A_WHILE).await, None, "no answer is given before the API server is asked");
    let asked = hub.attestations.take();
    assert_eq!(asked.claim, Some(progress(900)));
    hub.attestations.publish(progress(901));
    asked.answer(ClaimOutcome::Holds);
    assert!(matches!(heard(&mut link, SOON).await, Some(Frame::Welcome(_))));
    let told = heard(&mut link, SOON).await;
    assert_eq!(told, Some(Frame::Attestation { proof: hub.attestations.proof() }), "before it is caught up");
    // The next edge knows no more than the hub, and does not wait.
    let mut link = greet(&hub, attested(&hub, 900));
    assert!(matches!(heard(&mut link, SOON).await, Some(Frame::Welcome(_))));
    assert_eq!(hub.attestations.take().claim, None);
}

#[tokio::test(start_paused = true)]
async fn edge_that_saw_reverted_history_is_never_welcomed_with_the_old_epoch() {
    let hub = silent_hub().await;
    let mut link = greet(&hub, attested(&hub, 900));
    assert_eq!(heard(&mut link, A_WHILE).await, None, "no answer is given before the API server is asked");
    let asked = hub.attestations.take();
    // As the keeper does it: all sessions are ended, and then the waiting hellos are answered.
    hub.end_all(GoodbyeReason::Other, "the cluster was restored to an earlier state", Duration::ZERO);
    asked.answer(ClaimOutcome::Restored);
    let said = heard(&mut link, SOON).await;
    assert!(
        matches!(&said, Some(Frame::Goodbye(Goodbye { message, .. })) if message.contains("restored")),
        "{said:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn edge_is_refused_when_its_attestation_cannot_be_checked() {
    let hub = silent_hub().await;
    let mut link = greet(&hub, attested(&hub, 900));
    let said = heard(&mut link, SOON).await;
    let Some(Frame::Goodbye(goodbye)) = said else { panic!("{said:?}") };
    assert!(goodbye.message.contains("API server does not answer"), "{}", goodbye.message);
    assert!(goodbye.retry_after > Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn known_or_missing_attestation_causes_no_epoch_read() {
    let hub = silent_hub().await;
    let other = Attester::new(b"another authority").expect("cryptography works");
    let forged = other.attest(&hub.epoch.load().cluster, progress(900));
    for attestation in [attested(&hub, 1), attested(&hub, 0), forged, vec![1; 57].into(), vec![0; 128].into()]
    {
        let mut link = greet(&hub, attestation.clone());
        let said = heard(&mut link, SOON).await;
        assert!(matches!(said, Some(Frame::Welcome(_))), "{attestation:?}: {said:?}");
        assert_eq!(hub.attestations.take().claim, None, "{attestation:?}");
    }
}

/// A second hello without an attestation does not bypass the first.
#[tokio::test(start_paused = true)]
async fn second_hello_is_not_welcomed_while_the_first_is_checked() {
    for later in [None, Some(1), Some(901)] {
        let hub = silent_hub().await;
        let attestation = later.map(|revision| attested(&hub, revision)).unwrap_or_default();
        let mut link = greet(&hub, attested(&hub, 900));
        assert_eq!(
            heard(&mut link, A_WHILE).await,
            None,
            "no answer is given before the API server is asked"
        );
        link.send(Lane::Control, Frame::Hello(hello(&hub, attestation))).expect("the link accepts it");
        let said = heard(&mut link, SOON).await;
        let Some(Frame::Goodbye(goodbye)) = said else { panic!("{said:?}") };
        assert_eq!(goodbye.reason, GoodbyeReason::ProtocolError);
        // The answer to the first comes too late.
        hub.attestations.take().answer(ClaimOutcome::Holds);
    }
}

/// A node connects again and again while its hello cannot be judged.
#[tokio::test(start_paused = true)]
async fn newest_of_many_connections_under_check_is_welcomed() {
    let hub = silent_hub().await;
    let mut links = Vec::new();
    let mut asked = None;
    for number in 0..20 {
        let mut link = greet(&hub, attested(&hub, 900 + number));
        link.flush().await.expect("taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The keeper holds one question, and takes its time.
        asked.get_or_insert_with(|| hub.attestations.take());
        links.push(link);
    }
    asked.expect("one call was made").answer(ClaimOutcome::Holds);
    let mut newest = links.pop().expect("many");
    let mut said = None;
    for _ in 0..100 {
        hub.attestations.take().answer(ClaimOutcome::Holds);
        said = said.or(heard(&mut newest, Duration::from_millis(100)).await);
    }
    assert!(matches!(said, Some(Frame::Welcome(_))), "{said:?}");
    for mut older in links {
        while let Ok(event) = tokio::time::timeout(SOON, older.next()).await
            && !matches!(event, LinkEvent::Closed(_))
        {
            assert!(!matches!(event, LinkEvent::Frame(_, Frame::Welcome(_))), "it was replaced");
        }
    }
}
