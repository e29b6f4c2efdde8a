//! Validation of network block devices.

use std::sync::LazyLock;

use regex::Regex;

use super::super::{Errors, Field};
use super::VolumeOwner;

static IQN: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$";
    Regex::new(text).expect("the expression is right")
});

/// Checks an iSCSI disk.
pub(super) fn iscsi(source: &Field<'_, '_>, owner: VolumeOwner<'_>, errors: &mut Errors) {
    let (portal, initiator) = (source.child("targetPortal"), source.child("initiatorName"));
    portal.demand(errors);
    if let VolumeOwner::Volume { name } = owner {
        portal_length(name, &portal, &initiator, &source.child("targetportal"), errors);
    }
    let iqn = source.child("iqn");
    let any = "must be valid format starting with iqn, eui, or naa";
    let unknown = if matches!(owner, VolumeOwner::Volume { .. }) { "must be valid format" } else { any };
    if iqn.demand(errors) {
        initiator_name(&iqn, iqn.text(), unknown, errors);
    }
    let lun = source.child("lun");
    if !(0..=255).contains(&lun.int()) {
        errors.push(lun.invalid("must be between 0 and 255, inclusive"));
    }
    let secret = source.child("secretRef");
    let authenticated =
        source.child("chapAuthDiscovery").is_true() || source.child("chapAuthSession").is_true();
    if authenticated && !secret.is_set() {
        errors.push(secret.required(""));
    }
    if secret.is_set() && matches!(owner, VolumeOwner::Volume { .. }) {
        secret.child("name").demand(errors);
    }
    if initiator.is_set() {
        initiator_name(&source.child("initiatorname"), initiator.text(), unknown, errors);
    }
}

/// Maximum length of a volume's name together with its portal in bytes.
const PORTAL_LEN_MAX: usize = 64;

/// The volume's name and the portal form an interface name, which has a maximum length.
pub(in super::super) fn portal_length(
    name: &str,
    portal: &Field<'_, '_>,
    initiator: &Field<'_, '_>,
    shown: &Field<'_, '_>,
    errors: &mut Errors,
) {
    if initiator.is_set() && name.len() + 1 + portal.text().len() > PORTAL_LEN_MAX {
        let text = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        let value = if shown.is_set() { shown.text() } else { portal.text() };
        errors.push(shown.invalid_value(value, text));
    }
}

fn initiator_name(field: &Field<'_, '_>, name: &str, unknown: &str, errors: &mut Errors) {
    let hex = |prefix: &str, length: usize| {
        let rest = name.strip_prefix(prefix).and_then(|rest| rest.get(1..)).unwrap_or_default();
        rest.len() == length && rest.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let (fits, text) = match name.get(..3).unwrap_or_default() {
        "iqn" => (IQN.is_match(name), "must be valid format"),
        "eui" => (hex("eui", 16), "must be valid format"),
        "naa" => (hex("naa", 32), "must be valid format"),
        _ => (false, unknown),
    };
    if !fits {
        errors.push(field.invalid_value(name, text));
    }
}

/// Checks a Fibre Channel disk.
pub(super) fn fibre_channel(source: &Field<'_, '_>, errors: &mut Errors) {
    let (names, ids, lun) = (source.child("targetWWNs"), source.child("wwids"), source.child("lun"));
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => {
            errors.push(names.required("must specify either targetWWNs or wwids, but not both"));
        }
        (false, false) => {
            errors.push(names.invalid("targetWWNs and wwids can not be specified simultaneously"));
        }
        _ => {}
    }
    if !names.is_empty() {
        match lun.is_set() {
            false => errors.push(lun.required("lun is required if targetWWNs is specified")),
            true => lun.within(0, 255, errors),
        }
    }
}
