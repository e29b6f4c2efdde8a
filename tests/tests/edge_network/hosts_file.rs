//! A hosts file that cannot be written.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_testkit::{cluster_or_skip, free_port, wait_for};
use tombolo_tests::world::{DEADLINE, binary};

use crate::ask::leads_to;
use crate::cluster::{Cluster, NODE};
use crate::elsewhere::Elsewhere;

const UNIFORM: &str = "db-0.db.shop.svc.cluster.local";
const REFUSED: &str = "the hosts file cannot be written";

/// A program that runs the agent with a folder on a file system that is mounted read-only, which root cannot write to
/// either.
fn with_read_only(folder: &Path, temporary: &Path) -> PathBuf {
    let (agent, folder) = (binary("edgecore").unwrap(), folder.display());
    let inner = format!("mount -t tmpfs -o ro tmpfs '{folder}' && exec '{}' \"$@\"", agent.display());
    let script = temporary.join("edgecore");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{}' sh \"$@\"\n",
        quoted(&inner)
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    script
}

fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''")
}

fn refusals(cluster: &Cluster) -> usize {
    cluster.world.edge_log(NODE).lines().filter(|line| line.contains(REFUSED)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_folder_is_reported_once_and_affects_nothing_else() {
    const TEST: &str = "read_only_folder_is_reported_once_and_affects_nothing_else";
    cluster_or_skip!(TEST);
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return tombolo_tests::network::cannot(TEST, "needs the right to mount file systems");
    }
    let elsewhere = Elsewhere::start().await.unwrap();
    let dns: SocketAddr = format!("127.0.0.1:{}", free_port().unwrap()).parse().unwrap();
    let mut cluster = Cluster::start_comparing(dns, elsewhere.address, 5).await.unwrap();
    leads_to(dns, UNIFORM, &["10.1.0.10"]).await;
    cluster.world.kill_edge(NODE);
    let before = refusals(&cluster);
    let (temporary, folder) = (tempfile::tempdir().unwrap(), cluster.hosts.parent().unwrap().to_owned());
    let agent = with_read_only(&folder, temporary.path());
    cluster.world.start_edge_program(NODE, &agent).await.unwrap();
    leads_to(dns, UNIFORM, &["10.1.0.10"]).await;
    wait_for("a line in the log", DEADLINE, || async {
        let log = cluster.world.edge_log(NODE);
        let told = log.lines().any(|line| line.contains(REFUSED) && line.contains("Read-only file system"));
        if told { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
    })
    .await;
    cluster.pods(&["10.1.0.12@edge-a=db-a-0"]).await;
    leads_to(dns, UNIFORM, &["10.1.0.12"]).await;
    leads_to(dns, "six.shop.svc.cluster.local", &["10.1.0.20"]).await;
    assert_eq!(refusals(&cluster), before + 1, "once");

    let id = cluster.world.edge_id(NODE).unwrap();
    let mut remount = Command::new("nsenter");
    remount.args(["--target", &id.to_string(), "--mount", "mount", "-o", "remount,rw"]).arg(&folder);
    assert!(remount.status().unwrap().success());
    let inside = Path::new("/proc").join(id.to_string()).join("root");
    let file = inside.join(cluster.hosts.strip_prefix("/").unwrap());
    wait_for("the file", DEADLINE, || async {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text == format!("10.1.0.12 {UNIFORM}\n") { Ok(()) } else { Err(text) }
    })
    .await;
    wait_for("a log line that reports the end of the failure", DEADLINE, || async {
        let log = cluster.world.edge_log(NODE);
        let told = log.contains("the hosts file can be written again");
        if told { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
    })
    .await;
    cluster.world.check_edge(NODE).unwrap();
}
