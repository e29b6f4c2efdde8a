//! The DNS server of a node. It answers names of the cluster domain from data on this node, with or without a cloud
//! connection, and forwards all other queries.
//!
//! Its answers are those of CoreDNS with the `kubernetes` and `hosts` plugins; `docs/dns.md` lists the differences.
//! Names come from the view of the wrapper, so a Service that is closed inside its unit has only this unit's pods.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::store::Store;
use tombolo_grid::Hosts;
use tombolo_grid::dns::Zone;
use tombolo_runtime::Tasks;
use tombolo_runtime::listen::{ListenError, tcp, udp};

use crate::config::DnsConfig;

mod answer;
mod authority;
mod cache;
mod clients;
mod follow;
mod forward;
mod health;
mod loops;
mod message;
mod metrics;
mod private;
mod serve;
mod upstreams;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use clients::Machine;
pub(crate) use metrics::DnsMetrics;

use authority::Authority;
use clients::Clients;
use forward::Forwarder;
use serve::Server;
use upstreams::Upstreams;

const SETTING: &str = "dns.address";

/// The inputs of the server.
pub(crate) struct DnsParts {
    /// Services, EndpointSlices and Namespaces, as this node sees them.
    pub(crate) source: Arc<dyn Store>,
    /// Uniform names; `None` until they are known.
    pub(crate) names: watch::Receiver<Option<Arc<Hosts>>>,
    /// The machine that the server runs on.
    pub(crate) machine: Machine,
}

/// The server with its sockets bound.
pub(crate) struct Dns {
    udp: UdpSocket,
    tcp: TcpListener,
    address: SocketAddr,
    settings: DnsConfig,
}

/// Attempts to find a port that is free for both protocols, if the system chooses it.
const PORT_TRIES: usize = 16;

fn failed(protocol: &'static str, address: SocketAddr, source: std::io::Error) -> ListenError {
    ListenError { protocol, address, setting: SETTING.to_owned(), source }
}

/// Binds a UDP and a TCP socket on the same port.
async fn sockets(address: SocketAddr) -> Result<(std::net::UdpSocket, TcpListener), ListenError> {
    let mut tries = 0;
    loop {
        let tcp = tcp(SETTING, address).await?;
        let chosen = tcp.local_addr().map_err(|source| failed("TCP", address, source))?;
        match udp(SETTING, chosen) {
            Ok(udp) => return Ok((udp, tcp)),
            Err(error) if address.port() != 0 || tries >= PORT_TRIES => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

impl Dns {
    /// Binds both sockets. Returns `None` if the settings turn the server off.
    ///
    /// # Errors
    /// [`ListenError`] names the setting to change.
    pub(crate) async fn bind(settings: &DnsConfig) -> Result<Option<Self>, ListenError> {
        let Some(address) = settings.address else { return Ok(None) };
        let (udp, tcp) = sockets(address).await?;
        let chosen = tcp.local_addr().map_err(|source| failed("TCP", address, source))?;
        udp.set_nonblocking(true).map_err(|source| failed("UDP", address, source))?;
        let udp = UdpSocket::from_std(udp).map_err(|source| failed("UDP", address, source))?;
        Ok(Some(Self { udp, tcp, address: chosen, settings: settings.clone() }))
    }

    /// The address that it listens on.
    #[cfg(test)]
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Follows the source and answers queries until `stop` is cancelled.
    pub(crate) fn spawn(
        self,
        tasks: &Tasks,
        parts: DnsParts,
        metrics: Arc<DnsMetrics>,
        stop: &CancellationToken,
    ) {
        let known = Arc::<RwLock<ServedZone>>::default();
        let (source, own) = (Arc::clone(&parts.source), self.address.ip());
        let clients = Clients::new(parts.machine.clone(), own, self.settings.clients.clone());
        let follower = follow::Follower::new(parts, Arc::clone(&known));
        let upstreams = Upstreams::new(&self.settings, self.address);
        let server = Arc::new(Server {
            authority: Authority::new(&self.settings.cluster_domain, self.address.ip())
                .with_private_reverse(self.settings.forward_private_reverse),
            known,
            forwarder: Forwarder::new(upstreams, self.settings.forward_timeout()),
            metrics,
            clients,
        });
        let until = stop.clone();
        tasks.spawn("dns-zone", async move {
            until.run_until_cancelled(follower.run()).await;
        });
        let (until, following) = (stop.clone(), Arc::clone(&server));
        tasks.spawn("dns-clients", async move {
            until.run_until_cancelled(following.clients.follow(source)).await;
        });
        let (until, watching) = (stop.clone(), Arc::clone(&server));
        tasks.spawn("dns-servers", async move {
            until.run_until_cancelled(watching.forwarder.watch_servers()).await;
        });
        let (until, answering) = (stop.clone(), Arc::clone(&server));
        tasks.spawn("dns-udp", async move {
            until.run_until_cancelled(answering.serve_udp(self.udp)).await;
        });
        let until = stop.clone();
        tasks.spawn("dns-tcp", async move {
            until.run_until_cancelled(server.serve_tcp(self.tcp)).await;
        });
    }
}

/// The data for answers.
#[derive(Debug, Default)]
struct ServedZone {
    zone: Zone,
    /// Serial of the SOA record: the time of the last change of the zone in seconds since 1970, as in CoreDNS.
    serial: u32,
}

/// A time as a serial.
fn serial(now: SystemTime) -> u32 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Serials wrap around (RFC 1982).
    (since.as_secs() & u64::from(u32::MAX)) as u32
}
