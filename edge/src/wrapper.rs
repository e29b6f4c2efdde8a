//! The wrapper: the Kubernetes API as kube-proxy and CoreDNS of this node are to see it.
//!
//! Services, EndpointSlices and Endpoints are seen through the topology of the application grid: a Service that is closed
//! inside its unit has only the endpoints of this node's unit. What is shown changes when a node moves or a Service is
//! annotated, without a change of the object, so everything here has revisions of the wrapper's own. Nobody else may
//! mix them with those of the local API: the wrapper is for programs that read, and takes nothing but events.

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
mod part;
mod project;
mod room;
mod tls;
mod view;

#[cfg(test)]
mod tests;

pub use metrics::WrapperMetrics;

use follow::Follower;
use part::Part;
use project::Projector;
use tls::WrapperCertificate;
use view::View;

/// Time for requests under way when the agent stops.
const GRACE: Duration = Duration::from_secs(2);

/// Watches at the same time, at most; the next one is answered with 429. An idle one takes about 30 KB with
/// a connection of its own.
const WATCHES_MAX: usize = 1024;

/// Connections at the same time, at most; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = WATCHES_MAX + 256;

/// Bytes of answers on their way to clients, at most, besides the bodies that the view has anyway.
const ANSWERS_LEN_MAX: usize = crate::localapi::ANSWERS_LEN_MAX;

/// Bytes of events that are received at the same time, at most.
const BODIES_LEN_MAX: usize = crate::localapi::BODIES_LEN_MAX;

/// Bits of a revision below the milliseconds at which the wrapper was started: a restart goes on above every revision
/// that it has given out. When the clock went back it goes on below, and never comes so far: what is above is refused with
/// 410 like what is older, and clients list again.
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

/// Where the endpoints of the Service `default/kubernetes` lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubernetes {
    /// To the API servers of the cluster.
    AsItIs,
    /// To the API of this node, which listens there; on an address that pods do not reach, where annotations of the object say.
    Local(SocketAddr),
}

impl Kubernetes {
    /// Where pods reach a listener of a node with this address.
    fn reached(listener: SocketAddr, node: Option<IpAddr>) -> Option<LocalApi> {
        let address = if listener.ip().is_unspecified() { node } else { Some(listener.ip()) };
        let address = address.filter(|address| !address.is_loopback() && !address.is_unspecified())?;
        Some(LocalApi { address, port: listener.port() })
    }
}

/// What the wrapper works on.
pub struct WrapperParts {
    /// Name of the Node object of this node.
    pub node: String,
    /// Holds Services, slices, nodes; what it does not know, the wrapper does not answer.
    pub source: Arc<dyn Store>,
    /// Where events go.
    pub writes: Arc<dyn WriteBackend>,
    /// Where `default/kubernetes` leads.
    pub kubernetes: Kubernetes,
    /// Address of this node.
    pub address: watch::Receiver<Option<IpAddr>>,
    /// Where the pods of this node are.
    pub pods: watch::Receiver<Arc<OwnPods>>,
    /// When it is started: revisions begin above all that were given out before then.
    pub started: SystemTime,
}

/// The wrapper with its listener bound.
pub struct Wrapper {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<WrapperCertificate>,
    /// How often its files are read.
    reread: Duration,
    debug: bool,
}

/// What this node sees, kept up to date: the wrapper serves it, and the DNS server answers from it.
pub struct Projection {
    view: View,
    node: String,
    writes: Arc<dyn WriteBackend>,
}

impl Projection {
    /// Follows the source until `stop` is cancelled. A watcher that is more than `watch_queue` changes behind is ended.
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
        let follower = Follower::new(parts, view.clone(), projector);
        tasks.spawn("wrapper-view", follower.run(stop.clone()));
        Self { view, node, writes }
    }

    /// Everything that is seen, as a store.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.view.clone())
    }
}

impl Wrapper {
    /// Binds the listener; none when the settings turn the wrapper off.
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

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves what a node sees until `stop` is cancelled.
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

/// What is shown, and the events that are taken.
fn kinds() -> Kinds {
    let all = Kinds::builtin();
    let shown = |resource: &Resource| Part::of(resource).is_some() || access::is_events(resource);
    let others: Vec<_> = all.iter().map(|kind| kind.resource.clone()).filter(|r| !shown(r)).collect();
    others.iter().fold(all, |kinds, other| kinds.without_group_resource(&other.group, &other.name))
}
