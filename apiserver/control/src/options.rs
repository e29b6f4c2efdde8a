//! How an embedded API server is started.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Default address: loopback, with a kept port.
pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Default cluster addresses of Services.
pub const SERVICE_CIDR: &str = "10.0.0.0/16";

/// Default limit of stored objects, in MiB.
pub const STORE_MEBIBYTES: u32 = 1024;

/// Writes by one node may use at most `1/NODE_SHARE` of the store.
pub(crate) const NODE_SHARE: u64 = 16;

/// How an embedded API server is started.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where objects, keys and the kubeconfig are kept.
    pub data_dir: PathBuf,
    /// Where to listen. Port 0 means the port of the last run, or a free one at the first run.
    pub listen: SocketAddr,
    /// Cluster addresses of Services: an IPv4 range with a prefix of 16 to 29 bits.
    pub service_cidr: String,
    /// A bearer token that is accepted as an administrator's, beside the client certificate of the kubeconfig.
    pub admin_token: Option<String>,
    /// File for the audit log: one JSON line per request (`audit.k8s.io/v1`, level Metadata).
    pub audit_log: Option<PathBuf>,
    /// Maximum size of all objects, in bytes. Beyond it, objects cannot grow, but can be deleted. Events may use a
    /// quarter of it.
    pub store_len_max: u64,
    /// Whether a kube-controller-manager without leader election runs beside this server. The server's own controllers
    /// that do its work then never run. One with leader election is detected by its Lease.
    pub external_controllers: bool,
}

impl Options {
    /// The usual options for a data directory: [`LISTEN`], [`SERVICE_CIDR`], [`STORE_MEBIBYTES`], no audit log.
    #[must_use]
    pub fn new(data_dir: impl AsRef<Path>) -> Self {
        Self {
            data_dir: data_dir.as_ref().to_owned(),
            listen: LISTEN,
            service_cidr: SERVICE_CIDR.into(),
            admin_token: None,
            audit_log: None,
            store_len_max: u64::from(STORE_MEBIBYTES) << 20,
            external_controllers: false,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("data_dir", &self.data_dir)
            .field("listen", &self.listen)
            .field("service_cidr", &self.service_cidr)
            .field("admin_token", &self.admin_token.as_ref().map(|_| "<hidden>"))
            .field("audit_log", &self.audit_log)
            .field("store_len_max", &self.store_len_max)
            .field("external_controllers", &self.external_controllers)
            .finish()
    }
}
