//! `tombolo up`, the README's first command, as its users start it: a process, a terminal, and mistakes.

mod controllers;
mod grids;
mod site;

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tombolo_link::client::{Choice, Target};
use tombolo_proto::NodeId;
use tombolo_proto::frame::GoodbyeReason;
use tombolo_testkit::{Child, ControlPlane, ControlPlaneOptions, cluster_or_skip, free_port, wait_for};
use tombolo_tests::node::{RawNode, RawNodeOptions};
use tombolo_tests::world::{DEADLINE, binary, kubectl};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart.yaml")
}

fn tombolo(data_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("tombolo").unwrap());
    command.args(["up", "--data-dir"]).arg(data_dir).args(arguments);
    command
}

/// Chooses the ports of a data folder that is started again. Another test's client may use the ports that `up` chose by
/// itself by then.
fn choose_ports(data_dir: &Path, edges: usize) {
    let listeners =
        ["kubernetes", "websocket", "quic", "join", "cloudcore admin"].map(str::to_owned).into_iter();
    let of_edges = (1..=edges).flat_map(|edge| [format!("edge-{edge}"), format!("edge-{edge} wrapper")]);
    let ports = listeners.chain(of_edges).map(|listener| (listener, free_port().unwrap().into()));
    let ports: serde_json::Map<String, serde_json::Value> = ports.collect();
    fs::create_dir_all(data_dir).unwrap();
    let text = serde_json::json!({"format": 1, "ports": ports}).to_string();
    fs::write(data_dir.join("up.json"), text).unwrap();
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
    assert!(text.contains("all edges are in sync"), "{text}\n{errors}");
    for node in ["edge-1", "edge-2", "edge-3"] {
        let last = text.lines().rfind(|line| line.starts_with(&format!("{node}: ")));
        assert!(last.is_some_and(|line| line.ends_with("objects, in sync")), "{node}: {text}\n{errors}");
    }
    text
}

/// Checks the error output of a mistake: exit code 1 and one line that explains it.
fn assert_one_line(output: &Output, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part} in: {errors}");
    }
}

/// A `tombolo up` that runs until it is stopped.
struct Running {
    process: Child,
    kubeconfig: PathBuf,
    folder: TempDir,
}

impl Running {
    async fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, "first", arguments).await
    }

    /// Starts with the data that an earlier start has left in the folder; the log has this name.
    async fn start_in(folder: TempDir, log: &str, arguments: &[&str]) -> Result<Self> {
        let data_dir = folder.path().join("data");
        let process = Child::spawn(log, folder.path(), &mut tombolo(&data_dir, arguments))?;
        let running = Self { process, kubeconfig: data_dir.join("kubeconfig"), folder };
        running.prints("in sync").await;
        Ok(running)
    }

    /// UIDs of the example's objects, by name.
    fn uids(&self) -> Result<String> {
        let columns = "-o=custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid";
        let kinds = "pods,configmaps,secrets";
        kubectl(&self.kubeconfig, &["get", kinds, "-n", "quickstart", "--no-headers", columns])
    }

    /// A node without an agent.
    async fn raw_node(&self, name: &str) -> Result<RawNode> {
        let ports = fs::read(self.folder.path().join("data/up.json"))?;
        let ports: serde_json::Value = serde_json::from_slice(&ports)?;
        let port = |name: &str| u16::try_from(ports["ports"][name].as_u64().unwrap_or_default());
        let node = NodeId::parse(name)?;
        RawNode::connect(RawNodeOptions {
            target: Target {
                host: "127.0.0.1".to_owned(),
                websocket_port: port("websocket")?,
                quic_port: port("quic")?,
                choice: Choice::WebSocket,
            },
            join: format!("127.0.0.1:{}", port("join")?),
            token: self.operate(&format!("token create --node {name}"))?.trim().to_owned(),
            certified: node.clone(),
            claimed: node,
        })
        .await
    }

    async fn prints(&self, text: &str) {
        wait_for(text, DEADLINE, || async {
            let log = self.process.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Runs the diagnostic command that it prints; the command must find nothing broken.
    fn examines_itself(&self) {
        let log = self.process.log();
        let command = log.lines().find_map(|line| line.strip_prefix("to diagnose problems, run: tombolo "));
        let arguments = command.unwrap_or_else(|| panic!("no command in {log}")).split_whitespace();
        let output = Command::new(binary("tombolo").unwrap()).args(arguments).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !report.contains("FAIL"), "{}: {report}", output.status);
    }

    fn operate(&self, command: &str) -> Result<String> {
        let program = binary("tombolo")?;
        let output = Command::new(program)
            .args(command.split(' '))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

#[test]
fn first_command_of_the_readme_syncs_and_continues_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    choose_ports(folder.path(), 3);
    let first = assert_synced(&until_synced(folder.path(), &["--transport", "quic"]));
    assert!(first.contains("connected (quic)"), "{first}");
    let kubeconfig = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
    let second = assert_synced(&until_synced(folder.path(), &["--transport", "websocket"]));
    assert!(second.contains("connected (websocket)"), "{second}");
    let after = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
    assert_eq!(kubeconfig, after, "an exported kubeconfig must stay valid");
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
    let folder = tempfile::tempdir().unwrap();
    choose_ports(&folder.path().join("data"), 3);
    let mut running = Running::start_in(folder, "first", &arguments).await.unwrap();
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
    let token = running.operate("token create --node edge-9 --ttl 5m").unwrap();
    assert_eq!(token.trim().split('.').count(), 4, "CA hash, marker, ID and secret: {token}");
    let id = token.trim().split('.').nth(2).unwrap();
    let listed = running.operate("token list").unwrap();
    assert!(listed.contains(id) && listed.contains("edge-9"), "{listed}");
    assert!(!listed.contains(token.trim().rsplit('.').next().unwrap()), "the list shows a secret: {listed}");
    running.operate(&format!("token delete {id}")).unwrap();
    assert!(!running.operate("token list").unwrap().contains(id));
    let shared = running.operate("token").unwrap_err().to_string();
    assert!(shared.contains("tombolo token create"), "{shared}");
    running.examines_itself();

    let change =
        ["-n", "quickstart", "patch", "configmap", "shop-settings", "-p", r#"{"data":{"currency":"SEK"}}"#];
    kubectl(&running.kubeconfig, &change).unwrap();
    let before = running.uids().unwrap();
    assert!(before.lines().count() >= 6, "{before}");
    running.process.interrupt().unwrap();
    let status = running.process.wait().unwrap();
    assert!(status.success(), "{status}: {}", running.process.log());

    let Running { folder, .. } = running;
    let mut again = Running::start_in(folder, "second", &["--edges", "3"]).await.unwrap();
    assert_eq!(again.uids().unwrap(), before, "a second start keeps the objects without the manifest");
    a_second_ctrl_c_aborts(&mut again).await;
}

/// A node that does not disconnect delays the drain.
async fn a_second_ctrl_c_aborts(running: &mut Running) {
    let node = running.raw_node("stays").await.unwrap();
    node.api("GET", "/version", "", "").await.unwrap();
    running.process.interrupt().unwrap();
    let (goodbye, _open) = node.ended_and_stays().await.unwrap();
    assert_eq!(goodbye.reason, GoodbyeReason::Draining, "{}", goodbye.message);
    let begin = Instant::now();
    running.process.interrupt().unwrap();
    let status = running.process.wait().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "ended after {:?}", begin.elapsed());
    let log = running.process.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("error: stopped by a second signal"), "{log}");
}

/// Agents with certificates of an authority that no longer exists cannot connect.
#[test]
fn a_run_that_cannot_sync_ends_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    choose_ports(folder.path(), 3);
    assert_synced(&until_synced(folder.path(), &[]));
    fs::remove_dir_all(folder.path().join("cluster")).unwrap();
    let output = until_synced(folder.path(), &["--timeout", "2"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let reasons: Vec<&str> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(reasons.len(), 1, "{errors}");
    for part in ["not synced after 2 s", "edge-1: ", "quickstart/"] {
        assert!(reasons[0].contains(part), "{part} in: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_drawn_over_itself_on_a_terminal() {
    cluster_or_skip!("the_table_is_drawn_over_itself_on_a_terminal");
    let folder = tempfile::tempdir().unwrap();
    let (master, terminal) = terminal().unwrap();
    let mut command = tombolo(folder.path(), &["--edges", "3"]);
    command.arg("--apply").arg(example()).stdin(Stdio::null()).stdout(terminal).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The command holds the other end, too; it must be dropped, or the terminal never ends.
    drop(command);
    let shown = Arc::<Mutex<Vec<u8>>>::default();
    let (kept, mut master) = (Arc::clone(&shown), fs::File::from(master));
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        // When the last user of a terminal has left, Linux reports an error.
        while let Ok(read @ 1..) = master.read(&mut piece) {
            kept.lock().extend_from_slice(&piece[..read]);
        }
    });
    let text = || String::from_utf8_lossy(&shown.lock()).into_owned();
    let newest = || text().rsplit("NODE ").next().unwrap_or_default().to_owned();
    wait_for("three edges in sync", DEADLINE, || async {
        let table = newest();
        if table.matches("in sync").count() == 3 { Ok(()) } else { Err(table) }
    })
    .await;
    let pod = ["-n", "quickstart", "delete", "pod", "shop-1", "--force", "--grace-period=0"];
    kubectl(&folder.path().join("kubeconfig"), &pod).unwrap();
    wait_for("an edge without objects, drawn over the table before", DEADLINE, || async {
        let (all, table) = (text(), newest());
        // The heading and three nodes are erased first.
        let redrawn = all.contains("\x1b[4A\x1b[JNODE ");
        if redrawn && table.contains(" 0 objects, in sync") { Ok(()) } else { Err(all) }
    })
    .await;
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    reader.join().unwrap();
    let all = text();
    for table in all.split("\x1b[J").skip(1) {
        assert!(["edge-1", "edge-2", "edge-3"].iter().all(|node| table.contains(node)), "{all:?}");
    }
    assert_eq!(all.matches("NODE ").count(), all.matches("\x1b[4A\x1b[J").count() + 1, "{all:?}");
}

/// Both ends of a new terminal.
fn terminal() -> Result<(OwnedFd, OwnedFd)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let path = ptsname(&master, Vec::new())?.into_string()?;
    let terminal = fs::OpenOptions::new().read(true).write(true).open(path)?;
    // No line of the table is wider, so each line takes one row.
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size)?;
    Ok((master, terminal.into()))
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
    choose_ports(folder.path(), 3);
    assert_synced(&until_synced(folder.path(), &[]));
    let ports: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("up.json")).unwrap()).unwrap();
    for listener in ["kubernetes", "websocket", "join", "cloudcore admin", "edge-1"] {
        let port =
            ports["ports"][listener].as_u64().with_context(|| format!("{listener} in {ports}")).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
        let output = tombolo(folder.path(), &["--edges", "3", "--until-synced"]).output().unwrap();
        assert_one_line(&output, &[&format!("127.0.0.1:{port}"), "in use"]);
    }
    let port = ports["ports"]["quic"].as_u64().unwrap();
    let _taken = UdpSocket::bind(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    let output = tombolo(folder.path(), &["--edges", "3", "--until-synced"]).output().unwrap();
    assert_one_line(&output, &[&format!("127.0.0.1:{port}"), "in use"]);
}

#[test]
fn a_data_folder_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("up.json"), r#"{"format": 9, "ports": {}}"#).unwrap();
    let output = tombolo(folder.path(), &[]).output().unwrap();
    assert_one_line(&output, &["another version", "--data-dir"]);
}
