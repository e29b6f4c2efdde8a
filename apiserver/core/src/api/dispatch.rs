//! Dispatches an authorized request to the code that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use serde::de::IgnoredAny;
use serde_json::Value;
use tombolo_proto::object::ObjectKey;

use crate::accept::{Accepted, Kind};
use crate::auth::Attributes;
use crate::backend::{EndpointRequest, PatchType, WriteReply, WriteRequest, WriteVerb};
use crate::blocking::run_blocking_if_large;
use crate::body::{self, Body};
use crate::encode::Encoder;
use crate::gofmt;
use crate::input;
use crate::kinds::{KindInfo, scale_kind};
use crate::list::{self, ListRequest};
use crate::patch;
use crate::protobuf::{self, Expected, Typed};
use crate::query::params::{self, ListParams, OptionsKind, write_options};
use crate::query::path::{ResourcePath, Target};
use crate::registry::Catalog;
use crate::request_limits::{BODY_LEN_MAX, Receiving, Slot, too_many_bodies};
use crate::selector::RequestSelection;
use crate::senders::Sender;
use crate::sources::Read;
use crate::status::ApiError;
use crate::stored::Stored;
use crate::tree;
use crate::unread::UNREAD_LEN_MAX;
use crate::value::to_bytes;
use crate::watch::{self, Surroundings, WatchRequest};
use crate::write;

use super::handler::{HandlerResult, accept, header, no_such_page};
use super::plain::{is_elsewhere, missing};
use super::{Admitted, ApiServer, streams};

impl ApiServer {
    /// Answers a request. A watch takes the slot; for other requests the caller keeps it until the answer is sent.
    pub(super) async fn dispatch<B>(
        &self,
        admitted: Admitted,
        request_body: B,
        slot: &mut Option<Slot>,
    ) -> HandlerResult
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let catalog = self.parts.registry.catalog();
        let Target::Resource(path) = admitted.query.target.clone() else {
            return self.plain(admitted, request_body, &catalog).await;
        };
        if let Some(response) = self.routed(&admitted) {
            return self.route(response, admitted, request_body).await;
        }
        if path.verb == Some("proxy") {
            return Ok(no_such_page());
        }
        let kind = match find(&catalog, &path) {
            Ok(kind) => kind,
            Err(error) => return missing(&catalog, &path, admitted.query.verb, error),
        };
        if is_elsewhere(&kind, &path, admitted.query.verb) {
            return Ok(no_such_page());
        }
        if let Some(answer) = self.endpoint(&admitted, &kind, &path) {
            return self.call_endpoint(answer, admitted, kind, request_body).await;
        }
        check_place(&path, admitted.query.verb)?;
        check_verb(&kind, &path, admitted.query.verb)?;
        path.name.as_deref().map_or(Ok(()), check_name)?;
        check_key(&kind, &path, admitted.query.verb)?;
        if admitted.head.method == Method::HEAD
            || (path.verb.is_some() && admitted.head.method != Method::GET)
        {
            return Err(ApiError::method_not_allowed());
        }
        if let Some(subresource) = streams::unserved(&kind, &path) {
            let (store, params) = (self.parts.store.as_ref(), &admitted.query.params);
            return streams::answer(store, &kind, &path, params, subresource);
        }
        match admitted.query.verb {
            "get" => self.get(&admitted, &kind, &path).await,
            "list" => self.list(&admitted, &kind, &path).await,
            "watch" => self.watch(&admitted, kind, &path, slot.take()).await,
            _ => self.write(admitted, kind, request_body).await,
        }
    }

    async fn get(&self, admitted: &Admitted, kind: &Arc<KindInfo>, path: &ResourcePath) -> HandlerResult {
        let accepted = accept(admitted, Kind::Object)?;
        let payer = &admitted.attributes.payer;
        let store = self.source(admitted, kind).await?;
        if let Some(revision) = params::get_revision(&admitted.query.params)? {
            list::reach(store.as_ref(), revision).await?;
        }
        let name = path.name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(kind.storage.clone(), path.namespace.as_deref().unwrap_or_default(), name);
        let stored = store.get(&key)?;
        let resource = &kind.resource;
        let stored = stored.ok_or_else(|| ApiError::not_found(&resource.group, &resource.name, name))?;
        let encoder = Encoder::new(kind, accepted.form, &admitted.query.params)?;
        if path.subresource.as_deref() == Some("scale") {
            let body = stored.body();
            let mut read = Receiving::begin(&self.parts.limits, &admitted.sender);
            read.beside(&body)?;
            let scale = || crate::scale::of(kind, &kind.read(&body).unwrap_or_default());
            let scale = run_blocking_if_large(payer, body.len(), scale).await??;
            let encoder = Encoder { kind: scale_kind(), ..encoder };
            encoder.check_form(false)?;
            return Ok(body::document(StatusCode::OK, encoder.shown(&to_bytes(&scale)), &accepted));
        }
        encoder.check_form(false)?;
        let _trees = self.trees(admitted, &encoder, std::slice::from_ref(&stored))?;
        let len = encoder.read_len(std::slice::from_ref(&stored));
        let shown = run_blocking_if_large(payer, len, || encoder.object(&stored)).await?;
        Ok(body::document(StatusCode::OK, shown, &accepted))
    }

    /// Counts the memory of objects that are parsed, one after the other, to be shown. It counts as a body of the
    /// sender.
    ///
    /// # Errors
    /// 429 when too much is being read at the same time.
    fn trees(
        &self,
        admitted: &Admitted,
        encoder: &Encoder<'_>,
        items: &[Arc<Stored>],
    ) -> Result<Receiving, ApiError> {
        let mut trees = Receiving::begin(&self.parts.limits, &admitted.sender);
        match encoder.tree_bytes(items) {
            0 => {}
            bytes => trees.makes(bytes)?,
        }
        Ok(trees)
    }

    async fn list(&self, admitted: &Admitted, kind: &Arc<KindInfo>, path: &ResourcePath) -> HandlerResult {
        let accepted = accept(admitted, Kind::Collection)?;
        let request = ListRequest {
            kind,
            selection: selection(admitted, kind, path)?,
            params: ListParams::parse(&admitted.query.params, false)?,
        };
        let encoder = Encoder::new(kind, accepted.form, &admitted.query.params)?;
        encoder.check_form(true)?;
        let store = self.source(admitted, kind).await?;
        let page = list::fresh_page(store.as_ref(), &request).await?;
        let _trees = self.trees(admitted, &encoder, &page.items)?;
        let payer = &admitted.attributes.payer;
        list::shown(page, &encoder, &accepted, payer, store.shares_bodies()).await
    }

    /// The store that answers a read.
    async fn source(
        &self,
        admitted: &Admitted,
        kind: &KindInfo,
    ) -> Result<Arc<dyn crate::store::Store>, ApiError> {
        let authorization = admitted.head.headers.get(http::header::AUTHORIZATION);
        let read = Read {
            attributes: &admitted.attributes,
            kind,
            authorization: authorization.and_then(|value| value.to_str().ok()),
        };
        self.parts.sources.source(read).await
    }

    async fn watch(
        &self,
        admitted: &Admitted,
        kind: Arc<KindInfo>,
        path: &ResourcePath,
        slot: Option<Slot>,
    ) -> HandlerResult {
        let accepted = accept(admitted, Kind::Watch)?;
        let include = Encoder::new(&kind, accepted.form, &admitted.query.params)?.include;
        let params = ListParams::parse(&admitted.query.params, true)?;
        let store = self.source(admitted, &kind).await?;
        let unreached = watch::ready(store.as_ref(), &params).await.err();
        let selection = selection(admitted, &kind, path)?;
        let request = WatchRequest { kind, selection, params, form: accepted.form, include };
        let around = Surroundings {
            store: &store,
            registry: &self.parts.registry,
            rng: &mut *self.parts.rng.lock(),
            stop: self.parts.stop.clone(),
            slot,
        };
        watch::respond(request, around, unreached)
    }

    async fn write<B>(&self, admitted: Admitted, kind: Arc<KindInfo>, request_body: B) -> HandlerResult
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let is_list = admitted.query.verb == "deletecollection";
        let accepted = accept(&admitted, if is_list { Kind::Collection } else { Kind::Object })?;
        let is_scale = admitted.attributes.subresource == "scale";
        let shown = Arc::clone(&kind);
        let shown: &KindInfo = if is_scale { scale_kind() } else { &shown };
        let encoder = Encoder::new(shown, accepted.form, &admitted.query.params)?;
        let content_type = input::content_type(&admitted.head.headers);
        let (verb, options_kind) = write_verb(admitted.query.verb, &content_type, kind.custom)?;
        let user_agent = header(&admitted, "user-agent").unwrap_or_default();
        let options = write_options(&admitted.query.params, options_kind, &user_agent)?;
        let (bytes, mut received) = self.read_body(request_body, &admitted.sender).await?;
        let body = Typed { media_type: content_type, bytes };
        let body = self.readable(body, &admitted, &kind, &mut received).await?;
        if matches!(admitted.query.verb, "update" | "patch") && !self.parts.writes.decides_creation() {
            let attributes = &admitted.attributes;
            let key = ObjectKey::new(kind.storage.clone(), &attributes.namespace, &attributes.name);
            if let Some(stored) = self.parts.store.get(&key)? {
                received.beside(&stored.body())?;
            }
            if verb == WriteVerb::Patch(PatchType::Json) {
                received.makes(patch::copied_max(&body.bytes))?;
            }
        }
        let mut request = WriteRequest {
            may_create: false,
            kind,
            verb,
            options,
            body: body.bytes,
            content_type: body.media_type,
            path_and_query: admitted.head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            authorization: header(&admitted, "authorization"),
            query: admitted.query.params,
            attributes: admitted.attributes,
        };
        request.may_create = self.check_creation(&request).await?;
        let reply = self.parts.writes.execute(request).await?;
        encoder.check_form(is_list).map_err(|error| error.with_warnings(reply.warnings.clone()))?;
        Ok(written(reply, &encoder, &accepted, is_list))
    }

    /// Converts a body to a form that the handlers can read. Its parsed size counts like received bytes.
    async fn readable(
        &self,
        body: Typed,
        admitted: &Admitted,
        kind: &KindInfo,
        received: &mut Receiving,
    ) -> Result<Typed, ApiError> {
        let len = body.bytes.len();
        let read = || self.read_protobuf(body, admitted, kind);
        let body = run_blocking_if_large(&admitted.attributes.payer, len, read).await??;
        // An apply body is mostly JSON, whatever its media type says.
        let is_yaml = input::is_yaml(&body.media_type).unwrap_or(false)
            && serde_json::from_slice::<IgnoredAny>(&body.bytes).is_err();
        received.becomes(tree::read_bytes(&body.bytes, is_yaml))?;
        Ok(body)
    }

    /// Converts a protobuf body to JSON; the handlers do not read protobuf.
    fn read_protobuf(&self, body: Typed, admitted: &Admitted, kind: &KindInfo) -> Result<Typed, ApiError> {
        let object = Expected::Object(kind, &admitted.attributes.subresource);
        let kinds = &self.parts.registry.catalog().kinds;
        match admitted.query.verb {
            "patch" => protobuf::to_json(body, object, kinds),
            "delete" | "deletecollection" => protobuf::object_to_json(body, Expected::DeleteOptions, kinds),
            _ => protobuf::object_to_json(body, object, kinds),
        }
    }

    /// An update or apply of an object that does not exist is a creation, which needs its own permission.
    async fn check_creation(&self, request: &WriteRequest) -> Result<bool, ApiError> {
        let attributes = &request.attributes;
        let key = ObjectKey::new(request.kind.storage.clone(), &attributes.namespace, &attributes.name);
        if !write::creates(request) || self.parts.writes.decides_creation() {
            return Ok(false);
        }
        if self.parts.store.get(&key)?.is_some() {
            return Ok(false);
        }
        let attributes = Attributes { verb: "create".to_owned(), ..attributes.clone() };
        let permitted = self.parts.authorizer.authorize(&attributes).await.permit(&attributes);
        if permitted.is_err() {
            write::check_body(request)?;
        }
        permitted.map(|()| true)
    }

    fn endpoint(
        &self,
        admitted: &Admitted,
        kind: &KindInfo,
        path: &ResourcePath,
    ) -> Option<Arc<dyn crate::backend::Endpoint>> {
        // What an endpoint does is a creation, whatever its name: the permission to read must not allow it.
        if admitted.query.verb != "create" {
            return None;
        }
        let wanted = path.subresource.clone().unwrap_or_default();
        let key = (kind.resource.group.to_string(), kind.resource.name.to_string(), wanted);
        self.parts.endpoints.get(&key).cloned()
    }

    async fn call_endpoint<B>(
        &self,
        endpoint: Arc<dyn crate::backend::Endpoint>,
        admitted: Admitted,
        kind: Arc<KindInfo>,
        request_body: B,
    ) -> HandlerResult
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let accepted = accept(&admitted, Kind::Virtual)?;
        let user_agent = header(&admitted, "user-agent").unwrap_or_default();
        let options = write_options(&admitted.query.params, OptionsKind::Create, &user_agent)?;
        let media_type = input::content_type(&admitted.head.headers);
        let (bytes, mut received) = self.read_body(request_body, &admitted.sender).await?;
        let body = Typed { media_type, bytes };
        let body = self.readable(body, &admitted, &kind, &mut received).await?;
        let (attributes, mut warnings) = (&admitted.attributes, Vec::new());
        let read = || {
            if attributes.subresource.is_empty() {
                write::question(&kind, &attributes.namespace, &body, &options, &mut warnings)
            } else if body.bytes.is_empty() {
                Ok(Value::Null)
            } else {
                input::parse(&body.media_type, &body.bytes)
            }
        };
        let parsed = run_blocking_if_large(&attributes.payer, body.bytes.len(), read).await??;
        let query = admitted.head.uri.query().unwrap_or_default().to_owned();
        let authorization = header(&admitted, "authorization");
        let attributes = admitted.attributes;
        let request = EndpointRequest { attributes, kind, options, body: parsed, query, authorization };
        let answer = endpoint.call(request).await;
        let (status, object) = answer.map_err(|error| error.with_warnings(warnings.clone()))?;
        let mut response = body::document(status, to_bytes(&object), &accepted);
        body::add_warnings(&mut response, &warnings);
        Ok(response)
    }

    pub(super) fn routed(&self, admitted: &Admitted) -> Option<Arc<dyn super::builder::Route>> {
        let path = admitted.query.path.as_str();
        let fits = |prefix: &str| path.starts_with(prefix);
        self.parts.routes.iter().find(|(prefix, _)| fits(prefix)).map(|(_, route)| Arc::clone(route))
    }

    pub(super) async fn route<B>(
        &self,
        route: Arc<dyn super::builder::Route>,
        admitted: Admitted,
        request_body: B,
    ) -> HandlerResult
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        let (bytes, _received) = self.read_body(request_body, &admitted.sender).await?;
        let request = Request::from_parts(admitted.head, bytes);
        route.call(request, &admitted.attributes).await
    }
}

fn find(catalog: &Catalog, path: &ResourcePath) -> Result<Arc<KindInfo>, ApiError> {
    let kind = catalog.find(path).ok_or_else(ApiError::no_such_path)?;
    let one_object = path.name.is_some();
    // Routes of built-in kinds treat an empty namespace as a namespace, those of custom kinds treat it as none.
    let namespace = if kind.custom { path.one_namespace() } else { path.namespace.as_deref() };
    let scope_fits = match (kind.namespaced, namespace.is_some()) {
        (true, true) | (false, false) => true,
        // Lists and watches across all namespaces.
        (true, false) => !one_object,
        (false, true) => false,
    };
    let subresource_known = path.subresource.as_deref().is_none_or(|name| kind.has_subresource(name));
    if path.excess || !scope_fits || !subresource_known {
        return Err(ApiError::no_such_path());
    }
    Ok(Arc::clone(kind))
}

fn check_verb(kind: &KindInfo, path: &ResourcePath, verb: &str) -> Result<(), ApiError> {
    let verbs = match path.subresource.as_deref() {
        None => &kind.verbs,
        Some(name) => {
            let known = kind.subresources.iter().find(|subresource| &*subresource.name == name);
            &known.ok_or_else(ApiError::no_such_path)?.verbs
        }
    };
    let writes_everywhere = kind.namespaced && path.namespace.is_none();
    let needs_namespace = !matches!(verb, "get" | "list" | "watch");
    let misplaced = match verb {
        "create" => path.name.is_some() && path.subresource.is_none(),
        "update" | "patch" => path.name.is_none(),
        _ => false,
    };
    if misplaced || !verbs.iter().any(|known| &**known == verb) || (writes_everywhere && needs_namespace) {
        return Err(ApiError::method_not_allowed());
    }
    Ok(())
}

/// A request about one object, or a collection deletion, must name the object and the namespace.
fn check_place(path: &ResourcePath, verb: &str) -> Result<(), ApiError> {
    if path.name.as_deref() == Some("") {
        return Err(ApiError::bad_request("name must be provided"));
    }
    let in_one_place = path.name.is_some() || verb == "deletecollection";
    if path.namespace.as_deref() == Some("") && in_one_place && verb != "create" {
        return Err(ApiError::bad_request("Namespace parameter required."));
    }
    Ok(())
}

/// Refuses reads in the namespaces `.` and `..`, which have a meaning in a path. kube-apiserver refuses the resulting
/// key in its store, with a 500.
fn check_key(kind: &KindInfo, path: &ResourcePath, verb: &str) -> Result<(), ApiError> {
    let Some(namespace @ ("." | "..")) = path.namespace.as_deref() else { return Ok(()) };
    if !matches!(verb, "get" | "list") {
        return Ok(());
    }
    let resource = &kind.storage;
    let prefix = match &*resource.name {
        name if kind.custom => format!("{}/{name}", resource.group),
        "services" => "services/specs".to_owned(),
        "endpoints" => "services/endpoints".to_owned(),
        "replicationcontrollers" => "controllers".to_owned(),
        "ingresses" => "ingress".to_owned(),
        name => name.to_owned(),
    };
    let name = path.name.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
    let message = format!("invalid key: {}", gofmt::quoted(&format!("/{prefix}/{namespace}{name}")));
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message))
}

/// Refuses names that have a meaning in a path (Kubernetes `IsValidPathSegmentName`).
fn check_name(name: &str) -> Result<(), ApiError> {
    let odd = match name {
        "." | ".." => format!("may not be '{name}'"),
        _ if name.contains('%') => "may not contain '%'".to_owned(),
        _ => return Ok(()),
    };
    Err(ApiError::bad_request(format!("Name parameter invalid: {}: {odd}", gofmt::quoted(name))))
}

fn selection(
    admitted: &Admitted,
    kind: &KindInfo,
    path: &ResourcePath,
) -> Result<RequestSelection, ApiError> {
    let text = |name: &str| admitted.query.params.first(name).unwrap_or_default();
    let (labels, fields) = (text("labelSelector"), text("fieldSelector"));
    let mut selection = RequestSelection::parse(kind, path.one_namespace(), labels, fields)?;
    if let (true, Some(name)) = (path.verb.is_some(), &path.name) {
        if selection.fields.fixed("metadata.name").is_some_and(|other| other != name) {
            return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        selection.fields.require("metadata.name", name);
    }
    Ok(selection)
}

fn write_verb(verb: &str, content_type: &str, custom: bool) -> Result<(WriteVerb, OptionsKind), ApiError> {
    Ok(match verb {
        "create" => (WriteVerb::Create, OptionsKind::Create),
        "update" => (WriteVerb::Update, OptionsKind::Update),
        "delete" => (WriteVerb::Delete, OptionsKind::Delete),
        "deletecollection" => (WriteVerb::DeleteCollection, OptionsKind::Delete),
        "patch" => {
            let patch = input::patch_type(content_type, custom)?;
            let options = if patch == PatchType::Apply { OptionsKind::Apply } else { OptionsKind::Patch };
            (WriteVerb::Patch(patch), options)
        }
        _ => return Err(ApiError::method_not_allowed()),
    })
}

fn written(reply: WriteReply, encoder: &Encoder<'_>, accepted: &Accepted, is_list: bool) -> Response<Body> {
    let shown = match (is_list, reply.is_object) {
        (true, _) => encoder.shown_list(&reply.body),
        (false, true) => encoder.shown(&reply.body),
        (false, false) => reply.body,
    };
    let mut response = body::document(reply.status, shown.clone(), accepted);
    body::say_when(&mut response, &shown);
    body::add_warnings(&mut response, &reply.warnings);
    response
}

/// A request fails when no data of its body arrives for this long.
pub(crate) const BODY_STALL_MAX: Duration = Duration::from_secs(10);

fn stalled() -> ApiError {
    let message = format!("nothing of the request's body came for {} seconds", BODY_STALL_MAX.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
}

impl ApiServer {
    /// Reads a whole body, of at most [`BODY_LEN_MAX`]. It counts until the returned [`Receiving`] is dropped.
    async fn read_body<B>(
        &self,
        request_body: B,
        sender: &Arc<Sender>,
    ) -> Result<(Bytes, Receiving), ApiError>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        if request_body.size_hint().lower() > UNREAD_LEN_MAX as u64 {
            return Err(ApiError::too_large(BODY_LEN_MAX));
        }
        let (mut bytes, mut received) = (Vec::new(), 0);
        let mut receiving = Receiving::begin(&self.parts.limits, sender);
        let mut request_body = std::pin::pin!(request_body);
        loop {
            let frame = tokio::time::timeout(BODY_STALL_MAX, request_body.frame());
            let Some(frame) = frame.await.map_err(|_| stalled())? else { break };
            let unread = |error| ApiError::bad_request(format!("the body could not be read: {error}"));
            let Ok(data) = frame.map_err(unread)?.into_data() else { continue };
            received += data.len();
            match received {
                0..=BODY_LEN_MAX if !receiving.more(data.len()) => {
                    return Err(too_many_bodies());
                }
                0..=BODY_LEN_MAX => bytes.extend_from_slice(&data),
                _ if received > UNREAD_LEN_MAX => break,
                _ => bytes = Vec::new(),
            }
        }
        if received > BODY_LEN_MAX {
            return Err(ApiError::too_large(BODY_LEN_MAX));
        }
        Ok((bytes.into(), receiving))
    }
}
