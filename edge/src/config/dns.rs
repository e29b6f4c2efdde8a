//! Settings of uniform names and of the DNS server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Port of upstream DNS servers that are configured without one.
pub const DNS_PORT: u16 = 53;

/// Upstream DNS servers, at most.
pub const UPSTREAMS_MAX: usize = 8;

/// Uniform names of this node's unit, and the DNS server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DnsConfig {
    /// The hosts file of uniform names for CoreDNS, which the agent owns; none turns it off.
    pub hosts_path: Option<PathBuf>,
    /// Seconds after which the whole file is computed and compared again.
    pub full_sync_seconds: u64,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// Where the DNS server listens, UDP and TCP; none turns it off. An address of this machine that pods reach.
    pub address: Option<SocketAddr>,
    /// Servers for queries outside the cluster's domain, tried in this order; none: those of [`Self::resolv_conf`].
    /// With an empty list such queries are refused.
    pub upstreams: Option<Vec<Upstream>>,
    /// The file that names the servers when `upstreams` is not set.
    pub resolv_conf: PathBuf,
    /// How long an upstream server may take to answer, in milliseconds.
    pub forward_timeout_millis: u64,
    /// Networks whose queries are answered, besides this machine and its pods.
    pub clients: Vec<Network>,
    /// Whether reverse lookups of private addresses are forwarded to other servers.
    pub forward_private_reverse: bool,
}

/// A network, written `ADDRESS/BITS`; one address as `ADDRESS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether the network contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        // Rust does not shift by the full width: with 0 bits nothing is compared.
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let different = u32::from(own) ^ u32::from(other);
                different.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let different = u128::from(own) ^ u128::from(other);
                different.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.as_str(), None),
        };
        let read = || -> Option<Self> {
            let address: IpAddr = address.parse().ok()?;
            let max = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(max), |bits| bits.parse().ok())?;
            (bits <= max).then_some(Self { address, bits })
        };
        read().ok_or_else(|| format!("{text:?} is not a network: use ADDRESS/BITS, for example 10.0.0.0/8"))
    }
}

impl From<Network> for String {
    fn from(Network { address, bits }: Network) -> Self {
        format!("{address}/{bits}")
    }
}

/// Another DNS server, written `ADDRESS` or `ADDRESS:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Upstream(pub SocketAddr);

impl TryFrom<String> for Upstream {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = text
            .parse::<SocketAddr>()
            .or_else(|_| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT)));
        let address = address.ok().filter(|address| address.port() != 0);
        address.map(Self).ok_or_else(|| {
            format!("{text:?} is not the address of a DNS server: use ADDRESS or ADDRESS:PORT")
        })
    }
}

impl From<Upstream> for String {
    fn from(Upstream(address): Upstream) -> Self {
        address.to_string()
    }
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            hosts_path: Some("/data/edge/hosts".into()),
            full_sync_seconds: 30,
            cluster_domain: "cluster.local".to_owned(),
            address: None,
            upstreams: None,
            resolv_conf: "/etc/resolv.conf".into(),
            forward_timeout_millis: 2000,
            clients: Vec::new(),
            forward_private_reverse: false,
        }
    }
}

impl DnsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |field: &'static str, problem: &str| {
            Err(ConfigError::Value { field, problem: problem.to_owned() })
        };
        if self.hosts_path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return wrong("dns.hostsPath", "must be an absolute path");
        }
        if !(1..=3600).contains(&self.full_sync_seconds) {
            return wrong("dns.fullSyncSeconds", "must be between 1 and 3600");
        }
        let is_label = |label: &str| {
            let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            (1..=63).contains(&label.len()) && label.chars().all(inside)
        };
        if !self.cluster_domain.split('.').all(is_label) {
            return wrong(
                "dns.clusterDomain",
                "must be a DNS name without a trailing dot, for example cluster.local",
            );
        }
        if self.address.is_some_and(|address| address.ip().is_unspecified()) {
            return wrong(
                "dns.address",
                "must be one address of this machine: answers from 0.0.0.0 could leave from another address",
            );
        }
        if let Some(upstreams) = &self.upstreams {
            if upstreams.len() > UPSTREAMS_MAX {
                return wrong("dns.upstreams", "must be at most 8");
            }
            if upstreams.iter().any(|upstream| Some(upstream.0) == self.address) {
                return wrong("dns.upstreams", "must not name dns.address: the server would ask itself");
            }
        }
        if !self.resolv_conf.is_absolute() {
            return wrong("dns.resolvConf", "must be an absolute path");
        }
        if !(100..=10_000).contains(&self.forward_timeout_millis) {
            return wrong("dns.forwardTimeoutMillis", "must be between 100 and 10000");
        }
        Ok(())
    }

    /// How long an upstream server may take to answer.
    #[must_use]
    pub fn forward_timeout(&self) -> Duration {
        Duration::from_millis(self.forward_timeout_millis)
    }

    /// How often the whole file is computed.
    #[must_use]
    pub fn full_sync(&self) -> Duration {
        Duration::from_secs(self.full_sync_seconds)
    }
}
