//! Settings of cloudcore: the configuration file ([`raw`]) and the checked values that the program uses ([`Config`]).

mod kubeedge;
mod print;
mod raw;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_link::server::CONNECTION_LIMITS;
use tombolo_proto::session::kubeedge::WINDOW_MAX;
use tombolo_runtime::connection_limiter::ConnectionLimits;
use tombolo_runtime::settings;

use crate::bootstrap::{CertificateFiles, PemPair};
use crate::edgecontroller::UpstreamSettings;
use crate::grids::GridSettings;
use raw::{RawBudgets, RawCertificates, RawConfig};

pub use kubeedge::{IgnoredSetting, MissingModule};
pub use print::{default_config, min_config};

/// Default port of the WebSocket listener (KubeEdge's).
pub const WEBSOCKET_PORT: u16 = 10000;
/// Default port of the QUIC listener (KubeEdge's).
pub const QUIC_PORT: u16 = 10001;
/// Default port of the join endpoints (KubeEdge's).
pub const JOIN_PORT: u16 = 10002;
/// Default port of the admin endpoints (KubeEdge's monitor server).
pub const ADMIN_PORT: u16 = 9091;

/// Highest node limit that a configuration may set: what one process was measured to carry, with a margin.
pub const NODE_LIMIT_MAX: usize = 100_000;

/// Longest lifetime of a node's certificate, in days: a hundred years, the lifetime of KubeEdge's CA.
const EDGE_CERTIFICATE_DAYS_MAX: u32 = 36_500;

/// Largest configuration file that is accepted, in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// The complete, checked configuration of one cloudcore: one field for each setting, or group of settings, of the file.
/// `record` comes from the program; `ignored` and `missing` are notes about a KubeEdge file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Addresses of the endpoints for edges and operators.
    pub listen: Listeners,
    /// Host names and addresses under which edges reach this cloudcore: the subject alternative names of its
    /// certificate.
    pub advertise: Vec<String>,
    /// Kubeconfig of the cluster. If unset: the pod's service account, or the file that `KUBECONFIG` names.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server. Takes precedence over the one in the kubeconfig.
    pub api_server: Option<String>,
    /// Folder for this cloudcore's persistent files.
    pub data_dir: PathBuf,
    /// Folder into which the traffic of nodes is recorded; set by the program, not by the file.
    pub record: Option<PathBuf>,
    /// Namespace of cloudcore's own objects: CA, join token, epoch.
    pub namespace: String,
    /// Maximum number of connected nodes; further nodes are asked to come back later.
    pub node_limit: usize,
    /// Files of the CA and of the hub's certificate.
    pub certificates: CertificateFiles,
    /// Whether nodes may join with KubeEdge's shared join token.
    pub shared_token: bool,
    /// Interval at which the shared join token is replaced.
    pub token_refresh: Duration,
    /// How long a node's certificate is valid.
    pub edge_certificate_life: Duration,
    /// Handling of node requests and reports.
    pub upstream: UpstreamSettings,
    /// Bounds on pending watch events.
    pub watch_events: WatchEvents,
    /// Sessions of KubeEdge edges.
    pub kubeedge: KubeEdgeSessions,
    /// The controllers of the application grid.
    pub grids: GridSettings,
    /// Budgets for resources that peers consume.
    pub budgets: Budgets,
    /// How long shutdown waits for sessions and writes.
    pub drain_grace: Duration,
    /// Upper bound of the random delay that nodes are given when this cloudcore stops.
    pub drain_spread: Duration,
    /// Settings of a KubeEdge file that have no effect here.
    pub ignored: Vec<IgnoredSetting>,
    /// Modules that a KubeEdge file enables and that do not exist here.
    pub missing: Vec<MissingModule>,
}

/// Sessions of dialect `kubeedge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubeEdgeSessions {
    /// An edge's session ends after it was silent for this long.
    pub silence: Duration,
    /// Objects in flight to one edge.
    pub window: usize,
    /// Handling of device twin reports.
    pub devices: Devices,
}

/// How device twin reports are handled. cloudcore does not manage devices. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Devices {
    /// Refused, so that the edge keeps them.
    #[default]
    Refuse,
    /// Confirmed and discarded.
    Discard,
}

/// Limits on what peers may consume, beyond the constants for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes that the hub may hold for all nodes together in requests, answers, inventories and unfinished frames.
    pub session_bytes: usize,
    /// Bytes of the objects that subscriptions follow.
    pub watch_bytes: usize,
    /// Bytes of all that the index keeps: pods, the objects that they refer to, and Nodes.
    pub index_bytes: usize,
    /// Limits on unauthenticated connections, at each port.
    pub connection_limits: ConnectionLimits,
}

/// Bounds on pending events of each watch for the edge controller. If unset, only the bound of all watches applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WatchEvents {
    /// Pods.
    pub pod: Option<NonZeroU32>,
    /// ConfigMaps.
    pub config_map: Option<NonZeroU32>,
    /// Secrets.
    pub secret: Option<NonZeroU32>,
}

/// Addresses to listen on. With port 0 the system chooses a port.
#[derive(Debug, Clone, PartialEq)]
pub struct Listeners {
    /// WebSocket over TLS; `None` turns it off.
    pub websocket: Option<SocketAddr>,
    /// QUIC; `None` turns it off.
    pub quic: Option<SocketAddr>,
    /// HTTPS join endpoints.
    pub join: SocketAddr,
    /// `/livez`, `/readyz`, `/metrics`; `None` turns them off.
    pub admin: Option<SocketAddr>,
}

/// An unusable configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the operating system.
        source: std::io::Error,
    },
    /// The file exceeds the size limit of a configuration.
    #[error("{path} has {len} bytes; a configuration has at most 1 MiB")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        len: u64,
    },
    /// The text is not a valid configuration. The message names the file, and line and column or the key.
    #[error("{0}")]
    Parse(String),
    /// A value is out of its range.
    #[error("{key}: {problem}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What is wrong, and which values are valid.
        problem: String,
    },
}

impl Config {
    /// Reads a YAML file.
    ///
    /// # Errors
    /// [`ConfigError`], which names file, line and column or the key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let len = std::fs::metadata(path).map_err(read)?.len();
        if len > FILE_LEN_MAX {
            return Err(ConfigError::TooLarge { path: path.to_owned(), len });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::parse(&text).map_err(|error| match error {
            error @ (ConfigError::Parse(_) | ConfigError::Invalid { .. }) => {
                ConfigError::Parse(format!("{}: {error}", path.display()))
            }
            other => other,
        })
    }

    /// Reads YAML text, in Tombolo's own form or in KubeEdge cloudcore's. Empty text yields the default configuration.
    ///
    /// # Errors
    /// [`ConfigError`], which names line and column or the key.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.trim().is_empty() {
            return Self::check(RawConfig::default());
        }
        if let Some(document) = kubeedge::document(text) {
            return kubeedge::read(&document, text);
        }
        Self::check(typed(text)?)
    }

    /// A configuration for one machine: loopback, ports chosen by the system, files under `data_dir`.
    #[must_use]
    pub fn local(data_dir: &Path) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: Listeners { websocket: Some(any), quic: Some(any), join: any, admin: Some(any) },
            advertise: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
            data_dir: data_dir.to_owned(),
            ..Self::default()
        }
    }

    fn check(raw: RawConfig) -> Result<Self, ConfigError> {
        let invalid = |key, problem: &str| Err(invalid(key, problem));
        let node_limit = node_limit("nodeLimit", raw.node_limit)?;
        if raw.token_refresh_hours == 0 || raw.token_refresh_hours > 24 {
            return invalid("tokenRefreshHours", "must be between 1 and 24: a join token lives for 24 hours");
        }
        if !(1..=EDGE_CERTIFICATE_DAYS_MAX).contains(&raw.edge_certificate_days) {
            return invalid("edgeCertificateDays", "must be between 1 and 36500");
        }
        if raw.listen.websocket.is_none() && raw.listen.quic.is_none() {
            return invalid("listen", "needs websocket or quic, or no edge can connect");
        }
        advertised("advertise", &raw.advertise)?;
        let silence = silence("kubeedge.silenceSeconds", raw.kubeedge.silence_seconds)?;
        let window = usize::try_from(raw.kubeedge.window).unwrap_or(usize::MAX);
        if !(1..=WINDOW_MAX).contains(&window) {
            return invalid(
                "kubeedge.window",
                "must be between 1 and 64: a KubeEdge edge drops messages that it cannot take",
            );
        }
        if !is_dns_label(&raw.namespace) {
            return invalid("namespace", "must be a Kubernetes namespace name");
        }
        if raw.drain_grace_seconds > 3600 || raw.drain_spread_seconds > 3600 {
            return invalid("drainGraceSeconds, drainSpreadSeconds", "must be at most 3600");
        }
        Ok(Self {
            listen: Listeners {
                websocket: raw.listen.websocket,
                quic: raw.listen.quic,
                join: raw.listen.join,
                admin: raw.listen.admin,
            },
            advertise: raw.advertise,
            kubeconfig: raw.kubeconfig,
            api_server: raw.api_server,
            certificates: certificates(raw.certificates)?,
            data_dir: raw.data_dir,
            record: None,
            namespace: raw.namespace,
            node_limit,
            shared_token: raw.shared_token,
            token_refresh: Duration::from_secs(u64::from(raw.token_refresh_hours) * 3600),
            edge_certificate_life: days(raw.edge_certificate_days),
            upstream: UpstreamSettings {
                enabled: raw.edge_controller.enable,
                heartbeat_age_max: Duration::from_secs(raw.edge_controller.heartbeat_age_seconds.into()),
                bounds: raw.edge_controller.requests,
            },
            watch_events: raw.edge_controller.watch_events,
            kubeedge: KubeEdgeSessions { silence, window, devices: raw.kubeedge.devices },
            grids: GridSettings {
                enabled: raw.grids.enable,
                install_definitions: raw.grids.install_definitions,
                unit_grace: Duration::from_secs(raw.grids.unit_grace_seconds.into()),
            },
            budgets: budgets(&raw.budgets)?,
            drain_grace: Duration::from_secs(u64::from(raw.drain_grace_seconds)),
            drain_spread: Duration::from_secs(u64::from(raw.drain_spread_seconds)),
            ignored: Vec::new(),
            missing: Vec::new(),
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::check(RawConfig::default()).expect("the defaults are in range: config::tests reads them")
    }
}

fn typed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    settings::from_yaml(text).map_err(ConfigError::Parse)
}

fn invalid(key: &'static str, problem: &str) -> ConfigError {
    ConfigError::Invalid { key, problem: problem.to_owned() }
}

fn node_limit(key: &'static str, limit: u32) -> Result<usize, ConfigError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    match (1..=NODE_LIMIT_MAX).contains(&limit) {
        true => Ok(limit),
        false => Err(invalid(key, "must be between 1 and 100000")),
    }
}

fn silence(key: &'static str, seconds: u32) -> Result<Duration, ConfigError> {
    match (1..=3600).contains(&seconds) {
        true => Ok(Duration::from_secs(seconds.into())),
        false => {
            Err(invalid(key, "must be between 1 and 3600; a KubeEdge edge sends a keepalive every 15 s"))
        }
    }
}

fn advertised(key: &'static str, names: &[String]) -> Result<(), ConfigError> {
    match names.iter().any(|name| name.trim().is_empty() || name.contains(char::is_whitespace)) {
        true => Err(invalid(key, "entries are host names or IP addresses")),
        false => Ok(()),
    }
}

fn days(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

/// A smaller budget would refuse the largest request of a single node.
const BUDGET_MIN: u64 = 16 * 1024 * 1024;

fn budgets(raw: &RawBudgets) -> Result<Budgets, ConfigError> {
    let bytes = |key, value: u64| match usize::try_from(value) {
        Ok(bytes) if value >= BUDGET_MIN => Ok(bytes),
        _ => Err(invalid(key, "must be at least 16777216 (16 MiB)")),
    };
    let number = |key, value: u32, max: usize| match usize::try_from(value) {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(invalid(key, &format!("must be between 1 and {max}, the limit for all sources together"))),
    };
    Ok(Budgets {
        session_bytes: bytes("budgets.sessionBytes", raw.session_bytes)?,
        watch_bytes: bytes("budgets.watchBytes", raw.watch_bytes)?,
        index_bytes: bytes("budgets.indexBytes", raw.index_bytes)?,
        connection_limits: ConnectionLimits {
            waiting_per_source: number(
                "budgets.connectionsPerSource",
                raw.connections_per_source,
                CONNECTION_LIMITS.waiting,
            )?,
            working_per_source: number(
                "budgets.handshakesPerSource",
                raw.handshakes_per_source,
                CONNECTION_LIMITS.working,
            )?,
            ..CONNECTION_LIMITS
        },
    })
}

fn certificates(raw: RawCertificates) -> Result<CertificateFiles, ConfigError> {
    let pair = |certificate: Option<PathBuf>, key: Option<PathBuf>, name| match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(PemPair { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(invalid(name, "the certificate and its key must both be set, or neither")),
    };
    Ok(CertificateFiles {
        authority: pair(raw.ca_file, raw.ca_key_file, "certificates.caFile, certificates.caKeyFile")?,
        server: pair(
            raw.server_file,
            raw.server_key_file,
            "certificates.serverFile, certificates.serverKeyFile",
        )?,
    })
}

/// Whether the text is a DNS-1123 label, as namespace names are.
fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63
        && alphanumeric(text.chars().next())
        && alphanumeric(text.chars().last())
        && text.chars().all(|c| c == '-' || alphanumeric(Some(c)))
}
