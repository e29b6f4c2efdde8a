//! Validation of a ResourceClaim's status: the allocated devices, and the consumers of the claim.

use std::collections::HashSet;

use serde_json::Value;

use super::super::field::{Errors, Field};
use super::super::walk::top;
use super::super::{FieldError, canonical, conditions, domains, names};
use super::{
    CONFIGS_MAX, DeviceRequests, PARAMETERS_LEN_MAX, opaque, pool, raw, reference, references, requests,
};

const CONSUMERS_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 16;
const INTERFACE_LEN_MAX: usize = 256;
const HARDWARE_LEN_MAX: usize = 128;

/// The fields that identify an allocated device.
const IDENTITY: [&str; 4] = ["driver", "pool", "device", "shareID"];

/// Checks an update of the status.
pub(in super::super) fn check(new: &Value, old: &Value, errors: &mut Errors) {
    let named = requests(&top(new, "spec.devices"));
    let status = top(new, "status");
    let allocation = status.child("allocation");
    consumers(new, old, errors);
    devices(&status, errors);
    match (allocation.is_set(), old["status"]["allocation"].is_null()) {
        (true, false) => allocation.unchanged(&old["status"]["allocation"], errors),
        (true, true) => allocated(&allocation.child("devices"), &named, errors),
        _ => {}
    }
}

fn consumers(new: &Value, old: &Value, errors: &mut Errors) {
    let list = top(new, "status.reservedFor");
    if !list.overfull(CONSUMERS_MAX, errors) {
        let mut seen = HashSet::new();
        for consumer in list.items() {
            for field in ["resource", "name", "uid"] {
                consumer.child(field).demand(errors);
            }
            let uid = consumer.child("uid").text();
            if !seen.insert(uid) {
                errors.push(FieldError::duplicate(consumer.path(), uid));
            }
        }
    }
    if list.is_empty() {
        return;
    }
    let before = top(old, "status.reservedFor");
    let is_deleted = top(new, "metadata.deletionTimestamp").is_set();
    if !top(new, "status.allocation").is_set() {
        errors.push(list.forbidden("may not be specified when `allocated` is not set"));
    } else if is_deleted && list.list().iter().any(|consumer| !before.list().contains(consumer)) {
        let detail =
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(list.forbidden(detail));
    }
}

fn identity(device: &Value) -> [&str; 4] {
    IDENTITY.map(|field| device[field].as_str().unwrap_or_default())
}

/// Checks what drivers report about allocated devices.
fn devices(status: &Field<'_, '_>, errors: &mut Errors) {
    let results = status.below("allocation.devices.results");
    let allocated: HashSet<[&str; 4]> = results.list().iter().map(identity).collect();
    let mut seen = HashSet::new();
    for device in status.child("devices").items() {
        domains::driver(&device.child("driver"), errors);
        pool(&device.child("pool"), errors);
        device.child("device").grammar(names::dns1123_label, errors);
        let own = identity(device.value());
        let shown = own.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/");
        if !allocated.contains(&own) {
            errors.push(device.invalid_value(shown.clone(), "must be an allocated device in the claim"));
        }
        if !seen.insert(own) {
            errors.push(FieldError::duplicate(device.path(), shown));
        }
        let conditions = device.child("conditions");
        conditions.overfull(CONDITIONS_MAX, errors);
        conditions::check(&conditions, errors);
        if device.child("data").is_set() {
            raw(&device.child("data"), PARAMETERS_LEN_MAX, errors);
        }
        network(&device.child("networkData"), errors);
    }
}

fn network(data: &Field<'_, '_>, errors: &mut Errors) {
    data.child("interfaceName").overlong(INTERFACE_LEN_MAX, errors);
    data.child("hardwareAddress").overlong(HARDWARE_LEN_MAX, errors);
    let addresses = data.child("ips");
    if !addresses.overfull(ADDRESSES_MAX, errors) {
        addresses.items().for_each(|one| canonical::check_interface(&one, errors));
        addresses.unique(errors);
    }
}

fn allocated(devices: &Field<'_, '_>, named: &DeviceRequests<'_>, errors: &mut Errors) {
    let results = devices.child("results");
    if !results.overfull(RESULTS_MAX, errors) {
        for result in results.items() {
            reference(&result.child("request"), named, errors);
            domains::driver(&result.child("driver"), errors);
            pool(&result.child("pool"), errors);
            result.child("device").grammar(names::dns1123_label, errors);
        }
    }
    // Entries of the class and entries of the claim.
    let configs = devices.child("config");
    if !configs.overfull(2 * CONFIGS_MAX, errors) {
        for config in configs.items() {
            config.child("source").one_of_required(&["FromClaim", "FromClass"], errors);
            references(&config.child("requests"), named, errors);
            opaque(&config.child("opaque"), errors);
        }
    }
}
