//! The configuration file as written: camelCase keys, every key optional, unknown keys refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ADMIN_PORT, Devices, JOIN_PORT, QUIC_PORT, WEBSOCKET_PORT, WatchEvents};
use crate::edgecontroller::index::INDEX_BYTES_MAX;
use crate::edgecontroller::upstream::RequestBounds;

/// The whole file: one field for each key at its top level.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawConfig {
    pub(super) listen: RawListeners,
    pub(super) advertise: Vec<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) api_server: Option<String>,
    pub(super) data_dir: PathBuf,
    pub(super) namespace: String,
    pub(super) certificates: RawCertificates,
    pub(super) node_limit: u32,
    pub(super) shared_token: bool,
    pub(super) token_refresh_hours: u32,
    pub(super) edge_certificate_days: u32,
    pub(super) edge_controller: RawEdgeController,
    pub(super) kubeedge: RawKubeEdge,
    pub(super) grids: RawGrids,
    pub(super) budgets: RawBudgets,
    pub(super) drain_grace_seconds: u32,
    pub(super) drain_spread_seconds: u32,
}

/// `listen`: addresses with ports; `null` turns a listener off.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawListeners {
    pub(super) websocket: Option<SocketAddr>,
    pub(super) quic: Option<SocketAddr>,
    pub(super) join: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
}

/// `certificates`: PEM files. A certificate and its key must both be set, or neither.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawCertificates {
    pub(super) ca_file: Option<PathBuf>,
    pub(super) ca_key_file: Option<PathBuf>,
    pub(super) server_file: Option<PathBuf>,
    pub(super) server_key_file: Option<PathBuf>,
}

/// `edgeController`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawEdgeController {
    pub(super) enable: bool,
    pub(super) heartbeat_age_seconds: u32,
    pub(super) requests: RequestBounds,
    pub(super) watch_events: WatchEvents,
}

/// `kubeedge`: sessions of KubeEdge edges.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawKubeEdge {
    pub(super) silence_seconds: u32,
    pub(super) window: u32,
    pub(super) devices: Devices,
}

/// `grids`: the controllers of the application grid.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawGrids {
    pub(super) enable: bool,
    pub(super) install_definitions: bool,
    pub(super) unit_grace_seconds: u32,
}

/// `budgets`: limits on what peers may consume.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawBudgets {
    pub(super) session_bytes: u64,
    pub(super) watch_bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) connections_per_source: u32,
    pub(super) handshakes_per_source: u32,
}

impl Default for RawBudgets {
    fn default() -> Self {
        Self {
            session_bytes: 128 * 1024 * 1024,
            watch_bytes: 128 * 1024 * 1024,
            index_bytes: INDEX_BYTES_MAX as u64,
            connections_per_source: 2048,
            handshakes_per_source: 96,
        }
    }
}

impl Default for RawGrids {
    fn default() -> Self {
        Self { enable: true, install_definitions: true, unit_grace_seconds: 0 }
    }
}

impl Default for RawEdgeController {
    fn default() -> Self {
        let (requests, watch_events) = Default::default();
        Self { enable: true, heartbeat_age_seconds: 10, requests, watch_events }
    }
}

impl Default for RawKubeEdge {
    fn default() -> Self {
        Self { silence_seconds: 30, window: 16, devices: Devices::default() }
    }
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: RawListeners::default(),
            advertise: Vec::new(),
            kubeconfig: None,
            api_server: None,
            data_dir: PathBuf::from("/var/lib/tombolo/cloudcore"),
            namespace: "kubeedge".to_owned(),
            certificates: RawCertificates::default(),
            node_limit: 1000,
            shared_token: false,
            token_refresh_hours: 12,
            edge_certificate_days: 365,
            edge_controller: RawEdgeController::default(),
            kubeedge: RawKubeEdge::default(),
            grids: RawGrids::default(),
            budgets: RawBudgets::default(),
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
