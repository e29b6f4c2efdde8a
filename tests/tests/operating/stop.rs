//! Ctrl-C drains and says goodbye; a second Ctrl-C ends the process at once.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tombolo_proto::Frame;
use tombolo_proto::frame::GoodbyeReason;
use tombolo_testkit::{free_port, wait_for_value};
use tombolo_tests::hub::RawHub;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// Less than the time that a drain waits for a peer that does not leave.
const AT_ONCE: Duration = Duration::from_secs(4);

const SENTENCE: &str = "stopped by a second signal";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_cloudcore_that_waits_for_a_node() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let node = world.raw_node("edge-a", "edge-a").await.unwrap();
    node.api("GET", "/version", "", "").await.unwrap();
    world.interrupt_cloud().unwrap();
    let (goodbye, _open) = node.ended_and_stays().await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Draining, "{}", goodbye.message);
    let begin = Instant::now();
    world.interrupt_cloud().unwrap();
    let status = world.wait_for_cloud().unwrap();
    assert!(begin.elapsed() < AT_ONCE, "ended after {:?}", begin.elapsed());
    assert_eq!(status.code(), Some(1), "{}", world.cloud_log());
    assert!(world.cloud_log().contains(&format!("cloudcore: {SENTENCE}")), "{}", world.cloud_log());

    // Once is enough if no peer stays connected.
    world.start_cloud().await.unwrap();
    world.interrupt_cloud().unwrap();
    let status = world.wait_for_cloud().unwrap();
    assert!(status.success(), "{status}: {}", world.cloud_log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_an_edgecore_that_waits_for_a_client() {
    let mut hub = RawHub::start().await.unwrap();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
    let mut agent = hub.agent(folder.path(), Some(port)).unwrap();
    let mut edge = hub.edge().await.unwrap();
    edge.welcome(0).await.unwrap();
    let mut client = wait_for_value("the local API", DEADLINE, || async {
        TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())
    })
    .await;
    // An answer shows that the agent has accepted the connection, which is not just queued by the kernel.
    client.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") && !answer.ends_with(b"}\n") {
        assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
    // A request that never ends.
    client.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
    agent.interrupt().unwrap();
    let said = edge.until("a goodbye", |frame| match frame {
        Frame::Goodbye(goodbye) => Some(goodbye.clone()),
        _ => None,
    });
    let goodbye = said.await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Draining, "{}", goodbye.message);
    let begin = Instant::now();
    agent.interrupt().unwrap();
    let status = agent.wait().unwrap();
    assert!(begin.elapsed() < AT_ONCE, "ended after {:?}", begin.elapsed());
    assert_eq!(status.code(), Some(1), "{}", agent.log());
    assert!(agent.log().contains(&format!("edgecore: {SENTENCE}")), "{}", agent.log());
    drop(client);
}
