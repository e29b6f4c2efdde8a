//! Address families of a Service, in a cluster that allocates IPv4 addresses
//! (pkg/registry/core/service/storage/alloc.go, `initIPFamilyFields`).

use serde_json::{Map, Value, json};

use super::{HEADLESS, ServiceFieldError};

/// Fills in the families and their policy.
///
/// # Errors
/// The fields that request a family that the cluster does not have.
pub(super) fn settle(spec: &mut Map<String, Value>) -> Result<(), Vec<ServiceFieldError>> {
    let headless = spec.get("clusterIP").is_some_and(|ip| ip == HEADLESS);
    let selects = spec.get("selector").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty());
    let policy = match spec.get("ipFamilyPolicy").and_then(Value::as_str).unwrap_or_default() {
        "" if headless && !selects => "RequireDualStack",
        "" => "SingleStack",
        given => given,
    }
    .to_owned();
    spec.insert("ipFamilyPolicy".into(), json!(policy));
    let mut families: Vec<Value> =
        spec.get("ipFamilies").and_then(Value::as_array).cloned().unwrap_or_default();
    if policy == "SingleStack" {
        one_of_each(spec, &families)?;
    }
    of_addresses(spec, families.len())?;
    if headless && !selects {
        if families.is_empty() {
            families.push(json!("IPv4"));
        }
        // The endpoints of a headless Service without a selector may have both families.
        if families.len() < 2 && policy != "SingleStack" {
            families.push(json!(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }));
        }
        spec.insert("ipFamilies".into(), Value::Array(families));
        return Ok(());
    }
    let mut troubles: Vec<ServiceFieldError> = Vec::new();
    if policy == "RequireDualStack" {
        troubles.push((
            "spec.ipFamilyPolicy".into(),
            json!(policy).to_string(),
            "this cluster is not configured for dual-stack services".into(),
        ));
    }
    for (index, family) in families.iter().enumerate().filter(|(_, family)| *family != "IPv4") {
        let field = format!("spec.ipFamilies[{index}]");
        troubles.push((field, family.to_string(), "not configured on this cluster".into()));
    }
    if !troubles.is_empty() {
        return Err(troubles);
    }
    if families.is_empty() {
        spec.insert("ipFamilies".into(), json!(["IPv4"]));
    }
    Ok(())
}

/// Copies `clusterIP` to `clusterIPs` if that list is empty.
pub(super) fn list_address(spec: &mut Map<String, Value>) {
    let given = spec.get("clusterIP").filter(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty())).cloned();
    let unset = spec.get("clusterIPs").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if let Some(given) = given.filter(|_| unset) {
        spec.insert("clusterIPs".into(), json!([given]));
    }
}

/// Checks that a single-stack Service has at most one address and one family.
fn one_of_each(spec: &Map<String, Value>, families: &[Value]) -> Result<(), Vec<ServiceFieldError>> {
    let addresses = spec.get("clusterIPs").and_then(Value::as_array).map_or(0, Vec::len);
    let several = [(addresses, "cluster IPs"), (families.len(), "IP families")];
    let trouble = |(_, what): &(usize, &str)| -> ServiceFieldError {
        let why =
            format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
        ("spec.ipFamilyPolicy".into(), "\"SingleStack\"".into(), why)
    };
    let troubles: Vec<ServiceFieldError> =
        several.iter().filter(|(count, _)| *count == 2).map(trouble).collect();
    if troubles.is_empty() { Ok(()) } else { Err(troubles) }
}

/// Checks that addresses without a listed family have a family that the cluster supports.
fn of_addresses(spec: &Map<String, Value>, named: usize) -> Result<(), Vec<ServiceFieldError>> {
    let addresses = spec.get("clusterIPs").and_then(Value::as_array);
    let list: &[Value] = addresses.map_or(&[], Vec::as_slice);
    let foreign = |(_, address): &(usize, &Value)| address.as_str().is_some_and(|text| text.contains(':'));
    let troubles: Vec<ServiceFieldError> = list
        .iter()
        .enumerate()
        .skip(named)
        .filter(foreign)
        .map(|(index, _)| {
            let field = format!("spec.clusterIPs[{index}]");
            (field, json!(list).to_string(), "IPv6 is not configured on this cluster".into())
        })
        .collect();
    if troubles.is_empty() { Ok(()) } else { Err(troubles) }
}

/// Whether the fields are consistent. If not, validation reports the errors.
pub(super) fn are_sound(spec: &Map<String, Value>, is_new: bool) -> bool {
    let text = |field: &str| spec.get(field).and_then(Value::as_str).unwrap_or_default();
    let list = |field: &str| spec.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
    let families = list("ipFamilies");
    let known = families.iter().all(|family| family == "IPv4" || family == "IPv6");
    let twice = families.len() == 2 && families[0] == families[1];
    let addresses = list("clusterIPs");
    let is_address = |value: &Value| {
        value.as_str().is_some_and(|text| text == HEADLESS || text.parse::<std::net::IpAddr>().is_ok())
    };
    let v6 = |value: &Value| value.as_str().is_some_and(|text| text.contains(':'));
    let one_family = addresses.len() == 2 && v6(&addresses[0]) == v6(&addresses[1]);
    let same = addresses.first().is_none_or(|first| first == text("clusterIP"));
    let given = text("clusterIP");
    (spec.get("ipFamilyPolicy").is_none_or(Value::is_null) || policies.contains(&text("ipFamilyPolicy")))
        && known
        && !twice
        && families.len() <= 2
        && addresses.len() <= 2
        && !one_family
        && addresses.iter().all(is_address)
        && (addresses.len() < 2 || !addresses.contains(&json!(HEADLESS)))
        && (given.is_empty() || is_address(&json!(given)))
        && (same || !is_new)
}
