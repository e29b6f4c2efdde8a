//! Connections to the API server under a client certificate that is renewed while cloudcore runs: by the embedded API server, by
//! kubeadm, by whatever keeps the files that a kubeconfig names.
//!
//! A connection shows the certificate that it began with for as long as it lives, and one that is in use lives for ever. So a new
//! certificate has new connections, and those before take no further calls.

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
use tower::Service;

use super::client::{Pool, connections};

/// How long a certificate that was renewed may go unnoticed. It is so long before the end of the one before (for the embedded
/// server half a year) that nobody waits for it; kube reads files of tokens again as often.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Connections under the certificate that there is now. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connections(Arc<Shared>);

struct Shared {
    config: Config,
    /// Where `config` is from.
    kubeconfig: Option<PathBuf>,
    pool: ArcSwap<Pool>,
    /// When the files were looked at last.
    looked: Mutex<Instant>,
    /// The certificate that the connections show, as it is in its file. Whoever looks has it.
    shown: Mutex<Option<Vec<u8>>>,
}

impl Connections {
    /// Connections of a configuration. The file that it is from, and those that it names, are read again while they are used.
    ///
    /// # Errors
    /// As [`connections`].
    pub(super) fn new(config: Config, kubeconfig: Option<PathBuf>) -> Result<Self, Error> {
        let shown = Mutex::new(certificate(&config.auth_info));
        let (pool, looked) = (ArcSwap::from_pointee(connections(&config)?), Mutex::new(Instant::now()));
        Ok(Self(Arc::new(Shared { config, kubeconfig, pool, looked, shown })))
    }

    /// The present ones. A call never waits for the files, whose disk may not answer: what is found there is for later ones.
    fn current(&self) -> Pool {
        if self.0.is_due() {
            let shared = Arc::clone(&self.0);
            tokio::task::spawn_blocking(move || shared.look());
        }
        Pool::clone(&self.0.pool.load())
    }
}

impl Shared {
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock();
        let is_due = looked.elapsed() >= LOOK_INTERVAL;
        if is_due {
            *looked = Instant::now();
        }
        is_due
    }

    fn look(&self) {
        // The disk has not answered the look before.
        let Some(mut shown) = self.shown.try_lock() else { return };
        if let Err(error) = self.follow(&mut shown) {
            tracing::warn!(%error, "the client certificate for the API server cannot be read again; the one before is used");
        }
    }

    /// Makes new connections where there is another certificate. A file that is being written may be read halfway: then it is
    /// looked at again.
    fn follow(&self, shown: &mut Option<Vec<u8>>) -> Result<(), Unreadable> {
        let auth_info = match &self.kubeconfig {
            // The user of the context that the file says, as it was taken at first.
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
        tracing::info!("the client certificate for the API server is another one; connections are made anew");
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Unreadable {
    Kubeconfig(#[from] KubeconfigError),
    Identity(#[from] Error),
}

/// The certificate that a user shows, in the order in which kube looks for it.
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
