//! cloudcore's HTTP client. It is like kube's, except for its connections and for retries.

use std::path::PathBuf;
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config, Error};
use tower::{BoxError, ServiceBuilder};
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::trace::TraceLayer;
use tracing::Span;

use super::identity::Connections;

#[cfg(test)]
mod tests;

/// The log target of kube's own calls, so that log filters work for both clients.
const TARGET: &str = "kube_client::client::builder";

/// The counterpart of `Client::try_from`, with the same order of layers, but with small buffers and without retries.
///
/// A call that was refused, or whose answer was lost, may have been executed: a retry could delete or create one more
/// object. It would also keep its slot, which others wait for. Readers in cloudcore retry by themselves, after they
/// have released the slot; a node receives what the API server says.
///
/// # Errors
/// The configuration holds invalid certificates or addresses, or names a proxy.
pub(super) fn client(config: Config) -> Result<Client, Error> {
    following(config, None)
}

/// The same, with the configuration of a kubeconfig file, from which its client certificate is re-read.
///
/// # Errors
/// As [`client`].
pub(super) fn following(mut config: Config, kubeconfig: Option<PathBuf>) -> Result<Client, Error> {
    config.default_retry = false;
    if let Some(proxy) = &config.proxy_url {
        // The rest of the address may contain a password.
        let host = proxy.host().unwrap_or_default();
        let text = format!(
            "the API server can only be reached directly, but the kubeconfig names a proxy at {host:?}: remove proxy-url"
        );
        return Err(Error::Service(text.into()));
    }
    // The first installed provider counts; an error only says that there is one already.
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

/// The configuration without a proxy that only the environment names, for all clients of the API server. client-go
/// would also honour NO_PROXY, and never uses a proxy for the local machine; here no proxy is supported.
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

/// The field names are those of [OpenTelemetry](https://opentelemetry.io/docs/specs/semconv/http/), as in kube.
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
    tracing::error!(target: TARGET, "a call to the API server failed: {why}");
}
