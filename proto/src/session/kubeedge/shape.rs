//! The form that the answer to a request must have so that it can neither crash nor corrupt a KubeEdge edge
//! (docs/reference/kubeedge.md#safe-answers).
//!
//! A KubeEdge edge dereferences the content of a wrapper and stores the content of any response, including errors.
//! Every reply passes [`Shape::fit`], regardless of its origin, before it may be sent.

use serde::Deserialize;

use super::application::Application;
use super::message_ids::MessageIds;
use super::up::Up;
use crate::ids::Moment;
use crate::message::{
    Content, Group, Message, Operation, Outcome, ResourcePath, ResourceType, Route, Source, StatusError,
};

/// An answer in the form that its request needs.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) message: Message,
    /// Identity of the bare object in it: read while it was checked, so that it need not be read again.
    pub(super) identity: Option<ObjectIdentity>,
}

/// Incarnation and version of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectIdentity {
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// Form of the answer to a request (docs/reference/kubeedge.md#upstream-messages).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `{"Object", "Err"}`. The edge dereferences `Object` even beside an error, unless it only reads.
    Wrap {
        /// Failures carry an empty object instead of `null`.
        empty_object: bool,
    },
    /// The bare object; failures are operation `error`, because the edge would store anything else as the object.
    Object,
    /// An array of objects, which the edge takes for a list; failures are operation `error`.
    List,
    /// `"OK"`; failures are operation `error`.
    Done,
    /// Text of the cluster's CA bundle, from `cloudhub`.
    CaCertificate,
    /// A record of MetaServer with its result.
    Application,
    /// The failed records of a watch sync.
    WatchSync,
    /// A text for the application that waits in the edge's ServiceBus, in the group where it waits.
    ServiceBus,
    /// Nothing: the sender does not wait.
    Silent,
    /// Not a valid request of a node: operation `error`. Includes node tasks: no component at the edge waits for the
    /// result of their reports, and in the group `resource` no component accepts an answer for a task
    /// (docs/reference/kubeedge.md#routing-at-the-edge).
    Unknown,
}

impl Shape {
    /// The form of the answer to this request.
    #[must_use]
    pub fn of(request: &Message) -> Self {
        let (route, path) = (&request.route, &request.route.resource);
        match path {
            _ if Up::is_application(request) && *path == ResourcePath::WatchSync => Self::WatchSync,
            _ if Up::is_application(request) => Self::Application,
            ResourcePath::CaCertificate => Self::CaCertificate,
            _ if route.group == Group::User => Self::of_router(request),
            ResourcePath::Object(object) => Self::of_object(&object.resource_type, &route.operation),
            _ => Self::Unknown,
        }
    }

    /// An application's request through ServiceBus waits for an answer; MQTT messages and the answers to calls of the
    /// router do not (docs/reference/kubeedge.md#router-messages).
    fn of_router(request: &Message) -> Self {
        let waits = request.route.source == Source::ServiceBus && request.header.parent.is_none();
        if waits { Self::ServiceBus } else { Self::Silent }
    }

    fn of_object(kind: &ResourceType, operation: &Operation) -> Self {
        use {Operation as Op, ResourceType as Type};
        let changed = Self::Wrap { empty_object: true };
        match (kind, operation) {
            (Type::Event | Type::RuleStatus, _) => Self::Silent,
            (Type::NodePatch | Type::PodPatch, _) => changed,
            (Type::Node | Type::Pod | Type::CertificateSigningRequest, Op::Insert) => changed,
            (Type::Lease, Op::Insert | Op::Update) => changed,
            (Type::Lease, Op::Query) => Self::Wrap { empty_object: false },
            (Type::Node, Op::Update) | (Type::NodeStatus | Type::PodStatus, Op::Insert | Op::Update) => {
                Self::Done
            }
            (Type::Pod, Op::Delete) => Self::Done,
            (Type::PodList, Op::Query) => Self::List,
            (_, Op::Query) => Self::Object,
            _ => Self::Unknown,
        }
    }

    /// Makes an answer fit the request: its route, its parent, and a content of this form. None when the edge waits
    /// for no answer. `request` needs its content for applications only.
    pub(super) fn fit(
        self,
        request: &Message,
        mut answer: Message,
        ids: &mut MessageIds,
        now: Moment,
    ) -> Option<Fitted> {
        let (source, resource) = self.route(request, &answer)?;
        let (operation, content, identity) = match self.content(request, &answer) {
            Ok(fitting) => fitting,
            Err(error) => (Operation::Error, Content::text(&error.message), None),
        };
        answer.header.id = ids.id();
        answer.header.parent = Some(request.header.id.clone());
        answer.header.timestamp_millis = ids.millis(now);
        if operation == Operation::Error {
            answer.header.resource_version.clear();
        }
        let group = if self == Self::ServiceBus { Group::User } else { Group::Resource };
        answer.route = Route::new(source, group, operation, resource);
        answer.content = content;
        Some(Fitted { message: answer, identity })
    }

    /// The answer to a request that was not executed.
    pub(super) fn refuse(
        self,
        request: &Message,
        error: &StatusError,
        ids: &mut MessageIds,
        now: Moment,
    ) -> Option<Fitted> {
        let mut answer = request.controller_error(request.header.id.clone(), 0, &error.message);
        answer.content = error.to_content();
        self.fit(request, answer, ids, now)
    }

    fn route(self, request: &Message, answer: &Message) -> Option<(Source, ResourcePath)> {
        let asked = || request.route.resource.clone();
        Some(match self {
            Self::Silent => return None,
            Self::Application => (Source::DynamicController, ResourcePath::ApplicationReply),
            Self::WatchSync => (Source::DynamicController, ResourcePath::WatchSync),
            Self::CaCertificate => (Source::CloudHub, asked()),
            Self::ServiceBus => (Source::ServiceBus, asked()),
            // The edge stores the object of a query under the path of the answer, so it must be the requested path.
            Self::Object | Self::List | Self::Wrap { .. } | Self::Unknown => {
                (Source::EdgeController, asked())
            }
            Self::Done => (Source::EdgeController, answer.route.resource.clone()),
        })
    }

    /// Operation and content, with the identity of a bare object, or the failure to report in a sentence.
    fn content(self, request: &Message, answer: &Message) -> Result<Fitting, Box<StatusError>> {
        let said = failure_of(answer);
        let respond = |content| Ok((Operation::Response, content, None));
        match (self, said) {
            (Self::Wrap { empty_object }, said) => {
                let outcome = said.map_or_else(|| wrapped(&answer.content), Outcome::Failed);
                respond(match outcome {
                    Outcome::Failed(error) if empty_object => failure_with_object(&complete(error)),
                    Outcome::Failed(error) => Outcome::Failed(complete(error)).to_content(),
                    done @ Outcome::Done(_) => done.to_content(),
                })
            }
            (Self::Application, said) => {
                let content = application_content(request, &answer.content, said);
                Ok((Operation::ApplicationResponse, content, None))
            }
            (Self::WatchSync, said) => {
                let whole = said.is_none() && Application::read_all(&answer.content).is_ok();
                let content = if whole { answer.content.clone() } else { sync_refused(request, said) };
                Ok((Operation::ApplicationResponse, content, None))
            }
            (_, Some(error)) => Err(error.into()),
            (Self::Object, None) => {
                let identity = bare_object(&answer.content)?;
                Ok((Operation::Response, answer.content.clone(), Some(identity)))
            }
            (Self::List, None) if answer.content.as_json().starts_with(b"[") => {
                respond(answer.content.clone())
            }
            (Self::Done, None) if answer.content.is_ok() => respond(Content::ok()),
            (Self::CaCertificate | Self::ServiceBus, None) if answer.content.as_text().is_some() => {
                respond(answer.content.clone())
            }
            (Self::Unknown, None) => {
                Err(StatusError::new(400, "BadRequest", "nodes cannot make this request").into())
            }
            _ => Err(StatusError::new(500, "InternalError", "the answer has the wrong form").into()),
        }
    }
}

/// Operation, content, and the identity of a bare object.
type Fitting = (Operation, Content, Option<ObjectIdentity>);

/// The failure in an answer of operation `error`.
fn failure_of(answer: &Message) -> Option<StatusError> {
    #[derive(Deserialize)]
    struct Bare {
        #[serde(rename = "ErrStatus")]
        status: StatusError,
    }
    if answer.route.operation != Operation::Error {
        return None;
    }
    let bare = answer.content.is_object().then(|| answer.content.read::<Bare>().ok()).flatten();
    Some(bare.map_or_else(
        || {
            let sentence = String::from_utf8_lossy(&answer.content.payload()).into_owned();
            StatusError::new(500, "InternalError", &sentence)
        },
        |bare| bare.status,
    ))
}

fn wrapped(content: &Content) -> Outcome {
    let unclear = || Outcome::Failed(StatusError::new(500, "InternalError", "the answer has the wrong form"));
    Outcome::read(content).unwrap_or_else(|_| unclear())
}

/// A KubeEdge edge reads a status without reason or code as success.
fn complete(mut error: StatusError) -> StatusError {
    if error.code < 400 {
        error.code = 500;
    }
    if error.reason.is_empty() {
        error.reason = "InternalError".to_owned();
    }
    if error.message.is_empty() {
        error.message = format!("the API server refused with code {}", error.code);
    }
    error
}

/// A failure beside an empty object, as Kubernetes' client libraries return it.
fn failure_with_object(error: &StatusError) -> Content {
    let err = error.to_content();
    let mut json =
        br#"{"Object":{"metadata":{"creationTimestamp":null},"spec":{},"status":{}},"Err":"#.to_vec();
    json.extend_from_slice(err.as_json());
    json.push(b'}');
    Content::from_checked(json.into())
}

/// The identity of an object, or the reason why it must not be stored.
fn bare_object(content: &Content) -> Result<ObjectIdentity, Box<StatusError>> {
    #[derive(Deserialize)]
    struct Bare {
        #[serde(rename = "ErrStatus")]
        error: Option<StatusError>,
        metadata: Option<ObjectIdentity>,
    }
    let unclear = || Box::new(StatusError::new(500, "InternalError", "the answer is not an object"));
    let bare: Bare = content.is_object().then(|| content.read().ok()).flatten().ok_or_else(unclear)?;
    match bare {
        Bare { error: Some(error), .. } => Err(complete(error).into()),
        Bare { metadata: None, .. } => Err(unclear()),
        Bare { metadata: Some(identity), .. } => Ok(identity),
    }
}

/// Longest request that a refusal repeats whole, in bytes. Of a longer one it repeats only the fields by which the
/// edge identifies it.
const REPEATED_LEN_MAX: usize = 16 * 1024;

fn unclear() -> StatusError {
    StatusError::new(500, "InternalError", "the answer has the wrong form")
}

fn application_content(request: &Message, answer: &Content, said: Option<StatusError>) -> Content {
    if said.is_none()
        && let Ok(done) = Application::read(answer)
    {
        return done.to_content();
    }
    let error = complete(said.unwrap_or_else(unclear));
    let asked = match Application::read(&request.content) {
        Ok(asked) if request.content.as_json().len() <= REPEATED_LEN_MAX => asked,
        Ok(asked) if asked.id.len().saturating_add(asked.key.len()) <= REPEATED_LEN_MAX => asked.name_alone(),
        _ => return error.to_content(),
    };
    asked.rejected(&error).to_content()
}

/// The answer to a sync that was not executed: all its watches have failed. A large sync is not repeated, and the edge
/// finds no list of watches in the answer.
fn sync_refused(request: &Message, said: Option<StatusError>) -> Content {
    if request.content.as_json().len() <= REPEATED_LEN_MAX {
        return request.content.clone();
    }
    Content::text(&complete(said.unwrap_or_else(unclear)).message)
}

#[cfg(test)]
mod tests;
