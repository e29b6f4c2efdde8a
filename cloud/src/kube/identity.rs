//! Connections to the API server with a client certificate that is renewed while cloudcore runs: by the embedded API
//! server, by kubeadm, or by any other tool that maintains the files of a kubeconfig.
//!
//! A connection keeps the certificate with which it was opened, and a busy connection never closes. So a new
//! certificate gets new connections, and the earlier ones receive no further calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use kube::client::Body;
use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};
use kube::{Config, Error};
use parking_lot::Mutex;
use tokio::time::Instant;
use tombolo_runtime::blocking;
use tower::Service;

use super::pool::{Pool, connections};

/// Longest time until a renewed certificate is noticed. Renewal happens so long before the old certificate expires
/// (half a year for the embedded server) that this delay does no harm. kube re-reads token files at the same interval.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Connections with the present certificate. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connections(Arc<ConnectionsInner>);

struct ConnectionsInner {
    config: Config,
    /// The file that `config` was read from.
    kubeconfig: Option<PathBuf>,
    pool: ArcSwap<Pool>,
    /// Time of the last look at the files.
    looked: Mutex<Instant>,
    /// The certificate that the connections present, as in its file. Locked during a look.
    shown: Mutex<Option<Vec<u8>>>,
}

impl Connections {
    /// Connections for a configuration. Its kubeconfig, and the files that it names, are re-read while the connections
    /// are used.
    ///
    /// # Errors
    /// As [`connections`].
    pub(super) fn new(config: Config, kubeconfig: Option<PathBuf>) -> Result<Self, Error> {
        let shown = Mutex::new(certificate(&config.auth_info));
        let (pool, looked) = (ArcSwap::from_pointee(connections(&config)?), Mutex::new(Instant::now()));
        Ok(Self(Arc::new(ConnectionsInner { config, kubeconfig, pool, looked, shown })))
    }

    /// The present connections. A call never waits for the files, because their disk may hang: a certificate that is
    /// found serves later calls.
    fn current(&self) -> Pool {
        if self.0.is_due() {
            let shared = Arc::clone(&self.0);
            drop(blocking::run(move || shared.look()));
        }
        Pool::clone(&self.0.pool.load())
    }
}

impl ConnectionsInner {
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock();
        let is_due = looked.elapsed() >= LOOK_INTERVAL;
        if is_due {
            *looked = Instant::now();
        }
        is_due
    }

    fn look(&self) {
        // The previous look is still waiting for the disk.
        let Some(mut shown) = self.shown.try_lock() else { return };
        if let Err(error) = self.follow(&mut shown) {
            tracing::warn!(%error, "cannot reload the client certificate for the API server; using the previous one");
        }
    }

    /// Opens new connections if the certificate has changed. A file that is being written may be read halfway; it is
    /// then read again later.
    fn follow(&self, shown: &mut Option<Vec<u8>>) -> Result<(), Unreadable> {
        let auth_info = match &self.kubeconfig {
            // The user of the current context in the file, as at the start.
            Some(path) => Config::try_from(Kubeconfig::read_from(path)?)?.auth_info,
            None => self.config.auth_info.clone(),
        };
        let now = certificate(&auth_info);
        if now.is_none() || now == *shown {
            return Ok(());
        }
        let mut config = self.config.clone();
        config.auth_info = auth_info;
        self.pool.store(Arc::new(connections(&config)?));
        *shown = now;
        tracing::info!("the client certificate for the API server has changed; opening new connections");
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Unreadable {
    Kubeconfig(#[from] KubeconfigError),
    Identity(#[from] Error),
}

/// The client certificate of a user, from the same places and in the same order as in kube.
fn certificate(user: &AuthInfo) -> Option<Vec<u8>> {
    let data = user.client_certificate_data.as_ref().map(|data| data.clone().into_bytes());
    data.or_else(|| std::fs::read(user.client_certificate.as_ref()?).ok())
}

impl Service<Request<Body>> for Connections {
    type Response = Response<Incoming>;
    type Error = legacy::Error;
    type Future = legacy::ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.current().request(request)
    }
}

#[cfg(test)]
mod tests;
