//! Validation of projected volumes.

use std::collections::HashSet;

use super::sources::{downward, file_path, key_to_path, mode};
use super::{Errors, Field};

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
