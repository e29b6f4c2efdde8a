//! Settings of one agent, read from YAML with the field names of Kubernetes style (`docs/edge-node.md`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;
use tombolo_apicore::names::{label_value, qualified_name};
use tombolo_proto::ids::NodeId;
use tombolo_runtime::{BackoffConfig, settings};

mod dns;
mod wrapper;

#[cfg(test)]
mod tests;

pub use dns::{DNS_PORT, DnsConfig, Network, UPSTREAMS_MAX, Upstream};
pub use wrapper::{WATCH_QUEUE, WrapperConfig, WrapperTls};

/// Default port of the hub's WebSocket listener (KubeEdge's).
pub const WEBSOCKET_PORT: u16 = 10000;
/// Default port of the hub's QUIC listener (KubeEdge's).
pub const QUIC_PORT: u16 = 10001;
/// Default port of the hub's join endpoints (KubeEdge's).
pub const JOIN_PORT: u16 = 10002;
/// Default port of the local API over HTTPS (docs/architecture.md#ports).
pub const LOCAL_API_PORT: u16 = 10550;
/// Default port of the wrapper (SuperEdge's).
pub const WRAPPER_PORT: u16 = 51006;
/// Default port of the admin endpoints.
pub const ADMIN_PORT: u16 = 9092;

/// Maximum size of a settings file, in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// All settings of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Name of this node: its identity in the cluster.
    #[serde(serialize_with = "write_node", deserialize_with = "read_node")]
    pub node_name: NodeId,
    /// Data folder of the agent: certificate, store, kubeconfig.
    #[serde(default = "default_data_dir")]
    pub data_dir: PathBuf,
    /// Which dialect the cloud speaks.
    #[serde(default)]
    pub dialect: Dialect,
    /// Where the cloud is and how to reach it.
    #[serde(default)]
    pub cloud: CloudConfig,
    /// The local Kubernetes API.
    #[serde(default)]
    pub local_api: LocalApiConfig,
    /// The API as kube-proxy and CoreDNS of this node see it.
    #[serde(default)]
    pub wrapper: WrapperConfig,
    /// Uniform names of this node's unit, and the DNS server.
    #[serde(default)]
    pub dns: DnsConfig,
    /// Address of `/livez`, `/readyz` and `/metrics`; `None` turns them off.
    #[serde(default = "default_admin")]
    pub admin: Option<SocketAddr>,
    /// What the agent reports about the node.
    #[serde(default)]
    pub node: NodeConfig,
    /// Moves delivered pods through their phases without running them, and marks this in their status. For
    /// demonstrations and load tests.
    #[serde(default)]
    pub simulate_pods: bool,
}

/// Where the cloud is and how to reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CloudConfig {
    /// `HOST:PORT` of the hub's WebSocket listener.
    pub websocket: String,
    /// `HOST:PORT` of the hub's QUIC listener; with transport `auto` the host must be that of the WebSocket listener.
    pub quic: String,
    /// `HOST:PORT` of the join endpoints, used to join and to renew the certificate.
    pub join: String,
    /// Which transport to use.
    pub transport: Transport,
    /// Delays between attempts to connect.
    pub back_off: BackOff,
}

impl CloudConfig {
    /// All endpoints on one host, at their default ports.
    #[must_use]
    pub fn at(host: &str) -> Self {
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        Self {
            websocket: format!("{host}:{WEBSOCKET_PORT}"),
            quic: format!("{host}:{QUIC_PORT}"),
            join: format!("{host}:{JOIN_PORT}"),
            ..Self::default()
        }
    }
}

impl Default for CloudConfig {
    fn default() -> Self {
        Self {
            websocket: format!("127.0.0.1:{WEBSOCKET_PORT}"),
            quic: format!("127.0.0.1:{QUIC_PORT}"),
            join: format!("127.0.0.1:{JOIN_PORT}"),
            transport: Transport::Auto,
            back_off: BackOff::default(),
        }
    }
}

/// Which dialect the cloud speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Tombolo's cloudcore.
    #[default]
    Tombolo,
    /// KubeEdge's messages over WebSocket, with KubeEdge's cloudcore or Tombolo's.
    KubeEdge,
}

/// Which transport to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// QUIC, or WebSocket if UDP is blocked.
    #[default]
    Auto,
    /// QUIC only.
    Quic,
    /// WebSocket only.
    Websocket,
}

/// Delays between attempts to connect: jittered, growing from the first to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackOff {
    /// Upper bound of the first delay, in milliseconds.
    pub first_millis: u64,
    /// Longest delay, in milliseconds.
    pub max_millis: u64,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { first_millis: 500, max_millis: 60_000 }
    }
}

impl From<BackOff> for BackoffConfig {
    fn from(settings: BackOff) -> Self {
        Self {
            first: Duration::from_millis(settings.first_millis),
            max: Duration::from_millis(settings.max_millis),
            ..Self::default()
        }
    }
}

/// The local Kubernetes API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LocalApiConfig {
    /// HTTPS with credentials (`edgecore kubeconfig` prints them).
    pub https: SocketAddr,
    /// HTTPS for pods, with the tokens of their service accounts: an address that pods can reach. `None` turns it off.
    pub pods: Option<SocketAddr>,
    /// Plain HTTP, anonymous, read-only, never Secrets: a loopback address. `None` turns it off.
    pub http: Option<SocketAddr>,
}

impl Default for LocalApiConfig {
    fn default() -> Self {
        Self { https: (Ipv4Addr::LOCALHOST, LOCAL_API_PORT).into(), pods: None, http: None }
    }
}

/// What the agent reports about the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeConfig {
    /// Whether this agent creates the Node object, renews its lease, and reports its status and its pods. Turn it
    /// off if a kubelet on this node does that.
    pub register: bool,
    /// Labels of the Node object, in addition to those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints of the Node object.
    pub taints: Vec<Taint>,
    /// Address of the node; `None` means the local address from which packets to the cloud leave.
    pub address: Option<IpAddr>,
    /// Maximum number of pods on this node.
    pub max_pods: u32,
    /// How often the node's lease is renewed, in milliseconds (the kubelet's: a quarter of 40 s).
    pub lease_interval_millis: u64,
    /// How often an unchanged node status is sent, in milliseconds (the kubelet's: 5 min).
    pub status_interval_millis: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            register: true,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            address: None,
            max_pods: 110,
            lease_interval_millis: 10_000,
            status_interval_millis: 300_000,
        }
    }
}

/// One taint of the Node object, with the fields that Kubernetes has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Effect on pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// Effect of a [`Taint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// No new pods are scheduled on the node.
    NoSchedule,
    /// New pods are scheduled on the node only if no other node fits better.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

/// Settings that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings file {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a valid settings file.
    #[error("{origin}: {message}")]
    Syntax {
        /// The file, or another name for the source of the text.
        origin: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A value is invalid.
    #[error("setting {field}: {problem}")]
    Value {
        /// Path of the setting.
        field: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl Config {
    /// The defaults for a node whose data is in `data_dir`.
    #[must_use]
    pub fn new(node_name: NodeId, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            node_name,
            data_dir: data_dir.into(),
            dialect: Dialect::default(),
            cloud: CloudConfig::default(),
            local_api: LocalApiConfig::default(),
            wrapper: WrapperConfig::default(),
            dns: DnsConfig::default(),
            admin: default_admin(),
            node: NodeConfig::default(),
            simulate_pods: false,
        }
    }

    /// Reads a settings file.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the line and column, or the setting.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = || -> std::io::Result<String> {
            if std::fs::metadata(path)?.len() > FILE_LEN_MAX {
                return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
            }
            std::fs::read_to_string(path)
        };
        let text = read().map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads settings from YAML text; `origin` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`] gives the line and column, or the setting.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let config: Self = settings::from_yaml(text)
            .map_err(|message| ConfigError::Syntax { origin: origin.into(), message })?;
        let named =
            |error: ConfigError| ConfigError::Syntax { origin: origin.into(), message: error.to_string() };
        config.validate().map_err(named)?;
        Ok(config)
    }

    /// Warnings about settings that cannot take effect.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let led =
            self.wrapper.local_rewrite && (self.wrapper.address.is_some() || self.dns.address.is_some());
        let unreachable =
            |address: Option<SocketAddr>| address.is_none_or(|address| address.ip().is_loopback());
        let nobody = unreachable(self.local_api.pods) && unreachable(Some(self.local_api.https));
        let mut warnings = Vec::new();
        if led && nobody {
            warnings.push(
                "wrapper.localRewrite is on, but pods cannot reach any address of the local API, so the Service \
                 default/kubernetes points pods to the cluster's API servers, which they cannot reach offline: set \
                 localApi.pods to an address of this node, such as one of a dummy interface, or turn off \
                 wrapper.localRewrite"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Checks the values that the types allow.
    ///
    /// # Errors
    /// [`ConfigError::Value`] names the first setting that cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (websocket, _) = host_and_port("cloud.websocket", &self.cloud.websocket)?;
        let (quic, _) = host_and_port("cloud.quic", &self.cloud.quic)?;
        if self.dialect == Dialect::KubeEdge && self.cloud.transport == Transport::Quic {
            let problem = "must be auto or websocket: dialect kubeedge needs WebSocket".to_owned();
            return Err(ConfigError::Value { field: "cloud.transport", problem });
        }
        let both = self.cloud.transport == Transport::Auto && self.dialect == Dialect::Tombolo;
        if both && websocket != quic {
            let problem =
                format!("must have the host of cloud.websocket ({websocket}), because transport is auto");
            return Err(ConfigError::Value { field: "cloud.quic", problem });
        }
        host_and_port("cloud.join", &self.cloud.join)?;
        if let Some(http) = self.local_api.http.filter(|http| !http.ip().is_loopback()) {
            let problem =
                format!("{http} is not a loopback address; anonymous access is for this machine only");
            return Err(ConfigError::Value { field: "localApi.http", problem });
        }
        self.wrapper.validate()?;
        self.dns.validate()?;
        for (key, value) in &self.node.labels {
            if let Some(wrong) = qualified_name(key).into_iter().chain(label_value(value)).next() {
                let problem = format!("{key:?}: {value:?} is not a valid label: {wrong}");
                return Err(ConfigError::Value { field: "node.labels", problem });
            }
        }
        let back_off = self.cloud.back_off;
        if back_off.first_millis == 0 || back_off.max_millis < back_off.first_millis {
            let problem = "firstMillis must be at least 1 and maxMillis not below it".to_owned();
            return Err(ConfigError::Value { field: "cloud.backOff", problem });
        }
        for (field, millis) in [
            ("node.leaseIntervalMillis", self.node.lease_interval_millis),
            ("node.statusIntervalMillis", self.node.status_interval_millis),
        ] {
            if millis < 100 {
                return Err(ConfigError::Value { field, problem: "must be at least 100".to_owned() });
            }
        }
        Ok(())
    }
}

/// Splits `HOST:PORT`; an IPv6 host is in brackets, which are removed.
///
/// # Errors
/// [`ConfigError::Value`] when there is no host or no port.
pub fn host_and_port<'a>(field: &'static str, text: &'a str) -> Result<(&'a str, u16), ConfigError> {
    let problem = || ConfigError::Value { field, problem: format!("{text:?} is not HOST:PORT") };
    let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
    let port = port.parse().map_err(|_| problem())?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(problem)?,
        None if host.contains(':') => return Err(problem()),
        None => host,
    };
    if host.is_empty() { Err(problem()) } else { Ok((host, port)) }
}

fn default_data_dir() -> PathBuf {
    PathBuf::from("/var/lib/tombolo/edge")
}

#[expect(clippy::unnecessary_wraps, reason = "serde asks for the type of the field")]
fn default_admin() -> Option<SocketAddr> {
    Some((Ipv4Addr::LOCALHOST, ADMIN_PORT).into())
}

fn read_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
    let text = String::deserialize(deserializer)?;
    NodeId::parse(&text).map_err(serde::de::Error::custom)
}

fn write_node<S: Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(node.as_str())
}
