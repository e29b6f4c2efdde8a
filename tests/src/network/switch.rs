//! What joins namespaces into one network.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::Namespace;

/// Name of a namespace's interface on the switch.
const PORT: &str = "eth0";

/// The range of pods and of Services, which are on the switch too: who has an address answers for it (ARP).
const CLUSTER: &str = "10.0.0.0/8";

/// A bridge in a namespace of its own.
#[derive(Debug)]
pub struct Switch {
    namespace: Namespace,
}

impl Switch {
    /// Makes one without ports.
    ///
    /// # Errors
    /// As [`Namespace::new`].
    pub fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip(&["link", "add", "bridge", "type", "bridge"])?;
        namespace.ip(&["link", "set", "bridge", "up"])?;
        Ok(Self { namespace })
    }

    /// Makes a namespace on the switch and gives its address, `192.168.77.NUMBER`. Addresses in 10.0.0.0/8 that are added
    /// to it are reached from the others.
    ///
    /// # Errors
    /// When something is refused, as a number that is taken.
    pub fn attach(&self, number: u8) -> Result<(Namespace, Ipv4Addr)> {
        let (inside, address) = (Namespace::new()?, Ipv4Addr::new(192, 168, 77, number));
        let end = format!("port{number}");
        let switch = self.namespace.name();
        inside.ip(&["link", "add", PORT, "type", "veth", "peer", "name", end.as_str(), "netns", switch])?;
        self.namespace.ip(&["link", "set", &end, "master", "bridge", "up"])?;
        inside.ip(&["link", "set", PORT, "up"])?;
        inside.ip(&["address", "add", &format!("{address}/24"), "dev", PORT])?;
        inside.ip(&["route", "add", CLUSTER, "dev", PORT])?;
        Ok((inside, address))
    }
}
