//! Whether a child still matches its manifest, by the rules of server-side apply.
//!
//! Parts that the API server merges (structs, most maps, lists whose items have keys) may hold more than the manifest:
//! the additional members belong to other owners. Parts that it replaces as a whole (lists without keys, some maps and
//! structs) belong entirely to the grid: they must hold what the manifest states, in this order, and nothing else.

use serde_json::{Map, Value};

use super::manifest::APPLIED;

#[cfg(test)]
pub(super) mod tests;

/// Lists that are merged item by item: name of the field, keys of the items, default value of each key. A field of two
/// types has two rows.
const KEYED: [(&str, &[(&str, &str)]); 16] = [
    ("claims", &[("name", "")]),
    ("containers", &[("name", "")]),
    ("env", &[("name", "")]),
    ("ephemeralContainers", &[("name", "")]),
    ("hostAliases", &[("ip", "")]),
    ("imagePullSecrets", &[("name", "")]),
    ("initContainers", &[("name", "")]),
    ("ownerReferences", &[("uid", "")]),
    ("ports", &[("containerPort", ""), ("protocol", "TCP")]),
    ("ports", &[("port", ""), ("protocol", "TCP")]),
    ("resourceClaims", &[("name", "")]),
    ("schedulingGates", &[("name", "")]),
    ("topologySpreadConstraints", &[("topologyKey", ""), ("whenUnsatisfiable", "")]),
    ("volumeDevices", &[("devicePath", "")]),
    ("volumeMounts", &[("mountPath", "")]),
    ("volumes", &[("name", "")]),
];

/// Structs and maps that are replaced as a whole, including everything in them, as in lists without keys.
pub(super) const WHOLE: [&str; 12] = [
    "configMapKeyRef",
    "dataSource",
    "fieldRef",
    "fileKeyRef",
    "labelSelector",
    "nodePublishSecretRef",
    "nodeSelector",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "resourceFieldRef",
    "secretKeyRef",
    "secretRef",
    "selector",
];

/// Maps of texts in which an empty text is significant.
const TEXTS: [&str; 2] = ["nodeSelector", "matchLabels"];

/// Maps of texts and quantities. Their members' names are not field names, and an empty text in them is significant.
/// The API server does not write empty ones.
const MAPS: [&str; 14] = [
    "allocatedResourceStatuses",
    "allocatedResources",
    "annotations",
    "capacity",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "options",
    "overhead",
    "requests",
    "selector",
    "userAnnotations",
    "volumeAttributes",
];

/// Texts, numbers and flags that the API server does not write when they are empty, zero or false. All others are
/// pointers in Kubernetes' types, where a missing value has another meaning than an empty one:
/// `allowPrivilegeEscalation`, `runAsUser`, `hostUsers`. A name that is of both kinds means the same when missing as
/// when empty in both.
const LEFT_OUT: &str = "\
    action apiVersion audience certificateChainPath chapAuthDiscovery chapAuthSession clusterIP containerName \
    creationTimestamp credentialBundlePath datasetName datasetUUID directory dnsPolicy effect externalName \
    externalTrafficPolicy failureThreshold fieldsType fsType generateName generation group healthCheckNodePort host \
    hostIP hostIPC hostNetwork hostPID hostPort hostname image imagePullPolicy initialDelaySeconds iscsiInterface key \
    keyPath keyType keyring kind level loadBalancerIP manager medium message minReadySeconds name namespace nodeName \
    nodePort operation operator partition path paused periodSeconds phase podManagementPolicy pool prefix \
    priorityClassName protectionDomain protocol publishNotReadyAddresses pullPolicy readOnly reason reference request \
    resourceVersion restartPolicy revision role schedulerName scheme secretFile secretName selfLink serviceAccount \
    serviceAccountName sessionAffinity signerName sslEnabled stdin stdinOnce storageMode storagePolicyID \
    storagePolicyName storagePool subPath subPathExpr subdomain subresource successThreshold targetContainerName \
    targetVolumeAttributesClassName tenant terminationMessagePath terminationMessagePolicy timeoutSeconds tty type uid \
    user value volumeName volumeNamespace whenDeleted whenScaled workingDir";

/// An empty struct of a Service without session affinity, which the API server removes.
const CLEARED: &str = "sessionAffinityConfig";

/// Structs that the API server writes even when they are empty.
const WRITTEN: [&str; 9] = [
    "metadata",
    "podAffinityTerm",
    "preference",
    "resources",
    "spec",
    "status",
    "strategy",
    "template",
    "updateStrategy",
];

/// Defaults that the API server adds to parts that are replaced as a whole: field and JSON text.
const DEFAULTS: [(&str, &str); 8] = [
    ("apiVersion", r#""v1""#),
    ("divisor", r#""0""#),
    ("expirationSeconds", "3600"),
    ("kind", r#""PersistentVolumeClaim""#),
    ("maxExpirationSeconds", "86400"),
    ("metadata", r#"{"creationTimestamp":null}"#),
    ("status", r#"{"phase":"Pending"}"#),
    ("volumeMode", r#""Filesystem""#),
];

/// Whether a child matches its manifest, so that applying it would change nothing. A value that the API server writes
/// differently, such as `1000m`, counts as a difference; applying it then is useless but harmless.
#[must_use]
pub fn is_applied(live: &Value, manifest: &Value) -> bool {
    live["metadata"]["annotations"][APPLIED] == manifest["metadata"]["annotations"][APPLIED]
        && ["metadata", "spec"].iter().all(|part| holds(part, &live[*part], &manifest[*part], Extra::Foreign))
}

/// Meaning of members besides those that a manifest states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    /// They belong to others.
    Foreign,
    /// They are a default of the API server, or a difference.
    Default,
    /// They are a difference.
    Difference,
}

/// Whether a field holds what is wanted. Empty or zero values may be missing if the API server does not write them.
fn holds(field: &str, live: &Value, wanted: &Value, around: Extra) -> bool {
    match wanted {
        Value::Object(members) => {
            let is_map = is_map(field, members);
            let Some(found) = live.as_object() else {
                return live.is_null() && members.is_empty() && (is_map || field == CLEARED);
            };
            let inside = beside(field, members, around);
            let is_held = |name: &String, value: &Value| match is_map {
                true => live[name] == *value,
                false => holds(name, &live[name], value, inside),
            };
            members.iter().all(|(name, value)| is_held(name, value))
                && (inside == Extra::Foreign || found.iter().all(|one| is_meant(one, members, inside)))
        }
        Value::Array(items) => {
            let list = live.as_array().map_or(&[][..], Vec::as_slice);
            match keys(field, items).filter(|_| around == Extra::Foreign) {
                Some(keys) => holds_keyed(list, items, keys),
                None => {
                    let mut pairs = list.iter().zip(items);
                    list.len() == items.len()
                        && pairs.all(|(live, item)| holds("", live, item, Extra::Default))
                }
            }
        }
        Value::Null => true,
        _ if live.is_null() && is_empty(wanted) => is_left_out(field),
        _ => live == wanted,
    }
}

/// Whether these members are the entries of a map, and not fields. For a field of two types, such as a selector,
/// entries are texts.
fn is_map(field: &str, members: &Map<String, Value>) -> bool {
    MAPS.contains(&field) && members.values().all(|value| !value.is_object() && !value.is_array())
}

fn is_left_out(field: &str) -> bool {
    LEFT_OUT.split(' ').any(|name| name == field)
}

/// Meaning of the members that an object has and its manifest does not state.
fn beside(field: &str, members: &Map<String, Value>, around: Extra) -> Extra {
    let is_selector_of_service = field == "selector" && members.values().all(Value::is_string);
    if TEXTS.contains(&field) || is_selector_of_service {
        return Extra::Difference;
    }
    if WHOLE.contains(&field) { Extra::Default } else { around }
}

/// Whether a member is stated, or is allowed nevertheless.
fn is_meant(member: (&String, &Value), stated: &Map<String, Value>, extra: Extra) -> bool {
    let (name, value) = member;
    if stated.contains_key(name) {
        return true;
    }
    let is_default = || {
        let mut known = DEFAULTS.iter().filter(|(field, _)| field == name);
        is_empty_by_itself(name, value)
            || known.any(|(_, text)| serde_json::from_str(text).is_ok_and(|default: Value| *value == default))
    };
    extra == Extra::Default && is_default()
}

/// Whether an API server may have written this where nothing was stated. An empty pointer was set on purpose, and may
/// be significant: `tolerationSeconds: 0`, `namespaceSelector: {}`.
fn is_empty_by_itself(field: &str, value: &Value) -> bool {
    let may_be = match value {
        Value::Bool(_) | Value::Number(_) => is_left_out(field),
        Value::Object(_) => MAPS.contains(&field) || WRITTEN.contains(&field),
        Value::Null | Value::String(_) | Value::Array(_) => true,
    };
    may_be && is_empty(value)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

pub(super) type Keys = [(&'static str, &'static str)];

/// The keys of the items of a list; none when the list is replaced as a whole.
pub(super) fn keys(field: &str, items: &[Value]) -> Option<&'static Keys> {
    let mut rows = KEYED.iter().filter(|(name, _)| *name == field).map(|(_, keys)| *keys);
    let has_key =
        |keys: &&Keys| keys.first().is_some_and(|(key, _)| items.iter().all(|item| !item[*key].is_null()));
    rows.find(has_key)
}

/// The values that distinguish an item of a list from the others.
pub(super) fn key(item: &Value, keys: &Keys) -> Map<String, Value> {
    let part = |(name, default): &(&str, &str)| match &item[*name] {
        Value::Null => ((*name).to_owned(), (*default).into()),
        value => ((*name).to_owned(), value.clone()),
    };
    keys.iter().map(part).collect()
}

/// Whether each item is present, in this order. Others may have items before, between and after them.
fn holds_keyed(list: &[Value], items: &[Value], keys: &Keys) -> bool {
    let mut rest = list.iter();
    items.iter().all(|item| {
        let wanted = key(item, keys);
        let found = rest.find(|live| key(live, keys) == wanted);
        found.is_some_and(|live| holds("", live, item, Extra::Foreign))
    })
}
