//! The use by Services: their number, node ports and load balancers.

use serde_json::{Value, json};
use tombolo_apicore::schema::Quantity;

use super::Amounts;
use crate::objects::{items, text};

/// Limits that Services count against, beside `count/services`.
pub(super) const NAMES: [&str; 3] = ["services", "services.loadbalancers", "services.nodeports"];

/// The use by a Service. Node ports are counted before they are allocated, from the request.
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
