//! One system of real processes: an API server, `cloudcore`, and any number of `edgecore`.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use tombolo_link::client::{Choice, Target};
use tombolo_proto::NodeId;
use tombolo_testkit::{Child, ControlPlane, ControlPlaneOptions, free_port, wait_for_value};

use crate::node::{RawNode, RawNodeOptions};

mod administrator;
pub mod balancer;
mod cloudcore_yaml;
mod cluster_access;
mod convergence;
mod edges;
mod kube_controllers;
pub mod objects;
mod replica;
mod server;
mod slow;
mod tokens;

pub use balancer::Balancer;
use convergence::Versions;
use edges::Edge;
pub use edges::impatient;
use replica::Replica;
pub use slow::SlowLink;

/// Time limit for everything in a world, on a busy machine with two cores.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// The variables with which deploy/ configures the allocator of cloudcore.
pub const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "1")];

/// Nodes that cloudcore admits: the maximum size of a swarm.
const NODE_LIMIT: u32 = 20_000;

/// The Kubernetes API that the world uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `tombolo apiserver`.
    Embedded,
    /// etcd and kube-apiserver; cloudcore has only the rights of `deploy/`.
    Real,
    /// Like [`Self::Real`], but without constrained impersonation, which servers older than 1.36 lack: cloudcore has
    /// the role of `deploy/optional/` for that.
    RealLegacy,
}

impl Api {
    /// How the control plane is started; none for the embedded server.
    fn plane(self) -> Option<ControlPlaneOptions> {
        let feature_gates = match self {
            Self::Embedded => return None,
            Self::Real => "",
            Self::RealLegacy => "ConstrainedImpersonation=false",
        };
        Some(ControlPlaneOptions { controllers: true, feature_gates, ..ControlPlaneOptions::default() })
    }

    /// The manifest that allows cloudcore to act as nodes.
    fn impersonation(self) -> &'static str {
        match self {
            Self::Embedded | Self::Real => "cloudcore/20-impersonation.yaml",
            Self::RealLegacy => "optional/legacy-impersonation.yaml",
        }
    }
}

/// How edges connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// WebSocket only.
    WebSocket,
    /// QUIC only.
    Quic,
}

impl Transport {
    /// The value of the setting.
    #[must_use]
    pub fn setting(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::Quic => "quic",
        }
    }
}

/// A running system. Its processes end when it is dropped.
#[derive(Debug)]
pub struct World {
    // Dropped first, because these are clients of the API server.
    kube_controllers: Vec<Child>,
    /// The real control plane, if the world uses one.
    pub plane: Option<ControlPlane>,
    api: Api,
    transport: Transport,
    cloud: Option<Child>,
    /// The embedded API server, if the world uses it. It keeps its data in cloudcore's folder.
    server: Option<Child>,
    replica: Option<Replica>,
    edges: BTreeMap<String, Edge>,
    ports: CloudPorts,
    /// Additional settings of cloudcore, or a complete file of KubeEdge cloudcore.
    settings: Value,
    slow: Option<SlowLink>,
    /// The folder into which cloudcore records.
    record: Option<PathBuf>,
    /// Receives the datagrams of edges and never answers.
    silent: Option<UdpSocket>,
    /// Dialect of edges that join from now on.
    dialect: &'static str,
    /// Additional settings of edges that join from now on.
    edge_settings: Value,
    /// Milliseconds between lease renewals and between status reports; none: the agent's own default.
    periods: (u64, Option<u64>),
    /// What each node held when it last converged.
    converged: Mutex<BTreeMap<String, Versions>>,
    // Last, because every process writes into it.
    folder: TempDir,
}

/// A command for a program that survives the file size limit, so that [`limit_files`] can simulate a full disk.
fn limitable(program: &Path) -> Command {
    let mut command = Command::new("sh");
    // The signal's default action would end the process; ignoring it is inherited.
    command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(program);
    command
}

/// Configures the allocator as deploy/ does.
fn allocate_as_deployed(command: &mut Command) -> &mut Command {
    command.envs(ALLOCATOR)
}

fn limit_files(process: u32, bytes: Option<u64>) -> Result<()> {
    let process = Pid::from_raw(i32::try_from(process)?);
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(process, Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum })?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct CloudPorts {
    websocket: u16,
    quic: u16,
    join: u16,
    admin: u16,
    embedded: u16,
}

impl CloudPorts {
    fn free() -> Result<Self> {
        Ok(Self {
            websocket: free_port()?,
            quic: free_port()?,
            join: free_port()?,
            admin: free_port()?,
            embedded: free_port()?,
        })
    }
}

impl World {
    /// Starts the API server and cloudcore, and waits until cloudcore is ready.
    ///
    /// # Errors
    /// When a process cannot be started or ends; the message contains the last lines of its log.
    pub async fn start(api: Api, transport: Transport) -> Result<Self> {
        Self::start_with(api, transport, json!({})).await
    }

    /// Like [`Self::start`], with additional settings of cloudcore; or with a complete file of KubeEdge cloudcore
    /// (`kind: CloudCore`), in which the addresses, ports, files and kubeconfig are replaced by the world's.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub async fn start_with(api: Api, transport: Transport, settings: Value) -> Result<Self> {
        // Installing the same provider a second time fails, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::Builder::new().prefix("tombolo-world-").tempdir()?;
        let plane = match api.plane() {
            Some(options) => Some(ControlPlane::start(options).await?),
            None => None,
        };
        let (ports, edges, periods) = (CloudPorts::free()?, BTreeMap::new(), (1000, None));
        let (cloud, replica, slow, record, silent, dialect) = (None, None, None, None, None, "tombolo");
        let mut world = Self {
            kube_controllers: Vec::new(),
            plane,
            api,
            transport,
            cloud,
            server: None,
            replica,
            edges,
            ports,
            settings,
            slow,
            record,
            silent,
            dialect,
            edge_settings: json!({}),
            periods,
            converged: Mutex::default(),
            folder,
        };
        if let Some(plane) = &world.plane {
            let kubeconfig = cluster_access::grant(plane, api.impersonation()).await?;
            fs::write(world.folder.path().join("cloudcore.kubeconfig"), kubeconfig.to_string())?;
        }
        world.start_cloud().await?;
        Ok(world)
    }

    /// Starts cloudcore (again) and waits until it is ready.
    ///
    /// # Errors
    /// When it ends or does not become ready.
    pub async fn start_cloud(&mut self) -> Result<()> {
        self.cloud = None;
        if self.api == Api::Embedded && self.server.is_none() {
            self.server = Some(self.run_server().await?);
        }
        self.cloud = Some(self.run_cloud("cloudcore", self.ports, &self.cloud_dir()).await?);
        Ok(())
    }

    /// Starts a cloudcore with this name, these ports and this data folder, and waits until it is ready.
    async fn run_cloud(&self, name: &str, ports: CloudPorts, data: &Path) -> Result<Child> {
        let config = self.folder.path().join(format!("{name}.yaml"));
        fs::write(&config, self.cloud_config(ports).to_string())?;
        let mut command = limitable(&binary("cloudcore")?);
        allocate_as_deployed(&mut command).arg("--config").arg(&config).arg("--data-dir").arg(data);
        if let Some(folder) = &self.record {
            command.arg("--record").arg(folder);
        }
        let mut cloud = Child::spawn(name, self.folder.path(), &mut command)?;
        let ready = format!("http://127.0.0.1:{}/readyz", ports.admin);
        wait_for_value(&format!("{name} to be ready"), DEADLINE, || {
            let ended = cloud.check_running();
            let ready = get_ok(ready.clone());
            async move {
                // Waiting longer would not help.
                assert!(ended.is_ok(), "{ended:?}");
                ready.await
            }
        })
        .await;
        Ok(cloud)
    }

    fn cloud_config(&self, ports: CloudPorts) -> Value {
        if self.settings["kind"] == "CloudCore" {
            return self.kubeedge_config(ports);
        }
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut config = json!({
            "listen": {
                "websocket": address(ports.websocket),
                "quic": address(ports.quic),
                "join": address(ports.join),
                "admin": address(ports.admin),
            },
            "advertise": ["127.0.0.1"],
            "nodeLimit": NODE_LIMIT,
            // Most worlds check cloudcore's API requests. The tests of grids enable the grid controllers.
            "grids": {"enable": false},
        });
        config["kubeconfig"] = json!(self.cloud_kubeconfig());
        for (key, value) in self.settings.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        config
    }

    /// Makes cloudcore record into this folder from its next start.
    pub fn record_into(&mut self, folder: &Path) {
        self.record = Some(folder.to_owned());
    }

    /// Sends SIGINT to cloudcore, as Ctrl-C does.
    ///
    /// # Errors
    /// When it is not running.
    pub fn interrupt_cloud(&self) -> Result<()> {
        self.cloud.as_ref().context("cloudcore was killed")?.interrupt()
    }

    /// Waits for cloudcore to exit.
    ///
    /// # Errors
    /// When it was killed before.
    pub fn wait_for_cloud(&mut self) -> Result<ExitStatus> {
        self.cloud.as_mut().context("cloudcore was killed")?.wait()
    }

    /// Kills cloudcore, and the embedded API server with it: SIGKILL, nothing is drained.
    pub fn kill_cloud(&mut self) {
        self.cloud = None;
        self.server = None;
    }

    /// Process id of cloudcore, while it runs.
    #[must_use]
    pub fn cloud_id(&self) -> Option<u32> {
        self.cloud.as_ref().map(Child::id)
    }

    /// Ports of the hub: WebSocket, QUIC, join.
    #[must_use]
    pub fn hub_ports(&self) -> [u16; 3] {
        [self.ports.websocket, self.ports.quic, self.ports.join]
    }

    /// Folder of cloudcore's data, the embedded server's included.
    #[must_use]
    pub fn cloud_dir(&self) -> PathBuf {
        self.folder.path().join("cloud")
    }

    /// `HOST:PORT` of the join endpoints.
    #[must_use]
    pub fn join_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.join)
    }

    /// `HOST:PORT` of the admin endpoints.
    #[must_use]
    pub fn admin_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.admin)
    }

    /// Limits the size of files of the embedded API server, or of cloudcore if there is none, in bytes; none removes
    /// the limit.
    ///
    /// # Errors
    /// When it is not running or the operating system refuses.
    pub fn limit_cloud_files(&self, bytes: Option<u64>) -> Result<()> {
        limit_files(self.server_id().or(self.cloud_id()).context("the process was killed")?, bytes)
    }

    /// Fails when cloudcore has ended.
    ///
    /// # Errors
    /// The last lines of its log.
    pub fn check_cloud(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Child::check_running)?;
        self.cloud.as_mut().context("cloudcore was killed")?.check_running()
    }

    /// Value of a metric of cloudcore that has no labels.
    ///
    /// # Errors
    /// When cloudcore does not answer or has no such metric.
    pub async fn cloud_metric(&self, name: &str) -> Result<f64> {
        let text = http_get(&self.admin_address(), "metrics").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no metric {name} in {text}"))?.trim().parse()?)
    }

    /// The log of cloudcore.
    #[must_use]
    pub fn cloud_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("cloudcore.log")).unwrap_or_default()
    }

    /// The administrator's kubeconfig of the world's API.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        match &self.plane {
            Some(plane) => plane.kubeconfig(),
            None => self.folder.path().join("cloud/kubeconfig"),
        }
    }

    /// An administrator's client of the world's API.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        client_of(&self.kubeconfig()).await
    }

    /// Runs kubectl as the administrator; fails when kubectl does.
    ///
    /// # Errors
    /// What kubectl wrote to standard error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.kubeconfig(), arguments)
    }

    /// Puts a slow link between cloudcore and the edges that join from now on; with [`u32::MAX`] the link only
    /// observes.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn slow_down(&mut self, bytes_per_second: u32) -> Result<()> {
        self.slow = Some(SlowLink::start(self.ports.websocket, self.ports.quic, bytes_per_second).await?);
        Ok(())
    }

    /// Drops the datagrams of edges that join from now on, as a firewall does. These edges are not configured with a
    /// transport.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn swallow_datagrams(&mut self) -> Result<()> {
        self.silent = Some(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
        Ok(())
    }

    /// Sets the transport of edges that join from now on, and of nodes without an agent.
    pub fn set_transport(&mut self, transport: Transport) {
        self.transport = transport;
    }

    /// Sets the dialect of edges that join from now on.
    pub fn set_dialect(&mut self, dialect: &'static str) {
        self.dialect = dialect;
    }

    /// Sets members of the settings file for edges that join from now on; objects are merged.
    pub fn set_edge_settings(&mut self, settings: Value) {
        self.edge_settings = settings;
    }

    /// Bytes that the slow link has forwarded over TCP, in both directions.
    #[must_use]
    pub fn relayed(&self) -> u64 {
        self.slow.as_ref().map_or(0, SlowLink::passed)
    }

    /// When cloudcore's first bytes since the last call passed the slow link over TCP.
    pub fn take_from_cloud(&self) -> Option<Instant> {
        self.slow.as_ref()?.take_from_cloud().map(Into::into)
    }

    /// Sets the periods of lease renewals and status reports for edges that join from now on, in milliseconds.
    pub fn set_periods(&mut self, lease_millis: u64, status_millis: u64) {
        self.periods = (lease_millis, Some(status_millis));
    }

    /// Connects a node without an agent.
    ///
    /// # Errors
    /// When the join or the connection is refused.
    pub async fn raw_node(&self, certified: &str, claimed: &str) -> Result<RawNode> {
        let choice = match self.transport {
            Transport::WebSocket => Choice::WebSocket,
            Transport::Quic => Choice::Quic,
        };
        let target = Target {
            host: "127.0.0.1".to_owned(),
            websocket_port: self.ports.websocket,
            quic_port: self.ports.quic,
            choice,
        };
        RawNode::connect(RawNodeOptions {
            target,
            join: self.join_address(),
            token: wait_for_value("a join token", DEADLINE, || self.join_token()).await,
            certified: NodeId::parse(certified)?,
            claimed: NodeId::parse(claimed)?,
        })
        .await
    }

    /// One value in a Secret of cloudcore.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub async fn hub_secret(&self, name: &str, key: &str) -> Result<Vec<u8>, String> {
        let client = self.client().await.map_err(|error| format!("{error:#}"))?;
        let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
            kube::Api::namespaced(client, "kubeedge");
        let secret = secrets.get(name).await.map_err(|error| error.to_string())?;
        let data = secret.data.and_then(|mut data| data.remove(key)).ok_or_else(|| format!("no {key}"))?;
        Ok(data.0)
    }
}

/// Runs kubectl with a kubeconfig; fails when kubectl does.
///
/// # Errors
/// What kubectl wrote to standard error.
pub fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(tombolo_testkit::components()?.binary("kubectl"));
    let home = kubeconfig.parent().unwrap_or(Path::new("/"));
    let output = command.env("KUBECONFIG", kubeconfig).env("HOME", home).args(arguments).output()?;
    if !output.status.success() {
        bail!("kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn client_of(kubeconfig: &Path) -> Result<Client> {
    let parsed = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A program of the workspace, built with the tests.
///
/// # Errors
/// When it is not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    // Tests are in target/PROFILE/deps, programs in target/PROFILE.
    let mut folders = tests.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let path = folders.find(|path| path.is_file()).unwrap_or_else(|| tests.with_file_name(name));
    ensure!(path.is_file(), "{} is not built: run `cargo build --workspace --bins` first", path.display());
    Ok(path)
}

async fn get_ok(url: String) -> Result<(), String> {
    let (host, path) = url.trim_start_matches("http://").split_once('/').ok_or("bad url")?;
    let answer = http_get(host, path).await.map_err(|error| error.to_string())?;
    let ok = answer.starts_with("HTTP/1.1 200");
    if ok { Ok(()) } else { Err(answer) }
}

async fn http_get(host: &str, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(host).await?;
    stream
        .write_all(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
