//! The watches of rules, which wait until the cluster has their definitions.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch as channel};
use tombolo_proto::Resource;

use super::table::{RouterKind, Table};
use super::{API, Router};
use crate::kube::{ApiCall, Caller, Kube, ObjectEvent, WatchError, WatchSpec, watch};

/// Default bound on events that wait for the router.
const EVENTS_MAX: NonZeroU32 = NonZeroU32::new(64).expect("not zero");

/// Interval at which a cluster without the definitions is checked for them.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// Follows one kind. It waits silently for the kind's definition, then watches, and waits again when the definition was
/// removed. `events` bounds the pending events. Never returns.
pub(crate) async fn follow(
    kube: Kube,
    kind: RouterKind,
    router: Arc<dyn Router>,
    events: Option<NonZeroU32>,
) {
    let mut table = Table::new(kind);
    loop {
        until_served(&kube, kind).await;
        tracing::info!(kind = kind.name(), "watching");
        run(&kube, kind, &mut table, router.as_ref(), events.unwrap_or(EVENTS_MAX)).await;
        table.clear(router.as_ref());
    }
}

/// Runs one watch until the API server no longer knows the kind.
async fn run(kube: &Kube, kind: RouterKind, table: &mut Table, router: &dyn Router, events: NonZeroU32) {
    let spec = WatchSpec::all(resource(kind));
    let (sender, mut receiver) = mpsc::channel(usize::try_from(events.get()).unwrap_or(usize::MAX));
    let (unknown, mut ended) = channel::channel(false);
    // The watch fails with "not found" exactly while the definition is missing.
    let failed = |error: &WatchError| match error.code == Some(404) {
        true => _ = unknown.send_replace(true),
        false => tracing::warn!(kind = kind.name(), %error, "watch failed; trying again"),
    };
    let take = async {
        while let Some(event) = receiver.recv().await {
            table.handle(event, router);
        }
    };
    tokio::select! {
        () = watch(kube.clone(), spec, sender, |event: ObjectEvent| event, failed) => {}
        () = take => {}
        _ = ended.wait_for(|ended| *ended) => {}
    }
}

/// Returns once discovery lists the kind. A cluster without it is not an error, and other parts report an unreachable
/// API server.
async fn until_served(kube: &Kube, kind: RouterKind) {
    loop {
        let answer = kube.call(Caller::Own, ApiCall::get(format!("/apis/{API}"))).await;
        if answer.is_ok_and(|answer| answer.is_success() && names(&answer.json(), kind)) {
            return;
        }
        tracing::debug!(kind = kind.name(), "not served by this cluster");
        tokio::time::sleep(DISCOVERY_INTERVAL).await;
    }
}

fn names(list: &Value, kind: RouterKind) -> bool {
    let resources = list.get("resources").and_then(Value::as_array);
    resources.is_some_and(|resources| {
        resources.iter().any(|resource| resource.get("name").and_then(Value::as_str) == Some(kind.plural()))
    })
}

fn resource(kind: RouterKind) -> Resource {
    let (group, version) = API.split_once('/').unwrap_or(("", API));
    Resource::new(group, version, kind.plural())
}
