//! The OpenAPI v3 schemas of built-in types, which `kubectl explain` shows and clients use for validation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tombolo_testkit::cluster_or_skip;

use crate::line::Line;
use crate::target::Target;

/// Fields of schemas that differ, as `SCHEMA: POINTER`, with the reason.
const KNOWN: &[(&str, &str)] = &[
    ("io.k8s.api.core.v1.AzureDiskVolumeSource: /properties/readOnly/default", ZERO),
    ("io.k8s.api.core.v1.ConfigMapEnvSource: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.ConfigMapKeySelector: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.ConfigMapProjection: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.ConfigMapVolumeSource: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.FileKeySelector: /properties/optional/default", ZERO),
    ("io.k8s.api.core.v1.GRPCAction: /properties/service/default", ZERO),
    ("io.k8s.api.core.v1.LocalObjectReference: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.ReplicationControllerSpec: /properties/minReadySeconds/default", ZERO),
    ("io.k8s.api.core.v1.SecretEnvSource: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.SecretKeySelector: /properties/name/default", ZERO),
    ("io.k8s.api.core.v1.SecretProjection: /properties/name/default", ZERO),
    ("io.k8s.api.apps.v1.ControllerRevision: /properties/data/allOf", UNTYPED),
    ("io.k8s.api.apps.v1.ControllerRevision: /properties/data/type", UNTYPED),
    ("io.k8s.api.resource.v1.AllocatedDeviceStatus: /properties/data/allOf", UNTYPED),
    ("io.k8s.api.resource.v1.AllocatedDeviceStatus: /properties/data/type", UNTYPED),
    ("io.k8s.api.resource.v1.OpaqueDeviceConfiguration: /properties/parameters/allOf", UNTYPED),
    ("io.k8s.api.resource.v1.OpaqueDeviceConfiguration: /properties/parameters/type", UNTYPED),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/additionalItems/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/additionalItems/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/additionalProperties/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/additionalProperties/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/default/allOf",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/default/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/dependencies/additionalProperties/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/dependencies/additionalProperties/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/enum/items/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/enum/items/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/example/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/example/type",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/items/$ref",
        UNTYPED,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps: /properties/items/type",
        UNTYPED,
    ),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry: /properties/fieldsV1/allOf", UNTYPED),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry: /properties/fieldsV1/type", UNTYPED),
    (
        "io.k8s.api.core.v1.PersistentVolumeClaimStatus: /properties/allocatedResourceStatuses/x-kubernetes-map-type",
        HINT,
    ),
    (
        "io.k8s.api.core.v1.PersistentVolumeClaimStatus: /properties/allocatedResourceStatuses/additionalProperties/enum",
        MAP_VALUES,
    ),
    ("io.k8s.api.core.v1.PersistentVolumeSpec: /properties/claimRef/x-kubernetes-map-type", HINT),
    ("io.k8s.api.policy.v1.PodDisruptionBudgetSpec: /properties/selector/x-kubernetes-patch-strategy", HINT),
    (
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec: /properties/caBundle/x-kubernetes-list-type",
        HINT,
    ),
];

const ZERO: &str = "defaults that are the zero value are not recorded";
const UNTYPED: &str = "the kind of untyped value is not recorded";
const MAP_VALUES: &str = "the permitted values of a map are not recorded";
const HINT: &str = "hints without an effect are not recorded";

/// The schemas in all documents of built-in groups on a server.
async fn schemas(target: &Target) -> BTreeMap<String, Value> {
    let index = target.raw(&Line::get("/openapi/v3")).await.body;
    let mut all = BTreeMap::new();
    for path in index["paths"].as_object().expect("an index").keys() {
        let Some(version) = path.rsplit('/').next().filter(|_| path.contains('/')) else { continue };
        if version.contains("alpha") || version.contains("beta") {
            continue;
        }
        let document = target.raw(&Line::get(&format!("/openapi/v3/{path}"))).await.body;
        let Some(found) = document["components"]["schemas"].as_object() else { continue };
        all.extend(found.iter().map(|(name, schema)| (name.clone(), schema.clone())));
    }
    all
}

/// Collects every place where two values differ.
fn differ(real: &Value, ours: &Value, at: &str, found: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                // The list of kinds depends on the other served kinds; the union hint is not in use yet.
                if !matches!(name.as_str(), "x-kubernetes-group-version-kind" | "x-kubernetes-unions") {
                    differ(&real[name], &ours[name], &format!("{at}/{name}"), found);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if at.ends_with("/required") => {
            // The real order is that of the fields of a Go struct.
            let sorted = |list: &[Value]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
            if sorted(a) != sorted(b) {
                found.push(format!("{at} real {a:?} ours {b:?}"));
            }
        }
        (a, b) if a != b => found.push(format!("{at} real {a} ours {b}")),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_match_those_of_kube_apiserver() {
    cluster_or_skip!("schemas beside kube-apiserver");
    crate::install_provider();
    let (real, embedded) = tokio::join!(Target::real(), Target::embedded());
    let (real, embedded) = (real.unwrap(), embedded.unwrap());
    let (real, ours) = tokio::join!(schemas(&real), schemas(&embedded));
    let mut wrong = Vec::new();
    let mut used = vec![false; KNOWN.len()];
    for (name, schema) in &ours {
        let Some(expected) = real.get(name) else {
            wrong.push(format!("{name}: unknown to the real server"));
            continue;
        };
        let mut found = Vec::new();
        differ(expected, schema, &format!("{name}: "), &mut found);
        for one in found {
            let known = KNOWN.iter().position(|(known, _)| one.split(" real ").next() == Some(known));
            match known {
                Some(index) => used[index] = true,
                None => wrong.push(one),
            }
        }
    }
    let unused = KNOWN.iter().zip(&used).filter(|(_, used)| !**used);
    wrong
        .extend(unused.map(|((known, _), _)| format!("no longer differs; remove it from the list: {known}")));
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), ours.len(), wrong.join("\n"));
}
