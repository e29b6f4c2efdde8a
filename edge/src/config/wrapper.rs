//! Settings of the wrapper.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tombolo_proto::ids::NodeId;

use super::{ConfigError, WRAPPER_PORT};

/// Changes that a watcher of the wrapper may be behind before its watch is ended.
pub const WATCH_QUEUE: RangeInclusive<usize> = 16..=65_536;

/// The API as kube-proxy and CoreDNS of this node see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WrapperConfig {
    /// Where it listens; none turns it off. A loopback address, unless clients must show certificates.
    pub address: Option<SocketAddr>,
    /// Name of the Node object whose units determine the view; none: the agent's `nodeName`.
    #[serde(serialize_with = "write_node", deserialize_with = "read_node")]
    pub node_name: Option<NodeId>,
    /// HTTPS; none: plain HTTP.
    pub tls: Option<WrapperTls>,
    /// Whether the Service `default/kubernetes` leads to the local API of this node, if pods can reach one of its
    /// addresses.
    pub local_rewrite: bool,
    /// Whether `/debug/dump` is served and, with the feature `profile`, `/debug/pprof/profile`.
    pub debug: bool,
    /// Changes that a watcher may be behind before its watch is ended and it lists again.
    pub watch_queue: usize,
}

/// TLS of the wrapper. The files are read when the agent starts, and every 10 seconds after that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WrapperTls {
    /// Certificate chain, PEM.
    pub cert_file: PathBuf,
    /// Private key, PEM.
    pub key_file: PathBuf,
    /// CA certificates, PEM: clients must show a certificate that one of them has signed. None: any client.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl Default for WrapperConfig {
    fn default() -> Self {
        Self {
            address: Some((Ipv4Addr::LOCALHOST, WRAPPER_PORT).into()),
            node_name: None,
            tls: None,
            local_rewrite: true,
            debug: false,
            watch_queue: 1024,
        }
    }
}

impl WrapperConfig {
    /// Checks rules that the types do not express.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let closed = self.tls.as_ref().is_some_and(|tls| tls.ca_file.is_some());
        if let Some(address) = self.address.filter(|address| !address.ip().is_loopback() && !closed) {
            let problem = format!(
                "{address} is not a loopback address; other machines must show certificates: set wrapper.tls.caFile"
            );
            return Err(ConfigError::Value { field: "wrapper.address", problem });
        }
        if !WATCH_QUEUE.contains(&self.watch_queue) {
            let problem = format!("must be {} to {}", WATCH_QUEUE.start(), WATCH_QUEUE.end());
            return Err(ConfigError::Value { field: "wrapper.watchQueue", problem });
        }
        Ok(())
    }
}

fn read_node<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<NodeId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| NodeId::parse(&text).map_err(serde::de::Error::custom)).transpose()
}

fn write_node<S: serde::Serializer>(node: &Option<NodeId>, serializer: S) -> Result<S::Ok, S::Error> {
    node.as_ref().map(NodeId::as_str).serialize(serializer)
}
