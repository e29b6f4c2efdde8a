//! The file as it is written: camelCase keys, every key optional, unknown keys refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use super::{ADMIN_PORT, JOIN_PORT, QUIC_PORT, WEBSOCKET_PORT};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawConfig {
    pub(super) listen: RawListeners,
    pub(super) advertise: Vec<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) data_dir: PathBuf,
    pub(super) namespace: String,
    pub(super) node_limit: u32,
    pub(super) token_refresh_hours: u32,
    pub(super) drain_grace_seconds: u32,
    pub(super) drain_spread_seconds: u32,
}

/// `listen`: addresses with ports; `null` turns a listener off.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawListeners {
    pub(super) websocket: Option<SocketAddr>,
    pub(super) quic: Option<SocketAddr>,
    pub(super) join: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: RawListeners::default(),
            advertise: Vec::new(),
            kubeconfig: None,
            data_dir: PathBuf::from("/var/lib/tombolo/cloudcore"),
            namespace: "kubeedge".to_owned(),
            node_limit: 1000,
            token_refresh_hours: 12,
            drain_grace_seconds: 20,
            drain_spread_seconds: 10,
        }
    }
}

impl Default for RawListeners {
    fn default() -> Self {
        let all = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        Self {
            websocket: Some(all(WEBSOCKET_PORT)),
            quic: Some(all(QUIC_PORT)),
            join: all(JOIN_PORT),
            admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT))),
        }
    }
}
