//! What `deploy/` ships fits the programs: settings, ports, flags and folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tombolo_tests::source::{documents, root};
use tombolo_tests::world::binary;

fn document(path: &str, kind: &str) -> Value {
    let all = documents(&root().join("deploy").join(path)).unwrap();
    all.into_iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("{kind} in {path}"))
}

const DEPLOYMENT: &str = "cloudcore/90-deployment.yaml";

/// Ports as `name/number/protocol`.
fn ports(list: &Value, number: &str) -> BTreeSet<String> {
    let ports = list.as_array().unwrap().iter();
    ports
        .map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            format!("{}/{}/{protocol}", port["name"].as_str().unwrap(), port[number])
        })
        .collect()
}

#[test]
fn the_settings_of_the_deployment_are_ours_and_its_ports_are_those_of_the_settings() {
    let settings = document(DEPLOYMENT, "ConfigMap")["data"]["cloudcore.yaml"].as_str().unwrap().to_owned();
    let config = tombolo_cloud::Config::parse(&settings).unwrap();
    let listen = config.listen;
    let port = |name: &str, port: u16, protocol: &str| format!("{name}/{port}/{protocol}");
    let reached = [
        port("websocket", listen.websocket.unwrap().port(), "TCP"),
        port("quic", listen.quic.unwrap().port(), "UDP"),
        port("join", listen.join.port(), "TCP"),
    ];
    let admin = port("admin", listen.admin.unwrap().port(), "TCP");

    let pod = document(DEPLOYMENT, "Deployment")["spec"]["template"]["spec"].clone();
    let container = &pod["containers"][0];
    let inside: BTreeSet<String> = reached.iter().cloned().chain([admin]).collect();
    assert_eq!(ports(&container["ports"], "containerPort"), inside);
    let service = document(DEPLOYMENT, "Service");
    assert_eq!(
        ports(&service["spec"]["ports"], "port"),
        BTreeSet::from(reached),
        "the admin port stays inside"
    );
    for port in service["spec"]["ports"].as_array().unwrap() {
        assert_eq!(port["targetPort"], port["name"]);
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "admin");
    }

    let mounts = container["volumeMounts"].as_array().unwrap();
    let data = json!(config.data_dir);
    assert!(mounts.iter().any(|mount| mount["mountPath"] == data && mount["readOnly"] != true), "{mounts:?}");
    assert_eq!(
        pod["serviceAccountName"],
        document("cloudcore/10-rights.yaml", "ServiceAccount")["metadata"]["name"]
    );
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > config.drain_grace.as_secs(), "killed before it has drained");
    let arguments = container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    known_flags("cloudcore", &arguments.collect::<Vec<_>>());
}

/// Fails when a program does not know one of these flags.
fn known_flags(program: &str, arguments: &[&str]) {
    let help = Command::new(binary(program).unwrap()).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in arguments.iter().filter(|argument| argument.starts_with("--")) {
        let known = help.split_whitespace().any(|word| word.trim_end_matches(',') == *flag);
        assert!(known, "{program} knows no {flag}: {help}");
    }
}

#[test]
fn the_unit_starts_the_agent_with_flags_and_folders_that_it_has() {
    let unit = fs::read_to_string(root().join("deploy/edge/edgecore.service")).unwrap();
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key} in {unit}"))
    };
    let start: Vec<&str> = value("ExecStart").split_whitespace().collect();
    assert!(start[0].ends_with("/edgecore"), "{start:?}");
    known_flags("edgecore", &start);

    let kept = Path::new("/var/lib").join(value("StateDirectory"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edgecore.yaml");
    fs::write(&file, "nodeName: edge-a\n").unwrap();
    let config = tombolo_edge::Config::load(&file).unwrap();
    assert!(config.data_dir.starts_with(&kept), "{} is not in {}", config.data_dir.display(), kept.display());
    // The rest of the file system is read-only to it.
    assert_eq!(value("ProtectSystem"), "strict");
    // Keys are in there.
    assert_eq!(value("StateDirectoryMode"), "0700");
}
