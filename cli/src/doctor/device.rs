//! Checks of the edge agent on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tombolo_edge::Config;
use tombolo_edge::JoinError;
use tombolo_edge::config::{Transport, host_and_port};
use tombolo_edge::identity::{Identity, is_registered, show};
use tombolo_edge::store::{Inspection, inspect};
use tombolo_link::client::{Choice, Target};
use tombolo_runtime::sentence;

use super::{Report, api, hub, secrets};
use crate::cluster;

/// Files of a data folder that only the agent's user may read.
const PRIVATE: [&str; 5] = ["pki/node.pem", "pki/local-ca.pem", "pki/local-token", "store.key", "kubeconfig"];

/// Examines an agent by its settings file, or by its data folder only.
pub(super) async fn examine(path: &Path, now: SystemTime, report: &mut Report) {
    let began = Instant::now();
    let (config, data_dir) = if path.is_dir() {
        (None, path.to_owned())
    } else {
        let Some(config) = settings(path, report) else { return };
        let data_dir = config.data_dir.clone();
        (Some(config), data_dir)
    };
    if !data_dir.is_dir() {
        let check = format!("data folder {}", data_dir.display());
        return report.fail(check, "is not there", "Join: edgecore join");
    }
    modes(&data_dir, report);
    let identity = identity(&data_dir, config.as_ref(), now, report);
    let running = store(&data_dir, report);
    local_api(&data_dir, running, report).await;
    let Some(config) = config else {
        return report.warn(
            "cloud",
            "not tried: a data folder does not say where it is",
            "Give the settings file",
        );
    };
    if let Some(identity) = identity {
        cloud(&config, &identity, running, || now + began.elapsed(), report).await;
    }
}

fn settings(path: &Path, report: &mut Report) -> Option<Config> {
    let check = format!("settings {}", path.display());
    match Config::load(path) {
        Ok(config) => {
            report.ok(check, format!("node {}, data in {}", config.node_name, config.data_dir.display()));
            for warning in config.warnings() {
                report.warn(format!("settings {}", path.display()), warning, "See docs/edge-node.md");
            }
            Some(config)
        }
        Err(error) => {
            report.fail(
                check,
                error.to_string(),
                "See docs/edge-node.md; edgecore join makes a settings file",
            );
            None
        }
    }
}

/// Checks that only the agent's user can read the keys.
fn modes(data_dir: &Path, report: &mut Report) {
    let open: Vec<PathBuf> = PRIVATE
        .iter()
        .map(|name| data_dir.join(name))
        .filter(|path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0))
        .collect();
    let check = "modes of the key files";
    if open.is_empty() {
        return report.ok(check, "for the agent's user alone");
    }
    let names: Vec<String> = open.iter().map(|path| path.display().to_string()).collect();
    let advice = format!("chmod 600 {}; join again if somebody may have read a key", names.join(" "));
    report.fail(check, format!("others may read {}", names.join(", ")), advice);
}

fn identity(
    data_dir: &Path,
    config: Option<&Config>,
    now: SystemTime,
    report: &mut Report,
) -> Option<Identity> {
    let loaded = match config {
        Some(config) => Identity::load(data_dir, &config.node_name),
        None => Identity::read(data_dir),
    };
    let described = loaded.and_then(|identity| {
        let (node, validity) = (identity.node()?, identity.validity()?);
        Ok((identity, node, validity))
    });
    match described {
        Ok((identity, node, validity)) => {
            let advice = "The agent renews it while it runs and reaches cloud.join; the cloud takes one that has \
                          ended for 30 days, after that: edgecore join";
            secrets::span(&format!("certificate of node {node}"), validity, now, advice, report);
            Some(identity)
        }
        Err(error) => {
            report.fail("certificate of the node", error.to_string(), "");
            None
        }
    }
}

/// Whether an agent is using the folder; if not, also reports the state of its store.
fn store(data_dir: &Path, report: &mut Report) -> bool {
    let check = format!("store in {}", data_dir.display());
    let idle = "the agent does not run";
    match inspect(data_dir) {
        Inspection::InUse => {
            report.ok(check, "in use: the agent runs");
            return true;
        }
        Inspection::Sound { schema } => report.warn(check, format!("schema {schema}; {idle}"), START),
        Inspection::Absent => report.warn(check, format!("not made yet; {idle}"), START),
        Inspection::Unclosed => {
            report.warn(check, format!("was not closed and will be repaired; {idle}"), START);
        }
        Inspection::Newer { found, supported } => report.fail(
            check,
            format!("written by a newer edgecore: schema {found}, this one reads up to {supported}"),
            "Run that version, or move store.redb away: the cloud fills a new one",
        ),
        Inspection::Damaged(why) => report.fail(
            check,
            format!("damaged: {why}"),
            "Look at the disk; the agent moves the file aside when it starts, and the cloud fills a new one",
        ),
        Inspection::Unreadable(why) => {
            report.fail(check, why, "Run as the agent's user, and look at the disk");
        }
    }
    false
}

const START: &str = "Start it: systemctl start edgecore";

/// Checks that the local API of a running agent answers with the agent's own kubeconfig.
async fn local_api(data_dir: &Path, running: bool, report: &mut Report) {
    const CHECK: &str = "local API";
    if !running {
        return report.warn(CHECK, "not tried: the agent does not run", "");
    }
    let answer = async {
        let mut config = cluster::config(&data_dir.join("kubeconfig")).await?;
        // A 503 is a valid answer here and must not be retried for minutes.
        config.default_retry = false;
        let at = config.cluster_url.to_string();
        let nodes: Api<Node> = Api::all(Client::try_from(config)?);
        anyhow::Ok((at, nodes.list(&kube::api::ListParams::default()).await))
    };
    match answer.await {
        Ok((at, Ok(_))) => report.ok(CHECK, format!("{at} answers")),
        Ok((at, Err(kube::Error::Api(status)))) if status.code == 503 => {
            report.warn(
                CHECK,
                format!("{at} answers 503: {}", status.message),
                "The cloud was never heard: see below",
            );
        }
        Ok((at, Err(error))) => {
            report.fail(CHECK, format!("{at}: {}", sentence(&error)), "See the log of edgecore");
        }
        Err(error) => {
            report.fail(CHECK, format!("{error:#}"), "Restart edgecore, which writes the kubeconfig");
        }
    }
}

/// Checks that the cloud answers and accepts this node. If the agent runs, its status is read instead: a second
/// connection of the node would end the agent's.
async fn cloud(
    config: &Config,
    identity: &Identity,
    running: bool,
    now: impl Fn() -> SystemTime,
    report: &mut Report,
) {
    let join = &config.cloud.join;
    let check = format!("join endpoints at {join}");
    match show(join).await {
        Ok(shown) if shown.ca == identity.ca => {
            report.ok(check, "show the CA that this node has joined");
            api::clock("clock of the cloud", shown.date, now(), report);
            in_force(config, identity, report).await;
        }
        Ok(shown) => {
            let text =
                format!("show CA {}, which is not the one that this node has joined", &shown.hash[..12]);
            report.fail(check, text, "The cloud has a new CA, or another cloud answers: edgecore join");
        }
        Err(error) => {
            let advice = "Is the setting cloud.join right, does the name resolve, is TCP let through?";
            report.fail(check, error.to_string(), advice);
        }
    }
    if running { session(config, report) } else { dial(config, identity, report).await }
}

/// Whether the cloud still accepts the node's certificate: the Node may have been deleted, or the certificate revoked.
async fn in_force(config: &Config, identity: &Identity, report: &mut Report) {
    let node = &config.node_name;
    let check = format!("certificate of node {node} at the cloud");
    match is_registered(identity, node, &config.cloud.join).await {
        Ok(true) => report.ok(check, "is in force, and the Node exists"),
        Ok(false) => report.warn(check, "there is no Node of this name", START),
        Err(error @ JoinError::Refused { code: 401, .. }) => {
            let advice = format!(
                "Make a token where the cluster is administered (tombolo token create --node {node}), run edgecore join \
                 with it, and restart edgecore"
            );
            report.fail(check, error.to_string(), advice);
        }
        Err(error) => report.warn(check, error.to_string(), "Try again, and see the log of cloudcore"),
    }
}

/// Connection status as reported by the running agent.
fn session(config: &Config, report: &mut Report) {
    const CHECK: &str = "session with the cloud";
    match tombolo_edge::cli::status(config) {
        Ok(status) if status.lines().any(|line| line == "online 1") => report.ok(CHECK, "there is one"),
        Ok(_) => report.fail(CHECK, "there is none", "See the log of edgecore"),
        Err(error) => report.warn(CHECK, format!("unknown: {error:#}"), "Turn the setting admin on"),
    }
}

async fn dial(config: &Config, identity: &Identity, report: &mut Report) {
    let cloud = &config.cloud;
    let choices = [
        (Transport::Websocket, Choice::WebSocket, "WebSocket", "cloud.websocket", &cloud.websocket, "TCP"),
        (Transport::Quic, Choice::Quic, "QUIC", "cloud.quic", &cloud.quic, "UDP"),
    ];
    for (transport, choice, name, field, address, protocol) in choices {
        if cloud.transport != Transport::Auto && cloud.transport != transport {
            continue;
        }
        // Validated when the settings were read.
        let Ok((host, port)) = host_and_port(field, address) else { continue };
        let target = Target { host: host.to_owned(), websocket_port: port, quic_port: port, choice };
        hub::dial(&format!("{name} at {address}"), protocol, target, identity, report).await;
    }
}
