//! The HTTP client of cloudcore, which is kube's but for what its connections keep.

use std::time::Duration;

use http::{Request, Response};
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

/// Where kube logs its calls: who filters them need not know who makes them.
const TARGET: &str = "kube_client::client::builder";

/// Bytes that a connection reads at a time, about, and keeps for the next: hyper's own bound is 400 KiB, and there is a connection for each
/// watch. The head of an answer has to be smaller.
const BUFFER_LEN_MAX: usize = 16 * 1024;

/// Connections that wait for the next call. As many calls as the gate lets through have one each while they run.
const IDLE_MAX: usize = 256;

/// Time that a connection waits for the next call.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// What `Client::try_from` makes of a configuration, in the same order of layers, with small buffers and nothing that repeats calls.
///
/// A call that was refused, or whose answer was lost, may have been carried out: a second one would be another deletion or another
/// object. And it would be repeated in its place, which others wait for. Whoever reads for cloudcore tries again itself, after it
/// has given its place back; a node hears what the API server says.
///
/// # Errors
/// The configuration holds unusable certificates or addresses, or names a proxy, which kube says that it is built without.
pub(super) fn client(mut config: Config) -> Result<Client, Error> {
    config.default_retry = false;
    if config.proxy_url.is_some() {
        return Client::try_from(config);
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
        .service(connections(&config)?);
    Ok(Client::new(service, config.default_namespace))
}

type Connector = TimeoutConnector<hyper_rustls::HttpsConnector<HttpConnector>>;

fn connections(config: &Config) -> Result<legacy::Client<Connector, Body>, Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Method;
    use http_body_util::BodyExt as _;
    use kube::config::AuthInfo;
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tombolo_proto::NodeId;

    use super::*;
    use crate::kube::call::Refusal;
    use crate::kube::{ApiCall, Caller, Kube};

    const BODY_LEN: usize = 8 * 1024 * 1024;

    /// A server that answers each call with a long body, at once. What it is asked is told there.
    async fn server(asked: Arc<Mutex<String>>) -> Config {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 4096];
                while !asked.lock().ends_with("\r\n\r\n") {
                    let len = stream.read(&mut head).await.unwrap();
                    asked.lock().push_str(std::str::from_utf8(&head[..len]).unwrap());
                }
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_LEN}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&vec![b'x'; BODY_LEN]).await.unwrap();
            }
        });
        Config::new(format!("http://{address}/base").parse().unwrap())
    }

    #[tokio::test]
    async fn a_long_answer_comes_in_pieces_that_are_small() {
        let asked = Arc::default();
        let mut config = server(Arc::clone(&asked)).await;
        config.auth_info = AuthInfo { token: Some("t".to_owned().into()), ..AuthInfo::default() };
        config.headers = vec![(http::HeaderName::from_static("x-more"), http::HeaderValue::from_static("m"))];
        let request = Request::get("/api?x=1").body(Body::empty()).unwrap();
        let mut body = client(config).unwrap().send(request).await.unwrap().into_body();
        let (mut all, mut most) = (0, 0);
        while let Some(frame) = body.frame().await {
            let len = frame.unwrap().into_data().unwrap().len();
            (all, most) = (all + len, most.max(len));
        }
        assert_eq!(all, BODY_LEN);
        // A buffer that grows has room for twice as much.
        assert!(most <= 2 * BUFFER_LEN_MAX, "{most} bytes at a time");
        let asked = asked.lock().to_lowercase();
        for part in ["get /base/api?x=1 http/1.1\r\n", "authorization: bearer t\r\n", "x-more: m\r\n"] {
            assert!(asked.contains(part), "{part} in {asked}");
        }
        assert!(!asked.contains("accept-encoding"), "{asked}");
    }

    #[tokio::test]
    async fn a_proxy_that_cannot_be_used_is_an_error() {
        let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some("socks5://127.0.0.1:2".parse().unwrap());
        let error = client(config).err().expect("no client").to_string();
        assert!(error.contains("socks5"), "{error}");
    }

    /// A server that gives every call this answer, and counts the calls.
    async fn refusing(answer: String) -> (Kube, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut head, mut part) = (Vec::new(), [0; 4096]);
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    let len = stream.read(&mut part).await.unwrap();
                    head.extend_from_slice(&part[..len]);
                }
                counted.fetch_add(1, Ordering::SeqCst);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (Kube::from_config(config).unwrap(), calls)
    }

    /// A deletion whose answer was lost would take what came in the place of what it has deleted, and what a budget refuses
    /// it refuses again.
    #[tokio::test]
    async fn no_call_is_made_twice_and_a_refusal_says_when_to_come_again() {
        let node = NodeId::parse("n").unwrap();
        let budget = r#"{"kind":"Status","message":"no","details":{"causes":[{"reason":"DisruptionBudget"}],"retryAfterSeconds":3}}"#;
        let pod = "/api/v1/namespaces/d/pods/p";
        let eviction = ApiCall::json(Method::POST, format!("{pod}/eviction"), &json!({}));
        let delete = ApiCall { method: Method::DELETE, ..ApiCall::get(pod) };
        let create = ApiCall::json(Method::POST, "/api/v1/namespaces/d/pods", &json!({}));
        for (code, body, call) in [
            (429, budget, &eviction),
            (429, "too many", &eviction),
            (503, "", &create),
            (504, "", &delete),
            (503, "", &ApiCall::get(pod)),
        ] {
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {code} x\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {length}"
            );
            let (kube, calls) = refusing(format!("{head}\r\n\r\n{body}")).await;
            for caller in [Caller::Node(&node), Caller::Token(&node, "t")] {
                let before = calls.swap(0, Ordering::SeqCst);
                let answer = kube.call(caller, call.clone()).await.unwrap();
                assert_eq!(
                    (answer.code, calls.load(Ordering::SeqCst)),
                    (code, 1),
                    "{call:?}, before: {before}"
                );
                if body == budget {
                    assert_eq!(answer.body, budget, "as it was said");
                } else if code == 429 {
                    let Refusal { message, details, .. } = answer.refusal();
                    let seconds = details.map(|details| details.retry_after_seconds);
                    assert_eq!((message.as_deref(), seconds), (Some("too many"), Some(1)));
                }
            }
        }
    }
}
