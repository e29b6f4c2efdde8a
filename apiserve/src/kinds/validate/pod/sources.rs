//! Validation of what volumes are made of; pods and persistent volumes share most of it.

use std::sync::LazyLock;

use regex::Regex;

use super::super::claims;
use super::super::names;
use super::{Errors, Field, containers, environment, projected};
use crate::schema::format::Quantity;

/// Greatest mode of a file: 0777.
const MODE_MAX: i64 = 0o777;

/// What each source cannot do without.
const REQUIRED: [(&str, &[&str]); 20] = [
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("glusterfs", &["endpoints", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["monitors", "image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &["monitors"]),
    ("quobyte", &[]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("ephemeral", &["volumeClaimTemplate"]),
];

/// Whose volume it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Of<'a> {
    /// A pod or what pods are made from.
    Pod { is_pod: bool },
    /// A persistent volume, with its name.
    Volume { name: &'a str },
}

/// Checks one source of a volume.
pub(in super::super) fn source(kind: &str, source: &Field<'_, '_>, of: Of<'_>, errors: &mut Errors) {
    if let Some((_, fields)) = REQUIRED.iter().find(|(name, _)| *name == kind) {
        for field in *fields {
            source.child(field).demand(errors);
        }
    }
    match kind {
        "emptyDir" => {
            let limit = source.child("sizeLimit");
            if Quantity::parse(limit.text()).is_ok_and(|limit| limit.sign().is_lt()) {
                errors.push(limit.forbidden("SizeLimit field must be a valid resource quantity"));
            }
        }
        "hostPath" => host_path(source, errors),
        "local" => {
            let path = source.child("path");
            if path.demand(errors) {
                no_backsteps(&path, errors);
            }
        }
        "gitRepo" => relative_path(&source.child("directory"), errors),
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let partition = source.child("partition");
            if !(0..=255).contains(&partition.int()) {
                errors.push(partition.invalid("must be between 1 and 255, inclusive"));
            }
        }
        "secret" | "configMap" => {
            mode(&source.child("defaultMode"), errors);
            source.child("items").items().for_each(|item| key_to_path(&item, errors));
        }
        "downwardAPI" => {
            mode(&source.child("defaultMode"), errors);
            source.child("items").items().for_each(|item| downward(source, &item, errors));
        }
        "projected" => projected::check(source, errors),
        "nfs" => {
            let path = source.child("path");
            if !path.text().starts_with('/') {
                errors.push(path.invalid_value(path.text(), "must be an absolute path"));
            }
        }
        "iscsi" => iscsi(source, of, errors),
        "fc" => fibre_channel(source, errors),
        "csi" => csi(source, of, errors),
        "ephemeral" => {
            let template = source.child("volumeClaimTemplate");
            if template.is_set() {
                claims::template(&template, errors);
            }
        }
        "image" => {
            let reference = source.child("reference");
            if of == (Of::Pod { is_pod: true }) {
                reference.demand(errors);
            }
            source.child("pullPolicy").one_of_required(&containers::PULL_POLICIES, errors);
        }
        _ => foreign(kind, source, of, errors),
    }
}

/// Sources of single vendors.
fn foreign(kind: &str, source: &Field<'_, '_>, of: Of<'_>, errors: &mut Errors) {
    let persistent = matches!(of, Of::Volume { .. });
    match kind {
        "cinder" => secret(source, persistent, errors),
        "storageos" => {
            source.child("volumeName").check_required(names::dns1123_label, errors);
            source.child("volumeNamespace").check(names::dns1123_label, errors);
            secret(source, persistent, errors);
        }
        "glusterfs" => {
            let namespace = source.child("endpointsNamespace");
            if namespace.is_set() && namespace.is_empty() {
                let text = "if the endpointnamespace is set, it must be a valid namespace name";
                errors.push(namespace.invalid(text));
            }
            namespace.check(names::dns1123_label, errors);
        }
        "azureFile" => {
            let namespace = source.child("secretNamespace");
            if namespace.is_set() {
                namespace.demand(errors);
            }
        }
        "flocker" => flocker(source, errors),
        "quobyte" => quobyte(source, errors),
        "flexVolume" => flex(&source.child("options"), errors),
        "azureDisk" => azure_disk(source, errors),
        _ => {}
    }
}

/// A reference to a Secret has a name; that of a persistent volume a namespace, too.
fn secret(source: &Field<'_, '_>, persistent: bool, errors: &mut Errors) {
    let secret = source.child("secretRef");
    if secret.is_set() {
        secret.child("name").demand(errors);
        if persistent {
            secret.child("namespace").demand(errors);
        }
    }
}

fn host_path(source: &Field<'_, '_>, errors: &mut Errors) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let path = source.child("path");
    if path.demand(errors) {
        no_backsteps(&path, errors);
        source.child("type").one_of(&TYPES, errors);
    }
}

/// Reports a path that goes up.
pub(super) fn no_backsteps(path: &Field<'_, '_>, errors: &mut Errors) {
    if path.text().split('/').any(|part| part == "..") {
        errors.push(path.invalid("must not contain '..'"));
    }
}

/// Reports a path that begins at the root or goes up.
pub(super) fn relative_path(path: &Field<'_, '_>, errors: &mut Errors) {
    if path.text().starts_with('/') {
        errors.push(path.invalid("must be a relative path"));
    }
    no_backsteps(path, errors);
}

/// As [`relative_path`]; names that begin with two dots are the kubelet's.
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

/// Checks where a key of an object becomes a file.
pub(super) fn key_to_path(item: &Field<'_, '_>, errors: &mut Errors) {
    item.child("key").demand(errors);
    item.child("path").demand(errors);
    file_path(&item.child("path"), errors);
    mode(&item.child("mode"), errors);
}

/// Checks what of the pod becomes a file. Errors are reported at the source, without the item.
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

static IQN: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$";
    Regex::new(text).expect("the expression is right")
});

fn iscsi(source: &Field<'_, '_>, of: Of<'_>, errors: &mut Errors) {
    let (portal, initiator) = (source.child("targetPortal"), source.child("initiatorName"));
    portal.demand(errors);
    if let Of::Volume { name } = of {
        portal_length(name, &portal, &initiator, &source.child("targetportal"), errors);
    }
    let iqn = source.child("iqn");
    let any = "must be valid format starting with iqn, eui, or naa";
    let unknown = if matches!(of, Of::Volume { .. }) { "must be valid format" } else { any };
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
    if secret.is_set() && matches!(of, Of::Volume { .. }) {
        secret.child("name").demand(errors);
    }
    if initiator.is_set() {
        initiator_name(&source.child("initiatorname"), initiator.text(), unknown, errors);
    }
}

/// Longest name of a volume together with its portal, in bytes.
const PORTAL_LEN_MAX: usize = 64;

/// The name of the volume and the portal make the name of an interface.
pub(super) fn portal_length(
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

fn fibre_channel(source: &Field<'_, '_>, errors: &mut Errors) {
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

/// Longest name of a driver, in bytes.
const DRIVER_LEN_MAX: usize = 63;

fn csi(source: &Field<'_, '_>, of: Of<'_>, errors: &mut Errors) {
    let driver = source.child("driver");
    if driver.demand(errors) {
        if driver.text().len() > DRIVER_LEN_MAX {
            errors.push(super::FieldError::too_long(driver.path(), DRIVER_LEN_MAX));
        }
        driver.check_all(names::dns1123_subdomain(&driver.text().to_lowercase()), errors);
    }
    if matches!(of, Of::Pod { .. }) {
        let secret = source.child("nodePublishSecretRef");
        if secret.is_set() && secret.child("name").demand(errors) {
            let name = secret.child("name").text();
            let shown = source.child("name");
            errors.extend(names::dns1123_subdomain(name).map(|problem| shown.invalid_value(name, problem)));
        }
        return;
    }
    source.child("volumeHandle").demand(errors);
    for secret in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let secret = source.child(secret);
        if secret.is_set() {
            secret.child("name").check_required(names::dns1123_subdomain, errors);
            secret.child("namespace").check_required(names::dns1123_label, errors);
        }
    }
}

fn flocker(source: &Field<'_, '_>, errors: &mut Errors) {
    let (name, id) = (source.child("datasetName"), source.child("datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => errors.push(source.required("one of datasetName and datasetUUID is required")),
        (false, false) => {
            let text = "datasetName and datasetUUID can not be specified simultaneously";
            errors.push(source.invalid_value("resource", text));
        }
        _ => {}
    }
    if name.text().contains('/') {
        errors.push(name.invalid("must not contain '/'"));
    }
}

fn quobyte(source: &Field<'_, '_>, errors: &mut Errors) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, tenant) = (source.child("registry"), source.child("tenant"));
    if registry.is_empty() {
        errors.push(registry.required(PAIRS));
    } else if tenant.text().len() > 64 {
        errors.push(tenant.required("must be a UUID and may not exceed a length of 64 characters"));
    } else {
        let pair = |text: &&str| text.rsplit_once(':').is_none_or(|(host, _)| host.contains(':'));
        for _ in registry.text().split(',').filter(pair) {
            errors.push(registry.invalid(PAIRS));
        }
    }
    source.child("volume").demand(errors);
}

/// Options under the names of Kubernetes are the kubelet's.
fn flex(options: &Field<'_, '_>, errors: &mut Errors) {
    for (key, option) in options.entries() {
        let namespace = key.split_once('/').map_or(key, |(namespace, _)| namespace);
        let namespace = format!(".{}", namespace.to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let text = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(option.invalid_value(key, text));
        }
    }
}

fn azure_disk(source: &Field<'_, '_>, errors: &mut Errors) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    source.child("cachingMode").one_of(&["None", "ReadOnly", "ReadWrite"], errors);
    let (kind, uri) = (source.child("kind"), source.child("diskURI"));
    kind.one_of(&["Dedicated", "Managed", "Shared"], errors);
    if !kind.is_set() {
        return;
    }
    let (prefix, words) =
        if kind.text() == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if !uri.text().starts_with(prefix) {
        errors.push(uri.not_supported(&[words]));
    }
}
