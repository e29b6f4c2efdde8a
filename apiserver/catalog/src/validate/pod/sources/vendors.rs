//! Validation of vendor-specific sources.

use super::super::super::names;
use super::super::{Errors, Field};
use super::VolumeOwner;

/// Checks a source.
pub(super) fn check(kind: &str, source: &Field<'_, '_>, owner: VolumeOwner<'_>, errors: &mut Errors) {
    let persistent = matches!(owner, VolumeOwner::Volume { .. });
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

/// A reference to a Secret needs a name, and in a persistent volume also a namespace.
fn secret(source: &Field<'_, '_>, persistent: bool, errors: &mut Errors) {
    let secret = source.child("secretRef");
    if secret.is_set() {
        secret.child("name").demand(errors);
        if persistent {
            secret.child("namespace").demand(errors);
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

/// Option keys in the Kubernetes domains are reserved.
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
