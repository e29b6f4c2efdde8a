//! Validation of the volumes of a pod.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::names;
use super::sources::{self, VolumeOwner};
use super::{Errors, Field};
use tombolo_apicore::value::text;

const MORE: &str = "may not specify more than 1 volume type";

/// Sources in kube-apiserver's order: the name, how a second source is reported, and the path of errors in it.
const SOURCES: [(&str, &str, &str); 30] = [
    ("emptyDir", "emptyDir", "emptyDir"),
    ("hostPath", "hostPath", "hostPath"),
    ("gitRepo", "gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret", "secret"),
    ("nfs", "nfs", "nfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd", "rbd"),
    ("cinder", "cinder", "cinder"),
    ("cephfs", "cephFS", "cephfs"),
    ("quobyte", "quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI", "downwardAPI"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("configMap", "configMap", "configMap"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("storageos", "storageos", "storageos"),
    ("projected", "projected", "projected"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("csi", "csi", "csi"),
    ("ephemeral", "ephemeral", "ephemeral"),
    ("image", "image", "image"),
];

/// Checks the volumes. Returns the names of the valid ones, and whether they can be block devices.
pub(super) fn check<'v>(
    list: &Field<'_, 'v>,
    pod: Option<&Value>,
    errors: &mut Errors,
) -> HashMap<&'v str, bool> {
    let pod_name = pod.map(|metadata| text(metadata, &["name"])).unwrap_or_default();
    let created: HashSet<String> = list
        .items()
        .filter(|volume| volume.child("ephemeral").is_set() && !pod_name.is_empty())
        .map(|volume| format!("{pod_name}-{}", volume.child("name").text()))
        .collect();
    let mut right = HashMap::new();
    for volume in list.items() {
        let mut found = Errors::new();
        source(&volume, pod.is_some(), pod_name, &mut found);
        let name = volume.child("name");
        name.check_required(names::dns1123_label, &mut found);
        if right.contains_key(name.text()) {
            found.push(name.duplicate());
        }
        if found.is_empty() {
            let block = volume.child("persistentVolumeClaim").is_set() || volume.child("ephemeral").is_set();
            right.insert(name.text(), block);
        }
        errors.append(&mut found);
        let claim = volume.child("persistentVolumeClaim");
        let claim = claim.child("claimName");
        if created.contains(claim.text()) {
            let text = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(claim.invalid(text));
        }
    }
    right
}

fn source(volume: &Field<'_, '_>, is_pod: bool, pod_name: &str, errors: &mut Errors) {
    let mut given = false;
    for (key, second, shown) in SOURCES {
        let source = volume.with(shown, &volume.value()[key]);
        if !source.is_set() {
            continue;
        }
        if given {
            errors.push(volume.child(second).forbidden(MORE));
        } else {
            sources::source(key, &source, VolumeOwner::Pod { is_pod }, errors);
        }
        let name = volume.child("name");
        match key {
            "iscsi" => {
                let (portal, initiator) = (source.child("targetPortal"), source.child("initiatorName"));
                sources::portal_length(name.text(), &portal, &initiator, &name, errors);
            }
            "ephemeral" if !given && !pod_name.is_empty() && !name.is_empty() => {
                let claim = format!("{pod_name}-{}", name.text());
                let problem = names::dns1123_subdomain(&claim);
                errors.extend(problem.map(|text| name.invalid(format!("PVC name {claim:?}: {text}"))));
            }
            _ => {}
        }
        given = true;
    }
    if !given {
        errors.push(volume.required("must specify a volume type"));
    }
}

/// A pod without a service account cannot have token volumes.
pub(super) fn without_account(list: &Field<'_, '_>, errors: &mut Errors) {
    for volume in list.items() {
        let projected = volume.child("projected");
        for source in projected.child("sources").items() {
            let token = source.child("serviceAccountToken");
            if token.is_set() {
                errors.push(token.forbidden("must not be specified when serviceAccountName is not set"));
            }
        }
    }
}
