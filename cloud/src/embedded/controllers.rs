//! What a cluster does by itself, inside this process: namespaces, garbage, definitions, certificates, addresses.
//!
//! kube-controller-manager may run beside them: each brings objects into a state that the other agrees with.

pub(super) mod aggregation;
pub(super) mod csr;
pub(super) mod definitions;
pub(super) mod deletion;
pub(super) mod events;
pub(super) mod feed;
pub(super) mod garbage;
pub(super) mod namespaces;
pub(super) mod orphan_pods;
pub(super) mod ownership;
pub(super) mod quota;
pub(super) mod service_addresses;
pub(super) mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use tombolo_apiserve::registry::Registry;
use tombolo_apiserve::status::ApiError;
use tombolo_runtime::Tasks;

use self::deletion::Deletions;
use self::ownership::Ownership;
use super::authz::Authorization;
use super::objects::{Object, Objects};
use super::pki::Pki;

/// What controllers work with.
pub(super) struct Context {
    /// The objects.
    pub(super) objects: Objects,
    /// Deletes like a client.
    pub(super) deletions: Arc<Deletions>,
    /// The kinds that are served.
    pub(super) registry: Registry,
    /// Who owns what.
    pub(super) ownership: Ownership,
    /// What is allowed.
    pub(super) authorization: Authorization,
    /// Keys and certificates.
    pub(super) pki: Arc<Pki>,
}

/// Starts all controllers.
pub(super) fn start(context: &Arc<Context>, tasks: &Tasks) {
    macro_rules! spawn {
        ($($module:ident),+) => {$(
            let own = Arc::clone(context);
            tasks.spawn(concat!("embedded.", stringify!($module)), async move { $module::run(&own).await });
        )+};
    }
    spawn!(
        aggregation,
        csr,
        definitions,
        events,
        garbage,
        namespaces,
        orphan_pods,
        quota,
        service_addresses,
        snapshots
    );
}

/// How long ago an object was created.
fn age(object: &Object) -> Option<Duration> {
    let created: jiff::Timestamp = object.text("/metadata/creationTimestamp").parse().ok()?;
    Duration::try_from(jiff::Timestamp::now().duration_since(created)).ok()
}

/// Gone already, or another incarnation: nothing is left to do.
fn is_settled(error: &ApiError) -> bool {
    matches!(error.code.as_u16(), 404 | 409)
}
