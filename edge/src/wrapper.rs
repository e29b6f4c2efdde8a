//! The wrapper: the Kubernetes API as seen by kube-proxy and CoreDNS of this node.
//!
//! Services, EndpointSlices and Endpoints are filtered by the topology of the application grid: a Service that is
//! closed inside its unit has only the endpoints of this node's unit. The view can change when a node moves or a
//! Service is annotated, without a change of the shown object, so all objects here have the wrapper's own revisions.
//! Clients must not mix them with those of the local API. The wrapper is for programs that only read; it accepts no
//! writes but events.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::backend::WriteBackend;
use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::store::{Revision, Store};
use tombolo_grid::{LocalApi, OwnPods};
use tombolo_proto::object::Resource;
use tombolo_runtime::Tasks;
use tombolo_runtime::listen::{ListenError, tcp};

use crate::config::WrapperConfig;
use crate::localapi::{Anonymous, spawn_until};

mod access;
mod debug;
mod follow;
mod metrics;
mod project;
mod projected_kind;
mod room;
mod tls;
mod view;

#[cfg(test)]
mod tests;

pub use metrics::WrapperMetrics;

use follow::ProjectionFollower;
use project::Projector;
use projected_kind::ProjectedKind;
use tls::WrapperCertificate;
use view::View;

/// Time for current requests to finish when the agent stops.
const GRACE: Duration = Duration::from_secs(2);

/// Maximum number of concurrent watches; a further one is answered with 429. An idle one takes about 30 KB with
/// its own connection.
const WATCHES_MAX: usize = 1024;

/// Maximum number of concurrent connections; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = WATCHES_MAX + 256;

/// Maximum bytes of answers in transit, without the bodies that the view holds anyway.
const ANSWERS_LEN_MAX: usize = crate::localapi::ANSWERS_LEN_MAX;

/// Maximum bytes of events that are received at the same time.
const BODIES_LEN_MAX: usize = crate::localapi::BODIES_LEN_MAX;

/// Bits of a revision below the start time in milliseconds. So a restart continues above every revision given out
/// before. If the clock went back, it continues below and never reaches the old revisions. These are then refused with
/// 410 like outdated ones, and clients list again.
const REVISIONS_PER_MILLI_BITS: u32 = 20;

/// Why the wrapper cannot be served.
#[derive(Debug, Error)]
pub enum WrapperError {
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A file of its TLS settings cannot be read.
    #[error("cannot read {path} (setting {setting}): {source}", path = path.display())]
    File {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of its TLS settings cannot be used.
    #[error("cannot use {path} (setting {setting}): {problem}", path = path.display())]
    Tls {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl WrapperError {
    #[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
    fn tls(setting: &'static str, path: &Path, problem: impl ToString) -> Self {
        Self::Tls { setting, path: path.into(), problem: problem.to_string() }
    }
}

/// Where the endpoints of the Service `default/kubernetes` point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubernetes {
    /// To the API servers of the cluster.
    AsItIs,
    /// To the API of this node, which listens there. If pods cannot reach that address, to the one in the object's
    /// annotations.
    Local(SocketAddr),
}

impl Kubernetes {
    /// Where pods reach a listener on a node with this address.
    fn reached(listener: SocketAddr, node: Option<IpAddr>) -> Option<LocalApi> {
        let address = if listener.ip().is_unspecified() { node } else { Some(listener.ip()) };
        let address = address.filter(|address| !address.is_loopback() && !address.is_unspecified())?;
        Some(LocalApi { address, port: listener.port() })
    }
}

/// The inputs of the wrapper.
pub struct WrapperParts {
    /// Name of the Node object of this node.
    pub node: String,
    /// Holds Services, EndpointSlices and nodes. The wrapper serves no resource that the source does not have.
    pub source: Arc<dyn Store>,
    /// Receives events.
    pub writes: Arc<dyn WriteBackend>,
    /// Where `default/kubernetes` points.
    pub kubernetes: Kubernetes,
    /// Address of this node.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Addresses of this node's pods.
    pub pods: watch::Receiver<Arc<OwnPods>>,
    /// Start time: revisions begin above all that were given out earlier.
    pub started: SystemTime,
}

/// The wrapper with its listener bound.
pub struct Wrapper {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<WrapperCertificate>,
    /// How often the TLS files are read.
    reread: Duration,
    debug: bool,
}

/// The view of this node, kept up to date. The wrapper serves it, and the DNS server answers from it.
pub struct Projection {
    view: View,
    node: String,
    writes: Arc<dyn WriteBackend>,
}

impl Projection {
    /// Follows the source until `stop` is cancelled. A watch that falls more than `watch_queue` changes behind is
    /// ended.
    pub fn spawn(
        tasks: &Tasks,
        parts: WrapperParts,
        watch_queue: usize,
        metrics: Arc<WrapperMetrics>,
        stop: &CancellationToken,
    ) -> Self {
        let view = View::new(start(parts.started), watch_queue);
        let projector = Projector::new(&parts, view.served(), metrics);
        let (node, writes) = (parts.node.clone(), Arc::clone(&parts.writes));
        let follower = ProjectionFollower::new(parts, view.clone(), projector);
        tasks.spawn("wrapper-view", follower.run(stop.clone()));
        Self { view, node, writes }
    }

    /// The view as a store.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.view.clone())
    }
}

impl Wrapper {
    /// Binds the listener. Returns `None` if the settings turn the wrapper off.
    ///
    /// # Errors
    /// [`WrapperError`] names the setting to change.
    pub async fn bind(settings: &WrapperConfig) -> Result<Option<Self>, WrapperError> {
        let Some(address) = settings.address else { return Ok(None) };
        let tls = settings.tls.as_ref().map(WrapperCertificate::load).transpose()?;
        let listener = tcp("wrapper.address", address).await?;
        let address = listener.local_addr().unwrap_or(address);
        Ok(Some(Self { listener, address, tls, reread: tls::REREAD, debug: settings.debug }))
    }

    /// The address that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves the view until `stop` is cancelled.
    pub fn spawn(self, tasks: &Tasks, projection: &Projection, stop: &CancellationToken) {
        let Projection { view, node, writes } = projection;
        let mut api = ApiServer::builder(Arc::new(view.clone()), Registry::new(kinds()))
            .authorizer(Arc::new(access::WrapperAuthorizer))
            .observer(Arc::new(access::Logger))
            .writes(Arc::clone(writes))
            .check(Arc::new(view.clone()))
            .watches_max(WATCHES_MAX)
            .connections_max(CONNECTIONS_MAX)
            .answers_len_max(ANSWERS_LEN_MAX)
            .bodies_len_max(BODIES_LEN_MAX)
            .stop(stop.clone());
        if self.debug {
            api = api.route(debug::PREFIX, Arc::new(debug::Debug::new(node.clone(), view.clone())));
        }
        if self.tls.is_none() {
            api = api.authenticator(Arc::new(Anonymous));
        }
        let tls = self.tls.as_ref().map(WrapperCertificate::config);
        if let Some(certificate) = self.tls {
            spawn_until(tasks, "wrapper-certificate", stop, certificate.follow(self.reread));
        }
        let serving = Serving { tls, stop: stop.clone(), grace: GRACE };
        tasks.spawn("wrapper", serve(self.listener, api.build(), serving));
    }
}

/// The first revision of a wrapper that starts now.
fn start(now: SystemTime) -> Revision {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Revision(millis.saturating_mul(1 << REVISIONS_PER_MILLI_BITS).max(1))
}

/// The kinds that are shown, and events, which are accepted.
fn kinds() -> Kinds {
    let all = Kinds::builtin();
    let shown = |resource: &Resource| ProjectedKind::of(resource).is_some() || access::is_events(resource);
    let others: Vec<_> = all.iter().map(|kind| kind.resource.clone()).filter(|r| !shown(r)).collect();
    others.iter().fold(all, |kinds, other| kinds.without_group_resource(&other.group, &other.name))
}
