//! ComponentStatuses: whether the store responds, and whether kube-controller-manager and kube-scheduler run.
//! kube-apiserver probes their ports; this server reads their Leases.

use std::time::Duration;

use serde_json::{Value, json};
use tombolo_apicore::store::{Store as _, StoreError};
use tombolo_proto::object::ObjectKey;

use super::{Context, external};
use crate::objects::{Edit, core};

/// How often the components are checked.
const INTERVAL: Duration = Duration::from_secs(5);

/// Writes the statuses until the server stops.
pub(super) async fn run(context: &Context) {
    let mut round = tokio::time::interval(INTERVAL);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        for (name, health) in components(context) {
            if let Err(error) = write(context, name, &health).await {
                tracing::warn!(name, %error, "the status of a component was not written");
            }
        }
    }
}

fn components(context: &Context) -> [(&'static str, Result<(), String>); 3] {
    let key = ObjectKey::new(core("namespaces"), "", "default");
    let store = context.objects.store().get(&key).map(|_| ()).map_err(|error| error.to_string());
    let manager = context.external.is_at_work();
    let scheduler =
        context.external.is_always() || external::holds_lease(&context.objects, external::SCHEDULER);
    let missing = |name: &str| format!("{name} does not hold its Lease kube-system/{name}");
    [
        ("etcd-0", store),
        ("controller-manager", manager.then_some(()).ok_or_else(|| missing("kube-controller-manager"))),
        ("scheduler", scheduler.then_some(()).ok_or_else(|| missing("kube-scheduler"))),
    ]
}

async fn write(context: &Context, name: &str, health: &Result<(), String>) -> Result<(), StoreError> {
    let conditions = match health {
        Ok(()) => json!([{"type": "Healthy", "status": "True", "message": "ok"}]),
        Err(why) => json!([{"type": "Healthy", "status": "False", "message": "Unhealthy", "error": why}]),
    };
    let resource = core("componentstatuses");
    let status = json!({
        "apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": name}, "conditions": conditions,
    });
    let key = ObjectKey::new(resource.clone(), "", name);
    let update = context.objects.update(&key, |known| {
        if known.value.get("conditions") == Some(&conditions) {
            return Edit::Keep;
        }
        known.value["conditions"] = Value::clone(&conditions);
        Edit::Put
    });
    match update.await? {
        Some(_) => Ok(()),
        None => context.objects.ensure(resource, status).await,
    }
}
