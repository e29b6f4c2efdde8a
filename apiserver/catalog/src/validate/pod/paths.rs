//! Validation of paths and modes of files in volumes.

use super::{Errors, Field};

/// Maximum file mode: 0777.
const MODE_MAX: i64 = 0o777;

/// Reports a path with `..`.
pub(super) fn no_backsteps(path: &Field<'_, '_>, errors: &mut Errors) {
    if path.text().split('/').any(|part| part == "..") {
        errors.push(path.invalid("must not contain '..'"));
    }
}

/// Reports an absolute path, or one with `..`.
pub(super) fn relative_path(path: &Field<'_, '_>, errors: &mut Errors) {
    if path.text().starts_with('/') {
        errors.push(path.invalid("must be a relative path"));
    }
    no_backsteps(path, errors);
}

/// Like [`relative_path`]. Names that begin with two dots are reserved for the kubelet.
pub(super) fn file_path(path: &Field<'_, '_>, errors: &mut Errors) {
    relative_path(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        errors.push(path.invalid("must not start with '..'"));
    }
}

/// Checks the mode of a file.
pub(super) fn mode(mode: &Field<'_, '_>, errors: &mut Errors) {
    if !(0..=MODE_MAX).contains(&mode.int()) {
        errors.push(mode.invalid("must be a number between 0 and 0777 (octal), both inclusive"));
    }
}

/// Checks a mapping of an object's key to a file.
pub(super) fn key_to_path(item: &Field<'_, '_>, errors: &mut Errors) {
    item.child("key").demand(errors);
    item.child("path").demand(errors);
    file_path(&item.child("path"), errors);
    mode(&item.child("mode"), errors);
}
