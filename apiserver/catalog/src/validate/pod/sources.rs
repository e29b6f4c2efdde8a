//! Validation of volume sources; pods and persistent volumes share most of it.

mod disks;
mod vendors;

pub(super) use self::disks::portal_length;

use super::super::claims;
use super::super::names;
use super::paths::{key_to_path, mode, no_backsteps, relative_path};
use super::projected::downward;
use super::{Errors, Field, containers, projected};
use tombolo_apicore::schema::format::Quantity;

/// Required fields of each source.
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

/// The owner of the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum VolumeOwner<'a> {
    /// A pod, or a template for pods.
    Pod { is_pod: bool },
    /// A persistent volume, with its name.
    Volume { name: &'a str },
}

/// Checks one source of a volume.
pub(in super::super) fn source(
    kind: &str,
    source: &Field<'_, '_>,
    owner: VolumeOwner<'_>,
    errors: &mut Errors,
) {
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
        "iscsi" => disks::iscsi(source, owner, errors),
        "fc" => disks::fibre_channel(source, errors),
        "csi" => csi(source, owner, errors),
        "ephemeral" => {
            let template = source.child("volumeClaimTemplate");
            if template.is_set() {
                claims::template(&template, errors);
            }
        }
        "image" => {
            let reference = source.child("reference");
            if owner == (VolumeOwner::Pod { is_pod: true }) {
                reference.demand(errors);
            }
            source.child("pullPolicy").one_of_required(&containers::PULL_POLICIES, errors);
        }
        _ => vendors::check(kind, source, owner, errors),
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

/// Maximum length of a driver's name in bytes.
const DRIVER_LEN_MAX: usize = 63;

fn csi(source: &Field<'_, '_>, owner: VolumeOwner<'_>, errors: &mut Errors) {
    let driver = source.child("driver");
    if driver.demand(errors) {
        if driver.text().len() > DRIVER_LEN_MAX {
            errors.push(super::FieldError::too_long(driver.path(), DRIVER_LEN_MAX));
        }
        driver.check_all(names::dns1123_subdomain(&driver.text().to_lowercase()), errors);
    }
    if matches!(owner, VolumeOwner::Pod { .. }) {
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
