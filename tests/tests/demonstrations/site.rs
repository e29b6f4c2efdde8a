//! Three nodes, a cloud, and the components that create pods.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde_json::{Value, json};
use tombolo_testkit::{wait_for, wait_for_value};
use tombolo_tests::network::{NEEDS, Switch, cannot};
use tombolo_tests::source;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

use crate::containers::{Containers, Networks};
use crate::node::{Answer, Node};

/// Number of requests, all of which must be answered from the unit. The chance that one of two pods never answers is 1
/// in 500 million.
const REQUESTS: usize = 30;

/// The one Service of both demonstrations.
pub(crate) const SERVICE: &str = "servicegrid-demo-svc";

pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) nodes: Vec<Node>,
    _containers: Containers,
    _switch: Switch,
}

/// A switch for the nodes of a test. None where the machine does not support it; the test then counts as skipped.
pub(crate) fn switch_or_skip(test: &str) -> Option<Switch> {
    Switch::new().map_err(|error| cannot(test, &format!("{NEEDS}: {error:#}"))).ok()
}

impl Site {
    /// Starts `node0`, `node1` and so on, each with one of these labels.
    pub(crate) async fn start(api: Api, switch: Switch, labels: &[&str]) -> Result<Self> {
        let settings = json!({"grids": {"enable": true}});
        let mut world = World::start_with(api, Transport::WebSocket, settings).await?;
        world.start_workload_controllers()?;
        let mut nodes = Vec::new();
        for number in 0..labels.len() {
            let mut node = Node::new(&switch, &world, u8::try_from(number)?)?;
            world.set_edge_settings(node.settings(&world));
            world.start_edge_in(&node.network, &node.name).await?;
            node.start_proxy(&world)?;
            nodes.push(node);
        }
        let networks: Networks = nodes.iter().map(|node| (node.name.clone(), node.network.clone())).collect();
        let containers = Containers::start(world.client().await?, networks);
        let site = Self { world, nodes, _containers: containers, _switch: switch };
        for (node, label) in site.nodes.iter().zip(labels) {
            site.done(&["label", "node", &node.name, label]).await;
        }
        Ok(site)
    }

    /// Runs kubectl until it succeeds, and returns its output.
    pub(crate) async fn done(&self, arguments: &[&str]) -> String {
        wait_for_value(&format!("kubectl {arguments:?}"), DEADLINE, || async {
            self.world.kubectl(arguments).map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// Waits until kubectl prints this.
    pub(crate) async fn prints(&self, arguments: &[&str], expected: &str) {
        wait_for(&format!("kubectl {arguments:?} to print {expected}"), DEADLINE, || async {
            match self.world.kubectl(arguments) {
                Ok(text) if text.trim() == expected => Ok(()),
                Ok(text) => Err(text),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await;
    }

    /// Applies a manifest of `examples/`.
    pub(crate) async fn apply_example(&self, name: &str) {
        let path = source::root().join("examples").join(name).display().to_string();
        self.done(&["apply", "-f", &path]).await;
    }

    /// Objects as kubectl prints them.
    pub(crate) async fn items(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.done(&[&["get", "-o=json"], arguments].concat()).await;
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Checks that there is one Service, created by the grid as the demonstrations say, and returns its address.
    pub(crate) async fn one_service(&self, key: &str) -> SocketAddr {
        self.prints(&["get", "service", SERVICE, "-o=jsonpath={.metadata.name}"], SERVICE).await;
        let mut services = self.items(&["services"]).await;
        services.retain(|service| service["metadata"]["name"] != "kubernetes");
        let [service] = &services[..] else { panic!("{services:#?}") };
        assert_eq!(service["metadata"]["name"], SERVICE);
        assert_eq!(service["spec"]["type"], "ClusterIP");
        assert_eq!(service["metadata"]["annotations"]["topologyKeys"], format!("[\"{key}\"]"));
        assert_eq!(service["metadata"]["labels"]["superedge.io/grid-selector"], "servicegrid-demo");
        let address: IpAddr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        SocketAddr::new(address, 80)
    }

    /// Waits until exactly these answer a node's requests, then repeats the requests: the answers must stay the same.
    pub(crate) async fn answers<T: Ord + std::fmt::Debug>(
        &self,
        node: &Node,
        service: SocketAddr,
        what: impl Fn(Answer) -> T,
        expected: &BTreeSet<T>,
    ) {
        let ask = || async {
            let mut seen = BTreeSet::new();
            for _ in 0..REQUESTS {
                seen.insert(what(node.ask(service).await.map_err(|error| format!("{error:#}"))?));
            }
            Ok(seen)
        };
        wait_for(&format!("{} to be answered by {expected:?}", node.name), DEADLINE, || async {
            let seen: Result<BTreeSet<T>, String> = ask().await;
            if seen.as_ref() == Ok(expected) {
                return Ok(());
            }
            Err(format!("{seen:?}\n{}\n{}", node.log(), self.world.edge_log(&node.name)))
        })
        .await;
        assert_eq!(ask().await.as_ref(), Ok(expected), "{}", node.name);
    }

    /// Ends everything on the nodes except the pods, removes their rules, and starts it again.
    pub(crate) async fn restart_nodes(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            let names = node.has_coredns();
            self.world.kill_edge(&node.name);
            node.stop()?;
            self.world.start_edge_in(&node.network, &node.name).await?;
            node.start_proxy(&self.world)?;
            if names {
                node.start_coredns(&self.world)?;
            }
        }
        Ok(())
    }
}
