//! Programs raise the low limit of open files that they are started with.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use tombolo_tests::world::{Api, Transport, World, binary};

const NODE: &str = "edge-a";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_opens_as_many_files_as_it_may() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let program = temporary.path().join("edgecore");
    let agent = binary("edgecore").unwrap();
    let text = format!("#!/bin/sh\nulimit -S -n 256\nexec '{}' \"$@\"\n", agent.display());
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    world.start_edge_program(NODE, &program).await.unwrap();
    world.converges(NODE).await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", world.edge_id(NODE).unwrap())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
    assert_ne!(words[4], "256", "the hard limit of this machine is too low for this test");
}
