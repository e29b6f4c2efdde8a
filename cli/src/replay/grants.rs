//! The rights of the transcript's nodes beyond those of every node (docs/reference/kubernetes.md#node-authorizer).

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tombolo_proto::Frame as Wire;
use tombolo_replay::{Event, Frame, Transcript, wire};

/// Resources that the Node authorizer checks object by object: a role would grant more than the recorded node had.
const NODES_OWN: [&str; 8] = [
    "configmaps",
    "events",
    "leases",
    "nodes",
    "persistentvolumeclaims",
    "pods",
    "secrets",
    "serviceaccounts",
];

/// One right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grant {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    verb: String,
}

impl Grant {
    /// A watch starts with a list, so it needs both verbs.
    fn verbs(&self) -> Vec<&str> {
        if self.verb == "watch" { vec!["list", "watch"] } else { vec![&self.verb] }
    }

    pub(super) fn rule(&self) -> Value {
        let resource = &self.resource;
        json!({"apiGroups": [self.group], "resources": [resource, format!("{resource}/status"), format!("{resource}/scale")], "verbs": self.verbs()})
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => write!(f, "{} {}", self.verb, self.resource),
            group => write!(f, "{} {}.{group}", self.verb, self.resource),
        }
    }
}

/// Rights that a node used successfully: MetaServer's requests and calls that were not forbidden, and subscriptions.
pub(super) fn granted(transcript: &Transcript, node: &str) -> BTreeSet<Grant> {
    let mut grants = BTreeSet::new();
    let mut calls = std::collections::HashMap::new();
    for line in &transcript.lines {
        if line.conn.is_none_or(|conn| transcript.node_of(conn) != node) {
            continue;
        }
        match &line.event {
            Event::Up(frame) if frame.is_tombolo() => {
                if let Some(grant) = asked(frame) {
                    calls.insert(frame.id(), grant);
                }
            }
            Event::Down(frame) if frame.operation() == "applicationResponse" && !is_forbidden(frame) => {
                grants.extend(application(&frame.application("Key"), &frame.application("Verb")));
            }
            Event::Down(frame) if frame.is_tombolo() => {
                let refused = frame.content()["code"].as_u64().is_some_and(|code| code == 403);
                if refused {
                    calls.remove(frame.parent());
                }
            }
            _ => {}
        }
    }
    grants.extend(calls.into_values());
    grants
}

/// Whether an application's request was refused because of a missing right.
fn is_forbidden(answer: &Frame) -> bool {
    answer.content().pointer("/Error/ErrStatus/code") == Some(&403.into())
        || answer.application("Reason").contains("forbidden")
}

fn application(key: &str, verb: &str) -> Option<Grant> {
    let parts: Vec<&str> = key.strip_prefix('/')?.split('/').collect();
    let [group, version, resource, _, _] = parts[..] else { return None };
    let group = if group == "core" { "" } else { group };
    let verb = if verb == "updatestatus" { "update" } else { verb };
    Some(grant(group, version, resource, verb))
}

fn grant(group: &str, version: &str, resource: &str, verb: &str) -> Grant {
    let [group, version, resource, verb] = [group, version, resource, verb].map(str::to_owned);
    Grant { group, version, resource, verb }
}

/// The right that a call or a subscription of the node itself requires.
fn asked(frame: &Frame) -> Option<Grant> {
    let (_, frame) = wire(frame).ok()?;
    match frame {
        Wire::Subscribe(subscribe) if subscribe.caller_token.is_none() => {
            let resource = subscribe.resource;
            Some(grant(&resource.group, &resource.version, &resource.name, "watch"))
        }
        Wire::Request(request) if request.caller_token.is_none() => match request.body {
            tombolo_proto::frame::RequestBody::Api(call) => called(&call.method, &call.path_and_query),
            tombolo_proto::frame::RequestBody::Message(_) => None,
        },
        _ => None,
    }
}

fn called(method: &str, path: &str) -> Option<Grant> {
    let parts: Vec<&str> = path.split('?').next()?.trim_matches('/').split('/').collect();
    let (group, version, rest) = match *parts {
        ["api", version, ref rest @ ..] => ("", version, rest),
        ["apis", group, version, ref rest @ ..] => (group, version, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, name) = (*rest.first()?, rest.get(1));
    if NODES_OWN.contains(&resource) {
        return None;
    }
    let verb = match (method, name) {
        ("GET", Some(_)) => "get",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => return None,
    };
    Some(grant(group, version, resource, verb))
}
