//! The HTTP client of cloudcore, which is kube's but for what its connections keep.

use std::path::PathBuf;
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config, Error};
use tower::{BoxError, ServiceBuilder};
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::trace::TraceLayer;
use tracing::Span;

use super::identity::Connections;

#[cfg(test)]
mod tests;

/// Where kube logs its calls: who filters them need not know who makes them.
const TARGET: &str = "kube_client::client::builder";

/// Bytes that a connection reads at a time, about, and keeps for the next: hyper's own bound is 400 KiB, and there is a connection for each
/// watch. The head of an answer has to be smaller.
const BUFFER_LEN_MAX: usize = 16 * 1024;

/// Connections that wait for the next call. As many calls as the gate lets through have one each while they run.
const IDLE_MAX: usize = 256;

/// Time that a connection waits for the next call.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Time without a word on a connection after which the peer's kernel is asked whether it is there: Go's, and so client-go's.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which a connection is over whose peer acknowledges nothing. A peer that is gone without a word would keep a watch
/// silent for minutes, and each of the connections that wait would take a call with it.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);

/// What `Client::try_from` makes of a configuration, in the same order of layers, with small buffers and nothing that repeats calls.
///
/// A call that was refused, or whose answer was lost, may have been carried out: a second one would be another deletion or another
/// object. And it would be repeated in its place, which others wait for. Whoever reads for cloudcore tries again itself, after it
/// has given its place back; a node hears what the API server says.
///
/// # Errors
/// The configuration holds unusable certificates or addresses, or names a proxy.
pub(super) fn client(config: Config) -> Result<Client, Error> {
    following(config, None)
}

/// The same, of the configuration in a kubeconfig: its client certificate is read again from there.
///
/// # Errors
/// As [`client`].
pub(super) fn following(mut config: Config, kubeconfig: Option<PathBuf>) -> Result<Client, Error> {
    config.default_retry = false;
    if let Some(proxy) = &config.proxy_url {
        // The rest of the address may hold a password.
        let host = proxy.host().unwrap_or_default();
        let text = format!(
            "the API server can be reached directly alone, and the kubeconfig names a proxy at {host:?}: take out proxy-url"
        );
        return Err(Error::Service(text.into()));
    }
    // Whoever was first decides: an error says that it is there.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(span)
                .on_request(())
                .on_response(status)
                .on_body_chunk(())
                .on_eos(())
                .on_failure(|why: ServerErrorsFailureClass, _: Duration, span: &Span| failure(&why, span)),
        )
        .map_err(BoxError::from)
        .service(Connections::new(config.clone(), kubeconfig)?);
    Ok(Client::new(service, config.default_namespace))
}

/// The configuration without the proxy that only the environment names, for all that calls the API server. client-go would ask
/// NO_PROXY too, and never uses one for the machine itself; here there is none to use.
#[must_use]
pub fn without_proxy_of_environment(config: Config) -> Config {
    without_proxies(
        config,
        &["HTTPS_PROXY", "https_proxy"].map(|name| std::env::var(name).unwrap_or_default()),
    )
}

fn without_proxies(mut config: Config, environment: &[String; 2]) -> Config {
    let is_named =
        |proxy: &Uri| environment.iter().any(|named| named.parse().is_ok_and(|named: Uri| named == *proxy));
    if let Some(proxy) = config.proxy_url.take_if(|proxy| is_named(proxy)) {
        let host = proxy.host().unwrap_or_default();
        tracing::warn!(host, "HTTPS_PROXY is not used: the API server is reached directly");
    }
    config
}

/// Connections of one client certificate, or of none.
pub(super) type Pool = legacy::Client<TimeoutConnector<hyper_rustls::HttpsConnector<HttpConnector>>, Body>;

/// Connections under the client certificate of a configuration, where it has one.
///
/// # Errors
/// The configuration holds unusable certificates.
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

/// Named as [OpenTelemetry has it](https://opentelemetry.io/docs/specs/semconv/http/), and kube.
fn span(request: &Request<Body>) -> Span {
    tracing::debug_span!(
        target: TARGET,
        "HTTP",
        http.method = %request.method(),
        http.url = %request.uri(),
        http.status_code = tracing::field::Empty,
        otel.name = request.extensions().get::<&'static str>().unwrap_or(&"HTTP"),
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
    )
}

fn status(response: &Response<Incoming>, _: Duration, span: &Span) {
    let status = response.status();
    span.record("http.status_code", status.as_u16());
    if status.is_client_error() || status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

fn failure(why: &ServerErrorsFailureClass, span: &Span) {
    span.record("otel.status_code", "ERROR");
    tracing::error!(target: TARGET, "a call of the API server failed: {why}");
}
