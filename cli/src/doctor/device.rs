//! Checks of the edge agent on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tombolo_cloud::bootstrap::EXPIRED_GRACE;
use tombolo_edge::Config;
use tombolo_edge::JoinError;
use tombolo_edge::config::{Dialect, Transport, host_and_port};
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
        return report.fail(check, "does not exist", "Join the cluster: edgecore join");
    }
    modes(&data_dir, report);
    let identity = identity(&data_dir, config.as_ref(), now, report);
    let running = store(&data_dir, report);
    local_api(&data_dir, running, report).await;
    let Some(config) = config else {
        return report.warn(
            "cloud",
            "not checked: the data folder does not contain its address",
            "Pass the path of the settings file to --edge",
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
                "See docs/edge-node.md; `edgecore join` creates a settings file",
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
    let check = "permissions of the key files";
    if open.is_empty() {
        return report.ok(check, "only the agent's user can read them");
    }
    let names: Vec<String> = open.iter().map(|path| path.display().to_string()).collect();
    let advice = format!("Run chmod 600 {}; join again if another user may have read a key", names.join(" "));
    report.fail(check, format!("other users can read {}", names.join(", ")), advice);
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
            let advice = format!(
                "The agent renews it while it runs and reaches cloud.join. The cloud accepts an expired one for {} \
                 days; after that, run `edgecore join` again",
                EXPIRED_GRACE.as_secs() / 86_400
            );
            secrets::span(&format!("certificate of node {node}"), validity, now, &advice, report);
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
    let idle = "the agent is not running";
    match inspect(data_dir) {
        Inspection::InUse => {
            report.ok(check, "in use: the agent is running");
            return true;
        }
        Inspection::Sound { schema } => report.warn(check, format!("schema {schema}; {idle}"), START),
        Inspection::Absent => report.warn(check, format!("not created yet; {idle}"), START),
        Inspection::Unclosed => {
            report.warn(check, format!("was not closed cleanly and will be repaired; {idle}"), START);
        }
        Inspection::Newer { found, supported } => report.fail(
            check,
            format!("written by a newer edgecore: schema {found}, this one reads up to {supported}"),
            "Run that version, or move store.redb away: the agent refills the store from the cloud",
        ),
        Inspection::Damaged(why) => report.fail(
            check,
            format!("damaged: {why}"),
            "Check the disk; at its start, the agent moves the file aside and refills the store from the cloud",
        ),
        Inspection::Unreadable(why) => {
            report.fail(check, why, "Run the doctor as the agent's user, and check the disk");
        }
    }
    false
}

const START: &str = "Start the agent: systemctl start edgecore";

/// Checks that the local API of a running agent answers with the agent's own kubeconfig.
async fn local_api(data_dir: &Path, running: bool, report: &mut Report) {
    const CHECK: &str = "local API";
    if !running {
        return report.warn(CHECK, "not checked: the agent is not running", "");
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
                "The agent has received nothing from the cloud yet: see the checks below",
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
            report.ok(check, "present the CA that this node trusts");
            api::clock("clock of the cloud", shown.date, now(), report);
            in_force(config, identity, report).await;
        }
        Ok(shown) => {
            let text =
                format!("present CA {}, which is not the one that this node trusts", &shown.hash[..12]);
            report.fail(check, text, "The cloud has a new CA, or another cloud answers: run `edgecore join`");
        }
        Err(error) => {
            let advice = "Check that cloud.join is correct, the name resolves and firewalls allow TCP";
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
        Ok(true) => report.ok(check, "is accepted, and the Node exists"),
        Ok(false) => report.warn(check, "is accepted, but there is no Node of this name", START),
        Err(error @ JoinError::Refused { code: 401, .. }) => {
            let advice = format!(
                "Create a token on a machine that administers the cluster (tombolo token create --node {node}), run \
                 edgecore join with it, and restart edgecore"
            );
            report.fail(check, error.to_string(), advice);
        }
        Err(error) => report.warn(check, error.to_string(), "Retry, and see the log of cloudcore"),
    }
}

/// Connection status as reported by the running agent.
fn session(config: &Config, report: &mut Report) {
    const CHECK: &str = "session with the cloud";
    match tombolo_edge::cli::status(config) {
        Ok(status) if status.lines().any(|line| line == "online 1") => report.ok(CHECK, "connected"),
        Ok(_) => report.fail(CHECK, "not connected", "See the log of edgecore"),
        Err(error) => report.warn(CHECK, format!("unknown: {error:#}"), "Turn on the setting admin"),
    }
}

async fn dial(config: &Config, identity: &Identity, report: &mut Report) {
    let cloud = &config.cloud;
    let choices = [
        (Transport::Websocket, Choice::WebSocket, "WebSocket", "cloud.websocket", &cloud.websocket, "TCP"),
        (Transport::Quic, Choice::Quic, "QUIC", "cloud.quic", &cloud.quic, "UDP"),
    ];
    let mut outcomes = Vec::new();
    for (transport, choice, name, field, address, protocol) in choices {
        if !uses(config, transport) {
            continue;
        }
        // Validated when the settings were read.
        let Ok((host, port)) = host_and_port(field, address) else { continue };
        let target = Target { host: host.to_owned(), websocket_port: port, quic_port: port, choice };
        let outcome = match config.dialect {
            Dialect::Tombolo => hub::try_connection(target, identity).await,
            Dialect::KubeEdge => hub::try_kubeedge_connection(&target, &config.node_name, identity).await,
        };
        outcomes.push((format!("{name} at {address}"), protocol, outcome));
    }
    let is_reached = outcomes.iter().any(|(.., outcome)| outcome.is_ok());
    for (check, protocol, outcome) in outcomes {
        match outcome {
            // The cloud may have turned this transport off.
            Err(error) if is_reached => report.warn(check, error.to_string(), OTHER_TRANSPORT),
            outcome => hub::report_connection(&check, protocol, outcome, report),
        }
    }
}

/// Advice when one of two transports works.
const OTHER_TRANSPORT: &str = "The agent uses the other transport. If the cloud has turned this one off, name the \
                               other one in cloud.transport";

/// Whether the agent uses a transport.
fn uses(config: &Config, transport: Transport) -> bool {
    match config.dialect {
        Dialect::Tombolo => [Transport::Auto, transport].contains(&config.cloud.transport),
        Dialect::KubeEdge => transport == Transport::Websocket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transports_that_the_agent_uses_are_checked() {
        let used = |text: &str| {
            let config = Config::parse(&format!("nodeName: a\n{text}"), "edge.yaml").expect("settings");
            [Transport::Websocket, Transport::Quic].map(|transport| uses(&config, transport))
        };
        assert_eq!(used(""), [true, true]);
        assert_eq!(used("cloud: {transport: quic}"), [false, true]);
        assert_eq!(used("cloud: {transport: websocket}"), [true, false]);
        assert_eq!(used("dialect: kubeedge"), [true, false]);
    }
}
