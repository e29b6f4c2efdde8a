//! Wrong input of an operator.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tombolo_tests::pki::Authority;
use tombolo_tests::world::binary;

use super::{refusal, says};

fn run(program: &str, arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(binary(program).unwrap());
    // Without the kubeconfigs of this machine.
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST");
    command.args(arguments).output().unwrap()
}

#[test]
fn unknown_flags_are_named_and_help_is_pointed_at() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["edgecore", "cloudcore", "tombolo"] {
        let output = run(program, &["--frobnicate"], folder.path());
        assert_eq!(output.status.code(), Some(2), "{program}");
        says(&String::from_utf8_lossy(&output.stderr), &["--frobnicate", "--help"]);
    }
}

#[test]
fn unusable_settings_are_named_with_their_position() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    file("unknown-edge.yaml", "nodeName: a\ncloudd: {}\n");
    file("type-edge.yaml", "nodeName: a\nnode:\n  maxPods: many\n");
    file("name-edge.yaml", "nodeName: Not_A_Name\n");
    file("syntax-edge.yaml", "nodeName: [\n");
    file("unknown-cloud.yaml", "nodeLimit: 5\nnodeLimits: 6\n");
    file("type-cloud.yaml", "listen:\n  websocket: nowhere\n");
    file("range-cloud.yaml", "nodeLimit: 0\n");
    let kubeedge = "kind: CloudCore\nmodules:\n  cloudHub:\n";
    file("unknown-kubeedge.yaml", &format!("{kubeedge}    nodeLimits: 6\n"));
    file("type-kubeedge.yaml", &format!("{kubeedge}    websocket:\n      port: many\n"));
    let cases: [(&str, &str, &[&str]); 11] = [
        (
            "cloudcore",
            "unknown-kubeedge.yaml",
            &["unknown-kubeedge.yaml: line 4 column 5: unknown field `nodeLimits`"],
        ),
        ("cloudcore", "type-kubeedge.yaml", &["type-kubeedge.yaml: line 5 column 13"]),
        ("edgecore", "missing.yaml", &["cannot read the settings file missing.yaml: No such file"]),
        (
            "edgecore",
            "unknown-edge.yaml",
            &["unknown-edge.yaml: line 2 column 1: unknown field `cloudd`", "cloud"],
        ),
        ("edgecore", "type-edge.yaml", &["type-edge.yaml: line 3 column 12"]),
        ("edgecore", "name-edge.yaml", &["name-edge.yaml: line 1", "Not_A_Name"]),
        ("edgecore", "syntax-edge.yaml", &["syntax-edge.yaml: line 1"]),
        ("cloudcore", "missing.yaml", &["cannot read the configuration file missing.yaml: No such file"]),
        (
            "cloudcore",
            "unknown-cloud.yaml",
            &["unknown-cloud.yaml: line 2 column 1: unknown field `nodeLimits`"],
        ),
        ("cloudcore", "type-cloud.yaml", &["type-cloud.yaml: line 2 column 14"]),
        ("cloudcore", "range-cloud.yaml", &["range-cloud.yaml: nodeLimit: must be between 1 and 100000"]),
    ];
    for (program, name, parts) in cases {
        let text = refusal(&run(program, &["--config", name], folder.path()));
        says(&text, parts);
        assert!(text.starts_with(&format!("{program}: ")), "{text}");
        assert_eq!(text.matches("os error").count(), usize::from(name == "missing.yaml"), "{text}");
    }
}

#[test]
fn cloudcore_without_a_cluster_names_the_missing_option() {
    let folder = tempfile::tempdir().unwrap();
    says(&refusal(&run("cloudcore", &[], folder.path())), &["no cluster", "--kubeconfig", "tombolo up"]);
    fs::write(folder.path().join("kubeconfig"), "hello").unwrap();
    let text = refusal(&run("cloudcore", &["--kubeconfig", "kubeconfig"], folder.path()));
    says(&text, &["cannot use kubeconfig kubeconfig"]);
}

/// Settings of an agent that has joined.
fn joined(folder: &Path, settings: &serde_json::Value) -> String {
    Authority::new().unwrap().enlist("edge-a", &folder.join("data")).unwrap();
    let mut config = json!({"nodeName": "edge-a", "dataDir": folder.join("data"), "admin": null,
                            "localApi": {"https": "127.0.0.1:0"}, "wrapper": {"address": null}});
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(folder.join("edgecore.yaml"), config.to_string()).unwrap();
    "edgecore.yaml".to_owned()
}

#[test]
fn used_ports_name_the_setting() {
    let folder = tempfile::tempdir().unwrap();
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (used_tcp, used_udp) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    let edge = |settings: serde_json::Value| {
        let config = joined(folder.path(), &settings);
        refusal(&run("edgecore", &["--config", &config], folder.path()))
    };
    says(
        &edge(json!({"localApi": {"https": used_tcp}})),
        &["localApi.https", &used_tcp.to_string(), "in use"],
    );
    says(
        &edge(json!({"wrapper": {"address": used_tcp}})),
        &["wrapper.address", &used_tcp.to_string(), "in use"],
    );
    says(&edge(json!({"admin": used_tcp})), &["admin", &used_tcp.to_string(), "in use"]);
    let cloud = |key: &str, used: &str| {
        let mut listen =
            json!({"websocket": "127.0.0.1:0", "quic": "127.0.0.1:0", "join": "127.0.0.1:0", "admin": null});
        listen[key] = used.into();
        let config = json!({"listen": listen, "advertise": ["127.0.0.1"]});
        fs::write(folder.path().join("cloudcore.yaml"), config.to_string()).unwrap();
        let output = run(
            "tombolo",
            &["up", "--edges", "0", "--config", "cloudcore.yaml", "--data-dir", "up"],
            folder.path(),
        );
        assert!(!output.status.success());
        // The log precedes it: the API server is already running.
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
    };
    for (key, used) in [("websocket", used_tcp), ("join", used_tcp), ("admin", used_tcp), ("quic", used_udp)]
    {
        let text = cloud(key, &used.to_string());
        says(&text, &["error: ", &format!("listen.{key}"), &used.to_string(), "in use"]);
    }
}

#[test]
fn folders_and_keys_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let config = joined(folder.path(), &json!({}));
    let agent = || refusal(&run("edgecore", &["--config", &config], folder.path()));
    let key = folder.path().join("data/pki/node.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    says(&agent(), &["pki/node.pem", "its mode is 0644", "chmod 600"]);
    fs::write(&key, "hello").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    says(&agent(), &["pki/node.pem", "run edgecore join again"]);
    fs::remove_file(&key).unwrap();
    says(&agent(), &["has not joined", "pki/node.pem", "run edgecore join"]);
    fs::remove_dir_all(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data"), "").unwrap();
    says(&agent(), &["data/pki/node.pem", "Not a directory"]);

    fs::write(folder.path().join("file"), "").unwrap();
    let text = refusal(&run("tombolo", &["apiserver", "--data-dir", "file/cloud"], folder.path()));
    says(&text, &["file/cloud", "Not a directory"]);
}
