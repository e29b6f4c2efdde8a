//! The definitions (CRDs) of the three kinds: installs them, waits for them, and restores deleted or changed ones.

use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::MANAGER;
use super::api::definitions;

/// Interval between checks when no change was seen.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Changes come in bursts, the first when a watch begins. One check covers all changes within this time.
const BUNCH: Duration = Duration::from_millis(100);

/// Maintains the definitions for as long as it is polled. `ready` reports whether all are established. Without
/// `install` nothing is written, and missing definitions are only logged.
pub(super) async fn keep(client: &Client, install: bool, ready: &watch::Sender<bool>) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let wanted = definitions();
    let names: Vec<String> = wanted.iter().map(ResourceExt::name_any).collect();
    let watches = names.iter().map(|name| {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        watcher(api.clone(), config).default_backoff().map_ok(drop).boxed()
    });
    let mut changes = stream::select_all(watches);
    loop {
        let mut established = true;
        for definition in &wanted {
            established &= ensure(&api, definition, install).await;
        }
        if established != *ready.borrow() {
            tracing::info!(established, "definitions of the application grid");
        }
        ready.send_replace(established);
        tokio::select! {
            change = changes.next() => if let Some(Err(error)) = change {
                tracing::debug!(%error, "watch of the definitions of the application grid failed");
            },
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
        tokio::time::sleep(BUNCH).await;
        while changes.next().now_or_never().flatten().is_some() {}
    }
}

/// Ensures one definition; returns whether its kind is served now.
pub(super) async fn ensure(
    api: &Api<CustomResourceDefinition>,
    wanted: &CustomResourceDefinition,
    install: bool,
) -> bool {
    let name = wanted.name_any();
    let found = if install {
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(wanted)).await.map(Some)
    } else {
        api.get_opt(&name).await
    };
    match found {
        Ok(Some(found)) => is_established(&found),
        Ok(None) => {
            tracing::warn!(
                definition = name,
                "the definition is missing, and cloudcore is configured not to install it (grids.installDefinitions): apply deploy/crds"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, definition = name, "cannot install or read the definition; trying again");
            false
        }
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut established = conditions.filter(|one| one.type_ == "Established");
    definition.metadata.deletion_timestamp.is_none() && established.any(|one| one.status == "True")
}
