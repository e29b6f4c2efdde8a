//! Writes of applications that NodeRestriction forbids to every node regardless of its roles, and that a KubeEdge cloud
//! made with its own credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Matcher;
use crate::frame::{Ask, Frame};
use crate::rules::Rule;
use crate::transcript::Event;

/// One call of the API.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// Its method.
    pub method: &'static str,
    /// Its path.
    pub path: String,
    /// The content type of the body.
    pub content_type: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// Group and plural of the resources that NodeRestriction guards (docs/reference/kubernetes.md#noderestriction).
const GUARDED: [(&str, &str); 6] = [
    ("core", "pods"),
    ("core", "nodes"),
    ("core", "persistentvolumeclaims"),
    ("coordination.k8s.io", "leases"),
    ("storage.k8s.io", "csinodes"),
    ("resource.k8s.io", "resourceslices"),
];

impl Matcher<'_> {
    /// The line of an application's write that the recorded cloud made and the run's cloud refuses because no node may
    /// make it.
    #[must_use]
    pub fn is_restricted(&self, answer: &Frame) -> Option<usize> {
        let asked = self.sent.get(answer.parent()).copied()?;
        let Event::Up(request) = &self.transcript.lines.get(asked)?.event else { return None };
        let Event::Down(recorded) = &self.transcript.lines.get(self.answer_of(asked)?)?.event else {
            return None;
        };
        let status = |frame: &Frame| frame.application("Status");
        let key = request.application("Key");
        let mut parts = key.trim_start_matches('/').split('/');
        let (resource, name) = ((parts.next()?, parts.nth(1)?), parts.nth(1)?);
        let own = ["nodes", "leases", "csinodes"].contains(&resource.1) && name == self.transcript.node;
        let of_status = request.application("Verb") == "updatestatus"
            || request.application("Subresource").contains("status");
        let refused = answer.content().pointer("/Error/ErrStatus/code").and_then(Value::as_u64) == Some(403);
        let restricted = request.source() == "metaserver"
            && request.ask() == Ask::Write
            && status(recorded) == "Approved"
            && status(answer) == "Rejected"
            && refused
            && GUARDED.contains(&resource)
            // Objects that a node may write.
            && !own
            && !(resource.1 == "pods" && of_status);
        restricted.then_some(asked)
    }

    /// Records that an administrator made the refused write.
    pub fn restricted(&mut self) {
        self.rules.count(Rule::NodeRestriction);
    }
}

/// Turns a refusal into the answer for what was made in its place.
#[must_use]
pub fn approved(answer: &Frame, made: &Value) -> Frame {
    let mut answer = answer.as_json().clone();
    let content = &mut answer["content"];
    content["Status"] = "Approved".into();
    content["Error"] = json!({"ErrStatus": {"metadata": {}}});
    content["RespBody"] = STANDARD.encode(made.to_string()).into();
    Frame::new(answer)
}

/// The API call of a record that writes (docs/reference/kubeedge.md#application-records); `None` for any other record.
#[must_use]
pub fn call_of(record: &Value) -> Option<Call> {
    let text = |name: &str| record[name].as_str().unwrap_or_default();
    let decoded = |text: &Value| STANDARD.decode(text.as_str()?).ok();
    let parts: Vec<&str> = text("Key").strip_prefix('/')?.split('/').collect();
    let [group, version, resource, namespace, name] = parts[..] else { return None };
    let mut path = match group {
        "core" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    if namespace != "null" {
        path = format!("{path}/namespaces/{namespace}");
    }
    path = format!("{path}/{resource}");
    if name != "null" {
        path = format!("{path}/{name}");
    }
    if !text("Subresource").is_empty() {
        path = format!("{path}/{}", text("Subresource"));
    }
    let json = || "application/json".to_owned();
    let body = || decoded(&record["ReqBody"]);
    Some(match text("Verb") {
        "create" => Call { method: "POST", path, content_type: json(), body: body()? },
        "update" => Call { method: "PUT", path, content_type: json(), body: body()? },
        "updatestatus" => {
            Call { method: "PUT", path: format!("{path}/status"), content_type: json(), body: body()? }
        }
        "delete" => Call { method: "DELETE", path, content_type: json(), body: Vec::new() },
        "patch" => {
            let option: Value = serde_json::from_slice(&decoded(&record["Option"])?).ok()?;
            let content_type = option["PatchType"].as_str()?.to_owned();
            let parts = option["Subresources"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let path =
                parts.filter(|part| !part.is_empty()).fold(path, |path, part| format!("{path}/{part}"));
            Call { method: "PATCH", path, content_type, body: decoded(&option["Data"])? }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_records() {
        let encoded = |text: &str| STANDARD.encode(text);
        let made = call_of(&json!({"Verb": "create", "Key": "/coordination.k8s.io/v1/leases/default/null",
            "ReqBody": encoded("{}"), "Subresource": ""}));
        let made = made.expect("a write");
        assert_eq!((made.method, made.body), ("POST", b"{}".to_vec()));
        assert_eq!(made.path, "/apis/coordination.k8s.io/v1/namespaces/default/leases");
        let option = json!({"PatchType": "application/merge-patch+json", "Data": encoded("[]"), "Subresources": ["", "status"]});
        let patched = call_of(
            &json!({"Verb": "patch", "Key": "/core/v1/nodes/null/n", "Option": encoded(&option.to_string())}),
        );
        let patched = patched.expect("a write");
        assert_eq!(patched.path, "/api/v1/nodes/n/status");
        assert_eq!((&*patched.content_type, &*patched.body), ("application/merge-patch+json", &b"[]"[..]));
        for verb in ["get", "list", "watch", ""] {
            assert_eq!(call_of(&json!({"Verb": verb, "Key": "/core/v1/pods/d/p"})), None, "{verb}");
        }
        assert_eq!(call_of(&json!({"Verb": "delete", "Key": "/version"})), None);
    }
}
