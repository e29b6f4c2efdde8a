//! Validation of CSIDrivers and CSINodes (pkg/apis/storage/validation).

use std::collections::HashSet;

use serde_json::Value;

use super::field::{Errors, Field};
use super::{FieldError, domains, names};
use tombolo_apicore::value::items;

const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
const ALLOCATABLE_SECONDS_MIN: i64 = 10;
const NODE_ID_LEN_MAX: usize = 256;

/// Checks the spec of a driver.
pub(super) fn driver(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.child("fsGroupPolicy").one_of(&["File", "None", "ReadWriteOnceWithFSType"], errors);
    let tokens = spec.child("tokenRequests");
    token_requests(&tokens, errors);
    let modes = spec.child("volumeLifecycleModes");
    for mode in modes.texts().into_iter().filter(|mode| !["Persistent", "Ephemeral"].contains(mode)) {
        errors.push(FieldError::not_supported(modes.path(), mode, &["Persistent", "Ephemeral"]));
    }
    let period = spec.child("nodeAllocatableUpdatePeriodSeconds");
    if period.is_set() && period.int() < ALLOCATABLE_SECONDS_MIN {
        let detail = format!("must be greater than or equal to {ALLOCATABLE_SECONDS_MIN} seconds");
        errors.push(period.invalid(detail));
    }
    let in_secrets = spec.child("serviceAccountTokenInSecrets");
    if in_secrets.is_set() && tokens.is_empty() {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(in_secrets.invalid(detail));
    }
}

fn token_requests(tokens: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for token in tokens.items() {
        let (audience, seconds) = (token.child("audience"), token.child("expirationSeconds"));
        if !seen.insert(audience.text()) {
            errors.push(FieldError::duplicate(audience.path(), audience.text()));
            continue;
        }
        if seconds.is_set() && seconds.int() < TOKEN_SECONDS_MIN {
            errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
        }
        if seconds.int() > TOKEN_SECONDS_MAX {
            errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
        }
    }
}

/// Checks the spec of a node. A driver's entry is immutable, except the number of volumes.
pub(super) fn node(spec: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    let drivers = spec.child("drivers");
    let mut seen = HashSet::new();
    for driver in drivers.items() {
        let (name, id) = (driver.child("name"), driver.child("nodeID"));
        domains::driver(&name, errors);
        if id.text().is_empty() {
            errors.push(id.required(""));
        }
        if id.text().len() > NODE_ID_LEN_MAX {
            errors.push(id.invalid(format!("must be {NODE_ID_LEN_MAX} characters or less")));
        }
        driver.below("allocatable.count").non_negative(errors);
        if !seen.insert(name.text()) {
            errors.push(FieldError::duplicate(name.path(), name.text()));
        }
        topology_keys(&driver, errors);
    }
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        if let Some(driver) = driver.as_object_mut() {
            driver.remove("allocatable");
        }
        driver
    };
    for before in old.map_or(&[][..], |old| items(old, &["spec", "drivers"])) {
        for driver in drivers.list().iter().filter(|driver| driver["name"] == before["name"]) {
            if fixed(driver) != fixed(before) {
                errors.push(drivers.invalid_value(driver.clone(), super::IMMUTABLE));
            }
        }
    }
}

/// Checks topology keys. Errors are reported at the driver.
fn topology_keys(driver: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for key in driver.child("topologyKeys").texts() {
        if key.is_empty() {
            errors.push(driver.required(""));
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(driver.path(), key));
        }
        let problems = names::qualified_name(key).into_iter();
        errors.extend(problems.map(|problem| driver.invalid_value(key, problem)));
    }
}
