//! The parts of `tombolo up`, started in order.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tombolo_apiserver as embedded;
use tombolo_cloud::Kube;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_cloud::kube::without_proxy_of_environment;
use tombolo_cloud::status::NodeStatus;
use tombolo_edge::identity::{EnrollOptions, Identity};
use tombolo_edge::{JoinOptions, join};
use tombolo_proto::NodeId;
use tombolo_runtime::{Drain, Tasks, drain};

use super::UpOptions;
use super::controllers::{self, Binaries, ClusterFiles};
use super::grids;
use super::parts::{RunningParts, TASK_GRACE};
use super::ports::Ports;
use super::table::Row;
use crate::token::AGENTS_TOKEN_LIFE;
use crate::transport::TransportOption;
use crate::{cluster, synced};

/// The running system, with handles to query its parts.
pub(super) struct System {
    kubeconfig: PathBuf,
    client: Client,
    cloud: tombolo_cloud::StatusHandle,
    doctor: String,
    edges: Vec<Edge>,
}

struct Edge {
    node: NodeId,
    client: Client,
    /// A client of the endpoint that the node's kube-proxy would use.
    wrapper: Option<Client>,
    /// File with the node's uniform names.
    hosts: PathBuf,
}

/// Comparison of what one edge holds with what it should hold.
pub(super) struct Comparison {
    /// First difference, as text; `None` if there is none.
    pub(super) difference: Option<String>,
    /// Number of objects that it lists.
    listed: usize,
    /// Number of objects that it should list.
    expected: usize,
}

impl System {
    /// Starts API server, cloudcore and agents, each when the one before it answers.
    pub(super) async fn start(
        options: &UpOptions,
        binaries: Option<&Binaries>,
        drain: &Drain,
        parts: &mut RunningParts,
    ) -> Result<Self> {
        let mut ports = Ports::open(&options.data_dir)?;
        let data_dir = options.data_dir.canonicalize()?;
        let config = cloud_config(options.config.as_deref(), &data_dir, &ports)?;
        let api_server = match &options.kubeconfig {
            Some(_) => None,
            None => Some(start_api_server(&data_dir, &mut ports, binaries.is_some(), parts).await?),
        };
        let tasks = &parts.tasks;
        let embedded = api_server.as_ref().map(|files| &files.kubeconfig);
        let kubeconfig = options.kubeconfig.as_ref().or(embedded).context("no API server")?.clone();
        let kube = Kube::following(cluster::config(&kubeconfig).await?, Some(&kubeconfig))?;
        let client = kube.client().clone();
        if let (Some(binaries), Some(files)) = (binaries, &api_server) {
            controllers::start(binaries, files, &data_dir, tasks, drain)?;
        }
        let (cloud, addresses) =
            start_cloud(config, kube, options.edges > 0, &mut ports, tasks, drain).await?;
        let doctor = addresses.doctor(&kubeconfig);
        let mut edges = Vec::with_capacity(options.edges);
        for number in 1..=options.edges {
            let node = NodeId::parse(&format!("edge-{number}"))?;
            let config = edge_config(options, &node, &data_dir, &ports, &addresses)?;
            edges.push(start_edge(node, config, &addresses.token, &mut ports, tasks, drain).await?);
        }
        Ok(Self { kubeconfig, client, cloud, doctor, edges })
    }

    /// The command line that examines this system, which does not use the default ports.
    pub(super) fn doctor(&self) -> &str {
        &self.doctor
    }

    /// The administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The administrator's client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Compares every edge with the API server.
    pub(super) async fn compare(&self) -> Vec<Comparison> {
        let edges = self.edges.iter().map(|edge| async {
            let expected = synced::expected(&self.client, edge.node.as_str()).await;
            let listed = synced::listed(&edge.client).await;
            match (expected, listed) {
                (Ok(expected), Ok(listed)) => Comparison {
                    difference: synced::difference(&expected, &listed)
                        .map(|difference| format!("{}: {difference}", edge.node)),
                    listed: listed.len(),
                    expected: expected.len(),
                },
                (Err(error), _) | (_, Err(error)) => Comparison {
                    difference: Some(format!("{}: {error:#}", edge.node)),
                    listed: 0,
                    expected: 0,
                },
            }
        });
        futures::future::join_all(edges).await
    }

    /// State of the application grid.
    pub(super) async fn grids(&self) -> grids::View {
        let edges = self.edges.iter().map(|edge| grids::Edge {
            node: edge.node.as_str(),
            wrapper: edge.wrapper.as_ref(),
            hosts: &edge.hosts,
        });
        grids::view(&self.client, &edges.collect::<Vec<_>>()).await
    }

    /// Table rows of the nodes: of the agents here, or of all nodes that cloudcore knows if there are none.
    pub(super) fn rows(&self, comparisons: &[Comparison]) -> Vec<Row> {
        let status = self.cloud.snapshot();
        if self.edges.is_empty() {
            return status.nodes.iter().map(|node| row(&node.name, Some(node), String::new())).collect();
        }
        let rows = self.edges.iter().zip(comparisons).map(|(edge, comparison)| {
            let seen = status.nodes.iter().find(|node| node.name == edge.node.as_str());
            let holds = match comparison.difference {
                None => format!("{} objects, in sync", comparison.listed),
                Some(_) => format!("{} of {} objects", comparison.listed, comparison.expected),
            };
            row(edge.node.as_str(), seen, holds)
        });
        rows.collect()
    }
}

/// Table row of a node as cloudcore sees it.
fn row(name: &str, seen: Option<&NodeStatus>, holds: String) -> Row {
    let session = match seen {
        None => "not registered".to_owned(),
        Some(node) if !node.connected => "disconnected".to_owned(),
        Some(node) => match &node.transport {
            Some(transport) => format!("connected ({transport})"),
            None => "connected".to_owned(),
        },
    };
    Row {
        node: name.to_owned(),
        session,
        delivered: seen.map_or(0, |node| node.acked),
        pending: seen.map_or(0, |node| node.pending),
        lag: seen.and_then(|node| node.last_ack_latency),
        round_trip: seen.and_then(|node| node.round_trip),
        holds,
    }
}

/// Addresses of the hub, and the token to join with.
struct CloudAddresses {
    websocket: Option<SocketAddr>,
    quic: Option<SocketAddr>,
    join: SocketAddr,
    token: String,
}

impl CloudAddresses {
    fn doctor(&self, kubeconfig: &Path) -> String {
        let kubeconfig = kubeconfig.display().to_string();
        // Only a zero byte cannot be quoted, and a path that was passed to this process contains none.
        let kubeconfig = shlex::try_quote(&kubeconfig).unwrap_or((&kubeconfig).into());
        let mut command = format!("tombolo doctor --kubeconfig {kubeconfig}");
        for (name, address) in [("websocket", self.websocket), ("quic", self.quic), ("join", Some(self.join))]
        {
            if let Some(address) = address {
                command.push_str(&format!(" --{name}-port {}", address.port()));
            }
        }
        match (self.websocket, self.quic) {
            (Some(_), None) => command.push_str(" --transport websocket"),
            (None, Some(_)) => command.push_str(" --transport quic"),
            _ => {}
        }
        command
    }
}

async fn start_api_server(
    data_dir: &Path,
    ports: &mut Ports,
    external_controllers: bool,
    parts: &mut RunningParts,
) -> Result<ClusterFiles> {
    let mut options = embedded::Options::new(data_dir.join("cluster"));
    options.external_controllers = external_controllers;
    options.listen = ports.address("kubernetes");
    let bound = embedded::Embedded::start(options).await?;
    // This also writes the layout version, before a link exists.
    ports.keep("kubernetes", bound.addr())?;
    let (kubeconfig, pki) = (data_dir.join("kubeconfig"), bound.pki_folder().to_owned());
    let target = bound.kubeconfig();
    link(target.strip_prefix(data_dir).unwrap_or(target), &kubeconfig)
        .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    let (tasks, (trigger, drain)) = (Tasks::new(), drain::channel(TASK_GRACE));
    tasks.spawn("embedded API server", bound.run(drain));
    parts.serve_api(tasks, trigger);
    Ok(ClusterFiles { kubeconfig, pki })
}

/// Replaces whatever is at `path` with a link. A copy would miss the certificate that the server renews in its
/// kubeconfig.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(target, &temporary)?;
    fs::rename(&temporary, path)
}

/// How often the token of this run can be used: the largest possible number of agents.
const TOKEN_USES: u32 = 10_000;

/// The settings of a site, or those for one machine.
fn cloud_config(site: Option<&Path>, data_dir: &Path, ports: &Ports) -> Result<tombolo_cloud::Config> {
    let Some(file) = site else {
        let mut config = tombolo_cloud::Config::local(&data_dir.join("cloud"));
        config.listen.websocket = Some(ports.address("websocket"));
        config.listen.quic = Some(ports.address("quic"));
        config.listen.join = ports.address("join");
        config.listen.admin = Some(ports.address("cloudcore admin"));
        return Ok(config);
    };
    let mut config = tombolo_cloud::Config::load(file)?;
    ensure!(
        config.kubeconfig.is_none() && config.api_server.is_none(),
        "{} configures a cluster: remove kubeconfig and apiServer, or run cloudcore with this file",
        file.display()
    );
    config.data_dir = data_dir.join("cloud");
    Ok(config)
}

async fn start_cloud(
    config: tombolo_cloud::Config,
    kube: Kube,
    agents: bool,
    ports: &mut Ports,
    tasks: &Tasks,
    drain: &Drain,
) -> Result<(tombolo_cloud::StatusHandle, CloudAddresses)> {
    let bound = tombolo_cloud::App::build(config, kube).await?;
    let mut keep = |name: &str, address: Option<SocketAddr>| match address {
        Some(address) => ports.keep(name, address).map(|()| Some(address)),
        None => Ok(None),
    };
    let websocket = keep("websocket", bound.websocket_addr())?;
    let quic = keep("quic", bound.quic_addr())?;
    let join = bound.join_addr();
    keep("join", Some(join))?;
    keep("cloudcore admin", bound.admin_addr())?;
    let status = bound.status();
    // Agents of other machines join with tokens of `tombolo token create`.
    let mut token = String::new();
    if agents {
        let new = NewToken { names: Vec::new(), uses: TOKEN_USES, life: AGENTS_TOKEN_LIFE, replace: true };
        token = bound.create_token(&new).await?;
    }
    tasks.spawn("cloudcore", bound.run(drain.clone()));
    Ok((status, CloudAddresses { websocket, quic, join, token }))
}

fn edge_config(
    options: &UpOptions,
    node: &NodeId,
    data_dir: &Path,
    ports: &Ports,
    addresses: &CloudAddresses,
) -> Result<tombolo_edge::Config> {
    let mut config = tombolo_edge::Config::new(node.clone(), data_dir.join("edges").join(node.as_str()));
    config.cloud.websocket = addresses.websocket.context("cloudcore has no WebSocket listener")?.to_string();
    config.cloud.quic = addresses.quic.context("cloudcore has no QUIC listener")?.to_string();
    config.cloud.join = addresses.join.to_string();
    config.cloud.transport = match options.transport {
        TransportOption::Quic => tombolo_edge::config::Transport::Quic,
        TransportOption::Websocket => tombolo_edge::config::Transport::Websocket,
    };
    config.local_api.https = ports.address(node.as_str());
    // Wrappers of several nodes cannot share a port: the system assigns one to each, and it is kept.
    config.dns.hosts_path = Some(config.data_dir.join("hosts"));
    config.wrapper.address = Some(ports.address(&wrapper_port(node)));
    config.admin = None;
    config.simulate_pods = options.simulate_pods;
    Ok(config)
}

/// Key under which the port of a node's wrapper is kept.
fn wrapper_port(node: &NodeId) -> String {
    format!("{node} wrapper")
}

async fn start_edge(
    node: NodeId,
    config: tombolo_edge::Config,
    token: &str,
    ports: &mut Ports,
    tasks: &Tasks,
    drain: &Drain,
) -> Result<Edge> {
    if Identity::load(&config.data_dir, &node).is_err() {
        let enroll = EnrollOptions {
            endpoint: config.cloud.join.clone(),
            node: node.clone(),
            token: token.to_owned(),
        };
        let options = JoinOptions { enroll, data_dir: config.data_dir.clone() };
        join(&options).await.with_context(|| format!("{node} cannot join"))?;
    }
    let hosts = config.dns.hosts_path.clone().context("the agent has no hosts file")?;
    let bound = tombolo_edge::App::build(config).await.with_context(|| format!("{node} cannot start"))?;
    ports.keep(node.as_str(), bound.local_api_addr())?;
    let mut wrapper = None;
    if let Some(address) = bound.wrapper_addr() {
        ports.keep(&wrapper_port(&node), address)?;
        wrapper = Some(Client::try_from(kube::Config::new(format!("http://{address}").parse()?))?);
    }
    let parsed: Kubeconfig = Kubeconfig::from_yaml(&bound.kubeconfig()?)?;
    let kube = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    let kube = without_proxy_of_environment(kube);
    tasks.spawn(format!("edgecore {node}"), bound.run(drain.clone()));
    Ok(Edge { node, client: Client::try_from(kube)?, wrapper, hosts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_of_a_folder_is_the_one_that_the_server_renews() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cluster, path) = (folder.path().join("cluster"), folder.path().join("kubeconfig"));
        fs::create_dir(&cluster).expect("made");
        fs::write(&path, "a copy of an older version").expect("written");
        for content in ["first", "renewed"] {
            fs::write(cluster.join("kubeconfig"), content).expect("written");
            link(Path::new("cluster/kubeconfig"), &path).expect("linked");
            assert_eq!(fs::read_to_string(&path).expect("read"), content);
        }
        fs::write(cluster.join("kubeconfig"), "again").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "again");
    }

    #[test]
    fn the_command_that_is_printed_can_be_pasted() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = CloudAddresses {
            websocket: Some(address(1)),
            quic: Some(address(2)),
            join: address(3),
            token: String::new(),
        };
        let ports = "--websocket-port 1 --quic-port 2 --join-port 3";
        for (path, quoted) in [("/data/kubeconfig", "/data/kubeconfig"), ("/my data/k", "'/my data/k'")] {
            let expected = format!("tombolo doctor --kubeconfig {quoted} {ports}");
            assert_eq!(addresses.doctor(Path::new(path)), expected);
        }
    }
}
