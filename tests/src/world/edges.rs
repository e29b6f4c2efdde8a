//! The agents of a world.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tombolo_testkit::{Child, free_port, wait_for_value};

use super::{DEADLINE, World, binary, client_of};
use crate::network::Namespace;

/// A program with the variables and the priority of a device's unit file; the priority only when run as root.
fn as_unit(program: &Path) -> Command {
    let unit = include_str!("../../../deploy/edge/edgecore.service");
    let set =
        |name: &'static str| unit.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('='));
    let mut command = Command::new("nice");
    command.args(set("Nice").flat_map(|niceness| ["-n", niceness])).arg(program);
    command.envs(set("Environment").filter_map(|variable| variable.split_once('=')));
    command
}

/// An agent that has been set up.
#[derive(Debug)]
pub(super) struct Edge {
    process: Option<Child>,
    joined: bool,
}

impl World {
    /// Joins (the first time) and starts the agent of a node.
    ///
    /// # Errors
    /// When joining is refused or the process cannot be started.
    pub async fn start_edge(&mut self, node: &str) -> Result<()> {
        self.start_edge_program(node, &binary("edgecore")?).await
    }

    /// Like [`Self::start_edge`], but with a program that was built in another way, and with the environment and the
    /// priority of the unit file on a device.
    ///
    /// # Errors
    /// See [`Self::start_edge`].
    pub async fn start_edge_program(&mut self, node: &str, program: &Path) -> Result<()> {
        self.join_edge(node).await?;
        let mut command = as_unit(program);
        command.arg("--config").arg(self.edge_config(node));
        self.run_edge(node, &mut command)
    }

    /// Like [`Self::start_edge`], but in a network of its own. The hub and its join endpoints must be reachable there
    /// at the same addresses as here.
    ///
    /// # Errors
    /// See [`Self::start_edge`].
    pub async fn start_edge_in(&mut self, network: &Namespace, node: &str) -> Result<()> {
        self.join_edge(node).await?;
        let mut command = network.command(binary("edgecore")?);
        command.arg("--config").arg(self.edge_config(node));
        self.run_edge(node, &mut command)
    }

    /// Like [`Self::start_edge`], but with a process that survives the file size limit, so that
    /// [`Self::limit_edge_files`] can simulate a full disk.
    ///
    /// # Errors
    /// See [`Self::start_edge`].
    pub async fn start_limitable_edge(&mut self, node: &str) -> Result<()> {
        self.join_edge(node).await?;
        let mut command = super::limitable(&binary("edgecore")?);
        command.arg("--config").arg(self.edge_config(node));
        self.run_edge(node, &mut command)
    }

    /// Limits the size of a running agent's files, in bytes; none removes the limit.
    ///
    /// # Errors
    /// When the agent is not running or the operating system refuses.
    pub fn limit_edge_files(&self, node: &str, bytes: Option<u64>) -> Result<()> {
        let process = self.edges.get(node).and_then(|edge| edge.process.as_ref()).context("not running")?;
        super::limit_files(process.id(), bytes)
    }

    async fn join_edge(&mut self, node: &str) -> Result<()> {
        if self.edges.get(node).is_some_and(|edge| edge.joined) {
            return Ok(());
        }
        self.prepare_edge(node)?;
        let token = wait_for_value("a join token", DEADLINE, || self.join_token()).await;
        let output = self.edge_join(node, &token)?;
        ensure!(output.status.success(), "join: {}", String::from_utf8_lossy(&output.stderr));
        self.edges.insert(node.to_owned(), Edge { process: None, joined: true });
        Ok(())
    }

    fn run_edge(&mut self, node: &str, command: &mut Command) -> Result<()> {
        let process = Child::spawn(node, self.folder.path(), command)?;
        self.edges.insert(node.to_owned(), Edge { process: Some(process), joined: true });
        Ok(())
    }

    /// Writes the settings of a node that has not joined yet.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn prepare_edge(&self, node: &str) -> Result<()> {
        let direct = (self.ports.websocket, self.ports.quic);
        let (websocket, quic) = self.slow.as_ref().map_or(direct, |slow| (slow.tcp_port, slow.udp_port));
        let quic = self.silent.as_ref().map_or(Ok(quic), |silent| silent.local_addr().map(|at| at.port()))?;
        let (lease, status) = self.periods;
        let mut periods = json!({"leaseIntervalMillis": lease});
        if let Some(status) = status {
            periods["statusIntervalMillis"] = json!(status);
        }
        let mut config = json!({
            "nodeName": node,
            "dialect": self.dialect,
            "dataDir": self.edge_dir(node),
            "cloud": {
                "websocket": format!("127.0.0.1:{websocket}"),
                "quic": format!("127.0.0.1:{quic}"),
                "join": self.join_address(),
                "backOff": {"firstMillis": 50, "maxMillis": 1000},
            },
            "localApi": {"https": format!("127.0.0.1:{}", free_port()?)},
            "wrapper": {"address": null}, "dns": {"hostsPath": null},
            "admin": null,
            "node": periods,
            "simulatePods": true,
        });
        if self.silent.is_none() {
            config["cloud"]["transport"] = self.transport.setting().into();
        }
        for (member, value) in self.edge_settings.as_object().into_iter().flatten() {
            match (config[member].as_object_mut(), value.as_object()) {
                (Some(old), Some(new)) => old.extend(new.clone()),
                _ => config[member] = value.clone(),
            }
        }
        fs::create_dir_all(self.edge_dir(node))?;
        fs::write(self.edge_config(node), config.to_string())?;
        Ok(())
    }

    /// Runs `edgecore` with the settings of a node and these arguments, and waits for it to exit.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn edge_command(&self, node: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(binary("edgecore")?);
        Ok(command.args(arguments).arg("--config").arg(self.edge_config(node)).output()?)
    }

    /// Joins a node with a token from a file, as operators should.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn edge_join(&self, node: &str, token: &str) -> Result<Output> {
        let file = self.folder.path().join(format!("{node}.token"));
        std::fs::write(&file, format!("{token}\n"))?;
        self.edge_command(node, &["join", "--token-file", &file.display().to_string()])
    }

    /// Process id of a node's agent, while it runs.
    #[must_use]
    pub fn edge_id(&self, node: &str) -> Option<u32> {
        self.edges.get(node)?.process.as_ref().map(Child::id)
    }

    /// Kills the agent of a node: SIGKILL, nothing is drained.
    pub fn kill_edge(&mut self, node: &str) {
        if let Some(edge) = self.edges.get_mut(node) {
            edge.process = None;
        }
    }

    /// Kills all agents.
    pub fn kill_edges(&mut self) {
        self.edges.values_mut().for_each(|edge| edge.process = None);
    }

    /// Fails when the agent of a node has ended.
    ///
    /// # Errors
    /// The last lines of its log.
    pub fn check_edge(&mut self, node: &str) -> Result<()> {
        let process = self.edges.get_mut(node).and_then(|edge| edge.process.as_mut());
        process.context("not running")?.check_running()
    }

    /// The log of a node's agent.
    #[must_use]
    pub fn edge_log(&self, node: &str) -> String {
        fs::read_to_string(self.folder.path().join(format!("{node}.log"))).unwrap_or_default()
    }

    /// Folder of a node's data.
    #[must_use]
    pub fn edge_dir(&self, node: &str) -> PathBuf {
        self.folder.path().join("edges").join(node)
    }

    /// Settings file of a node's agent.
    #[must_use]
    pub fn edge_config(&self, node: &str) -> PathBuf {
        self.edge_dir(node).join("edgecore.yaml")
    }

    /// Path of a kubeconfig for a node's local API, as `edgecore kubeconfig` prints it.
    ///
    /// # Errors
    /// When the command fails, as it does before the agent has started for the first time.
    pub fn edge_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let output = self.edge_command(node, &["kubeconfig"])?;
        ensure!(output.status.success(), "kubeconfig: {}", String::from_utf8_lossy(&output.stderr));
        let path = self.edge_dir(node).join("operator.kubeconfig");
        fs::write(&path, output.stdout)?;
        Ok(path)
    }

    /// A client of a node's local API.
    ///
    /// # Errors
    /// When there is no kubeconfig yet.
    pub async fn edge_client(&self, node: &str) -> Result<Client> {
        client_of(&self.edge_kubeconfig(node)?).await
    }

    /// A client of a node's local API that does not retry: other clients retry after a 503, for minutes.
    ///
    /// # Errors
    /// When there is no kubeconfig yet.
    pub async fn impatient_edge_client(&self, node: &str) -> Result<Client> {
        impatient(Kubeconfig::read_from(self.edge_kubeconfig(node)?)?).await
    }
}

/// A client that does not retry, with a kubeconfig.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn impatient(kubeconfig: Kubeconfig) -> Result<Client> {
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
