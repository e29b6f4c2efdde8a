//! Fields of a Service that the API server sets: its cluster address, its address families and its node ports.

mod families;

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::status::{ApiError, Cause};

use super::addresses::{Addresses, Grant, NODE_PORTS, port_number};
use crate::objects::{items, member, text};

/// Value of `clusterIP` that requests no address.
const HEADLESS: &str = "None";

/// Completes a Service.
///
/// # Errors
/// 422 when an address or a port cannot be allocated.
pub(super) fn admit(addresses: &Addresses, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
    let name = request.name.to_owned();
    let old = if request.operation == Operation::Update { request.old } else { None };
    let Some(service) = request.object.as_deref_mut() else { return Ok(()) };
    let scratch = request.dry_run.then(|| addresses.for_dry_run());
    let addresses = scratch.as_ref().unwrap_or(addresses);
    let refuse = |troubles: Vec<ServiceFieldError>| {
        let cause = |(field, value, why): &ServiceFieldError| {
            Cause::new("FieldValueInvalid", field, &format!("Invalid value: {value}: {why}"))
        };
        ApiError::invalid("", "Service", &name, troubles.iter().map(cause))
    };
    // The addresses and ports in an ExternalName Service were never allocated.
    let held = old.filter(|old| text(old, "/spec/type") != "ExternalName");
    if held.is_none() {
        families::list_address(member(service, "spec"));
    }
    if text(service, "/spec/type") == "ExternalName" {
        return Ok(());
    }
    keep_allocated(member(service, "spec"), held);
    if !families::are_sound(member(service, "spec"), old.is_none()) {
        return Ok(());
    }
    families::settle(member(service, "spec")).map_err(&refuse)?;
    if !request.dry_run {
        // In a dry run, kube-apiserver accepts ports outside the range.
        ports_in_range(member(service, "spec")).map_err(|trouble| refuse(vec![trouble]))?;
    }
    let mut grant = addresses.grant();
    cluster_address(&mut grant, member(service, "spec"), held).map_err(|trouble| refuse(vec![trouble]))?;
    node_ports(&mut grant, member(service, "spec"), held).map_err(|trouble| refuse(vec![trouble]))?;
    grant.keep();
    Ok(())
}

/// Releases the allocations of a Service that is not stored after all.
pub(super) fn abandon(addresses: &Addresses, request: &AdmissionRequest<'_>) {
    if let Some(service) = request.object.as_deref().filter(|_| !request.dry_run) {
        addresses.release(service);
    }
}

/// Field, value as JSON text, and error message.
type ServiceFieldError = (String, String, String);

/// Keeps allocated values that an update leaves out.
fn keep_allocated(spec: &mut Map<String, Value>, old: Option<&Value>) {
    let Some(old) = old else { return };
    let unset = |spec: &Map<String, Value>, field: &str| {
        // An empty `ipFamilyPolicy` counts as set; it is invalid.
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
    grant: &mut Grant<'_>,
    spec: &mut Map<String, Value>,
    old: Option<&Value>,
) -> Result<(), ServiceFieldError> {
    let first_of_list = spec.get("clusterIPs").and_then(|list| list.get(0)).and_then(Value::as_str);
    let given = spec.get("clusterIP").and_then(Value::as_str).filter(|ip| !ip.is_empty()).or(first_of_list);
    let given = given.unwrap_or_default().to_owned();
    let before = old.map(|old| text(old, "/spec/clusterIP")).unwrap_or_default();
    let address = if given.is_empty() {
        let free = grant.any_address().map_err(|why| ("spec.clusterIPs".to_owned(), "[]".to_owned(), why))?;
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
        grant.this_address(address).map_err(trouble)?;
        given
    };
    spec.insert("clusterIPs".into(), json!([address]));
    spec.insert("clusterIP".into(), json!(address));
    Ok(())
}

/// Whether the requested node port is outside the range.
fn is_outside(port: &Value) -> bool {
    let given = port.get("nodePort").and_then(Value::as_i64).filter(|given| *given != 0);
    given.is_some_and(|given| !u16::try_from(given).is_ok_and(|given| NODE_PORTS.contains(&given)))
}

fn ports_in_range(spec: &Map<String, Value>) -> Result<(), ServiceFieldError> {
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

/// Allocates requested ports first, so that none of them is taken by a random allocation.
fn node_ports(
    grant: &mut Grant<'_>,
    spec: &mut Map<String, Value>,
    old: Option<&Value>,
) -> Result<(), ServiceFieldError> {
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or("ClusterIP").to_owned();
    let automatic = match kind.as_str() {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&json!(false)),
        _ => return Ok(()),
    };
    let health = health_port(spec, &kind, old);
    asked_ports(grant, spec, old)?;
    if let Some(HealthPort::Asked(port)) = health {
        let trouble = |why| ("spec.healthCheckNodePort".to_owned(), port.to_string(), why);
        grant.this_port(port).map_err(trouble)?;
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, port) in ports.enumerate().filter(|(_, port)| automatic && !is_outside(port)) {
        if port_number(port, "nodePort").is_none() {
            let trouble = |why| (format!("spec.ports[{index}].nodePort"), "0".to_owned(), why);
            port["nodePort"] = json!(grant.any_port().map_err(trouble)?);
        }
    }
    let port = match health {
        None => return Ok(()),
        Some(HealthPort::Kept(port) | HealthPort::Asked(port)) => port,
        Some(HealthPort::Any) => {
            let trouble = |why| ("spec.healthCheckNodePort".to_owned(), "0".to_owned(), why);
            grant.any_port().map_err(trouble)?
        }
    };
    spec.insert("healthCheckNodePort".into(), json!(port));
    Ok(())
}

/// Allocates the node ports that a Service requests and does not have yet.
fn asked_ports(
    grant: &mut Grant<'_>,
    spec: &Map<String, Value>,
    old: Option<&Value>,
) -> Result<(), ServiceFieldError> {
    let number = |port: &Value| port_number(port, "nodePort");
    // Several protocols of one Service may share a port number.
    let before = old.map(|old| items(old, "/spec/ports")).unwrap_or_default();
    let mut own: Vec<u16> = before.iter().filter_map(number).collect();
    let ports = spec.get("ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, port) in ports.iter().enumerate().filter(|(_, port)| !is_outside(port)) {
        let Some(asked) = number(port).filter(|asked| !own.contains(asked)) else { continue };
        let trouble = |why| (format!("spec.ports[{index}].nodePort"), asked.to_string(), why);
        grant.this_port(asked).map_err(trouble)?;
        own.push(asked);
    }
    Ok(())
}

/// The health check node port. With `externalTrafficPolicy: Local`, a load balancer queries it to find nodes with
/// endpoints.
enum HealthPort {
    /// The port that the Service already has.
    Kept(u16),
    /// The requested port.
    Asked(u16),
    /// Any free port.
    Any,
}

/// The health check node port that a Service needs. Numbers that cannot be a port are left to validation.
fn health_port(spec: &Map<String, Value>, kind: &str, old: Option<&Value>) -> Option<HealthPort> {
    let wanted = kind == "LoadBalancer" && spec.get("externalTrafficPolicy") == Some(&json!("Local"));
    if !wanted {
        return None;
    }
    let before = old.and_then(|old| port_number(old.get("spec")?, "healthCheckNodePort"));
    let asked = spec.get("healthCheckNodePort").and_then(Value::as_i64).unwrap_or_default();
    let asked = u16::try_from(asked).ok()?;
    Some(match (asked, before) {
        (0, None) => HealthPort::Any,
        (0, Some(before)) => HealthPort::Kept(before),
        (asked, Some(before)) if asked == before => HealthPort::Kept(before),
        (asked, _) => HealthPort::Asked(asked),
    })
}

#[cfg(test)]
mod tests;
