//! Validation of projected volumes.

use std::collections::HashSet;

use super::paths::{file_path, key_to_path, mode};
use super::{Errors, Field, environment};

/// Minimum and maximum lifetime of a token in seconds.
const TOKEN_SECONDS: (i64, i64) = (600, 1 << 32);

/// Checks a projected volume.
pub(super) fn check(volume: &Field<'_, '_>, errors: &mut Errors) {
    mode(&volume.child("defaultMode"), errors);
    let mut paths = HashSet::new();
    let mut taken = |path: &str| !path.is_empty() && !paths.insert(path.to_owned());
    for source in volume.child("sources").items() {
        let mut given = 0;
        for kind in ["secret", "configMap", "downwardAPI", "serviceAccountToken"] {
            let part = source.child(kind);
            if !part.is_set() {
                continue;
            }
            given += 1;
            match kind {
                "serviceAccountToken" => token(volume, &part, errors),
                "downwardAPI" => {
                    for item in part.child("items").items() {
                        downward(&part, &item, errors);
                        let path = item.child("path").text();
                        if taken(path) {
                            errors.push(volume.invalid_value(path, TWICE));
                        }
                    }
                }
                _ => {
                    let name = part.child("name");
                    name.demand(errors);
                    for item in part.child("items").items() {
                        key_to_path(&item, errors);
                        if taken(item.child("path").text()) {
                            errors.push(volume.invalid_value(name.text(), TWICE));
                        }
                    }
                }
            }
        }
        if given > 1 {
            errors.push(source.forbidden("may not specify more than 1 volume type per source"));
        }
    }
}

const TWICE: &str = "conflicting duplicate paths";

/// Checks a token source. Errors of its path are reported at the volume.
fn token(volume: &Field<'_, '_>, token: &Field<'_, '_>, errors: &mut Errors) {
    let seconds = token.child("expirationSeconds");
    let (least, most) = TOKEN_SECONDS;
    if seconds.int() < least {
        errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
    }
    if seconds.int() > most {
        errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
    }
    let path = volume.with("path", &token.value()["path"]);
    if path.demand(errors) {
        file_path(&path, errors);
    }
}

/// Checks a downward API file. Errors are reported at the source, without the item.
pub(super) fn downward(source: &Field<'_, '_>, item: &Field<'_, '_>, errors: &mut Errors) {
    const FIELDS: [&str; 5] =
        ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
    let part = |name: &'static str| source.with(name, &item.value()[name]);
    part("path").demand(errors);
    file_path(&part("path"), errors);
    let (field, resource) = (part("fieldRef"), part("resourceFieldRef"));
    if field.is_set() {
        environment::field_ref(&field, &FIELDS, errors);
        if resource.is_set() {
            let text = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(source.invalid_value("resource", text));
        }
    } else if resource.is_set() {
        environment::resource_ref(&resource, true, errors);
    } else {
        errors.push(source.required("one of fieldRef and resourceFieldRef is required"));
    }
    mode(&part("mode"), errors);
}
