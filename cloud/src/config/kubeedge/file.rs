//! The file as KubeEdge cloudcore prints it (docs/reference/kubeedge.md#cloudcore-settings): KubeEdge's names, units
//! and defaults. Every key is optional, unknown keys are refused. Keys without effect here are parsed too, so that a
//! value of the wrong type is reported.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use super::super::{ADMIN_PORT, JOIN_PORT, QUIC_PORT, WEBSOCKET_PORT};
use super::limits::{Buffer, Load};
use super::section::section;

section! {
    /// The whole file.
    File {
        api_version: ApiVersion = ApiVersion::V1alpha1,
        kind: Kind = Kind::CloudCore,
        common_config: CommonConfig = CommonConfig::default(),
        #[serde(rename = "kubeAPIConfig")]
        kube_api_config: KubeApiConfig = KubeApiConfig::default(),
        modules: Modules = Modules::default(),
        feature_gates: FeatureGates = FeatureGates::default(),
    }
}

/// The only version that KubeEdge v1.23 accepts.
#[derive(Debug, Deserialize)]
pub(super) enum ApiVersion {
    #[serde(rename = "cloudcore.config.kubeedge.io/v1alpha1")]
    V1alpha1,
}

#[derive(Debug, Deserialize)]
pub(super) enum Kind {
    CloudCore,
}

section! {
    /// Known feature gates only, as in KubeEdge.
    FeatureGates {
        require_authorization: Option<bool> = None,
        module_restart: Option<bool> = None,
        #[serde(rename = "disableNodeTaskV1alpha2")]
        disable_node_task_v1alpha2: Option<bool> = None,
    }
}

section! {
    CommonConfig {
        tunnel_port: u16 = 10350,
        monitor_server: MonitorServer = MonitorServer::default(),
    }
}

section! {
    MonitorServer {
        bind_address: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT)),
        enable_profiling: bool = false,
    }
}

section! {
    KubeApiConfig {
        master: String = String::new(),
        content_type: String = "application/vnd.kubernetes.protobuf".to_owned(),
        qps: i32 = 2500,
        burst: i32 = 5000,
        kube_config: PathBuf = PathBuf::new(),
    }
}

section! {
    Modules {
        cloud_hub: CloudHub = CloudHub::default(),
        edge_controller: EdgeController = EdgeController::default(),
        device_controller: DeviceController = DeviceController::default(),
        task_manager: TaskManager = TaskManager::default(),
        sync_controller: Switch = Switch::default(),
        dynamic_controller: Switch = Switch::default(),
        cloud_stream: CloudStream = CloudStream::default(),
        router: Router = Router::default(),
        iptables_manager: IptablesManager = IptablesManager::default(),
    }
}

section! {
    /// Durations are plain numbers in a unit that the key implies.
    CloudHub {
        enable: bool = true,
        /// Seconds.
        keepalive_interval: u32 = 30,
        node_limit: u32 = 500,
        #[serde(rename = "tlsCAFile")]
        tls_ca_file: PathBuf = PathBuf::from("/etc/kubeedge/ca/rootCA.crt"),
        #[serde(rename = "tlsCAKeyFile")]
        tls_ca_key_file: PathBuf = PathBuf::from("/etc/kubeedge/ca/rootCA.key"),
        tls_cert_file: PathBuf = PathBuf::from("/etc/kubeedge/certs/server.crt"),
        tls_private_key_file: PathBuf = PathBuf::from("/etc/kubeedge/certs/server.key"),
        write_timeout: u32 = 30,
        quic: Quic = Quic::default(),
        unixsocket: UnixSocket = UnixSocket::default(),
        websocket: WebSocket = WebSocket::default(),
        https: Https = Https::default(),
        advertise_address: Vec<String> = Vec::new(),
        dns_names: Vec<String> = Vec::new(),
        /// Days.
        edge_cert_signing_duration: u32 = 365,
        /// Hours.
        token_refresh_duration: u32 = 12,
        authorization: Authorization = Authorization::default(),
    }
}

section! {
    Quic {
        enable: bool = false,
        address: Address = Address(UNSPECIFIED),
        port: u16 = QUIC_PORT,
        max_incoming_streams: u32 = 10_000,
    }
}

section! {
    UnixSocket {
        enable: bool = true,
        address: String = "unix:///var/lib/kubeedge/kubeedge.sock".to_owned(),
    }
}

section! {
    WebSocket {
        enable: bool = true,
        address: Address = Address(UNSPECIFIED),
        port: u16 = WEBSOCKET_PORT,
    }
}

section! {
    Https {
        enable: bool = true,
        address: Address = Address(UNSPECIFIED),
        port: u16 = JOIN_PORT,
    }
}

section! {
    Authorization {
        enable: bool = false,
        debug: bool = true,
        modes: Vec<AuthorizationMode> = Vec::new(),
    }
}

section! {
    AuthorizationMode {
        node: Option<Switch> = None,
    }
}

section! {
    EdgeController {
        enable: bool = true,
        /// Seconds.
        node_update_frequency: u32 = 10,
        buffer: Buffer = Buffer::default(),
        load: Load = Load::default(),
    }
}

section! {
    DeviceController {
        enable: bool = true,
        buffer: DeviceBuffer = DeviceBuffer::default(),
        load: DeviceLoad = DeviceLoad::default(),
    }
}

section! {
    DeviceBuffer {
        update_device_twins: u32 = 1024,
        update_device_status: u32 = 1024,
        device_event: u32 = 1,
        device_model_event: u32 = 1,
        device_status_event: u32 = 1,
    }
}

section! {
    DeviceLoad {
        update_device_status_workers: u32 = 1,
    }
}

section! {
    TaskManager {
        enable: bool = false,
        buffer: TaskBuffer = TaskBuffer::default(),
        load: TaskLoad = TaskLoad::default(),
    }
}

section! {
    TaskBuffer {
        task_status: u32 = 1024,
        task_event: u32 = 1,
    }
}

section! {
    TaskLoad {
        task_workers: u32 = 1,
    }
}

section! {
    /// A module whose only supported setting is its switch.
    Switch {
        enable: bool = true,
    }
}

section! {
    CloudStream {
        enable: bool = false,
        #[serde(rename = "tlsTunnelCAFile")]
        tls_tunnel_ca_file: PathBuf = PathBuf::new(),
        tls_tunnel_cert_file: PathBuf = PathBuf::new(),
        tls_tunnel_private_key_file: PathBuf = PathBuf::new(),
        tunnel_port: u16 = 10004,
        #[serde(rename = "tlsStreamCAFile")]
        tls_stream_ca_file: PathBuf = PathBuf::new(),
        tls_stream_cert_file: PathBuf = PathBuf::new(),
        tls_stream_private_key_file: PathBuf = PathBuf::new(),
        stream_port: u16 = 10003,
    }
}

section! {
    Router {
        enable: bool = false,
        address: String = "0.0.0.0".to_owned(),
        port: u16 = 9443,
        rest_timeout: u32 = 60,
    }
}

section! {
    IptablesManager {
        enable: bool = true,
        mode: IptablesMode = IptablesMode::Internal,
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum IptablesMode {
    Internal,
    External,
}

const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// An IP address. As in Go, empty text means all addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address(pub(super) IpAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self(UNSPECIFIED));
        }
        text.parse().map(Self).map_err(|_| serde::de::Error::custom(format!("{text:?} is not an IP address")))
    }
}
