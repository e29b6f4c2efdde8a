//! Which clients are answered: this machine, its pods and the configured networks. A server that answers everyone
//! reveals what runs here, and can be abused to send packets to forged source addresses.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::watch;
use tombolo_apicore::store::{Store, Stored};
use tombolo_grid::OwnPods;
use tombolo_proto::object::Resource;
use tracing::info;

use crate::config::Network;
use crate::follow::{Following, News};

/// The machine that the server runs on.
#[derive(Clone)]
pub(crate) struct Machine {
    /// Name of its Node object.
    pub(crate) node: String,
    /// The address at which other machines reach it.
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    /// Its pods and their addresses.
    pub(crate) pods: watch::Receiver<Arc<OwnPods>>,
}

/// Decides which clients are answered.
pub(super) struct Clients {
    machine: Machine,
    /// Where the server listens.
    own: IpAddr,
    configured: Vec<Network>,
    /// Pod networks of this node, from its Node object.
    of_pods: RwLock<Vec<Network>>,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

impl Clients {
    pub(super) fn new(machine: Machine, own: IpAddr, configured: Vec<Network>) -> Self {
        Self { machine, own, configured, of_pods: RwLock::default() }
    }

    /// Whether queries from this address are answered.
    pub(super) fn are_answered(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_local(address)
            || address == self.own
            || *self.machine.address.borrow() == Some(address)
            || self.configured.iter().chain(&*self.of_pods.read()).any(|network| network.contains(address))
            || self.machine.pods.borrow().has_address(address)
    }

    /// Follows the pod networks in the Node object, for ever.
    pub(super) async fn follow(&self, source: Arc<dyn Store>) {
        let mut following = Following::new(source, [Resource::new("", "v1", "nodes")]);
        loop {
            match following.next().await {
                News::All(_, snapshot) => snapshot.items.iter().for_each(|node| self.take(node)),
                News::Changed(_, changes) => changes.iter().for_each(|change| self.take(&change.object)),
            }
        }
    }

    fn take(&self, node: &Stored) {
        if node.key.name() != self.machine.node {
            return;
        }
        let networks = networks(&node.body());
        let mut known = self.of_pods.write();
        if *known != networks {
            info!(?networks, "the DNS server answers queries from the pod networks of this node");
            *known = networks;
        }
    }
}

/// Whether an address is loopback or link-local: only this machine or a neighbour on its links can have it.
fn is_local(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => is_unicast_link_local(six),
    };
    address.is_loopback() || is_link_local
}

fn is_unicast_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

/// The pod networks of a Node.
fn networks(body: &[u8]) -> Vec<Network> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        #[serde(rename = "podCIDR")]
        one: Option<String>,
        #[serde(rename = "podCIDRs")]
        all: Option<Vec<String>>,
    }
    #[derive(Deserialize)]
    struct NodeNetworks {
        #[serde(default)]
        spec: Option<Spec>,
    }
    let Ok(node) = serde_json::from_slice::<NodeNetworks>(body) else { return Vec::new() };
    let spec = node.spec.unwrap_or_default();
    let mut networks: Vec<Network> = spec
        .all
        .into_iter()
        .flatten()
        .chain(spec.one)
        .filter_map(|text| Network::try_from(text).ok())
        .collect();
    networks.dedup();
    networks
}

#[cfg(test)]
mod tests {
    use tombolo_grid::OwnPod;

    use super::*;

    #[test]
    fn only_this_machine_and_its_pods_are_answered() {
        let mut pods = OwnPods::new("edge-a");
        let pod = br#"{"metadata":{"uid":"u"},"status":{"podIP":"172.30.1.9"}}"#;
        pods.set("shop", "web", Some(OwnPod::of(pod).unwrap()));
        let machine = Machine {
            node: "edge-a".to_owned(),
            address: watch::channel(Some("192.0.2.10".parse().unwrap())).1,
            pods: watch::channel(Arc::new(pods)).1,
        };
        let configured = vec![Network::try_from("203.0.113.0/25".to_owned()).unwrap()];
        let clients = Clients::new(machine, "198.51.100.53".parse().unwrap(), configured);
        *clients.of_pods.write() = networks(
            br#"{"spec":{"podCIDR":"10.244.7.0/24","podCIDRs":["10.244.7.0/24","fd00:7::/64"],"taints":null}}"#,
        );
        for address in [
            "127.0.0.1",
            "::1",
            "169.254.20.10",
            "fe80::7",
            "192.0.2.10",
            "198.51.100.53",
            "172.30.1.9",
            "203.0.113.5",
            "10.244.7.33",
            "::ffff:10.244.7.33",
            "fd00:7::33",
        ] {
            assert!(clients.are_answered(address.parse().unwrap()), "{address}");
        }
        for address in [
            "10.244.8.33",
            "192.0.2.11",
            "8.8.8.8",
            "203.0.113.200",
            "fd00:8::1",
            "2001:db8::1",
            "172.30.1.8",
        ] {
            assert!(!clients.are_answered(address.parse().unwrap()), "{address}");
        }
        for body in [&b"{}"[..], b"[]", br#"{"spec":null}"#, br#"{"spec":{"podCIDRs":null,"podCIDR":""}}"#] {
            assert_eq!(networks(body), []);
        }
    }
}
