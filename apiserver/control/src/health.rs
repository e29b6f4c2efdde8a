//! What `/livez` and `/readyz` look at, by the names that kube-apiserver gives the same things, so that probes and tools
//! find what they ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_apicore::api::builder::Check;
use tombolo_apicore::store::Store as _;
use tombolo_proto::object::ObjectKey;

use super::objects::{Objects, core};

/// Steps of a start: in kube-apiserver hooks that run after it listens, here done before or together with the
/// controllers.
const STEPS: [&str; 20] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/storage-readiness",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
];

/// Whether everything that belongs to a start is done.
#[derive(Debug, Clone, Default)]
pub(super) struct Started(Arc<AtomicBool>);

impl Started {
    /// The controllers run.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// All checks of a server.
pub(super) fn checks(objects: &Objects, started: &Started) -> Vec<Arc<dyn Check>> {
    let step = |name, vital| -> Arc<dyn Check> { Arc::new(Step { name, vital, started: started.clone() }) };
    // What kube-apiserver's informers have to fetch first is here derived from the objects as they are read.
    let first: [Arc<dyn Check>; 4] = [
        Arc::new(Log),
        Arc::new(Reads(objects.clone())),
        Arc::new(Room(objects.clone())),
        step("informer-sync", false),
    ];
    first.into_iter().chain(STEPS.map(|name| step(name, true))).collect()
}

/// Writing the log holds nobody up, whatever becomes of the lines.
struct Log;

impl Check for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn is_vital(&self) -> bool {
        true
    }
}

/// Whether the store answers; a full disk is no reason to start the process again.
struct Reads(Objects);

impl Check for Reads {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn check(&self) -> Result<(), String> {
        let key = ObjectKey::new(core("namespaces"), "", "default");
        self.0.store().get(&key).map(|_| ()).map_err(|error| error.to_string())
    }

    fn is_vital(&self) -> bool {
        true
    }
}

/// Whether the store may grow. It says so before it is full, and needs somebody who deletes: starting again does not help.
struct Room(Objects);

/// Of so many parts of the store the last one is left when it counts as full.
const PARTS: u64 = 16;

impl Check for Room {
    fn name(&self) -> &'static str {
        "storage-room"
    }

    fn check(&self) -> Result<(), String> {
        let (len, max) = self.0.store().size();
        if len < max - max / PARTS {
            return Ok(());
        }
        Err(format!("{len} of {max} bytes are taken: delete objects, or start with more --store-mebibytes"))
    }
}

/// One step of the start.
struct Step {
    name: &'static str,
    vital: bool,
    started: Started,
}

impl Check for Step {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<(), String> {
        if self.started.0.load(Ordering::Acquire) { Ok(()) } else { Err("not finished".to_owned()) }
    }

    fn is_vital(&self) -> bool {
        self.vital
    }
}
