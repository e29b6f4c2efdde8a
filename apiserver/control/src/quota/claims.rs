//! The use by claims: storage and devices, by class.

use serde_json::Value;
use tombolo_apicore::schema::Quantity;

use super::Amounts;
use crate::objects::{items, text};

/// Infix between the name of a storage class and the limited resource.
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

/// Suffix of the name of a device class.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// Limits that claims of storage count against, for all classes or for one.
const STORAGE: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// Maximum number of devices for one request (`resource.k8s.io`, AllocationResultsMaxSize).
const DEVICES_MAX: u32 = 32;

/// Older annotation with a claim's class.
const CLASS_ANNOTATION: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

pub(super) fn tracks_storage(name: &str) -> bool {
    STORAGE.contains(&name)
        || name
            .split_once(STORAGE_CLASS)
            .is_some_and(|(class, rest)| !class.is_empty() && STORAGE.contains(&rest))
}

pub(super) fn tracks_devices(name: &str) -> bool {
    name.ends_with(DEVICES)
}

/// The use by a PersistentVolumeClaim: itself and its requested storage, or its allocated storage if that is greater.
pub(super) fn storage(claim: &Value) -> Amounts {
    let class = match text(claim, CLASS_ANNOTATION) {
        "" => text(claim, "/spec/storageClassName"),
        class => class,
    };
    let amount = |list: &str| Amounts::read(claim.pointer(list)).get("storage").map(Quantity::rounded_up);
    let mut amounts = vec![("persistentvolumeclaims", Quantity::whole(1))];
    if let Some(asked) = amount("/spec/resources/requests") {
        let given = amount("/status/allocatedResources").filter(|given| *given > asked);
        amounts.push(("requests.storage", given.unwrap_or(asked)));
    }
    let mut used = Amounts::default();
    for (name, amount) in amounts {
        used.set(name, amount);
        if !class.is_empty() {
            used.set(format!("{class}{STORAGE_CLASS}{name}"), amount);
        }
    }
    used
}

/// The use by a ResourceClaim of each class of devices: the maximum that may be allocated to it.
pub(super) fn devices(claim: &Value) -> Amounts {
    let mut used = Amounts::default();
    for request in items(claim, "/spec/devices/requests") {
        let mut worst = Amounts::default();
        for alternative in request.get("exactly").into_iter().chain(items(request, "/firstAvailable")) {
            let count = match text(alternative, "/allocationMode") {
                "ExactCount" => alternative
                    .get("count")
                    .and_then(Value::as_u64)
                    .and_then(|count| u32::try_from(count).ok()),
                "All" => Some(DEVICES_MAX),
                // Unknown modes of newer versions are not counted, as in kube-apiserver.
                _ => None,
            };
            let class = text(alternative, "/deviceClassName");
            worst.raise(&Amounts::one(&format!("{class}{DEVICES}"), Quantity::whole(count.unwrap_or(0))));
        }
        used.add(&worst);
    }
    used
}
