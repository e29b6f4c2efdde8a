//! The cloud side of a site without a cluster: `tombolo up --edges 0 --config FILE`.

use serde_json::json;

use super::*;

/// Settings of a cloudcore that agents on other machines can reach.
fn settings(folder: &Path, more: &serde_json::Value) -> PathBuf {
    let any = || format!("0.0.0.0:{}", free_port().unwrap());
    let mut settings = json!({
        "listen": {"websocket": any(), "quic": null, "join": any(), "admin": null},
        "advertise": ["127.0.0.1", "localhost"],
    });
    for (key, value) in more.as_object().unwrap() {
        settings[key] = value.clone();
    }
    let file = folder.join("cloudcore.yaml");
    fs::write(&file, settings.to_string()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn site_without_a_cluster_accepts_remote_agents() {
    let folder = tempfile::tempdir().unwrap();
    let file = settings(folder.path(), &json!({}));
    let data_dir = folder.path().join("data");
    let mut command = tombolo(&data_dir, &["--edges", "0", "--config", file.to_str().unwrap()]);
    let process = Child::spawn("site", folder.path(), &mut command).unwrap();
    let running = Running { process, kubeconfig: data_dir.join("kubeconfig"), folder };
    running.prints("to diagnose problems").await;
    let node = running.raw_node("edge-7").await.unwrap();
    node.api("GET", "/version", "", "").await.unwrap();
    running.prints("edge-7: connected (websocket)").await;
    running.examines_itself();
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = settings(folder.path(), &json!({"kubeconfig": "/etc/kubernetes/admin.conf"}));
    let (file, data_dir) = (file.to_str().unwrap(), folder.path().join("data"));
    let output = tombolo(&data_dir, &["--config", file]).output().unwrap();
    assert_one_line(&output, &["--config", "--edges 0"]);
    let output = tombolo(&data_dir, &["--edges", "0", "--config", file]).output().unwrap();
    assert_one_line(&output, &["cloudcore.yaml configures a cluster", "kubeconfig"]);
    let output = tombolo(&data_dir, &["--edges", "0", "--config", "missing.yaml"]).output().unwrap();
    assert_one_line(&output, &["missing.yaml"]);
}
