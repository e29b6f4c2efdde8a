//! What the API server decides about a Service: its cluster address, its address families and its node ports.

mod families;

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};
use tombolo_apiserve::admission::{AdmissionRequest, Operation};
use tombolo_apiserve::status::{ApiError, Cause};

use super::addresses::{Addresses, NODE_PORTS, port_number};
use crate::embedded::objects::{items, member, text};

/// Value of `clusterIP` that asks for no address.
const HEADLESS: &str = "None";

/// Completes a Service.
///
/// # Errors
/// 422 when an address or a port cannot be had.
pub(super) fn admit(addresses: &Addresses, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
    let name = request.name.to_owned();
    let old = if request.operation == Operation::Update { request.old } else { None };
    let Some(service) = request.object.as_deref_mut() else { return Ok(()) };
    let scratch = request.dry_run.then(|| addresses.for_dry_run());
    let addresses = scratch.as_ref().unwrap_or(addresses);
    let refuse = |troubles: Vec<Trouble>| {
        let cause = |(field, value, why): &Trouble| {
            Cause::new("FieldValueInvalid", field, &format!("Invalid value: {value}: {why}"))
        };
        ApiError::invalid("", "Service", &name, troubles.iter().map(cause).collect())
    };
    if old.is_none() {
        families::list_address(member(service, "spec"));
    }
    if text(service, "/spec/type") == "ExternalName" {
        return Ok(());
    }
    keep_allocated(member(service, "spec"), old);
    if !families::are_sound(member(service, "spec"), old.is_none()) {
        return Ok(());
    }
    families::settle(member(service, "spec")).map_err(&refuse)?;
    if !request.dry_run {
        // A dry run of kube-apiserver's takes them.
        ports_in_range(member(service, "spec")).map_err(|trouble| refuse(vec![trouble]))?;
    }
    cluster_address(addresses, member(service, "spec"), old).map_err(|trouble| refuse(vec![trouble]))?;
    if let Err(trouble) = node_ports(addresses, member(service, "spec"), old) {
        // The ports may be those that another request was given.
        addresses.release(&json!({"spec": {"clusterIP": text(service, "/spec/clusterIP")}}));
        return Err(refuse(vec![trouble]));
    }
    Ok(())
}

/// Field, value as JSON text, and what is wrong with it.
type Trouble = (String, String, String);

/// An update that leaves allocated values out keeps them.
fn keep_allocated(spec: &mut Map<String, Value>, old: Option<&Value>) {
    let Some(old) = old.filter(|old| text(old, "/spec/type") != "ExternalName") else { return };
    let unset = |spec: &Map<String, Value>, field: &str| {
        // An empty policy is one, and wrong.
        let empty = |value: &Value| value == &json!([]) || (value == "" && field != "ipFamilyPolicy");
        spec.get(field).is_none_or(|value| value.is_null() || empty(value))
    };
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let (true, Some(value)) = (unset(spec, field), old.pointer(&format!("/spec/{field}"))) {
            spec.insert(field.into(), value.clone());
        }
    }
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or("ClusterIP").to_owned();
    if kind == "ClusterIP" {
        return;
    }
    let old_ports = items(old, "/spec/ports");
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let same =
            |old: &&Value| old.get("port") == port.get("port") && old.get("protocol") == port.get("protocol");
        let kept = old_ports.iter().find(same).and_then(|old| port_number(old, "nodePort"));
        if let (None, Some(kept)) = (port_number(port, "nodePort"), kept) {
            port["nodePort"] = json!(kept);
        }
    }
}

fn cluster_address(
    addresses: &Addresses,
    spec: &mut Map<String, Value>,
    old: Option<&Value>,
) -> Result<(), Trouble> {
    let first_of_list = spec.get("clusterIPs").and_then(|list| list.get(0)).and_then(Value::as_str);
    let given = spec.get("clusterIP").and_then(Value::as_str).filter(|ip| !ip.is_empty()).or(first_of_list);
    let given = given.unwrap_or_default().to_owned();
    let before = old.map(|old| text(old, "/spec/clusterIP")).unwrap_or_default();
    let address = if given.is_empty() {
        let free =
            addresses.any_address().map_err(|why| ("spec.clusterIPs".to_owned(), "[]".to_owned(), why))?;
        free.to_string()
    } else if given == HEADLESS || given == before {
        given
    } else {
        let trouble = |why: String| {
            (
                "spec.clusterIPs".to_owned(),
                format!("[{given:?}]"),
                format!("failed to allocate IP {given}: {why}"),
            )
        };
        let address: Ipv4Addr = given.parse().map_err(|_| trouble("not an IPv4 address".into()))?;
        addresses.this_address(address).map_err(trouble)?;
        given
    };
    spec.insert("clusterIPs".into(), json!([address]));
    spec.insert("clusterIP".into(), json!(address));
    Ok(())
}

/// Whether a node port is asked for that cannot be one.
fn is_outside(port: &Value) -> bool {
    let given = port.get("nodePort").and_then(Value::as_i64).filter(|given| *given != 0);
    given.is_some_and(|given| !u16::try_from(given).is_ok_and(|given| NODE_PORTS.contains(&given)))
}

fn ports_in_range(spec: &Map<String, Value>) -> Result<(), Trouble> {
    if !matches!(spec.get("type").and_then(Value::as_str), Some("NodePort" | "LoadBalancer")) {
        return Ok(());
    }
    let ports = spec.get("ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let Some((index, port)) = ports.iter().enumerate().find(|(_, port)| is_outside(port)) else {
        return Ok(());
    };
    let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
    let why = format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
    Err((format!("spec.ports[{index}].nodePort"), port["nodePort"].to_string(), why))
}

fn node_ports(
    addresses: &Addresses,
    spec: &mut Map<String, Value>,
    old: Option<&Value>,
) -> Result<(), Trouble> {
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or("ClusterIP").to_owned();
    let automatic = match kind.as_str() {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false)),
        _ => return Ok(()),
    };
    let before: Vec<u16> = old
        .map(|old| items(old, "/spec/ports"))
        .unwrap_or_default()
        .iter()
        .filter_map(|port| port_number(port, "nodePort"))
        .collect();
    // One number may serve several protocols of one Service.
    let mut own: Vec<u16> = before;
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, port) in ports.enumerate() {
        let field = format!("spec.ports[{index}].nodePort");
        if is_outside(port) {
            continue;
        }
        match port_number(port, "nodePort") {
            Some(given) if own.contains(&given) => {}
            Some(given) => {
                let trouble = |why| (field, given.to_string(), why);
                addresses.this_port(given).map_err(trouble)?;
                own.push(given);
            }
            None if automatic => {
                let free = addresses.any_port().map_err(|why| (field, "0".to_owned(), why))?;
                port["nodePort"] = json!(free);
                own.push(free);
            }
            None => {}
        }
    }
    health_port(addresses, spec, &kind, old)
}

/// A load balancer that keeps traffic on its node asks a port there whether the node has endpoints.
fn health_port(
    addresses: &Addresses,
    spec: &mut Map<String, Value>,
    kind: &str,
    old: Option<&Value>,
) -> Result<(), Trouble> {
    let wanted = kind == "LoadBalancer" && spec.get("externalTrafficPolicy") == Some(&json!("Local"));
    if !wanted {
        return Ok(());
    }
    let before = old.and_then(|old| port_number(old.get("spec")?, "healthCheckNodePort"));
    let asked = spec.get("healthCheckNodePort").and_then(Value::as_i64).unwrap_or_default();
    let given = u16::try_from(asked).ok();
    if given.is_none() {
        // Left to the validation.
        return Ok(());
    }
    let trouble = |why| ("spec.healthCheckNodePort".to_owned(), given.unwrap_or_default().to_string(), why);
    let port = match given.filter(|port| *port != 0).or(before) {
        Some(port) if Some(port) == before => port,
        Some(port) => addresses.this_port(port).map(|()| port).map_err(trouble)?,
        None => addresses.any_port().map_err(trouble)?,
    };
    spec.insert("healthCheckNodePort".into(), json!(port));
    Ok(())
}

#[cfg(test)]
mod tests;
