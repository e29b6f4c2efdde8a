//! What Services use: themselves, ports of nodes, load balancers.

use serde_json::{Value, json};
use tombolo_apicore::schema::Quantity;

use super::Amounts;
use crate::objects::{items, text};

/// Limits that Services count against, beside their number.
pub(super) const NAMES: [&str; 3] = ["services", "services.loadbalancers", "services.nodeports"];

/// What a Service uses. Ports of nodes are counted before they are given out: by what is asked for.
pub(super) fn usage(service: &Value) -> Amounts {
    let ports = items(service, "/spec/ports");
    let count = |number: usize| Quantity::whole(u32::try_from(number).unwrap_or(u32::MAX));
    let chosen =
        || ports.iter().filter(|port| port["nodePort"].as_u64().is_some_and(|port| port != 0)).count();
    let withheld = service.pointer("/spec/allocateLoadBalancerNodePorts") == Some(&json!(false));
    let (node_ports, balancers) = match text(service, "/spec/type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" if withheld => (chosen(), 1),
        "LoadBalancer" => (ports.len(), 1),
        _ => (0, 0),
    };
    let mut used = Amounts::one("services", Quantity::whole(1));
    used.set("services.loadbalancers", count(balancers));
    used.set("services.nodeports", count(node_ports));
    used
}
