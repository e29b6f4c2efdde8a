//! `tombolo up`, the README's first command, as its users start it: a process, a terminal, mistakes included.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tombolo_testkit::{Child, ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for};
use tombolo_tests::world::{DEADLINE, binary, kubectl};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart.yaml")
}

fn tombolo(data_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("tombolo").unwrap());
    command.args(["up", "--data-dir"]).arg(data_dir).args(arguments);
    command
}

/// The README's command with `--until-synced`.
fn until_synced(data_dir: &Path, more: &[&str]) -> Output {
    let mut command = tombolo(data_dir, &["--edges", "3", "--until-synced"]);
    command.arg("--apply").arg(example()).args(more).output().unwrap()
}

fn assert_synced(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("every edge lists what it should hold"), "{text}\n{errors}");
    for node in ["edge-1", "edge-2", "edge-3"] {
        let last = text.lines().rfind(|line| line.starts_with(&format!("{node}: ")));
        assert!(last.is_some_and(|line| line.ends_with("objects, in sync")), "{node}: {text}\n{errors}");
    }
    text
}

/// What a user sees of a mistake: exit code 1 and one line that says it.
fn assert_one_line(output: &Output, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part} in: {errors}");
    }
}

/// A `tombolo up` that runs until it is told to stop.
struct Running {
    process: Child,
    kubeconfig: PathBuf,
    folder: TempDir,
}

impl Running {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data_dir = folder.path().join("data");
        let process = Child::spawn("tombolo", folder.path(), &mut tombolo(&data_dir, arguments))?;
        let running = Self { process, kubeconfig: data_dir.join("kubeconfig"), folder };
        running.prints("in sync").await;
        Ok(running)
    }

    async fn prints(&self, text: &str) {
        wait_for(text, DEADLINE, || async {
            let log = self.process.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    fn operate(&self, command: &str) -> Result<String> {
        let program = binary("tombolo")?;
        let output = Command::new(program).arg(command).arg("--kubeconfig").arg(&self.kubeconfig).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

#[test]
fn the_first_command_syncs_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = assert_synced(&until_synced(folder.path(), &["--transport", "quic"]));
    assert!(first.contains("connected (quic)"), "{first}");
    let kubeconfig = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
    let second = assert_synced(&until_synced(folder.path(), &["--transport", "websocket"]));
    assert!(second.contains("connected (websocket)"), "{second}");
    let after = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
    assert_eq!(kubeconfig, after, "a kubeconfig that somebody exported must stay valid");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_command_on_a_real_cluster() {
    cluster_or_skip!("the_same_command_on_a_real_cluster");
    let plane =
        ControlPlane::start(ControlPlaneOptions { controllers: true, ..ControlPlaneOptions::default() })
            .await
            .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = plane.kubeconfig();
    let output = until_synced(folder.path(), &["--kubeconfig", kubeconfig.to_str().unwrap()]);
    assert_synced(&output);
    let pods = kubectl(&kubeconfig, &["get", "pods", "-n", "quickstart", "-o", "name"]).unwrap();
    assert_eq!(pods.lines().count(), 3, "{pods}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_used_while_it_runs_and_ctrl_c_drains() {
    cluster_or_skip!("it_can_be_used_while_it_runs_and_ctrl_c_drains");
    let example = example();
    let arguments = ["--edges", "3", "--simulate-pods", "--apply", example.to_str().unwrap()];
    let mut running = Running::start(&arguments).await.unwrap();
    wait_for("three pods to be ready, with the reason that says that nothing runs", DEADLINE, || async {
        let pods = kubectl(&running.kubeconfig, &["get", "pods", "-n", "quickstart", "--no-headers"]);
        let pods = pods.map_err(|error| format!("{error:#}"))?;
        if pods.lines().filter(|line| line.contains("1/1") && line.contains("Simulated")).count() == 3 {
            Ok(())
        } else {
            Err(pods)
        }
    })
    .await;
    let nodes = running.operate("nodes").unwrap();
    assert!(["edge-1", "edge-2", "edge-3"].iter().all(|node| nodes.contains(node)), "{nodes}");
    let token = running.operate("token").unwrap();
    assert_eq!(token.trim().split('.').count(), 4, "a CA hash and a JWT: {token}");

    let change =
        ["-n", "quickstart", "patch", "configmap", "shop-settings", "-p", r#"{"data":{"currency":"SEK"}}"#];
    kubectl(&running.kubeconfig, &change).unwrap();
    running.process.interrupt().unwrap();
    let status = running.process.wait().unwrap();
    assert!(status.success(), "{status}: {}", running.process.log());
    drop(running.folder);
}

#[test]
fn a_bad_manifest_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("bad.yaml");
    fs::write(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: [unclosed\n").unwrap();
    let data_dir = folder.path().join("data");
    let output = tombolo(&data_dir, &["--apply", manifest.to_str().unwrap()]).output().unwrap();
    assert_one_line(&output, &["bad.yaml", "line"]);
    assert!(!data_dir.exists());
    let output = tombolo(&data_dir, &["--apply", "does-not-exist.yaml"]).output().unwrap();
    assert_one_line(&output, &["does-not-exist.yaml"]);
}

#[test]
fn a_manifest_that_the_api_refuses_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("refused.yaml");
    fs::write(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: UPPER\n  namespace: default\n")
        .unwrap();
    let output =
        tombolo(&folder.path().join("data"), &["--apply", manifest.to_str().unwrap()]).output().unwrap();
    assert_one_line(&output, &["UPPER", "metadata.name"]);
    fs::write(&manifest, "apiVersion: v1\nkind: Podd\nmetadata:\n  name: shop\n").unwrap();
    let output =
        tombolo(&folder.path().join("data"), &["--apply", manifest.to_str().unwrap()]).output().unwrap();
    assert_one_line(&output, &["refused.yaml, document 1", "Podd"]);
}

#[test]
fn a_used_port_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert_synced(&until_synced(folder.path(), &[]));
    let ports: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("up.json")).unwrap()).unwrap();
    for listener in ["kubernetes", "websocket", "join", "edge-1"] {
        let port =
            ports["ports"][listener].as_u64().with_context(|| format!("{listener} in {ports}")).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
        let output = tombolo(folder.path(), &["--edges", "3", "--until-synced"]).output().unwrap();
        assert_one_line(&output, &[&format!("127.0.0.1:{port}"), "in use"]);
    }
}

#[test]
fn a_data_folder_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("up.json"), r#"{"format": 2, "ports": {}}"#).unwrap();
    let output = tombolo(folder.path(), &[]).output().unwrap();
    assert_one_line(&output, &["another version", "--data-dir"]);
}
