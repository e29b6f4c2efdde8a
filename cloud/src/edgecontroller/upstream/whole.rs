//! Updates of whole objects, based on what an edge was sent: they must not remove what was dropped on the way there.

use bytes::Bytes;
use http::Method;
use serde_json::value::RawValue;
use tombolo_apicore::query::path::{Target, target};

use super::member::{member, with_member};
use crate::edgecontroller::trim::LAST_APPLIED;
use crate::kube::{ApiCall, Caller, Kube};

/// Adds the annotation of `kubectl apply` that the object has now to the call. Only an update of the very version on
/// which it is based gets it; the API server refuses all others. This costs one more request, which a renewal of a
/// lease is spared.
pub(super) async fn complete(kube: &Kube, caller: Caller<'_>, call: ApiCall) -> ApiCall {
    if !is_whole(&call) || has_annotation(&call.body) {
        return call;
    }
    let question = ApiCall { timeout: call.timeout, ..ApiCall::get(call.path()) };
    let Ok(now) = kube.call(caller, question).await else { return call };
    if now.code != 200 {
        return call;
    }
    match with_annotation(&call.body, &now.body) {
        Some(body) => ApiCall { body, ..call },
        None => call,
    }
}

/// Whether a call replaces a whole object, not its status or another subresource.
fn is_whole(call: &ApiCall) -> bool {
    let Target::Resource(path) = target(call.path()) else { return false };
    let json = call.content_type.is_empty() || call.content_type.starts_with("application/json");
    let object = path.name.is_some() && path.subresource.is_none();
    call.method == Method::PUT && object && json && path.resource != "leases"
}

/// A member of an object's metadata, as it was written. `None` also if it is null.
fn of_metadata<'t>(object: &'t [u8], name: &str) -> serde_json::Result<Option<&'t RawValue>> {
    let Some(metadata) = member(object, "metadata")? else { return Ok(None) };
    Ok(member(metadata.get().as_bytes(), name)?.filter(|value| value.get() != "null"))
}

/// The annotation of `kubectl apply`.
fn annotation(object: &[u8]) -> serde_json::Result<Option<&RawValue>> {
    let Some(annotations) = of_metadata(object, "annotations")? else { return Ok(None) };
    member(annotations.get().as_bytes(), LAST_APPLIED)
}

fn has_annotation(body: &[u8]) -> bool {
    annotation(body).map_or(true, |found| found.is_some())
}

/// The text of an update with the annotation of `now`. `None` if nothing has to be added, or nothing can be.
fn with_annotation(update: &[u8], now: &[u8]) -> Option<Bytes> {
    let annotation = annotation(now).ok()??;
    let version = |object| -> Option<String> {
        serde_json::from_str(of_metadata(object, "resourceVersion").ok()??.get()).ok()
    };
    if version(update)? != version(now)? {
        return None;
    }
    let completed = with_member(update, &["metadata", "annotations", LAST_APPLIED], annotation.get());
    completed.ok().map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_testkit::{Growth, alone};

    use super::*;

    fn object(version: &str, annotations: &Value) -> Bytes {
        let metadata = json!({"name": "a", "resourceVersion": version, "annotations": annotations});
        json!({"metadata": metadata, "data": {"n": "1"}}).to_string().into()
    }

    #[test]
    fn update_keeps_fields_that_the_edge_was_not_sent() {
        let now = object("7", &json!({LAST_APPLIED: "{}", "other": "gone"}));
        for annotations in [json!({"own": "b"}), json!({}), Value::Null] {
            let update = object("7", &annotations);
            assert!(!has_annotation(&update));
            let completed: Value =
                serde_json::from_slice(&with_annotation(&update, &now).expect("changed")).expect("JSON");
            let mut expected = annotations.as_object().cloned().unwrap_or_default();
            expected.insert(LAST_APPLIED.to_owned(), "{}".into());
            assert_eq!(completed["metadata"]["annotations"], Value::Object(expected));
            assert_eq!(completed["data"]["n"], "1");
        }
        let numbers = br#"{"metadata":{"resourceVersion":"7"},"n":12345678901234567890123,"f":1.50}"#;
        let completed = with_annotation(numbers, &now).expect("changed");
        let text = String::from_utf8_lossy(&completed);
        assert!(text.contains("12345678901234567890123") && text.contains("1.50"), "{text}");
    }

    /// In a map of all annotations, one of a few bytes would take ten times as much.
    #[test]
    fn many_annotations_take_a_few_times_their_text() {
        if !alone(module_path!(), "many_annotations_take_a_few_times_their_text") {
            return;
        }
        let many: String = (1_000_000..1_500_000).map(|number| format!("\"{number}\":0,")).collect();
        let update = format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"7","annotations":{{{many}"a":0}}}},"n":1.50}}"#
        );
        let now = object("7", &json!({LAST_APPLIED: "{}"}));
        let growth = Growth::begin();
        assert!(!has_annotation(update.as_bytes()));
        let completed = with_annotation(update.as_bytes(), &now).expect("changed");
        let times = growth.most() / update.len();
        assert!(times < 4, "{times} times");
        let added = format!(r#"{{"{LAST_APPLIED}":"{{}}","#);
        let (start, rest) = update.split_once(&many).expect("annotations");
        let start = start.strip_suffix('{').expect("an object");
        assert_eq!(completed, format!("{start}{added}{many}{rest}"));
    }

    #[test]
    fn other_updates_stay_as_they_are() {
        let now = object("7", &json!({LAST_APPLIED: "{}"}));
        assert_eq!(with_annotation(&object("6", &json!({})), &now), None, "of another version");
        assert_eq!(with_annotation(&object("7", &json!({})), &object("7", &json!({}))), None);
        assert!(has_annotation(&object("7", &json!({LAST_APPLIED: "{\"a\":1}"}))));
        assert!(has_annotation(b"no JSON"));
    }

    #[test]
    fn only_whole_object_updates_are_amended() {
        let call = |method: Method, path: &str, content_type: &str| ApiCall {
            method,
            content_type: content_type.to_owned(),
            ..ApiCall::get(path)
        };
        let json = "application/json";
        for path in ["/api/v1/namespaces/a/configmaps/b?fieldManager=x", "/apis/a.example/v1/widgets/b"] {
            assert!(is_whole(&call(Method::PUT, path, json)), "{path}");
            assert!(!is_whole(&call(Method::PATCH, path, json)), "{path}");
            assert!(!is_whole(&call(Method::PUT, path, "application/vnd.kubernetes.protobuf")), "{path}");
        }
        for path in [
            "/api/v1/namespaces/a/pods/b/status",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
            "/api/v1/namespaces/a/configmaps",
        ] {
            assert!(!is_whole(&call(Method::PUT, path, json)), "{path}");
        }
    }
}
