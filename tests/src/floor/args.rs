//! The command line.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use crate::exchange::Dialect;

const USAGE: &str = "usage: floor [--connections N] [--transport ws|quic] [--stack bare|link] \
[--dialect tombolo|kubeedge] [--updates ROUNDS] [--queries EACH] [--large] [--json]";

/// The role of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The client, which measures; it starts the server.
    Load,
    /// The server, which is measured.
    Serve,
}

/// The transport of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloorTransport {
    /// WebSocket over TLS over TCP.
    WebSocket,
    /// QUIC.
    Quic,
}

/// The code that transports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    /// The libraries alone.
    Bare,
    /// `tombolo-link`.
    Link,
}

/// The parsed arguments.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    pub(crate) role: Role,
    pub(crate) connections: usize,
    pub(crate) transport: FloorTransport,
    pub(crate) stack: Stack,
    pub(crate) dialect: Dialect,
    pub(crate) updates: usize,
    /// Queries of every connection, one after the other.
    pub(crate) queries: usize,
    pub(crate) large: bool,
    pub(crate) json: bool,
    /// Folder of the certificates; set for the serving process.
    pub(crate) pki: Option<PathBuf>,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            role: Role::Load,
            connections: 1000,
            transport: FloorTransport::WebSocket,
            stack: Stack::Bare,
            dialect: Dialect::Tombolo,
            updates: 20,
            queries: 20,
            large: false,
            json: false,
            pki: None,
        }
    }
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut args = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
            match word.as_str() {
                "serve" => args.role = Role::Serve,
                "--connections" => args.connections = value()?.parse().context("--connections")?,
                "--updates" => args.updates = value()?.parse().context("--updates")?,
                "--queries" => args.queries = value()?.parse().context("--queries")?,
                "--large" => args.large = true,
                "--json" => args.json = true,
                "--pki" => args.pki = Some(value()?.into()),
                "--transport" => args.transport = transport(&value()?)?,
                "--stack" => args.stack = stack(&value()?)?,
                "--dialect" => args.dialect = dialect(&value()?)?,
                other => bail!("unknown argument {other:?}\n{USAGE}"),
            }
        }
        ensure!(args.connections > 0, "--connections 0 leaves nothing to measure\n{USAGE}");
        let bare_websocket = args.transport == FloorTransport::WebSocket && args.stack == Stack::Bare;
        ensure!(
            args.dialect == Dialect::Tombolo || bare_websocket,
            "--dialect kubeedge goes with --transport ws and --stack bare alone"
        );
        Ok(args)
    }

    pub(crate) fn transport_name(&self) -> &'static str {
        match self.transport {
            FloorTransport::WebSocket => "ws",
            FloorTransport::Quic => "quic",
        }
    }

    pub(crate) fn stack_name(&self) -> &'static str {
        match self.stack {
            Stack::Bare => "bare",
            Stack::Link => "link",
        }
    }
}

fn transport(text: &str) -> anyhow::Result<FloorTransport> {
    match text {
        "ws" | "websocket" => Ok(FloorTransport::WebSocket),
        "quic" => Ok(FloorTransport::Quic),
        other => bail!("unknown transport {other:?}: use ws or quic"),
    }
}

fn dialect(text: &str) -> anyhow::Result<Dialect> {
    match text {
        "tombolo" => Ok(Dialect::Tombolo),
        "kubeedge" => Ok(Dialect::KubeEdge),
        other => bail!("unknown dialect {other:?}: use tombolo or kubeedge"),
    }
}

fn stack(text: &str) -> anyhow::Result<Stack> {
    match text {
        "bare" => Ok(Stack::Bare),
        "link" => Ok(Stack::Link),
        other => bail!("unknown stack {other:?}: use bare or link"),
    }
}
