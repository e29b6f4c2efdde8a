//! Connections to the API server. They are like kube's, except for the buffers that they keep.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::{Config, Error};

/// Approximate number of bytes that a connection reads at a time and keeps for the next read. hyper's own bound is 400
/// KiB, and there is one connection per watch. The head of an answer must be smaller than this.
pub(super) const BUFFER_LEN_MAX: usize = 16 * 1024;

/// Maximum number of idle connections. Each running call has a connection, as many as the gate permits.
const IDLE_MAX: usize = 256;

/// Time after which an idle connection is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Idle time after which TCP keepalive probes start, as in Go and so in client-go.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which a connection is closed whose peer acknowledges nothing. Otherwise a peer that disappeared would
/// keep a watch silent for minutes, and each idle connection would cost one failed call.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);

/// Connections with one client certificate, or with none.
pub(super) type Pool = legacy::Client<TimeoutConnector<hyper_rustls::HttpsConnector<HttpConnector>>, Body>;

/// Connections with the client certificate of a configuration, if it has one.
///
/// # Errors
/// The configuration holds invalid certificates.
pub(super) fn connections(config: &Config) -> Result<Pool, Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_tcp_user_timeout(Some(UNANSWERED_MAX));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let mut builder = legacy::Builder::new(TokioExecutor::new());
    builder.http1_max_buf_size(BUFFER_LEN_MAX);
    builder.pool_max_idle_per_host(IDLE_MAX).pool_idle_timeout(IDLE_LIMIT).pool_timer(TokioTimer::new());
    Ok(builder.build(connector))
}
