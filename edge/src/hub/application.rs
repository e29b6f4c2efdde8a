//! Sends calls that have no message of their own as MetaServer records (docs/reference/kubeedge.md#metaserver), and
//! reads their answers.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tombolo_apicore::query::params::Params;
use tombolo_apicore::query::path::{self, ResourcePath as ApiPath, Target};
use tombolo_proto::frame::ApiRequest;
use tombolo_proto::ids::NodeId;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source, StatusError,
};
use tombolo_proto::object::Resource;
use tombolo_proto::session::kubeedge::{
    Application, ApplicationError, ApplicationStatus, Kinds, Verb, completed, completed_list,
};

/// How long MetaServer waits for its cloud (docs/reference/kubeedge.md#application-messages). A cloud without a dynamic
/// controller, which is KubeEdge's default, does not answer at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// List options that are sent, and whether they are numbers.
const LIST_OPTIONS: [(&str, bool); 6] = [
    ("labelSelector", false),
    ("fieldSelector", false),
    ("resourceVersion", false),
    ("resourceVersionMatch", false),
    ("continue", false),
    ("limit", true),
];

/// A call as a record.
///
/// # Errors
/// When a record cannot express the call: a watch or log stream, the read of a subresource, the deletion of a
/// collection.
pub(super) fn message_of(call: &ApiRequest, node: &NodeId) -> Result<Message, Box<StatusError>> {
    let record = record_of(call, node).ok_or_else(|| {
        let ApiRequest { method, path_and_query, .. } = call;
        let text =
            format!("the cloud speaks dialect kubeedge, which has no message for {method} {path_and_query}");
        Box::new(StatusError::new(501, "NotImplemented", &text))
    })?;
    let resource = ResourcePath::Null;
    let route = Route::new(Source::MetaServer, Group::DynamicController, Operation::Null, resource);
    Ok(Message::new(MessageId::from_random_bytes([0; 16]), 0, route, record.to_content()))
}

/// Whether the record in a message creates an object.
pub(super) fn creates(message: &Message) -> bool {
    Application::read(&message.content).is_ok_and(|record| record.verb == Verb::Create)
}

fn record_of(call: &ApiRequest, node: &NodeId) -> Option<Application> {
    let (encoded, query) = call.path_and_query.split_once('?').unwrap_or((&call.path_and_query, ""));
    let (decoded, params) = (path::decode(encoded), Params::parse(query));
    if params.flag("watch") || params.flag("follow") {
        return None;
    }
    let body = (!call.body.is_empty()).then(|| call.body.to_vec());
    let Target::Resource(target) = path::target(&decoded) else {
        let read = ApplicationRequest::new(Verb::Get, decoded, json!({}));
        return (call.method == "GET").then(|| read.record(node));
    };
    if target.excess || target.verb.is_some() {
        return None;
    }
    let key = key_of(&target)?;
    let subresource = target.subresource.clone().unwrap_or_default();
    let named = target.name.is_some();
    let new = |verb, option| ApplicationRequest {
        subresource: subresource.clone(),
        ..ApplicationRequest::new(verb, key.clone(), option)
    };
    let write = |verb| ApplicationRequest { body: body.clone(), ..new(verb, write_options(&params)) };
    let asked = match call.method.as_str() {
        "GET" if !subresource.is_empty() => return None,
        "GET" if named => new(Verb::Get, options(&params, &[("resourceVersion", false)])),
        "GET" => new(Verb::List, options(&params, &LIST_OPTIONS)),
        "POST" => write(Verb::Create),
        "PUT" if subresource == "status" => {
            ApplicationRequest { subresource: String::new(), ..write(Verb::UpdateStatus) }
        }
        "PUT" => write(Verb::Update),
        "DELETE" if named && subresource.is_empty() => {
            let option = body.as_deref().and_then(|body| serde_json::from_slice(body).ok());
            new(Verb::Delete, option.unwrap_or_else(|| json!({})))
        }
        "PATCH" if named => {
            ApplicationRequest::new(Verb::Patch, key.clone(), patch_option(call, &target, &params))
        }
        _ => return None,
    };
    Some(asked.record(node))
}

/// `/<group or core>/<version>/<resource>/<namespace or null>/<name or null>`.
fn key_of(target: &ApiPath) -> Option<String> {
    let or_null = |part: &Option<String>| part.clone().unwrap_or_else(|| "null".to_owned());
    let group = if target.group.is_empty() { "core" } else { &target.group };
    let ApiPath { version, resource, namespace, name, .. } = target;
    (!resource.is_empty())
        .then(|| format!("/{group}/{version}/{resource}/{}/{}", or_null(namespace), or_null(name)))
}

/// The resource of a key; `None` if the key is a path.
fn resource_of(key: &str) -> Option<Resource> {
    let parts: Vec<&str> = key.strip_prefix('/')?.split('/').collect();
    let [group, version, plural, _, _] = parts.as_slice() else { return None };
    Some(Resource::new(if *group == "core" { "" } else { group }, version, plural))
}

fn options(params: &Params, names: &[(&str, bool)]) -> Value {
    let mut options = Map::new();
    for (name, is_number) in names {
        let Some(text) = params.text(name) else { continue };
        let number = text.parse::<i64>().ok().filter(|_| *is_number);
        options.insert((*name).to_owned(), number.map_or_else(|| text.into(), Value::from));
    }
    options.into()
}

fn write_options(params: &Params) -> Value {
    let mut options = options(params, &[("fieldManager", false), ("fieldValidation", false)]);
    if let Some(dry_run) = params.text("dryRun") {
        options["dryRun"] = json!([dry_run]);
    }
    if params.flag("force") {
        options["force"] = json!(true);
    }
    options
}

fn patch_option(call: &ApiRequest, target: &ApiPath, params: &Params) -> Value {
    let subresources: Vec<&str> = target.subresource.as_deref().into_iter().collect();
    json!({
        "Name": target.name, "PatchType": call.content_type, "Data": STANDARD.encode(&call.body),
        "Options": write_options(params), "Subresources": subresources,
    })
}

/// The request in a record.
struct ApplicationRequest {
    verb: Verb,
    key: String,
    option: Value,
    body: Option<Vec<u8>>,
    subresource: String,
}

impl ApplicationRequest {
    fn new(verb: Verb, key: String, option: Value) -> Self {
        Self { verb, key, option, body: None, subresource: String::new() }
    }

    /// The record. Equal requests of a node have the same ID.
    fn record(self, node: &NodeId) -> Application {
        let Self { verb, key, option, body, subresource } = self;
        let option = option.to_string().into_bytes();
        let mut hasher = Sha256::new();
        for part in [node.as_str().as_bytes(), key.as_bytes(), verb.as_str().as_bytes(), &option] {
            hasher.update(part);
        }
        hasher.update(body.as_deref().unwrap_or_default());
        hasher.update(subresource.as_bytes());
        Application {
            id: hex::encode(hasher.finalize()),
            key,
            verb,
            nodename: node.as_str().to_owned(),
            option: Some(option),
            req_body: body,
            subresource,
            resp_body: None,
            status: ApplicationStatus::InApplying,
            reason: String::new(),
            error: ApplicationError::default(),
            timestamp: Application::ZERO_TIME.to_owned(),
        }
    }
}

/// The result of the call in a record, or the reason of its failure.
pub(super) fn outcome(kinds: &Kinds, content: &Content) -> Result<Bytes, Box<StatusError>> {
    let failed = |code, reason, text: &str| Err(Box::new(StatusError::new(code, reason, text)));
    let Ok(record) = Application::read(content) else {
        return failed(503, "ServiceUnavailable", "the cloud's answer is not a MetaServer record");
    };
    if record.status == ApplicationStatus::Approved {
        let (verb, resource) = (record.verb, resource_of(&record.key));
        let Some(body) = record.resp_body.map(Bytes::from) else { return Ok(success()) };
        // Typed encoders leave out kind and apiVersion.
        return Ok(match (verb, resource) {
            (Verb::List, Some(resource)) => completed_list(kinds, &resource, &body),
            (Verb::Get | Verb::Create | Verb::Update | Verb::UpdateStatus | Verb::Patch, Some(resource)) => {
                completed(kinds, &resource, &body)
            }
            _ => body,
        });
    }
    match record.error.said() {
        Some(error) if error.code >= 400 => Err(Box::new(error)),
        _ if record.reason.is_empty() => failed(500, "InternalError", "the cloud refuses without a reason"),
        _ => failed(500, "InternalError", &record.reason),
    }
}

/// The `Status` of a success without an object.
pub(super) fn success() -> Bytes {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeId {
        NodeId::parse("n").expect("a node")
    }

    fn asked(method: &str, path: &str, body: &str) -> Option<Application> {
        let call = ApiRequest {
            content_type: "application/merge-patch+json".to_owned(),
            body: body.to_owned().into(),
            ..ApiRequest::new(method, path)
        };
        let message = message_of(&call, &node()).ok()?;
        assert_eq!(
            (message.route.source.as_str(), message.route.group.as_str()),
            ("metaserver", "dynamiccontroller")
        );
        Some(Application::read(&message.content).expect("a record"))
    }

    #[test]
    fn every_expressible_call_becomes_a_record() {
        for (method, path, body, verb, key, option) in [
            ("GET", "/version", "", "get", "/version", json!({})),
            ("GET", "/apis/apps/v1", "", "get", "/apis/apps/v1", json!({})),
            (
                "GET",
                "/api/v1/pods?labelSelector=a%3Db&limit=5",
                "",
                "list",
                "/core/v1/pods/null/null",
                json!({"labelSelector": "a=b", "limit": 5}),
            ),
            (
                "GET",
                "/apis/apps/v1/namespaces/d/deployments/x",
                "",
                "get",
                "/apps/v1/deployments/d/x",
                json!({}),
            ),
            ("GET", "/api/v1/namespaces/d", "", "get", "/core/v1/namespaces/null/d", json!({})),
            (
                "POST",
                "/api/v1/namespaces/d/configmaps?fieldManager=me",
                "{}",
                "create",
                "/core/v1/configmaps/d/null",
                json!({"fieldManager": "me"}),
            ),
            (
                "PUT",
                "/api/v1/namespaces/d/configmaps/x",
                "{}",
                "update",
                "/core/v1/configmaps/d/x",
                json!({}),
            ),
            (
                "PUT",
                "/api/v1/namespaces/d/pods/x/status",
                "{}",
                "updatestatus",
                "/core/v1/pods/d/x",
                json!({}),
            ),
            ("DELETE", "/api/v1/nodes/n", "", "delete", "/core/v1/nodes/null/n", json!({})),
            (
                "PATCH",
                "/api/v1/namespaces/d/configmaps/x",
                "{}",
                "patch",
                "/core/v1/configmaps/d/x",
                json!({"Name": "x", "PatchType": "application/merge-patch+json", "Data": "e30=", "Options": {},
                    "Subresources": []}),
            ),
        ] {
            let record = asked(method, path, body).expect(path);
            assert_eq!((record.verb.as_str(), &*record.key), (verb, key), "{method} {path}");
            let sent: Value = serde_json::from_slice(&record.option.expect("options")).expect("JSON");
            assert_eq!(sent, option, "{method} {path}");
            assert_eq!(
                record.req_body.is_some(),
                matches!(verb, "create" | "update" | "updatestatus"),
                "{path}"
            );
            assert_eq!((record.id.len(), &*record.nodename), (64, "n"));
        }
    }

    #[test]
    fn inexpressible_calls_are_refused() {
        for (method, path) in [
            ("GET", "/api/v1/pods?watch=true"),
            ("GET", "/api/v1/namespaces/d/pods/x/log"),
            ("DELETE", "/api/v1/namespaces/d/pods"),
            ("POST", "/version"),
            ("PUT", "/a"),
        ] {
            assert!(asked(method, path, "").is_none(), "{method} {path}");
        }
    }

    #[test]
    fn records_read_as_answers_of_an_api_server() {
        let record = asked("GET", "/version", "").expect("a record");
        let approved = record.clone().approved(b"{\"major\":\"1\"}".to_vec());
        assert_eq!(outcome(&Kinds::default(), &approved.to_content()).expect("a body"), "{\"major\":\"1\"}");
        let list = asked("GET", "/apis/discovery.k8s.io/v1/endpointslices", "").expect("a record");
        let typed = list.approved(b"{\"metadata\":{},\"items\":null}".to_vec());
        let list: Value =
            serde_json::from_slice(&outcome(&Kinds::default(), &typed.to_content()).expect("a list"))
                .expect("JSON");
        let whole = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": {}, "items": []});
        assert_eq!(list, whole);
        let slice = asked("GET", "/apis/apps/v1/namespaces/d/deployments/x", "").expect("a record");
        let typed = slice.approved(b"{\"metadata\":{\"name\":\"x\"},\"status\":{}}".to_vec());
        let body = outcome(&Kinds::default(), &typed.to_content()).expect("an object");
        let slice: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&slice["apiVersion"], &slice["kind"]), (&json!("apps/v1"), &json!("Deployment")));
        // A custom kind, which is known only from discovery.
        let document = json!({"items": [{"metadata": {"name": "example.org"}, "versions": [
            {"version": "v1", "resources": [{"resource": "geese", "responseKind": {"kind": "Goose"}}]}]}]});
        let kinds = Kinds::discovered(document.to_string().as_bytes()).expect("a document");
        for (path, body, kind) in [
            ("/apis/example.org/v1/geese", r#"{"metadata":{},"items":null}"#, "GooseList"),
            ("/apis/example.org/v1/namespaces/d/geese/x", r#"{"metadata":{"name":"x"}}"#, "Goose"),
        ] {
            let approved = asked("GET", path, "").expect("a record").approved(body.as_bytes().to_vec());
            let body = outcome(&kinds, &approved.to_content()).expect("a body");
            let said: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!((&said["apiVersion"], &said["kind"]), (&json!("example.org/v1"), &json!(kind)));
        }
        let deleted = Application { resp_body: None, status: ApplicationStatus::Approved, ..record.clone() };
        assert!(outcome(&Kinds::default(), &deleted.to_content()).is_ok_and(|body| body.starts_with(b"{")));
        let gone = record.clone().rejected(&StatusError::new(404, "NotFound", "gone"));
        assert_eq!(outcome(&Kinds::default(), &gone.to_content()).expect_err("gone").code, 404);
        let unknown =
            Application { status: ApplicationStatus::Rejected, reason: "no such kind".to_owned(), ..record };
        let error = outcome(&Kinds::default(), &unknown.to_content()).expect_err("refused");
        assert_eq!((error.code, &*error.message), (500, "no such kind"));
        assert_eq!(outcome(&Kinds::default(), &Content::ok()).expect_err("no record").code, 503);
    }
}
