//! The controllers that run inside this process: namespaces, garbage collection, definitions, certificates, addresses.
//!
//! kube-controller-manager may run beside them. Controllers that do the same work pause while it runs ([`external`]).

pub(super) mod aggregation;
pub(super) mod api_services;
pub(super) mod component_status;
pub(super) mod csr;
pub(super) mod definitions;
pub(super) mod deletion;
pub(super) mod events;
pub(super) mod external;
pub(super) mod feed;
pub(super) mod flows;
pub(super) mod garbage;
pub(super) mod identity;
pub(super) mod namespaces;
pub(super) mod orphan_pods;
pub(super) mod ownership;
pub(super) mod quota;
pub(super) mod service_addresses;
pub(super) mod snapshots;
pub(super) mod termination;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_runtime::Tasks;

use self::deletion::Deletions;
use self::external::ExternalControllers;
use self::ownership::Ownership;
use super::authz::Authorization;
use super::flows::Flows;
use super::objects::{Objects, StoredObject};
use super::pki::Pki;

/// What controllers need.
pub(super) struct Context {
    /// The objects.
    pub(super) objects: Objects,
    /// Deletes objects as for a client.
    pub(super) deletions: Arc<Deletions>,
    /// The kinds that are served.
    pub(super) registry: Registry,
    /// The index of owner references.
    pub(super) ownership: Ownership,
    /// Authorization.
    pub(super) authorization: Authorization,
    /// Flow schemas and priority levels.
    pub(super) flows: Flows,
    /// Keys and certificates.
    pub(super) pki: Arc<Pki>,
    /// Whether kube-controller-manager is running.
    pub(super) external: Arc<ExternalControllers>,
}

/// Starts all controllers.
pub(super) fn start(context: &Arc<Context>, tasks: &Tasks) {
    macro_rules! spawn {
        ($($module:ident),+) => {$(
            let own = Arc::clone(context);
            tasks.spawn(concat!("embedded.", stringify!($module)), async move { $module::run(&own).await });
        )+};
    }
    macro_rules! spawn_without_external {
        ($($module:ident),+) => {$(
            let own = Arc::clone(context);
            tasks.spawn(concat!("embedded.", stringify!($module)), async move {
                own.external.without(|| $module::run(&own)).await;
            });
        )+};
    }
    spawn!(
        api_services,
        component_status,
        csr,
        definitions,
        events,
        flows,
        identity,
        namespaces,
        service_addresses,
        snapshots,
        external
    );
    spawn_without_external!(aggregation, garbage, orphan_pods, quota, termination);
}

/// How long ago an object was created.
fn age(object: &StoredObject) -> Option<Duration> {
    age_of(object.text("/metadata/creationTimestamp"))
}

/// Time elapsed since a timestamp; `None` for a time in the future or an invalid one.
fn age_of(time: &str) -> Option<Duration> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Duration::try_from(jiff::Timestamp::now().duration_since(time)).ok()
}

/// Whether the object is already gone or was replaced by another one of its name: nothing is left to do.
fn is_settled(error: &ApiError) -> bool {
    matches!(error.code.as_u16(), 404 | 409)
}

/// Tasks beside the loop of a controller, one at a time for each name. A task that waits for finalizers or for a
/// webhook delays only its own name.
#[derive(Default)]
struct NamedTasks<'a> {
    names: HashSet<String>,
    running: FuturesUnordered<BoxFuture<'a, String>>,
}

impl<'a> NamedTasks<'a> {
    /// Starts a task, unless one runs for this name.
    fn begin(&mut self, name: &str, work: impl Future<Output = ()> + Send + 'a) {
        if self.names.insert(name.to_owned()) {
            let name = name.to_owned();
            self.running.push(Box::pin(async {
                work.await;
                name
            }));
        }
    }

    /// Runs all tasks until one ends. Returns its name. Cancel-safe.
    async fn ended(&mut self) -> String {
        match self.running.next().await {
            Some(name) => {
                self.names.remove(&name);
                name
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn delayed_item_blocks_only_its_own_name() {
        let (begun, mut work) = (Arc::new(AtomicUsize::new(0)), NamedTasks::default());
        let count = || {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(work.ended().now_or_never(), None, "the object does not exist");
        for name in ["hangs", "well", "well"] {
            let piece = count();
            work.begin(name, async move {
                piece.await;
                if name == "hangs" {
                    std::future::pending::<()>().await;
                }
            });
        }
        assert_eq!(work.ended().now_or_never().as_deref(), Some("well"));
        assert_eq!(work.ended().now_or_never(), None);
        work.begin("hangs", count());
        work.begin("well", count());
        assert_eq!(work.ended().now_or_never().as_deref(), Some("well"));
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }
}
