//! What Go's typed encoders leave out.
//!
//! An object from a typed informer of a stock cloud names neither its kind nor its version of the API: in Go the type says so.
//! On the wire only the path is left, whose type word is the kind in lower case. Typed informers exist for the kinds that are built
//! into Kubernetes alone; objects of other kinds are unstructured, and say what they are.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::kinds;
use crate::message::ResourceType;
use crate::object::Resource;

/// Group, version, plural and kind of what is built into Kubernetes, beside the resources that cross the wire by name. Where
/// several groups have a kind, the one that clients use comes first.
const BUILT_IN: &[(&str, &str, &str, &str)] = &[
    ("", "v1", "namespaces", "Namespace"),
    ("", "v1", "serviceaccounts", "ServiceAccount"),
    ("", "v1", "replicationcontrollers", "ReplicationController"),
    ("", "v1", "limitranges", "LimitRange"),
    ("", "v1", "resourcequotas", "ResourceQuota"),
    ("", "v1", "podtemplates", "PodTemplate"),
    ("", "v1", "componentstatuses", "ComponentStatus"),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    ("apps", "v1", "deployments", "Deployment"),
    ("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "v1", "statefulsets", "StatefulSet"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision"),
    ("batch", "v1", "jobs", "Job"),
    ("batch", "v1", "cronjobs", "CronJob"),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1", "ingresses", "Ingress"),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass"),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    ("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR"),
    ("networking.k8s.io", "v1", "ipaddresses", "IPAddress"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass"),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver"),
    ("storage.k8s.io", "v1", "csinodes", "CSINode"),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    ("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass"),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass"),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass"),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration"),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    ),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
    ),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "v1", "apiservices", "APIService"),
];

/// The resource that a type word of a path means, by the built-in kinds of Kubernetes.
pub(super) fn built_in(word: &ResourceType) -> Option<Resource> {
    let word = word.as_str();
    let row = BUILT_IN.iter().find(|row| row.3.eq_ignore_ascii_case(word))?;
    Some(Resource::new(row.0, row.1, row.2))
}

/// The kind of a built-in resource.
fn kind_of(group: &str, plural: &str) -> Option<&'static str> {
    let built_in = BUILT_IN.iter().find(|row| row.0 == group && row.2 == plural).map(|row| row.3);
    built_in.or_else(|| kinds::known_kind(group, plural))
}

/// The text of an object of a resource, with the kind and the version of the API that a typed encoder has left out. A text that
/// says both, or whose resource is none of Kubernetes' own, is as it was.
#[must_use]
pub fn completed(resource: &Resource, body: &Bytes) -> Bytes {
    match kind_of(&resource.group, &resource.name) {
        Some(kind) => named(kind, &kinds::api_version(resource), body),
        None => body.clone(),
    }
}

/// The text of a list of a resource: the list says what it is, as do its items where it does not, and one without items has an
/// empty array, where a typed encoder writes null.
#[must_use]
pub fn completed_list(resource: &Resource, body: &Bytes) -> Bytes {
    let Some(kind) = kind_of(&resource.group, &resource.name) else { return body.clone() };
    let body = named(&format!("{kind}List"), &kinds::api_version(resource), body);
    let Ok(mut members) = serde_json::from_slice::<Members<'_>>(&body) else { return body };
    if members.get("items").is_some_and(|items| items.get() != "null") {
        return body;
    }
    let Ok(empty) = RawValue::from_string("[]".to_owned()) else { return body };
    members.insert("items".into(), &empty);
    serde_json::to_vec(&members).map_or_else(|_| body.clone(), Bytes::from)
}

type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

fn named(kind: &str, api_version: &str, body: &Bytes) -> Bytes {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct TypeMeta<'a> {
        #[serde(borrow, default)]
        kind: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        api_version: Option<Cow<'a, str>>,
    }
    let Ok(said) = serde_json::from_slice::<TypeMeta<'_>>(body) else { return body.clone() };
    let is_said = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
    if is_said(&said.kind) && is_said(&said.api_version) {
        return body.clone();
    }
    let Ok(mut members) = serde_json::from_slice::<Members<'_>>(body) else { return body.clone() };
    // What is said of the two is believed.
    let kind = said.kind.filter(|text| !text.is_empty()).unwrap_or(Cow::Borrowed(kind));
    let version = said.api_version.filter(|text| !text.is_empty()).unwrap_or(Cow::Borrowed(api_version));
    let raw = |text: &str| serde_json::value::to_raw_value(text);
    let (Ok(kind), Ok(version)) = (raw(&kind), raw(&version)) else { return body.clone() };
    members.insert("kind".into(), &kind);
    members.insert("apiVersion".into(), &version);
    serde_json::to_vec(&members).map_or_else(|_| body.clone(), Bytes::from)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn words_of_paths_mean_built_in_kinds() {
        for (group, version, plural, kind) in BUILT_IN {
            let word = kinds::type_word(kind);
            assert_eq!(built_in(&word), Some(Resource::new(group, version, plural)), "{kind}");
        }
        assert_eq!(built_in(&kinds::type_word("Widget")), None);
    }

    #[test]
    fn what_an_object_says_of_itself_is_believed_and_the_rest_added() {
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        let whole = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "endpoints": null});
        for said in [
            json!({"endpoints": null}),
            json!({"kind": "", "apiVersion": null, "endpoints": null}),
            json!({"kind": "EndpointSlice", "endpoints": null}),
            whole.clone(),
        ] {
            assert_eq!(read(&completed(&slices, &said.to_string().into())), whole);
        }
        let other = json!({"apiVersion": "discovery.k8s.io/v1beta1", "endpoints": null}).to_string().into();
        assert_eq!(read(&completed(&slices, &other))["apiVersion"], "discovery.k8s.io/v1beta1");
        let pod = completed(&Resource::new("", "v1", "pods"), &Bytes::from_static(b"{\"metadata\":{}}"));
        assert_eq!(read(&pod), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}}));
        for text in ["null", "7", "[]", "{\"kind\":1}", ""] {
            assert_eq!(completed(&slices, &text.into()), text, "what is no object stays what it is");
        }
        let widgets = Resource::new("example.org", "v1", "widgets");
        assert_eq!(completed(&widgets, &"{\"a\":1}".into()), "{\"a\":1}");
    }

    #[test]
    fn a_list_without_items_has_none() {
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        for text in [
            r#"{"metadata":{"resourceVersion":"7"},"items":null}"#,
            r#"{"metadata":{"resourceVersion":"7"}}"#,
        ] {
            let list = read(&completed_list(&slices, &text.into()));
            assert_eq!((&list["kind"], &list["items"]), (&json!("EndpointSliceList"), &json!([])));
        }
        let full = r#"{"items":[{"metadata":{"name":"a"}}]}"#;
        assert_eq!(
            read(&completed_list(&slices, &full.into()))["items"],
            json!([{"metadata": {"name": "a"}}])
        );
    }
}
