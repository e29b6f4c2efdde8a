//! The servers that the suite is run against, each with kube-controller-manager, kube-scheduler and one Ready node.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tombolo_testkit::{Components, ControlPlane, ControlPlaneOptions, ReadyNode, components};

use crate::world::{Api, Transport, World};

/// Name of the node.
const NODE: &str = "e2e-node";

/// The server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerUnderTest {
    /// etcd and kube-apiserver.
    Real,
    /// `tombolo apiserver`.
    Embedded,
}

/// A running cluster; everything ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The Kubernetes binaries.
    pub binaries: Components,
    // The drop order: clients of a server before the server.
    _node: ReadyNode,
    _server: RunningServer,
}

#[derive(Debug)]
enum RunningServer {
    Real { _plane: Box<ControlPlane> },
    Embedded { _world: Box<World> },
}

impl Cluster {
    /// Starts a server and the components beside it.
    ///
    /// # Errors
    /// When the binaries are missing or something does not start.
    pub async fn start(target: ServerUnderTest) -> Result<Self> {
        let binaries = components()?;
        let (server, client, kubeconfig) = match target {
            ServerUnderTest::Real => {
                let options =
                    ControlPlaneOptions { controllers: true, scheduler: true, ..Default::default() };
                let plane = Box::new(ControlPlane::start(options).await?);
                let (client, kubeconfig) = (plane.admin_client().await?, plane.kubeconfig());
                (RunningServer::Real { _plane: plane }, client, kubeconfig)
            }
            ServerUnderTest::Embedded => {
                let mut world = Box::new(World::start(Api::Embedded, Transport::WebSocket).await?);
                world.start_workload_controllers()?;
                let (client, kubeconfig) = (world.client().await?, world.kubeconfig());
                (RunningServer::Embedded { _world: world }, client, kubeconfig)
            }
        };
        let node = ReadyNode::start(client, NODE).await.context("start the node")?;
        Ok(Self { kubeconfig, binaries, _node: node, _server: server })
    }
}
