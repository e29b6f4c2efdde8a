//! The checks of `/livez` and `/readyz`. They have the names of the same checks in kube-apiserver, so that probes and
//! tools find them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_apicore::api::builder::Check;
use tombolo_apicore::store::Store as _;
use tombolo_proto::object::ObjectKey;

use super::objects::{Objects, core};

/// Steps of the start. In kube-apiserver they are hooks that run after it listens; here they are done before or
/// together with the start of the controllers.
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

/// Whether the start is complete.
#[derive(Debug, Clone, Default)]
pub(super) struct Started(Arc<AtomicBool>);

impl Started {
    /// Records that the controllers run.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// All checks of a server.
pub(super) fn checks(objects: &Objects, started: &Started) -> Vec<Arc<dyn Check>> {
    let step =
        |name, vital| -> Arc<dyn Check> { Arc::new(StartupStep { name, vital, started: started.clone() }) };
    // kube-apiserver's informers must fetch objects first. Here that data is derived when the objects are read.
    let first: [Arc<dyn Check>; 4] = [
        Arc::new(Log),
        Arc::new(Reads(objects.clone())),
        Arc::new(StorageRoomCheck(objects.clone())),
        step("informer-sync", false),
    ];
    first.into_iter().chain(STEPS.map(|name| step(name, true))).collect()
}

/// The log check always passes: writing the log never blocks requests.
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

/// Whether the store can be read. A full disk is no reason to restart the process.
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

/// Whether the store may grow. It fails before the store is full. Then a user must delete objects; a restart does not
/// help.
struct StorageRoomCheck(Objects);

/// The store counts as full when at most `1/PARTS` of it is left.
const PARTS: u64 = 16;

impl Check for StorageRoomCheck {
    fn name(&self) -> &'static str {
        "storage-room"
    }

    fn check(&self) -> Result<(), String> {
        let (len, max) = self.0.store().size();
        if len < max - max / PARTS {
            return Ok(());
        }
        Err(format!(
            "{len} of {max} bytes are taken: delete objects, or allow more (--store-mebibytes of tombolo apiserver; \
             tombolo up has a fixed size)"
        ))
    }
}

/// A step of the start.
struct StartupStep {
    name: &'static str,
    vital: bool,
    started: Started,
}

impl Check for StartupStep {
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
