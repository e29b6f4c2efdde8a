//! MetaServer's requests: one API call in a record (docs/reference/kubeedge.md#metaserver), run as the node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_proto::message::{Content, Message, StatusError};
use tombolo_proto::session::kubeedge::{Application, ApplicationStatus, Verb};
use tombolo_proto::{NodeId, Resource};

use super::message::{body_of, into_result};
use super::position::Position;
use super::register::may_create_node;
use super::{Upstream, fresh_id, now_millis};
use crate::edgecontroller::local_endpoint;
use crate::kube::{
    ApiCall, TreeError, is_large, is_object, is_path_segment, path_of, query_value, read_tree,
};

/// Paths of the API server that are passed through (docs/reference/kubeedge.md#applications-in-the-cloud). Their
/// content is the same for every caller.
const PASSED: [&str; 8] =
    ["/api", "/apis", "/version", "/healthz", "/livez", "/readyz", "/openapi/v2", "/openapi/v3"];

/// The target of a record's key: `/<group or core>/<version>/<resource>/<namespace or null>/<name or null>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApplicationTarget {
    pub(crate) resource: Resource,
    /// Empty for all namespaces and for cluster scope.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
}

impl ApplicationTarget {
    /// Parses a key.
    ///
    /// # Errors
    /// A sentence that describes the form of a key.
    pub(crate) fn parse(key: &str) -> Result<Self, String> {
        let wrong = || format!("key {key:?} is not /GROUP/VERSION/RESOURCE/NAMESPACE/NAME");
        let mut segments = key.strip_prefix('/').ok_or_else(wrong)?.split('/');
        let mut next = || segments.next().filter(|segment| is_path_segment(segment)).ok_or_else(wrong);
        let [group, version, resource, namespace, name] = [next()?, next()?, next()?, next()?, next()?];
        if segments.next().is_some() {
            return Err(wrong());
        }
        let named = |segment: &str| if segment == "null" { String::new() } else { segment.to_owned() };
        let group = if group == "core" { "" } else { group };
        let resource = Resource::new(group, version, resource);
        Ok(Self { resource, namespace: named(namespace), name: named(name) })
    }

    fn collection(&self) -> String {
        path_of(&self.resource, &self.namespace, "")
    }

    fn object(&self, subresource: &str) -> Result<String, String> {
        if self.name.is_empty() {
            return Err("the key names no object".to_owned());
        }
        let mut path = path_of(&self.resource, &self.namespace, &self.name);
        for segment in subresource.split('/').filter(|segment| !segment.is_empty()) {
            if !is_path_segment(segment) {
                return Err(format!("{subresource:?} is not a subresource"));
            }
            path.push('/');
            path.push_str(segment);
        }
        Ok(path)
    }
}

/// Option of a patch (docs/reference/kubeedge.md#application-records).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PatchOption {
    patch_type: String,
    data: String,
    #[serde(default)]
    options: Value,
    #[serde(default)]
    subresources: Option<Vec<String>>,
}

impl Upstream {
    /// Answers a record with the record and its result. Watches are handled by the hub and do not get here.
    pub(super) async fn answer_application(
        &self,
        node: &NodeId,
        request: &Message,
        record: Result<Application, String>,
        position: Option<&Position>,
    ) -> Message {
        let content = match record {
            Ok(application) => self.run_application(node, application, position).await,
            Err(sentence) => {
                let sentence = format!("the content is not an application: {sentence}");
                return request.controller_error(fresh_id(), now_millis(), &sentence);
            }
        };
        request.controller_reply(fresh_id(), now_millis(), request.route.resource.clone(), content)
    }

    async fn run_application(
        &self,
        node: &NodeId,
        application: Application,
        position: Option<&Position>,
    ) -> Content {
        let planned = call_of(&application);
        // A record that waits for the API server, and then for the edge to read it, is kept only once.
        let application = application.without_long_question();
        let (answer, resource) = match planned {
            // Paths without a document, for example the server's health, have no copy.
            Ok(Planned::PassedThrough(call)) => {
                (into_result(self.kube.document(Some(node), call).await), None)
            }
            Ok(Planned::AsNode(call, resource)) if may_create_node(&call) => {
                (self.register(node, call).await.and_then(body_of), Some(resource))
            }
            Ok(Planned::AsNode(call, resource)) => {
                (into_result(self.patch_in_order(node, position, call).await), Some(resource))
            }
            Err(sentence) => {
                return application.rejected(&StatusError::new(400, "BadRequest", &sentence)).to_content();
            }
        };
        match answer {
            Ok(body) => approved(application, resource.as_ref(), &body).to_content(),
            Err(error) => application.rejected(&error).to_content(),
        }
    }
}

/// Takes the record out of a message, so that a waiting record is kept only once.
///
/// # Errors
/// A sentence that says why there is no record.
pub(super) fn take_record(message: &mut Message) -> Result<Application, String> {
    let content = std::mem::replace(&mut message.content, Content::null());
    if is_large(&content.payload()) {
        return Err(TreeError::TooLarge.to_string());
    }
    Application::read(&content).map_err(|error| error.to_string())
}

/// Path of the object that a record changes in place.
pub(super) fn written_at(application: &Application) -> Option<String> {
    if !matches!(application.verb, Verb::Patch | Verb::Update | Verb::UpdateStatus) {
        return None;
    }
    match call_of(application).ok()? {
        Planned::AsNode(call, _) => Some(call.path_and_query),
        Planned::PassedThrough(_) => None,
    }
}

/// The record of a completed call; `resource` is the resource of its key.
fn approved(application: Application, resource: Option<&Resource>, body: &Bytes) -> Application {
    match application.verb {
        // A KubeEdge cloud omits the result of a deletion.
        Verb::Delete => Application { resp_body: None, status: ApplicationStatus::Approved, ..application },
        Verb::Get | Verb::List => {
            let local = resource.and_then(|resource| local_endpoint::in_answer(resource, body));
            application.approved(local.unwrap_or_else(|| body.to_vec()))
        }
        _ => application.approved(body.to_vec()),
    }
}

/// A call, the identity under which it runs, and its resource.
#[derive(Debug)]
enum Planned {
    PassedThrough(ApiCall),
    AsNode(ApiCall, Resource),
}

/// The call that a record describes.
fn call_of(application: &Application) -> Result<Planned, String> {
    if application.verb == Verb::Get && is_passed_through(&application.key) {
        return Ok(Planned::PassedThrough(ApiCall::get(&*application.key)));
    }
    let target = ApplicationTarget::parse(&application.key)?;
    let subresource = &*application.subresource;
    let option = option_of(application)?;
    let call = match &application.verb {
        Verb::Get => ApiCall::get(target.object(subresource)? + &query(&option, &["resourceVersion"])?),
        Verb::List => ApiCall::get(target.collection() + &query(&option, &LIST_OPTIONS)?),
        Verb::Create if subresource.is_empty() => {
            send(Method::POST, target.collection(), &option, application)?
        }
        Verb::Create => send(Method::POST, target.object(subresource)?, &option, application)?,
        Verb::Update => send(Method::PUT, target.object(subresource)?, &option, application)?,
        Verb::UpdateStatus => send(Method::PUT, target.object("status")?, &option, application)?,
        Verb::Delete => ApiCall::json(Method::DELETE, target.object("")?, &delete_options(option)),
        Verb::Patch => patch(&target, option)?,
        Verb::Watch | Verb::Other(_) => {
            return Err(format!("verb {:?} is not supported", application.verb.as_str()));
        }
    };
    Ok(Planned::AsNode(call, target.resource))
}

fn is_passed_through(path: &str) -> bool {
    if PASSED.contains(&path) {
        return true;
    }
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or_default().split('/').collect();
    let safe = segments.iter().all(|segment| is_path_segment(segment));
    safe && matches!((segments.as_slice(), segments.len()), (["api", _], 2) | (["apis", ..], 2 | 3))
}

/// The options of the verb as JSON; an empty object if there are none.
fn option_of(application: &Application) -> Result<Value, String> {
    match application.option.as_deref() {
        None | Some([]) => Ok(json!({})),
        Some(bytes) => match read_tree(bytes) {
            Ok(Value::Null) => Ok(json!({})),
            Ok(option @ Value::Object(_)) => Ok(option),
            Err(error @ TreeError::TooLarge) => Err(format!("invalid option: {error}")),
            _ => Err("the option is not a JSON object".to_owned()),
        },
    }
}

/// `ListOptions` allowed for a list that is returned in one answer.
const LIST_OPTIONS: [&str; 7] = [
    "labelSelector",
    "fieldSelector",
    "resourceVersion",
    "resourceVersionMatch",
    "limit",
    "continue",
    "timeoutSeconds",
];

/// Options of writes that are sent in the query.
const WRITE_OPTIONS: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];

/// Selected members of an options object as a query, with its question mark; empty if there are none.
fn query(option: &Value, names: &[&str]) -> Result<String, String> {
    let mut query = String::new();
    for name in names {
        let text = match option.get(*name) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) if text.is_empty() => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(Value::Object(_)) => return Err(format!("option {name} must not be an object")),
        };
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        query.extend(query_value(&text));
    }
    Ok(query)
}

/// A call with the object of the record.
fn send(method: Method, path: String, option: &Value, application: &Application) -> Result<ApiCall, String> {
    let body = application.req_body.as_deref().unwrap_or_default();
    if !is_object(body) {
        return Err("ReqBody is not a JSON object".to_owned());
    }
    let path = path + &query(option, &WRITE_OPTIONS)?;
    Ok(ApiCall::json_text(method, path, Bytes::copy_from_slice(body)))
}

fn delete_options(mut option: Value) -> Value {
    option["kind"] = "DeleteOptions".into();
    option["apiVersion"] = "v1".into();
    option
}

fn patch(target: &ApplicationTarget, option: Value) -> Result<ApiCall, String> {
    let option: PatchOption =
        serde_json::from_value(option).map_err(|error| format!("the option is not a patch: {error}"))?;
    let data =
        STANDARD.decode(&option.data).map_err(|error| format!("invalid Data of the patch: {error}"))?;
    if !option.patch_type.starts_with("application/")
        || !option.patch_type.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err(format!("{:?} is not a patch type", option.patch_type));
    }
    let subresource = option.subresources.unwrap_or_default().join("/");
    let path = target.object(&subresource)? + &query(&option.options, &WRITE_OPTIONS)?;
    Ok(ApiCall::patch(path, &option.patch_type, data.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(verb: &str, key: &str, option: &Value, body: Option<&Value>) -> Application {
        let bytes = |value: &Value| STANDARD.encode(value.to_string());
        let record = json!({"ID": "1", "Key": key, "Verb": verb, "Option": bytes(option),
            "ReqBody": body.map(bytes), "Subresource": "", "Status": "InApplying"});
        serde_json::from_value(record).expect("a record")
    }

    fn planned(verb: &str, key: &str, option: &Value, body: Option<&Value>) -> Result<String, String> {
        call_of(&application(verb, key, option, body)).map(|planned| {
            let (whose, call) = match planned {
                Planned::PassedThrough(call) => ("own ", call),
                Planned::AsNode(call, _) => ("", call),
            };
            format!("{whose}{} {}", call.method, call.path_and_query)
        })
    }

    #[test]
    fn every_verb_is_one_call() {
        let (none, object) = (json!({}), json!({"metadata": {"name": "a"}}));
        let all = json!({"labelSelector": "a=b,c", "limit": 5, "watch": false, "resourceVersion": ""});
        let patch = json!({"Name": "a", "PatchType": "application/merge-patch+json", "Data": "e30=",
            "Options": {"fieldManager": "kubectl"}, "Subresources": ["status"]});
        for (verb, key, option, expected) in [
            ("get", "/core/v1/nodes/null/edge", &none, "GET /api/v1/nodes/edge"),
            (
                "list",
                "/core/v1/pods/default/null",
                &all,
                "GET /api/v1/namespaces/default/pods?labelSelector=a%3Db%2Cc&limit=5",
            ),
            ("list", "/apps/v1/deployments/null/null", &none, "GET /apis/apps/v1/deployments"),
            ("create", "/core/v1/configmaps/d/null", &none, "POST /api/v1/namespaces/d/configmaps"),
            ("update", "/core/v1/configmaps/d/a", &none, "PUT /api/v1/namespaces/d/configmaps/a"),
            ("updatestatus", "/core/v1/pods/d/a", &none, "PUT /api/v1/namespaces/d/pods/a/status"),
            ("delete", "/core/v1/pods/d/a", &none, "DELETE /api/v1/namespaces/d/pods/a"),
            (
                "patch",
                "/core/v1/pods/d/a",
                &patch,
                "PATCH /api/v1/namespaces/d/pods/a/status?fieldManager=kubectl",
            ),
            ("get", "/version", &none, "own GET /version"),
            ("get", "/apis/apps/v1", &none, "own GET /apis/apps/v1"),
            ("get", "/api/v1", &none, "own GET /api/v1"),
        ] {
            assert_eq!(planned(verb, key, option, Some(&object)).as_deref(), Ok(expected), "{verb} {key}");
        }
    }

    #[test]
    fn invalid_application_call_is_refused_with_a_reason() {
        let (none, object) = (json!({}), json!({}));
        for (verb, key, option) in [
            ("get", "/metrics", &none),
            ("get", "/apis/../metrics", &none),
            ("get", "/api/v1/nodes", &none),
            ("get", "core/v1/nodes/null/a", &none),
            ("get", "/core/v1/nodes/null/null", &none),
            ("get", "/core/v1/nodes/null/a/b", &none),
            ("list", "/core/v1/no des/null/null", &none),
            ("watch", "/core/v1/nodes/null/null", &none),
            ("exec", "/core/v1/pods/d/a", &none),
            ("patch", "/core/v1/pods/d/a", &json!({"PatchType": "x", "Data": ""})),
            ("patch", "/core/v1/pods/d/a", &none),
            ("list", "/core/v1/pods/d/null", &json!({"limit": {}})),
        ] {
            assert!(planned(verb, key, option, Some(&object)).is_err(), "{verb} {key}");
        }
        assert!(planned("create", "/core/v1/pods/d/null", &none, None).is_err(), "nothing to create");
    }
}
