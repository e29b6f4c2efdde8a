//! Adds the fields that Go's typed encoders leave out.
//!
//! An object from a typed informer of a KubeEdge cloud names neither its kind nor its API version, because in Go the
//! type implies them. On the wire only the path is left, whose resource word is the kind in lower case; [`Kinds`] maps
//! it to a resource.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::kinds;
use super::known::Kinds;
use crate::object::Resource;

/// The text of an object of a resource, with the kind and the API version that a typed encoder has left out. A text
/// that has both, or whose resource is unknown, is returned unchanged.
#[must_use]
pub fn completed(known: &Kinds, resource: &Resource, body: &Bytes) -> Bytes {
    match known.kind_of(resource) {
        Some(kind) => named(kind, &kinds::api_version(resource), body),
        None => body.clone(),
    }
}

/// The text of a list of a resource, with kind and API version added to the list and to items that lack them. A list
/// without items gets an empty array, where a typed encoder writes null.
#[must_use]
pub fn completed_list(known: &Kinds, resource: &Resource, body: &Bytes) -> Bytes {
    let Some(kind) = known.kind_of(resource) else { return body.clone() };
    let body = named(&format!("{kind}List"), &kinds::api_version(resource), body);
    let Ok(mut members) = serde_json::from_slice::<RawMembers<'_>>(&body) else { return body };
    if members.get("items").is_some_and(|items| items.get() != "null") {
        return body;
    }
    let Ok(empty) = RawValue::from_string("[]".to_owned()) else { return body };
    members.insert("items".into(), &empty);
    serde_json::to_vec(&members).map_or_else(|_| body.clone(), Bytes::from)
}

type RawMembers<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

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
    let Ok(mut members) = serde_json::from_slice::<RawMembers<'_>>(body) else { return body.clone() };
    // Existing values of the two fields are kept.
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
    fn stated_kind_is_kept_and_missing_fields_are_added() {
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        let whole = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "endpoints": null});
        for said in [
            json!({"endpoints": null}),
            json!({"kind": "", "apiVersion": null, "endpoints": null}),
            json!({"kind": "EndpointSlice", "endpoints": null}),
            whole.clone(),
        ] {
            assert_eq!(read(&completed(&Kinds::default(), &slices, &said.to_string().into())), whole);
        }
        let other = json!({"apiVersion": "discovery.k8s.io/v1beta1", "endpoints": null}).to_string().into();
        assert_eq!(
            read(&completed(&Kinds::default(), &slices, &other))["apiVersion"],
            "discovery.k8s.io/v1beta1"
        );
        let pod = completed(
            &Kinds::default(),
            &Resource::new("", "v1", "pods"),
            &Bytes::from_static(b"{\"metadata\":{}}"),
        );
        assert_eq!(read(&pod), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}}));
        for text in ["null", "7", "[]", "{\"kind\":1}", ""] {
            assert_eq!(
                completed(&Kinds::default(), &slices, &text.into()),
                text,
                "what is no object stays what it is"
            );
        }
        let widgets = Resource::new("example.org", "v1", "widgets");
        assert_eq!(completed(&Kinds::default(), &widgets, &"{\"a\":1}".into()), "{\"a\":1}");
    }

    #[test]
    fn list_without_items_is_empty() {
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        for text in [
            r#"{"metadata":{"resourceVersion":"7"},"items":null}"#,
            r#"{"metadata":{"resourceVersion":"7"}}"#,
        ] {
            let list = read(&completed_list(&Kinds::default(), &slices, &text.into()));
            assert_eq!((&list["kind"], &list["items"]), (&json!("EndpointSliceList"), &json!([])));
        }
        let full = r#"{"items":[{"metadata":{"name":"a"}}]}"#;
        assert_eq!(
            read(&completed_list(&Kinds::default(), &slices, &full.into()))["items"],
            json!([{"metadata": {"name": "a"}}])
        );
    }
}
