//! Connections to the API server under a client certificate that is renewed while cloudcore runs: by the embedded API server, by
//! kubeadm, by whatever keeps the files that a kubeconfig names.
//!
//! A connection shows the certificate that it began with for as long as it lives, and one that is in use lives for ever. So a new
//! certificate has new connections, and those before take no further calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

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
    current: Mutex<Current>,
}

struct Current {
    pool: Pool,
    /// The certificate that these connections show, as it is in its file.
    shown: Option<Vec<u8>>,
    looked: Instant,
}

impl Connections {
    /// Connections of a configuration. The file that it is from, and those that it names, are read again while they are used.
    ///
    /// # Errors
    /// As [`connections`].
    pub(super) fn new(config: Config, kubeconfig: Option<PathBuf>) -> Result<Self, Error> {
        let shown = certificate(&config.auth_info);
        let current = Mutex::new(Current { pool: connections(&config)?, shown, looked: Instant::now() });
        Ok(Self(Arc::new(Shared { config, kubeconfig, current })))
    }

    fn current(&self) -> Pool {
        let Shared { config, kubeconfig, current } = &*self.0;
        let mut current = current.lock();
        if current.looked.elapsed() >= LOOK_INTERVAL {
            current.looked = Instant::now();
            if let Err(error) = current.look(config, kubeconfig.as_ref()) {
                tracing::warn!(%error, "the client certificate for the API server cannot be read again; the one before is used");
            }
        }
        current.pool.clone()
    }
}

impl Current {
    /// Makes new connections where there is another certificate. A file that is being written may be read halfway: then it is
    /// looked at again.
    fn look(&mut self, config: &Config, kubeconfig: Option<&PathBuf>) -> Result<(), Unreadable> {
        let auth_info = match kubeconfig {
            // The user of the context that the file says, as it was taken at first.
            Some(path) => Config::try_from(Kubeconfig::read_from(path)?)?.auth_info,
            None => config.auth_info.clone(),
        };
        let now = certificate(&auth_info);
        if now.is_none() || now == self.shown {
            return Ok(());
        }
        let mut config = config.clone();
        config.auth_info = auth_info;
        self.pool = connections(&config)?;
        self.shown = now;
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
