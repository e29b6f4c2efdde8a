//! One node: a network with edgecore's listeners at their usual addresses, kube-proxy and CoreDNS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tombolo_testkit::Child;
use tombolo_tests::network::{CoreDns, CoreDnsOptions, Namespace, Program, Switch, start_kube_proxy};
use tombolo_tests::world::World;

/// Address of the wrapper, inside every node.
const WRAPPER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 51006);

/// Address of stock CoreDNS, as in `deploy/edge/Corefile`.
pub(crate) const COREDNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10));

/// Address of the agent's own DNS server.
pub(crate) const OWN_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 11));

const DNS_PORT: u16 = 53;

/// Port of the local API for pods.
const PODS_PORT: u16 = 6443;

/// How long a client of a Service waits.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) network: Arc<Namespace>,
    address: Ipv4Addr,
    proxy: Option<Child>,
    coredns: Option<CoreDns>,
    folder: TempDir,
}

/// The identity in an answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    pub(crate) node: String,
    pub(crate) pod: String,
}

impl Node {
    /// Creates the network of a node, from which the hub is reachable.
    pub(crate) fn new(switch: &Switch, world: &World, number: u8) -> Result<Self> {
        let (mut network, address) = switch.attach(number + 1)?;
        for server in [COREDNS, OWN_DNS] {
            network.ip(&["address", "add", &format!("{server}/32"), "dev", "lo"])?;
        }
        let [websocket, _, join] = world.hub_ports();
        for port in [websocket, join] {
            let hub = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            network.let_reach(hub, hub)?;
        }
        let (name, network, folder) = (format!("node{number}"), Arc::new(network), tempfile::tempdir()?);
        Ok(Self { name, network, address, proxy: None, coredns: None, folder })
    }

    /// The settings of its agent.
    pub(crate) fn settings(&self, world: &World) -> Value {
        json!({
            "node": {"address": self.address},
            "wrapper": {"address": WRAPPER},
            "localApi": {"pods": SocketAddr::from((self.address, PODS_PORT))},
            "dns": {
                "address": SocketAddr::new(OWN_DNS, DNS_PORT), "upstreams": [],
                "hostsPath": world.edge_dir(&self.name).join("hosts"), "fullSyncSeconds": 3600,
            },
        })
    }

    /// Starts kube-proxy (again).
    pub(crate) fn start_proxy(&mut self, world: &World) -> Result<()> {
        self.proxy = None;
        let folder = self.folder.path();
        self.proxy = Some(start_kube_proxy(world, &self.name, &self.network, folder, None)?);
        Ok(())
    }

    /// Starts CoreDNS (again).
    pub(crate) fn start_coredns(&mut self, world: &World) -> Result<()> {
        let options = CoreDnsOptions {
            hosts: &world.edge_dir(&self.name).join("hosts"),
            wrapper: WRAPPER,
            address: SocketAddr::new(COREDNS, DNS_PORT),
            upstream: SocketAddr::new(OWN_DNS, DNS_PORT),
            cached: true,
            namespace: Some(&self.network),
        };
        self.coredns = None;
        self.coredns = Some(CoreDns::start(&options, self.folder.path())?);
        Ok(())
    }

    pub(crate) fn has_coredns(&self) -> bool {
        self.coredns.is_some()
    }

    /// Ends everything on the node except the agent and the pods, and removes all rules.
    pub(crate) fn stop(&mut self) -> Result<()> {
        (self.proxy, self.coredns) = (None, None);
        self.network.flush_rules()
    }

    /// The last log lines of kube-proxy and CoreDNS.
    pub(crate) fn log(&self) -> String {
        let proxy = self.proxy.as_ref().map(|proxy| proxy.log_tail(10)).unwrap_or_default();
        let coredns = self.coredns.as_ref().map(CoreDns::log).unwrap_or_default();
        format!("{proxy}\n{coredns}")
    }

    /// A program in a pod of the namespace `default`, with one of the two DNS servers.
    pub(crate) fn pod(&self, nameserver: IpAddr) -> Program<'_> {
        Program { network: Some(&self.network), namespace: "default", nameserver, account: None }
    }

    /// Sends a request to an echo server, over a connection of its own.
    pub(crate) async fn ask(&self, address: SocketAddr) -> Result<Answer> {
        let exchange = async {
            let mut stream = self.network.connect(address).await?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: echo\r\nConnection: close\r\n\r\n").await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            let (_, page) = text.split_once("\r\n\r\n").context("no HTTP")?;
            let (node, pod) = page.trim_end().split_once('\n').with_context(|| format!("{page:?}"))?;
            Ok(Answer { node: node.to_owned(), pod: pod.to_owned() })
        };
        tokio::time::timeout(PATIENCE, exchange).await.context("no answer")?
    }
}
