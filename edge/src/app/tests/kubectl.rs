use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::*;

#[tokio::test]
async fn kubectl_reads_the_delivered_objects() {
    tombolo_testkit::cluster_or_skip!("kubectl_reads_the_delivered_objects");
    let kubectl = tombolo_testkit::components().unwrap().binary("kubectl");
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("configmaps", "app"), "u1", &json!({"data": {"a": "1"}}), &[]);
    cloud.put(&key("secrets", "token"), "u2", &json!({"data": {}, "type": "Opaque"}), &[]);
    cloud.put(&key("pods", "web"), "u3", &pod_spec(), &[]);
    let agent = Agent::start(folder.path(), &cloud, true).await;
    wait_until("the pod", DEADLINE, async || agent.names("/api/v1/pods").await == ["web"]).await;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&kubectl);
        command.arg("--kubeconfig").arg(folder.path().join("kubeconfig")).args(arguments);
        command.env("HOME", folder.path()).kill_on_drop(true);
        command
    };
    let output = async |arguments: &[&str]| {
        let output = command(arguments).output().await.unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    };
    let pods = output(&["get", "pods", "-A"]).await;
    assert!(pods.contains("NAMESPACE") && pods.contains("READY") && pods.contains("web"), "{pods}");
    assert!(output(&["get", "configmaps", "-A"]).await.contains("app"));
    assert!(output(&["get", "secrets", "-A"]).await.contains("Opaque"));
    let described = async || output(&["describe", "pod", "web", "-n", "default"]).await;
    wait_until("the simulation", DEADLINE, async || described().await.contains("Simulated")).await;

    let mut watch = command(&["get", "pods", "-A", "-w"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut until = async |text: &str| {
        let found = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
            }
            panic!("kubectl ended before it showed {text}");
        };
        tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("kubectl did not show {text}"));
    };
    until("web").await;
    cloud.put(&key("pods", "later"), "u4", &pod_spec(), &[]);
    until("later").await;
    watch.kill().await.unwrap();
    agent.stop().await;
}
