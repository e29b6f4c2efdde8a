//! The cloudcore under replay: one that is started for the run, or an existing one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Client;
use tombolo_apiserver as embedded;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_link::client::{self, Choice};
use tombolo_runtime::{Drain, Tasks, Trigger, drain};

use crate::{cluster, token};

/// How long shutdown waits for the parts.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// A cloudcore, and an administrator client of its cluster.
pub struct ReplayTarget {
    pub(super) websocket: String,
    /// `None` if this cloudcore is reached over WebSocket only.
    pub(super) quic: Option<String>,
    pub(super) join: String,
    pub(super) token: String,
    pub(super) client: Client,
    own: Option<Own>,
}

/// Parts that were started for the run.
struct Own {
    cloud: StartedPart,
    api: StartedPart,
    _folder: tempfile::TempDir,
}

struct StartedPart {
    trigger: Trigger,
    tasks: Tasks,
}

impl StartedPart {
    fn new() -> (Self, Drain) {
        let (trigger, drain) = drain::channel(DRAIN_GRACE);
        (Self { trigger, tasks: Tasks::new() }, drain)
    }

    async fn stop(self) {
        self.trigger.start();
        self.trigger.finished().await;
        if let Err(error) = self.tasks.shutdown(DRAIN_GRACE).await {
            tracing::debug!(%error, "error while stopping");
        }
    }
}

impl ReplayTarget {
    /// An existing cloudcore, by the addresses of its listeners and its join endpoints.
    ///
    /// # Errors
    /// When its cluster cannot be reached.
    pub async fn given(websocket: &str, quic: Option<&str>, join: &str, kubeconfig: &Path) -> Result<Self> {
        let client = Client::try_from(cluster::config(kubeconfig).await?)?;
        let token = token::make(client.clone(), cluster::NAMESPACE, &every_node()).await?;
        let (websocket, quic) = (websocket.to_owned(), quic.map(str::to_owned));
        Ok(Self { websocket, quic, join: join.to_owned(), token, client, own: None })
    }

    /// The address for this transport.
    pub(super) fn dial(&self, choice: Choice) -> Result<client::Target> {
        let (host, websocket_port) = address("the WebSocket listener", &self.websocket)?;
        let (host, quic_port) = match (&self.quic, choice) {
            (Some(quic), _) => {
                let (quic_host, port) = address("the QUIC listener", quic)?;
                (if choice == Choice::Quic { quic_host } else { host }, port)
            }
            (None, Choice::WebSocket) => (host, 0),
            (None, _) => bail!("the transcript was recorded over QUIC: pass --quic HOST:PORT"),
        };
        Ok(client::Target { host, websocket_port, quic_port, choice })
    }

    /// Starts an API server and a cloudcore in this process.
    ///
    /// # Errors
    /// When a part cannot be started.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let (api, api_drain) = StartedPart::new();
        let bound = embedded::Embedded::start(embedded::Options::new(folder.path().join("cluster"))).await?;
        let kube = cluster::config(bound.kubeconfig()).await?;
        api.tasks.spawn("embedded API server", bound.run(api_drain));
        let client = Client::try_from(kube.clone())?;
        let (cloud, cloud_drain) = StartedPart::new();
        let mut config = tombolo_cloud::Config::local(&folder.path().join("cloud"));
        // The run's API must contain only what the recording contains, without objects of controllers.
        config.grids.enabled = false;
        let bound = tombolo_cloud::App::build(config, tombolo_cloud::Kube::from_config(kube)?).await?;
        let websocket = bound.websocket_addr().context("cloudcore has no WebSocket listener")?.to_string();
        let quic = bound.quic_addr().map(|address| address.to_string());
        let join = bound.join_addr().to_string();
        let token = bound.create_token(&every_node()).await?;
        cloud.tasks.spawn("cloudcore", bound.run(cloud_drain));
        Ok(Self { websocket, quic, join, token, client, own: Some(Own { cloud, api, _folder: folder }) })
    }

    /// Stops the parts that were started for the run, the API server last.
    pub async fn stop(self) {
        if let Some(own) = self.own {
            own.cloud.stop().await;
            own.api.stop().await;
        }
    }
}

/// A token for the recorded nodes; their Nodes may exist in the cluster.
fn every_node() -> NewToken {
    NewToken { names: Vec::new(), uses: u32::MAX, life: Duration::from_secs(86_400), replace: true }
}

fn address(what: &str, text: &str) -> Result<(String, u16)> {
    let (host, port) = text.rsplit_once(':').with_context(|| format!("{what}: {text} is not HOST:PORT"))?;
    let port = port.parse().with_context(|| format!("{what}: {text} has no valid port"))?;
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}
