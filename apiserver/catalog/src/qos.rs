//! Total resources of a pod's containers, and the pod's quality of service class.

use std::collections::BTreeMap;

use serde_json::Value;

use tombolo_apicore::schema::format::Quantity;
use tombolo_apicore::value::{at, items};

/// Amounts by resource name.
pub(crate) type Amounts<'v> = BTreeMap<&'v str, Quantity>;

/// Guaranteed if every container has CPU and memory requests equal to the limits, BestEffort if no container sets any.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    let containers = || items(spec, &["containers"]).iter().chain(items(spec, &["initContainers"]));
    let own = |container: &Value| container["resources"].clone();
    let resources: Vec<Value> = match spec["resources"].is_object() {
        true => vec![spec["resources"].clone()],
        false => containers().map(own).collect(),
    };
    let zero = |value: &Value| value.is_null() || value == "0";
    let part = |resources: &Value, kind: &str, name: &str| resources[kind][name].clone();
    let all = |check: &dyn Fn(&Value, &str) -> bool| {
        resources.iter().all(|resources| ["cpu", "memory"].iter().all(|name| check(resources, name)))
    };
    if all(&|r, name| zero(&part(r, "requests", name)) && zero(&part(r, "limits", name))) {
        return "BestEffort";
    }
    match all(&|r, name| {
        !zero(&part(r, "limits", name)) && part(r, "limits", name) == part(r, "requests", name)
    }) {
        true => "Guaranteed",
        false => "Burstable",
    }
}

/// The maximum that all containers need at any time. Init containers run one after the other; a sidecar runs beside all
/// containers after it.
pub(crate) fn together<'v>(spec: &'v Value, list: &str) -> Amounts<'v> {
    let of = |container: &'v Value| -> Amounts<'v> {
        let amounts = at(container, &["resources", list]).as_object().into_iter().flatten();
        amounts
            .filter_map(|(name, amount)| {
                let amount = Quantity::parse(amount.as_str().unwrap_or_default()).ok()?;
                Some((name.as_str(), amount))
            })
            .collect()
    };
    let add = |sum: &mut Amounts<'v>, more: &Amounts<'v>| {
        for (name, amount) in more {
            sum.entry(name).and_modify(|sum| *sum = *sum + *amount).or_insert(*amount);
        }
    };
    let (mut total, mut sidecars, mut peak) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in items(spec, &["containers"]) {
        add(&mut total, &of(container));
    }
    for container in items(spec, &["initContainers"]) {
        let mut now = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &now);
            add(&mut sidecars, &now);
            now = sidecars.clone();
        } else {
            add(&mut now, &sidecars);
        }
        highest(&mut peak, &now);
    }
    highest(&mut total, &peak);
    total
}

fn highest<'v>(of: &mut Amounts<'v>, other: &Amounts<'v>) {
    for (name, amount) in other {
        of.entry(name)
            .and_modify(|value| {
                if *amount > *value {
                    *value = *amount;
                }
            })
            .or_insert(*amount);
    }
}
