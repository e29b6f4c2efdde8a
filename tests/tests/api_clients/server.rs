//! An embedded API server behind a relay that can cut connections.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rand::rngs::StdRng;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tombolo_apiserver::{Embedded, EmbeddedError, Options};
use tombolo_runtime::{Trigger, drain};
use tombolo_tests::world::balancer::Balancer;

/// Time for a drain before it is aborted.
const GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Server {
    folder: TempDir,
    relay: Balancer,
    running: Option<Running>,
    cuts: usize,
}

struct Running {
    trigger: Trigger,
    task: JoinHandle<Result<(), EmbeddedError>>,
}

impl Server {
    pub(crate) async fn start() -> Result<Self> {
        // Installing the same provider a second time fails, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir()?;
        let relay = Balancer::start(Vec::new()).await?;
        let mut server = Self { folder, relay, running: None, cuts: 0 };
        server.run().await?;
        let mut config = Kubeconfig::read_from(server.data_dir().join("kubeconfig"))?;
        for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(format!("https://127.0.0.1:{}", server.relay.port));
        }
        std::fs::write(server.kubeconfig(), serde_json::to_string(&config)?)?;
        Ok(server)
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Kubeconfig of the server behind the relay.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("relayed.kubeconfig")
    }

    /// A client whose connections are never cut.
    pub(crate) async fn client(&self) -> Result<Client> {
        client(&self.data_dir().join("kubeconfig")).await
    }

    async fn run(&mut self) -> Result<()> {
        let bound = Embedded::start(Options::new(self.data_dir())).await?;
        self.relay.prefer(bound.addr().port());
        let (trigger, drain) = drain::channel(GRACE);
        self.running = Some(Running { trigger, task: tokio::spawn(bound.run(drain)) });
        Ok(())
    }

    /// Stops the server and restarts it with the same data: its history of changes is lost, so watches must list again.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        let running = self.running.take().context("the server is not running")?;
        running.trigger.start();
        running.trigger.finished().await;
        running.task.await??;
        self.run().await
    }

    /// Cuts one in this many relayed connections.
    pub(crate) fn cut(&mut self, one_in: u32, rng: &mut StdRng) {
        self.cuts += self.relay.cut_one_in(one_in, rng);
    }

    /// Connections cut so far.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts
    }
}

/// A client with connections of its own.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let parsed = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
