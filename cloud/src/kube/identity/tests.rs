use std::process::Command;
use std::sync::mpsc;

use super::*;

/// A file on a disk that does not answer: whoever reads it waits until somebody writes. On one thread, where a call that waited would
/// keep everything waiting.
#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_answer_keeps_no_call_waiting() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("kubeconfig");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let config = Config::new("http://127.0.0.1:1".parse().expect("an address"));
    let connections = Connections::new(config, Some(path.clone())).expect("connections");
    let (done, is_done) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let in_time = is_done.recv_timeout(Duration::from_secs(20)).is_ok();
        std::fs::write(path, "{").map(|()| in_time)
    });
    tokio::time::advance(LOOK_INTERVAL).await;
    let _pool = connections.current();
    done.send(()).expect("it waits");
    let in_time = tokio::task::spawn_blocking(|| writer.join()).await.expect("a thread").expect("no panic");
    assert!(in_time.expect("it is written"), "nobody reads it in the place of a call");
}
