//! The sender of requests: a node of either dialect, and its answers.

use anyhow::Result;
use serde_json::{Value, json};
use tombolo_proto::frame::{ReplyBody, RequestBody};
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_testkit::fresh;
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::node::RawNode;

/// A connected node.
pub(crate) enum Peer {
    /// Dialect `kubeedge`.
    KubeEdge(Box<KubeEdgeNode>),
    /// Dialect `tombolo`.
    Ours(RawNode),
}

/// One message of a node.
pub(crate) struct Request<'a> {
    pub(crate) source: &'a str,
    pub(crate) group: &'a str,
    pub(crate) operation: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) content: Value,
}

/// The form of a refusal for the module of the edge that sent the request (docs/reference/kubeedge.md#safe-answers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"Object", "Err"}`, and a KubeEdge edge dereferences the object even then.
    Change,
    /// `{"Object", "Err"}`; only the error is read.
    Read,
    /// Operation `error` and a sentence: no content that would be stored.
    Sentence,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) source: String,
    pub(crate) group: String,
    pub(crate) operation: String,
    pub(crate) resource: String,
    pub(crate) version: String,
    pub(crate) content: Value,
    kubeedge: bool,
}

impl Peer {
    pub(crate) fn is_kubeedge(&self) -> bool {
        matches!(self, Self::KubeEdge(_))
    }

    /// Sends a request as the kubelet, and panics if there is no answer.
    pub(crate) async fn ask(&self, operation: &str, resource: &str, content: Value) -> Answer {
        let answer = match self {
            Self::KubeEdge(node) => {
                node.ask(operation, resource, content).await.map(|reply| kubeedge(&reply))
            }
            Self::Ours(_) => {
                self.ask_as(&Request { source: "edged", group: "meta", operation, resource, content }).await
            }
        };
        answer.unwrap_or_else(|error| panic!("{operation} {resource}: {error:#}"))
    }

    /// Sends a request as any module of the edge.
    pub(crate) async fn ask_as(&self, request: &Request<'_>) -> Result<Answer> {
        let Request { source, group, operation, resource, content } = request;
        match self {
            Self::KubeEdge(node) => {
                let reply = node.ask_as(source, group, operation, resource, content.clone()).await?;
                Ok(kubeedge(&reply))
            }
            Self::Ours(node) => {
                let route = Route::new(
                    Source::parse(source),
                    Group::parse(group),
                    Operation::parse(operation),
                    ResourcePath::parse_wire(resource)?,
                );
                let id = MessageId::from_random_bytes(u128::from(fresh()).to_be_bytes());
                let message = Message::new(id, 1, route, Content::from_value(content)?);
                match node.ask(RequestBody::Message(Box::new(message))).await? {
                    ReplyBody::Message(reply) => Ok(ours(&reply)),
                    ReplyBody::Api(reply) => anyhow::bail!("an API reply: {reply:?}"),
                }
            }
        }
    }

    /// Sends a report that has no answer in dialect `kubeedge`; returns the answer in the other dialect.
    pub(crate) async fn report(&self, operation: &str, resource: &str, content: Value) -> Option<Answer> {
        match self {
            Self::KubeEdge(node) => {
                node.send_unanswered(operation, resource, content).await.unwrap();
                None
            }
            Self::Ours(_) => Some(self.ask(operation, resource, content).await),
        }
    }
}

fn kubeedge(reply: &Value) -> Answer {
    let text = |path: &str| reply.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    Answer {
        source: text("/route/source"),
        group: text("/route/group"),
        operation: text("/route/operation"),
        resource: text("/route/resource"),
        version: text("/header/resourceversion"),
        content: reply["content"].clone(),
        kubeedge: true,
    }
}

fn ours(reply: &Message) -> Answer {
    Answer {
        source: reply.route.source.as_str().to_owned(),
        group: reply.route.group.as_str().to_owned(),
        operation: reply.route.operation.as_str().to_owned(),
        resource: reply.route.resource.to_wire(),
        version: reply.header.resource_version.clone(),
        content: serde_json::from_slice(reply.content.as_json()).unwrap(),
        kubeedge: false,
    }
}

impl Answer {
    /// The object in a wrapper of a successful answer.
    pub(crate) fn wrapped(&self, resource: &str) -> &Value {
        self.responds(resource);
        assert!(self.content["Err"].is_null(), "{self:?}");
        let object = &self.content["Object"];
        assert!(object["metadata"]["uid"].is_string(), "not the whole object: {self:?}");
        object
    }

    /// The same; the header must contain the version of the object.
    pub(crate) fn wrapped_with_version(&self, resource: &str) -> &Value {
        let object = self.wrapped(resource);
        assert_eq!(object["metadata"]["resourceVersion"], self.version, "{self:?}");
        object
    }

    /// The bare object in the answer to a query.
    pub(crate) fn object(&self, resource: &str, kind: &str) -> &Value {
        self.responds(resource);
        let object = &self.content;
        assert_eq!(object["kind"], kind, "{self:?}");
        assert!(object["apiVersion"].is_string() && object["metadata"].is_object(), "{self:?}");
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        assert_eq!(version, self.version, "an acknowledged answer needs a version: {self:?}");
        object
    }

    /// Checks that the answer reports success.
    pub(crate) fn done(&self, resource: &str) {
        self.responds(resource);
        assert_eq!(self.content, json!("OK"), "{self:?}");
    }

    /// Whether the header has a version that the object has had; others may have written it since.
    pub(crate) fn is_of_version(&self, live: &Value) -> bool {
        let number = |text: &str| text.parse::<u64>().ok();
        let newest = live["metadata"]["resourceVersion"].as_str().and_then(number);
        number(&self.version).is_some_and(|version| Some(version) <= newest)
    }

    /// Checks that the answer is a success, about this resource, and sent to where a KubeEdge edge accepts it.
    fn responds(&self, resource: &str) {
        assert_eq!(self.operation, "response", "{self:?}");
        assert_eq!((&*self.resource, &*self.group), (resource, "resource"), "{self:?}");
    }

    /// Checks that the answer is a refusal of this form. Returns its code and sentence; the code is 0 if the form has
    /// none.
    pub(crate) fn refused(&self, form: Form) -> (u64, String) {
        assert_eq!(self.group, "resource", "{self:?}");
        assert_eq!(self.version, "", "a refusal must have no version: {self:?}");
        if form == Form::Sentence {
            assert_eq!(self.operation, "error", "{self:?}");
            let sentence = self.content.as_str().unwrap_or_else(|| panic!("no sentence: {self:?}"));
            assert!(!sentence.is_empty(), "{self:?}");
            return (0, sentence.to_owned());
        }
        assert_eq!(self.operation, "response", "{self:?}");
        let status = &self.content["Err"]["ErrStatus"];
        assert_eq!(status["status"], "Failure", "{self:?}");
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("reason").is_empty() && !text("message").is_empty(), "an incomplete status: {self:?}");
        let code = status["code"].as_u64().unwrap_or_default();
        assert!((400..600).contains(&code), "{self:?}");
        if form == Form::Change && self.kubeedge {
            assert!(self.content["Object"].is_object(), "a KubeEdge edge dereferences it: {self:?}");
        }
        (code, text("message"))
    }

    /// The reason in a wrapper's status.
    pub(crate) fn reason(&self) -> &str {
        self.content["Err"]["ErrStatus"]["reason"].as_str().unwrap_or_default()
    }
}
