//! The servers under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::write::LocalWrites;
use tombolo_apiserver::{Embedded, Options};
use tombolo_runtime::{Trigger, drain};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions};
use tombolo_tests::world::{Api, Transport, World};

use crate::line::{Answer, Line, normalise};
use crate::lines::definitions::Case;

/// Token of the embedded server's administrator, who is the same user as on the real server.
const TOKEN: &str = "conformance";

/// Name of the edge node.
const EDGE: &str = "edge-a";

/// Time for pending requests at the end.
const GRACE: Duration = Duration::from_secs(1);

/// Time for writes to take effect.
const SETTLE_MAX: Duration = Duration::from_secs(20);

/// Interval between repeated requests.
const PAUSE: Duration = Duration::from_millis(100);

/// A server under test.
pub(crate) struct Target {
    client: Client,
    _running: Running,
}

/// Parts that must live as long as the target.
#[expect(dead_code, reason = "held until the target is dropped")]
enum Running {
    Real(Box<ControlPlane>),
    Embedded(Trigger, TempDir),
    Library(tokio_util::sync::DropGuard),
    Edge(Box<World>),
}

impl Target {
    /// kube-apiserver with etcd.
    pub(crate) async fn real() -> Result<Self> {
        let plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
        Ok(Self { client: plane.admin_client().await?, _running: Running::Real(Box::new(plane)) })
    }

    /// The server of `tombolo apiserver`.
    pub(crate) async fn embedded() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut options = Options::new(folder.path().join("data"));
        options.admin_token = Some(TOKEN.to_owned());
        let bound = Embedded::start(options).await?;
        let (trigger, drain) = drain::channel(GRACE);
        tokio::spawn(bound.run(drain));
        let mut kubeconfig =
            serde_json::to_value(Kubeconfig::read_from(folder.path().join("data/kubeconfig"))?)?;
        kubeconfig["users"][0]["user"] = serde_json::json!({ "token": TOKEN });
        let kubeconfig = serde_json::from_value(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, _running: Running::Embedded(trigger, folder) })
    }

    /// The library with a store in memory: without admission and controllers, it serves like edgecore's local API.
    pub(crate) async fn library(definition: &Value) -> Result<Self> {
        let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
        let stop = CancellationToken::new();
        let kinds = tombolo_catalog::kinds().with_crd(definition).expect("the definition is valid");
        let api = ApiServer::builder(Arc::new(store.clone()), Registry::new(kinds))
            .writes(Arc::new(LocalWrites::new(Arc::new(store))))
            .endpoint("authorization.k8s.io", "selfsubjectaccessreviews", "", Arc::new(Echo))
            .stop(stop.clone())
            .build();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let serving = Serving { tls: None, stop: stop.clone(), grace: GRACE };
        tokio::spawn(serve(listener, api, serving));
        let client = Client::try_from(Config::new(url.parse()?))?;
        Ok(Self { client, _running: Running::Library(stop.drop_guard()) })
    }

    /// The local API of edgecore with a cloud behind it, for an account that may do everything.
    pub(crate) async fn edge(api: Api) -> Result<Self> {
        let mut world = World::start(api, Transport::Quic).await?;
        world.start_edge(EDGE).await?;
        world.converges(EDGE).await;
        // The first answer is compared, so this client does not retry.
        let client = world.edge_administrator(EDGE).await?;
        Ok(Self { client, _running: Running::Edge(Box::new(world)) })
    }

    /// Sends a request and returns the compared parts of the answer.
    pub(crate) async fn ask(&self, line: &Line) -> Answer {
        let mut answer = self.raw(line).await;
        normalise(&mut answer.body);
        answer
    }

    /// Repeats a request until the answer has the expected code or [`SETTLE_MAX`] has passed; returns the last answer.
    pub(crate) async fn settle(&self, case: &Case) -> Answer {
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            let answer = self.ask(&case.line).await;
            if case.until.is_none_or(|code| code == answer.code) || Instant::now() > deadline {
                return answer;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends several requests concurrently; the answers are in the order of the lines.
    pub(crate) async fn ask_all(&self, lines: impl Iterator<Item = Line>, at_once: usize) -> Vec<Answer> {
        let answers = lines.map(|line| async move {
            let mut answer = self.ask(&line).await;
            if let Value::Array(events) = &mut answer.body {
                // The timing of other bookmarks is not compared.
                events.retain(|event| {
                    event["type"] != "BOOKMARK" || event["object"]["metadata"]["annotations"].is_object()
                });
            }
            answer
        });
        futures::stream::iter(answers).buffered(at_once).collect().await
    }

    /// The unprocessed answer.
    pub(crate) async fn raw(&self, line: &Line) -> Answer {
        self.try_raw(line).await.unwrap()
    }

    /// The same from a server that may break the connection.
    pub(crate) async fn try_raw(&self, line: &Line) -> Result<Answer> {
        let mut request =
            Request::builder().method(line.method.as_str()).uri(&line.path).header("user-agent", &line.agent);
        for (name, value) in [("accept", &line.accept), ("content-type", &line.content_type)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        let body = kube::client::Body::from(line.body.as_bytes().to_vec());
        let response = self.client.send(request.body(body)?).await?;
        let status = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let mut warnings: Vec<_> =
            warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
        // Warnings about rules come in the random order of a Go map.
        warnings.sort_unstable();
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (media, keeping) = (header("content-type"), header("cache-control"));
        let bytes = response.into_body().collect().await?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let events =
            || serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<serde_json::Result<_>>();
        let watched = line.path.contains("watch=1") && status == 200;
        let value = if watched { events().map(Value::Array) } else { serde_json::from_slice(&bytes) };
        let layout = match bytes.as_ref() {
            _ if watched => "events",
            [b'{', b'\n', ..] => "indented",
            [b'{', ..] => "compact",
            _ => "other",
        };
        // The end of a watch depends on whether it has events.
        let end = if watched || bytes.ends_with(b"\n") { "line" } else { "no line" };
        let written = format!("{media}, {keeping}, {layout}, {end}");
        Ok(Answer { code: status, warnings, written, body: value.unwrap_or_else(|_| text()) })
    }
}

/// Returns a request as its answer.
struct Echo;

impl Endpoint for Echo {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(async move { Ok((StatusCode::CREATED, request.body)) })
    }
}
