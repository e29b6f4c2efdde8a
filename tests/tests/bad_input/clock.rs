//! Clocks that are a day apart.

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tombolo_testkit::{free_port, wait_for};
use tombolo_tests::hub::RawHub;
use tombolo_tests::pki::Authority;
use tombolo_tests::world::{DEADLINE, binary};

use super::objects::now_millis;
use super::{refusal, says};

const DAY: Duration = Duration::from_secs(86_400);

/// A join port whose clock differs by this many hours from ours; it closes when the set is dropped. Returns its address
/// and a token.
async fn join_port(hours: i64) -> (String, String, JoinSet<()>) {
    let authority = Authority::new().unwrap();
    let ca = authority.der().clone();
    let token = format!("{}.a.b.c", hex::encode(Sha256::digest(&ca)));
    let answer = move |mut stream: TlsStream<TcpStream>| {
        let date = (Timestamp::now() + hours.hours()).strftime("%a, %d %b %Y %H:%M:%S GMT");
        let head = format!(
            "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            ca.len()
        );
        let answer = [head.as_bytes(), &ca].concat();
        async move {
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(&answer).await?;
            Ok(stream.shutdown().await?)
        }
    };
    let (address, tasks) = authority.serve_tls(WebPkiClientVerifier::no_client_auth(), answer).await.unwrap();
    (address.to_string(), token, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_a_day_off_does_not_join() {
    for (hours, side, effect) in [(24, "behind", "not yet valid"), (-24, "ahead of", "have expired")] {
        let (address, token, _tasks) = join_port(hours).await;
        let folder = tempfile::tempdir().unwrap();
        let mut command = tokio::process::Command::new(binary("edgecore").unwrap());
        command.env("TOMBOLO_TOKEN", &token).arg("join").args(["--cloud", &address, "--node-name", "edge-a"]);
        command.arg("--data-dir").arg(folder.path().join("data"));
        command.arg("--config").arg(folder.path().join("edgecore.yaml"));
        let text = refusal(&command.output().await.unwrap());
        says(&text, &[side, effect, "minutes", &address, "set this node's clock, then join again"]);
        let years = text.matches("20").count();
        assert!(years >= 2, "the message must contain both times: {text}");
        assert!(!folder.path().join("data").exists() && !folder.path().join("edgecore.yaml").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_agent_warns_of_a_clock_that_is_a_day_off() {
    let mut hub = RawHub::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = hub.agent(folder.path(), None).unwrap();
    let mut edge = hub.edge().await.unwrap();
    let day = u64::try_from(DAY.as_millis()).unwrap();
    edge.welcome(now_millis() + day).await.unwrap();
    wait_for("a warning", DEADLINE, || async {
        let log = agent.log();
        if log.contains("this node's clock differs from the cloud's") { Ok(()) } else { Err(log) }
    })
    .await;
    agent.check_running().unwrap();
}

#[test]
fn a_port_without_a_cloud_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let mut command = std::process::Command::new(binary("edgecore").unwrap());
    let token = format!("{}.a.b.c", "0".repeat(64));
    command.env("TOMBOLO_TOKEN", &token).arg("join").args(["--cloud", &address, "--node-name", "edge-a"]);
    command.arg("--config").arg(folder.path().join("edgecore.yaml"));
    let text = refusal(&command.arg("--data-dir").arg(folder.path()).output().unwrap());
    says(&text, &["cannot reach the join endpoint", &address, "refused"]);
}
