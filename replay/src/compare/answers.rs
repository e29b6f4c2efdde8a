//! Answers to KubeEdge messages, in MetaServer records, and to the calls of dialect `tombolo`.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Comparison, ComparisonResult, ZERO_TIME, mismatch, short};
use crate::application::{ASKED, opened};
use crate::cluster_objects::is_machinery;
use crate::frame::{Frame, Key, body_json, is_description};
use crate::rules::Rule;
use crate::value::strip;

impl Comparison<'_> {
    /// Compares the answers to one request. Their parents are already known to be equal.
    pub(crate) fn reply(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        self.route(recorded, live, &["/lane", "/route/source", "/route/group", "/route/resource"])?;
        if self.had_not_made(recorded, live) {
            return Ok(());
        }
        if recorded.is_tombolo()
            && let Some(outcome) = self.answer_of_frame(recorded, live)
        {
            return outcome;
        }
        if recorded.operation() == "response"
            && live.operation() == "error"
            && let Some(status) = recorded.content().get("ErrStatus")
        {
            self.rules.push(Rule::QueryError);
            return sentence(status, live.content());
        }
        if recorded.operation() == "response" && live.operation() == "error" && is_vague(recorded.content()) {
            self.rules.push(Rule::QueryError);
            return Ok(());
        }
        self.route(recorded, live, &["/route/operation"])?;
        if let Some(status) = recorded.content().get("ErrStatus")
            && let Some(name) = live.stands_in_for()
        {
            self.rules.push(Rule::QueryError);
            return sentence(status, &format!("not found: {name}").into());
        }
        if recorded.operation() == "applicationResponse" {
            return self.application(recorded, live);
        }
        // The CA certificate of the cluster. A KubeEdge cloud whose kubeconfig contains it answers with an empty text.
        if recorded.resource() == "k8s/ca.crt" && recorded.content().is_string() && live.content().is_string()
        {
            self.rules.push(Rule::ClusterDocuments);
            return Ok(());
        }
        let (one, other) = (recorded.content(), live.content());
        self.token = one["kind"] == "TokenRequest";
        if one.get("Err").is_some() {
            self.wrapped(one, other)?;
        } else {
            self.content(recorded, live)?;
        }
        self.header_version(recorded, live)
    }

    /// Compares answers that only dialect `tombolo` has; `None` for KubeEdge messages.
    fn answer_of_frame(&mut self, recorded: &Frame, live: &Frame) -> Option<ComparisonResult> {
        let known =
            matches!(recorded.group(), "session" | "api") || recorded.group().starts_with("subscription/");
        if !known {
            return None;
        }
        if let Err(mismatch) = self.route(recorded, live, &["/route/operation"]) {
            return Some(Err(mismatch));
        }
        let (one, other) = (recorded.content(), live.content());
        Some(match recorded.operation() {
            "welcome" => self.welcome(one, other),
            "closed" => self.value("/content/code", "", &one["code"], &other["code"]),
            "response" => self.api(one, other),
            _ => self.value("/content", "", one, other),
        })
    }

    /// Compares a welcome. The clock and the software's name are those of the run.
    fn welcome(&mut self, one: &Value, other: &Value) -> ComparisonResult {
        const MEMBERS: [&str; 5] =
            ["version", "features", "trim_version", "ping_interval_millis", "idle_timeout_millis"];
        for member in MEMBERS {
            self.value(&format!("/content/{member}"), "", &one[member], &other[member])?;
        }
        self.epoch("/content/epoch", &one["epoch"], &other["epoch"])
    }

    /// Compares an answer of the Kubernetes API. Failures are compared by the members that programs read, documents by
    /// their presence.
    fn api(&mut self, one: &Value, other: &Value) -> ComparisonResult {
        for member in ["code", "content_type"] {
            self.value(&format!("/content/{member}"), "", &one[member], &other[member])?;
        }
        let (body, other) = (&one["body"], &other["body"]);
        if one["code"].as_u64().is_some_and(|code| code >= 400) {
            for member in ["kind", "apiVersion"] {
                self.value(&format!("/content/body/{member}"), "", &body[member], &other[member])?;
            }
            return self.status("/content/body", body, other);
        }
        self.token = body["kind"] == "TokenRequest";
        match (body, other) {
            (Value::String(_), Value::String(_)) => {
                self.rules.push(Rule::OtherBody);
                Ok(())
            }
            _ if is_description(body) && is_description(other) => {
                if body != other {
                    self.rules.push(Rule::ClusterDocuments);
                }
                self.value("/content/body/kind", "", &body["kind"], &other["kind"])
            }
            (body, other) => self.body("/content/body", body, other),
        }
    }

    fn wrapped(&mut self, one: &Value, other: &Value) -> ComparisonResult {
        let (failure, other_failure) = (&one["Err"], &other["Err"]);
        if failure.is_null() && other_failure.is_null() {
            return self.value("/content/Object", "", &one["Object"], &other["Object"]);
        }
        if failure.is_null() != other_failure.is_null() {
            let problem = format!("{} was recorded, {} arrived", short(failure), short(other_failure));
            return mismatch("/content/Err", problem);
        }
        self.failure("/content/Err", failure, other_failure)?;
        if one["Object"].is_null() != other["Object"].is_null() {
            return mismatch(
                "/content/Object",
                format!("{} was recorded, {} arrived", short(&one["Object"]), short(&other["Object"])),
            );
        }
        if one["Object"] != other["Object"] {
            self.rules.push(Rule::ObjectBesideError);
        }
        Ok(())
    }

    /// Compares errors: the members that programs read must be equal; the message may differ.
    fn failure(&mut self, pointer: &str, one: &Value, other: &Value) -> ComparisonResult {
        if one.is_object() && one.get("ErrStatus").is_none() && other.get("ErrStatus").is_some() {
            self.rules.push(Rule::WholeStatus);
            return Ok(());
        }
        self.status(&format!("{pointer}/ErrStatus"), &one["ErrStatus"], &other["ErrStatus"])
    }

    fn status(&mut self, pointer: &str, one: &Value, other: &Value) -> ComparisonResult {
        for suffix in ["/status", "/reason", "/code", "/details/name", "/details/group"] {
            // A KubeEdge cloud that answers from its caches names no group.
            if suffix == "/details/group" && one.pointer(suffix).is_none() {
                continue;
            }
            // Go either omits or writes empty texts.
            let said = |status: &'_ Value| status.pointer(suffix).filter(|text| **text != "").cloned();
            if said(one) != said(other) {
                let shown = |status: &Value| short(status.pointer(suffix).unwrap_or(&Value::Null));
                return mismatch(
                    &format!("{pointer}{suffix}"),
                    format!("{} was recorded, {} arrived", shown(one), shown(other)),
                );
            }
        }
        if one.get("message") != other.get("message") {
            self.rules.push(Rule::ErrorWording);
        }
        Ok(())
    }

    fn application(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        let (one, other) = (recorded.content(), live.content());
        if recorded.resource() == "watchapp/sync" {
            return self.value("/content", "", one, other);
        }
        let members = ["ID", "Key", "Verb", "Nodename", "Subresource", "Status"];
        for member in members {
            self.value(&format!("/content/{member}"), "", &one[member], &other[member])?;
        }
        for member in ASKED {
            self.asked(member, &one[member], &other[member])?;
        }
        // The zero time, or a real one.
        let is_zero = |content: &Value| content["Timestamp"] == ZERO_TIME;
        if is_zero(one) != is_zero(other) {
            let problem =
                format!("{} was recorded, {} arrived", short(&one["Timestamp"]), short(&other["Timestamp"]));
            return mismatch("/content/Timestamp", problem);
        }
        self.refusal(one, other)?;
        if is_document(&recorded.application("Key")) {
            return self.document(one, other);
        }
        let pointer = "/content/RespBody";
        let body = |content: &Value| {
            content["RespBody"].as_str().map(|text| body_json(text).ok_or_else(|| text.to_owned()))
        };
        match (body(one), body(other)) {
            (None, None) => Ok(()),
            (Some(Ok(one)), Some(Ok(other))) => self.body(pointer, &one, &other),
            (Some(Err(one)), Some(Err(other))) if one == other => Ok(()),
            (one, other) => mismatch(pointer, format!("{one:?} was recorded, {other:?} arrived")),
        }
    }

    /// Compares the request that an answer repeats.
    fn asked(&mut self, member: &str, one: &Value, other: &Value) -> ComparisonResult {
        let open = |value: &Value| value.as_str().and_then(|text| opened(member, text));
        let pointer = format!("/content/{member}");
        match (open(one), open(other)) {
            (Some(mut recorded), Some(mut live)) if one != other => {
                // The recorded identifiers in the run's terms, as far as they were known when the request was sent.
                for side in [&mut recorded, &mut live] {
                    strip(side, &["uid", "resourceVersion"]);
                }
                match recorded == live {
                    true => Ok(()),
                    false => mismatch(
                        &pointer,
                        format!("{} was recorded, {} arrived", short(&recorded), short(&live)),
                    ),
                }
            }
            _ => self.value(&pointer, "", one, other),
        }
    }

    /// Compares why an application was refused. Beside a status, the reason is empty or says the same
    /// (docs/reference/kubeedge.md#applications-in-the-cloud).
    fn refusal(&mut self, one: &Value, other: &Value) -> ComparisonResult {
        let status = |record: &Value| record.pointer("/Error/ErrStatus/status").is_some();
        if one["Status"] == "Rejected" && !status(one) && status(other) {
            self.rules.push(Rule::WholeStatus);
            return Ok(());
        }
        let says_nothing_more = |record: &Value| {
            let reason = record["Reason"].as_str().unwrap_or_default();
            reason.is_empty() || record.pointer("/Error/ErrStatus/message") == Some(&record["Reason"])
        };
        if one["Reason"] != other["Reason"] {
            if !(status(one) && status(other) && says_nothing_more(one) && says_nothing_more(other)) {
                self.value("/content/Reason", "", &one["Reason"], &other["Reason"])?;
            }
            self.rules.push(Rule::ErrorWording);
        }
        self.failure("/content/Error", &one["Error"], &other["Error"])
    }

    /// Compares bodies. A list's items are a set.
    fn body(&mut self, pointer: &str, one: &Value, other: &Value) -> ComparisonResult {
        if !one["items"].is_array() || !other["items"].is_array() {
            return self.value(pointer, "", one, other);
        }
        let (mut items, others) = (named_items(one), named_items(other));
        let is_named =
            |list: &Value, items: &[Value]| list["items"].as_array().is_some_and(|all| all == items);
        if is_named(one, &items) != is_named(other, &others) {
            self.rules.push(Rule::NamesKind);
        }
        for item in &mut items {
            if let Some(live) = others.iter().find(|other| Key::of_object(other) == Key::of_object(item))
                && is_turned_local(item, live)
            {
                self.rules.push(Rule::LocalSlices);
                for member in ["endpoints", "ports"] {
                    item[member] = live[member].clone();
                }
            }
        }
        let items = &items;
        let listed: HashSet<Key> = items.iter().map(Key::of_object).collect();
        // Objects that make the recorded cluster work are not created in the run's cluster, which has its own.
        if items.iter().chain(&others).any(is_machinery) {
            self.rules.push(Rule::ClusterObjects);
        }
        let besides = |item: &Value| {
            is_machinery(item) || self.is_own(&item["metadata"]) && !listed.contains(&Key::of_object(item))
        };
        let sorted = |items: &[Value]| {
            let mut items: Vec<Value> = items.iter().filter(|item| !besides(item)).cloned().collect();
            items.sort_by_key(Key::of_object);
            items
        };
        let whole = |list: &Value, items: Vec<Value>| {
            let mut members = list.as_object().cloned().unwrap_or_default();
            // The version of a list is that of the whole cluster.
            members.remove("metadata");
            members.insert("items".to_owned(), Value::Array(items));
            Value::Object(members)
        };
        self.value(pointer, "", &whole(one, sorted(items)), &whole(other, sorted(&others)))
    }

    fn document(&mut self, one: &Value, other: &Value) -> ComparisonResult {
        let bytes =
            |content: &Value| content["RespBody"].as_str().and_then(|text| STANDARD.decode(text).ok());
        match (bytes(one), bytes(other)) {
            (Some(one), Some(other)) if !one.is_empty() && !other.is_empty() => {
                if one != other {
                    self.rules.push(Rule::ClusterDocuments);
                }
                Ok(())
            }
            (None, None) => Ok(()),
            _ => mismatch("/content/RespBody", "only one of the two answers is a document"),
        }
    }
}

/// Whether this is how Go writes an error that is not a status: an empty object, an error of `net/url`, or a message of
/// a KubeEdge cloud's own (docs/reference/kubeedge.md#content).
fn is_vague(content: &Value) -> bool {
    match content {
        Value::Object(members) => members.is_empty() || members.contains_key("Op"),
        Value::String(text) => text != "OK",
        _ => false,
    }
}

/// The items of a list, with the kind of the list. Servers omit it from the items, and clients add it.
fn named_items(list: &Value) -> Vec<Value> {
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    let mut items = list["items"].as_array().cloned().unwrap_or_default();
    for item in items.iter_mut().filter(|item| item.is_object()) {
        if let (Some(kind), true) = (kind, item["kind"].is_null()) {
            item["kind"] = kind.into();
        }
        if item["apiVersion"].is_null() {
            item["apiVersion"] = list["apiVersion"].clone();
        }
    }
    items
}

/// Compares a message with a recorded status: it must report a failure of the requested object.
fn sentence(status: &Value, said: &Value) -> ComparisonResult {
    const CODES: [(&str, u64); 4] =
        [("NotFound", 404), ("Forbidden", 403), ("AlreadyExists", 409), ("Conflict", 409)];
    let pointer = "/content/ErrStatus";
    if status["status"] != "Failure" {
        return mismatch(
            &format!("{pointer}/status"),
            format!("{} is not a failure", short(&status["status"])),
        );
    }
    let known = CODES.iter().find(|(reason, _)| status["reason"] == **reason);
    let known = known.or_else(|| CODES.iter().find(|(_, code)| status["code"] == *code));
    if known.is_some_and(|(reason, code)| status["reason"] != *reason || status["code"] != *code) {
        return mismatch(&format!("{pointer}/code"), "reason and code do not match");
    }
    let name = status.pointer("/details/name").and_then(Value::as_str).unwrap_or_default();
    if !said.as_str().is_some_and(|said| said.contains(name)) {
        return mismatch(
            &format!("{pointer}/details/name"),
            format!("{name:?} was recorded, {} arrived", short(said)),
        );
    }
    Ok(())
}

/// Whether a recorded slice has the address of the node's own MetaServer and the run's slice does not
/// (docs/reference/kubeedge.md#applications-in-the-cloud).
fn is_turned_local(recorded: &Value, live: &Value) -> bool {
    let first = |slice: &Value| slice.pointer("/endpoints/0/addresses/0").cloned().unwrap_or_default();
    let is_slice = recorded.get("addressType").is_some();
    is_slice && first(recorded) == "127.0.0.1" && first(live) != "127.0.0.1"
}

/// Whether the path is passed through because it describes the server, not objects
/// (docs/reference/kubeedge.md#applications-in-the-cloud).
pub(crate) fn is_document(key: &str) -> bool {
    const PATHS: [&str; 8] =
        ["/api", "/apis", "/version", "/healthz", "/livez", "/readyz", "/openapi/v2", "/openapi/v3"];
    PATHS.contains(&key) || key.starts_with("/api/") || key.starts_with("/apis/")
}
