//! Those who act on the model itself: users, controllers, the scheduler, kubelets. Their calls take no time, and no
//! fault concerns them.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::calls::{ApiRequest, Performed, perform};
use super::kinds::KindInfo;
use super::object;
use super::parse::{QueryParams, RequestRoute, route, verb};
use super::rights::ApiUser;
use super::serve::{ClientIdentity, SharedModel};
use super::status::ApiStatus;

/// Somebody who acts.
#[derive(Debug, Clone)]
pub struct ApiActor {
    model: Arc<SharedModel>,
    user: ApiUser,
}

impl ApiActor {
    pub(super) fn new(model: Arc<SharedModel>, user: ApiUser) -> Self {
        Self { model, user }
    }

    /// Makes a request that is not a watch; returns the body of the answer.
    ///
    /// # Errors
    /// The refusal.
    pub fn send(
        &self,
        method: &Method,
        path_and_query: &str,
        (content_type, body): (&str, &Value),
    ) -> Result<Value, ApiStatus> {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let params = QueryParams::parse(query);
        let RequestRoute::Resource(target) = route(path)? else { return Err(ApiStatus::no_such_path()) };
        let verb = verb(method, &target, &params).ok_or_else(ApiStatus::method_not_allowed)?;
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let manager = params.text("fieldManager").to_owned();
        let request = ApiRequest { params, content_type: content_type.to_owned(), body, manager };
        let client = ClientIdentity { name: self.user.name.clone(), user: self.user.clone() };
        let performed =
            self.model.change(|state| perform(state, (&client, &self.user), (&target, verb), &request))?;
        match performed {
            Performed::Answer { body, .. } => Ok(serde_json::from_slice(&body).unwrap_or_default()),
            Performed::Watch(_) => Err(ApiStatus::method_not_allowed()),
        }
    }

    /// The path of an object's collection, or of the object itself.
    fn path(&self, object: &Value, named: bool) -> Result<String, ApiStatus> {
        let is_it =
            |kind: &KindInfo| object["kind"] == *kind.kind && object["apiVersion"] == kind.api_version();
        let kind = self.model.state.lock().served().find(is_it).ok_or_else(ApiStatus::no_such_path)?;
        let root = if kind.key.group.is_empty() { "/api" } else { "/apis" };
        let mut path = format!("{root}/{}", kind.api_version());
        if kind.namespaced {
            path.push_str(&format!("/namespaces/{}", object::namespace(object)));
        }
        path.push_str(&format!("/{}", kind.key.resource));
        if named {
            path.push_str(&format!("/{}", escaped(object::name(object))));
        }
        Ok(path)
    }

    /// Creates an object, which names its kind.
    ///
    /// # Errors
    /// The refusal.
    pub fn create(&self, object: &Value) -> Result<Value, ApiStatus> {
        self.send(&Method::POST, &self.path(object, false)?, ("application/json", object))
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// The refusal.
    pub fn replace(&self, object: &Value) -> Result<Value, ApiStatus> {
        self.send(&Method::PUT, &self.path(object, true)?, ("application/json", object))
    }

    /// Creates an object, or replaces whatever has its name, status included.
    ///
    /// # Errors
    /// The refusal.
    pub fn put(&self, object: &Value) -> Result<Value, ApiStatus> {
        match self.create(object) {
            Err(refused) if refused.reason == "AlreadyExists" => {
                let path = self.path(object, true)?;
                let mut next = object.clone();
                let live = self.send(&Method::GET, &path, ("", &Value::Null))?;
                next["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                self.send(&Method::PUT, &path, ("application/json", &next))
            }
            outcome => outcome,
        }
    }

    /// Changes an object by a merge patch. `path` may lead to a subresource.
    ///
    /// # Errors
    /// The refusal.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Value, ApiStatus> {
        self.send(&Method::PATCH, path, ("application/merge-patch+json", patch))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// The refusal.
    pub fn get(&self, path: &str) -> Result<Value, ApiStatus> {
        self.send(&Method::GET, path, ("", &Value::Null))
    }

    /// Deletes an object, with these `DeleteOptions`; null for none.
    ///
    /// # Errors
    /// The refusal.
    pub fn delete(&self, path: &str, options: &Value) -> Result<Value, ApiStatus> {
        self.send(&Method::DELETE, path, ("application/json", options))
    }

    /// Binds a pod to a node, as the scheduler does.
    ///
    /// # Errors
    /// The refusal.
    pub fn bind(&self, namespace: &str, pod: &str, node: &str) -> Result<(), ApiStatus> {
        let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}/binding", escaped(pod));
        self.send(&Method::POST, &path, ("application/json", &binding)).map(drop)
    }
}

/// A name as a segment of a path.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            byte if plain(byte) => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
