//! `tombolo apiserver`: its first and second start, and data folders of the other program.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tombolo_tests::world::{Api, Transport, World, binary};

/// Names and contents of the files in a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authority_is_the_same_across_starts() {
    let mut world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let pki = world.cloud_dir().join("pki");
    let first = files(&pki);
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    let expected =
        ["admin.crt", "admin.key", "apiserver.crt", "apiserver.key", "ca.crt", "ca.key", "sa.key", "sa.pub"];
    assert_eq!(names, expected);
    world.start_edge("node-a").await.unwrap();
    world.converges("node-a").await;
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    assert_eq!(files(&pki), first, "the second start keeps every key");
    world.converges("node-a").await;
}

#[test]
fn each_program_refuses_the_folder_of_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let (up, embedded) = (folder.path().join("up"), folder.path().join("embedded"));
    fs::create_dir_all(&up).unwrap();
    fs::create_dir_all(&embedded).unwrap();
    fs::write(up.join("up.json"), r#"{"format": 1, "ports": {}}"#).unwrap();
    fs::write(embedded.join("format"), "tombolo-embedded/1\n").unwrap();
    let mut server = Command::new(binary("tombolo").unwrap());
    let output = server.arg("apiserver").arg("--data-dir").arg(&up).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("belongs to `tombolo up`"), "{text}");
    let mut tombolo = Command::new(binary("tombolo").unwrap());
    let output = tombolo.arg("up").arg("--data-dir").arg(&embedded).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("tombolo apiserver"), "{text}");
    assert_eq!(files(&up).len() + files(&embedded).len(), 2, "nothing is written into them");
}
