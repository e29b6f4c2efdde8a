//! Settings of cloudcore: what the file says ([`raw`]), then what the program uses ([`Config`]), checked.

mod raw;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tombolo_runtime::without_excerpt;

use raw::RawConfig;

/// Default port of the WebSocket listener (KubeEdge's).
pub const WEBSOCKET_PORT: u16 = 10000;
/// Default port of the QUIC listener (KubeEdge's).
pub const QUIC_PORT: u16 = 10001;
/// Default port of the join endpoints (KubeEdge's).
pub const JOIN_PORT: u16 = 10002;
/// Default port of the admin endpoints (KubeEdge's monitor server).
pub const ADMIN_PORT: u16 = 9091;

/// Most nodes that a configuration may allow: what one process has been measured to carry, with a margin.
pub const NODE_LIMIT_MAX: usize = 100_000;

/// Largest configuration file that is read, in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// Everything that one cloudcore is told, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where edges connect and operators look.
    pub listen: Listeners,
    /// Host names and addresses under which edges reach this cloudcore: subject alternative names of its
    /// certificate.
    pub advertise: Vec<String>,
    /// Kubeconfig of the cluster; none: the service account of the pod, or what `KUBECONFIG` names.
    pub kubeconfig: Option<PathBuf>,
    /// Folder of what this cloudcore keeps: keys and state of the embedded server.
    pub data_dir: PathBuf,
    /// Folder that also holds the CA, for a cloudcore with its own API server (design 9.15); set by the program, not
    /// by the file.
    pub pki_dir: Option<PathBuf>,
    /// Namespace of cloudcore's own objects: CA, join token, epoch.
    pub namespace: String,
    /// Nodes connected at a time; the next one is told to come back later.
    pub node_limit: usize,
    /// Time between two join tokens.
    pub token_refresh: Duration,
    /// How long a stop waits for sessions and writes.
    pub drain_grace: Duration,
    /// Upper bound of the spread wait that nodes are told when this cloudcore stops.
    pub drain_spread: Duration,
}

/// Addresses to listen on; port 0 lets the system choose.
#[derive(Debug, Clone, PartialEq)]
pub struct Listeners {
    /// WebSocket over TLS; none turns it off.
    pub websocket: Option<SocketAddr>,
    /// QUIC; none turns it off.
    pub quic: Option<SocketAddr>,
    /// HTTPS join endpoints.
    pub join: SocketAddr,
    /// `/livez`, `/readyz`, `/metrics`; none turns them off.
    pub admin: Option<SocketAddr>,
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is larger than any configuration.
    #[error("{path} has {len} bytes; a configuration has at most 1 MiB")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        len: u64,
    },
    /// The text is no configuration; the message names the file, and line and column or the key.
    #[error("{0}")]
    Parse(String),
    /// A value is out of its range.
    #[error("{key}: {problem}")]
    Invalid {
        /// Which key.
        key: &'static str,
        /// What is wrong, and what would be right.
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

    /// Reads YAML text; empty text is the default configuration.
    ///
    /// # Errors
    /// [`ConfigError`], which names line and column or the key.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw = if text.trim().is_empty() {
            RawConfig::default()
        } else {
            serde_saphyr::from_str(text)
                .map_err(|error| ConfigError::Parse(without_excerpt(&error.to_string())))?
        };
        Self::check(raw)
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
        let invalid = |key, problem: &str| Err(ConfigError::Invalid { key, problem: problem.to_owned() });
        let limit = usize::try_from(raw.node_limit).unwrap_or(usize::MAX);
        if !(1..=NODE_LIMIT_MAX).contains(&limit) {
            return invalid("nodeLimit", "must be between 1 and 100000");
        }
        if raw.token_refresh_hours == 0 || raw.token_refresh_hours > 24 {
            return invalid("tokenRefreshHours", "must be between 1 and 24: a join token lives for 24 hours");
        }
        if raw.listen.websocket.is_none() && raw.listen.quic.is_none() {
            return invalid("listen", "needs websocket or quic, or no edge can connect");
        }
        if raw.advertise.iter().any(|name| name.trim().is_empty() || name.contains(char::is_whitespace)) {
            return invalid("advertise", "entries are host names or IP addresses");
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
            data_dir: raw.data_dir,
            pki_dir: None,
            namespace: raw.namespace,
            node_limit: limit,
            token_refresh: Duration::from_secs(u64::from(raw.token_refresh_hours) * 3600),
            drain_grace: Duration::from_secs(u64::from(raw.drain_grace_seconds)),
            drain_spread: Duration::from_secs(u64::from(raw.drain_spread_seconds)),
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::check(RawConfig::default()).expect("the defaults are in range: config::tests reads them")
    }
}

/// DNS-1123 label, which namespaces are.
fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63
        && alphanumeric(text.chars().next())
        && alphanumeric(text.chars().last())
        && text.chars().all(|c| c == '-' || alphanumeric(Some(c)))
}
