//! One of the two servers, with what differs lawfully between them taken out of its answers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{AsyncBufReadExt as _, Stream, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::calls::{ApiCall, FENCE};

/// The lines of a watch.
pub(crate) type Lines = Pin<Box<dyn Stream<Item = std::io::Result<String>> + Send>>;

const EVENT_DEADLINE: Duration = Duration::from_secs(30);

/// A server, and the names of its versions and identifiers in the order in which they appeared.
pub(crate) struct Side {
    client: Client,
    /// Versions that objects had, by path, the newest last.
    versions: BTreeMap<String, Vec<String>>,
    uids: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
}

impl Side {
    pub(crate) fn new(client: Client) -> Self {
        let (versions, uids, names) = <_>::default();
        Self { client, versions, uids, names }
    }

    /// Performs a call. Returns code and content.
    pub(crate) async fn perform(&mut self, call: &ApiCall) -> Result<Value> {
        let request = Request::builder().method(call.method.clone()).uri(self.filled(&call.path));
        let request = request.header("content-type", call.content_type);
        let body = if call.body.is_null() { Vec::new() } else { self.filled(&call.body.to_string()).into() };
        let answer = self.client.send(request.body(Body::from(body))?).await.context(call.to_string())?;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        let mut content: Value =
            serde_json::from_slice(&body).unwrap_or_else(|_| json!({"text": String::from_utf8_lossy(&body)}));
        self.learn(&content);
        self.mask(&mut content);
        Ok(json!({"code": code, "content": content}))
    }

    /// Watches a collection from now on.
    pub(crate) async fn watch(&mut self, path: &str) -> Result<Lines> {
        let request = Request::get(path).body(Vec::new())?;
        let list: Value = self.client.request(request).await?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a list")?;
        let request = Request::get(format!("{path}?watch=true&resourceVersion={version}")).body(Vec::new())?;
        let stream = self.client.request_stream(request).await?;
        Ok(Box::pin(Box::pin(stream).lines()))
    }

    /// The events of a watch before that of the fence.
    pub(crate) async fn events(&mut self, lines: &mut Lines) -> Result<Vec<Value>> {
        let mut events = Vec::new();
        loop {
            let line = tokio::time::timeout(EVENT_DEADLINE, lines.next()).await.context("no event")?;
            let mut event: Value = serde_json::from_str(&line.context("the watch has ended")??)?;
            if event["object"]["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(FENCE)) {
                return Ok(events);
            }
            self.mask(&mut event);
            events.push(event);
        }
    }

    /// Replaces `@version:PATH@`, `@old:PATH@` and `@uid:PATH@` by what this server has said of the object.
    fn filled(&self, text: &str) -> String {
        let mut filled = String::new();
        for (index, part) in text.split('@').enumerate() {
            if index % 2 == 0 {
                filled.push_str(part);
                continue;
            }
            let (what, path) = part.split_once(':').unwrap_or((part, ""));
            let versions = self.versions.get(path);
            let found = match what {
                "version" => versions.and_then(|versions| versions.last()),
                "old" => versions.and_then(|versions| versions.first()),
                _ => self.uids.get(path),
            };
            filled.push_str(found.map_or("1", |found| found));
        }
        filled
    }

    fn learn(&mut self, content: &Value) {
        let items = content["items"].as_array();
        for object in items.into_iter().flatten().chain([content]) {
            let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
            let kind = object["kind"].as_str().unwrap_or_default().trim_end_matches("List");
            let (version, uid) = (text("/metadata/resourceVersion"), text("/metadata/uid"));
            if uid.is_empty() {
                continue;
            }
            let path = format!("{kind}/{}", text("/metadata/name"));
            self.uids.insert(path.clone(), uid.to_owned());
            let versions = self.versions.entry(path).or_default();
            if versions.last().is_none_or(|last| last != version) {
                versions.push(version.to_owned());
            }
        }
    }

    /// Takes out what two servers may say in different ways.
    fn mask(&mut self, value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|one| self.mask(one)),
            Value::Object(members) => {
                let is_list = members.contains_key("items");
                for (name, member) in members.iter_mut() {
                    match (name.as_str(), &*member) {
                        ("resourceVersion", Value::String(_)) if is_list => *member = json!("of the list"),
                        ("metadata", Value::Object(metadata)) if is_list => {
                            *member = json!({"continues": metadata.contains_key("continue")});
                        }
                        ("resourceVersion" | "uid", Value::String(text)) => *member = self.name(name, text),
                        ("time" | "creationTimestamp" | "deletionTimestamp", Value::String(_)) => {
                            *member = json!("a time");
                        }
                        // Sentences for people, with what differs in them.
                        ("message", Value::String(_)) => *member = json!("a message"),
                        _ => self.mask(member),
                    }
                }
                if let Some(Value::Array(causes)) = members.get_mut("causes") {
                    causes.sort_by_key(|cause| cause["field"].to_string());
                }
            }
            _ => {}
        }
    }

    /// A name for a version or an identifier: equal for equal ones, and in the order of their appearance.
    fn name(&mut self, what: &str, text: &str) -> Value {
        let next = format!("{what} {}", self.names.len());
        self.names.entry(format!("{what} {text}")).or_insert(next).clone().into()
    }
}
