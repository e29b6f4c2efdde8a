//! The two servers that are compared.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use tempfile::TempDir;
use tombolo_apiserver::{Embedded, Options};
use tombolo_cli::process::{Process, Reading};
use tombolo_runtime::drain;
use tombolo_testkit::{Child, ControlPlane, ControlPlaneOptions, wait_for};

use crate::client::Connection;

/// Bearer token of the administrator of either server.
const TOKEN: &str = "admintoken";

/// File in which the embedded server publishes its address.
const ADDRESS_FILE: &str = "address";

const START_WITHIN: Duration = Duration::from_secs(30);

/// Address and certificate authority of a server.
pub(crate) struct Endpoint {
    /// The address on which it listens.
    pub(crate) address: SocketAddr,
    /// PEM of the authority that signed its certificate.
    pub(crate) ca: String,
}

/// A server under load.
pub(crate) trait MeasuredServer {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// How it is reached.
    fn endpoint(&self) -> &Endpoint;

    /// Bearer token of the administrator.
    fn token(&self) -> &'static str {
        TOKEN
    }

    /// Kills the API server, starts it again on the stored data, and waits until it reports ready.
    ///
    /// # Errors
    /// When it does not start.
    fn restart(&mut self) -> impl Future<Output = Result<()>>;

    /// Processor time and memory of all its processes.
    ///
    /// # Errors
    /// When a process has ended.
    fn read(&self) -> Result<Reading>;
}

/// The embedded API server alone, in a process of its own.
pub(crate) struct EmbeddedServer {
    child: Child,
    endpoint: Endpoint,
    folder: TempDir,
}

impl EmbeddedServer {
    /// Starts it on an empty folder.
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (child, endpoint) = Self::run(folder.path()).await?;
        Ok(Self { child, endpoint, folder })
    }

    async fn run(folder: &Path) -> Result<(Child, Endpoint)> {
        let mut command = Command::new(std::env::current_exe()?);
        let child = Child::spawn("embedded", folder, command.arg("--serve").arg(folder))?;
        let file = folder.join(ADDRESS_FILE);
        wait_for("the embedded server to listen", START_WITHIN, || async {
            if file.exists() { Ok(()) } else { Err(child.log_tail(5)) }
        })
        .await;
        let address = std::fs::read_to_string(&file)?.parse()?;
        let ca = std::fs::read_to_string(folder.join("data/pki/ca.crt"))?;
        Ok((child, Endpoint { address, ca }))
    }
}

impl MeasuredServer for EmbeddedServer {
    fn name(&self) -> &'static str {
        "the embedded server"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn restart(&mut self) -> Result<()> {
        self.child.kill();
        std::fs::remove_file(self.folder.path().join(ADDRESS_FILE))?;
        (self.child, self.endpoint) = Self::run(self.folder.path()).await?;
        Connection::open(self).await?.call(Method::GET, "/readyz", Bytes::new()).await.map(drop)
    }

    fn read(&self) -> Result<Reading> {
        Process::new(self.child.id())?.read()
    }
}

/// Serves until the process is killed.
pub(crate) async fn serve(folder: &Path) -> Result<()> {
    let mut options = Options::new(folder.join("data"));
    options.admin_token = Some(TOKEN.to_owned());
    let bound = Embedded::start(options).await?;
    let half_written = folder.join("address.tmp");
    std::fs::write(&half_written, bound.addr().to_string())?;
    std::fs::rename(half_written, folder.join(ADDRESS_FILE))?;
    let (_trigger, drain) = drain::channel(Duration::ZERO);
    Ok(bound.run(drain).await?)
}

/// kube-apiserver with etcd.
pub(crate) struct RealServer {
    plane: ControlPlane,
    endpoint: Endpoint,
}

impl RealServer {
    /// Starts both on an empty folder.
    pub(crate) async fn start() -> Result<Self> {
        let options = ControlPlaneOptions { measured: true, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(options).await?;
        let address = plane.url().trim_start_matches("https://").parse()?;
        let ca = plane.ca_pem()?;
        Ok(Self { plane, endpoint: Endpoint { address, ca } })
    }
}

impl MeasuredServer for RealServer {
    fn name(&self) -> &'static str {
        "kube-apiserver"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn restart(&mut self) -> Result<()> {
        self.plane.stop_api_server();
        self.plane.start_api_server().await
    }

    fn read(&self) -> Result<Reading> {
        let mut sum = Reading::default();
        for id in self.plane.process_ids() {
            let one = Process::new(id).context("a server has ended")?.read()?;
            sum.cpu += one.cpu;
            sum.resident += one.resident;
        }
        Ok(sum)
    }
}
