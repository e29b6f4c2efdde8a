//! Joins namespaces into one network.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::Namespace;

/// Name of a namespace's interface on the switch.
const PORT: &str = "eth0";

/// The range of pods and of Services, which are on the switch too: the owner of an address answers ARP for it.
const CLUSTER: &str = "10.0.0.0/8";

/// A bridge in a namespace of its own.
#[derive(Debug)]
pub struct Switch {
    namespace: Namespace,
}

impl Switch {
    /// Creates a switch without ports.
    ///
    /// # Errors
    /// See [`Namespace::new`].
    pub fn new() -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip(&["link", "add", "bridge", "type", "bridge"])?;
        namespace.ip(&["link", "set", "bridge", "up"])?;
        Ok(Self { namespace })
    }

    /// Creates a namespace on the switch and returns its address, `192.168.77.NUMBER`. The other namespaces can reach
    /// the addresses in 10.0.0.0/8 that are added to it.
    ///
    /// # Errors
    /// When a command fails, for example because the number is in use.
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
