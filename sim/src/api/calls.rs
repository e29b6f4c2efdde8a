//! Performs one request for a resource.

use bytes::Bytes;
use serde_json::{Value, json};

use super::convert;
use super::deletes::{delete, delete_all};
use super::faults::watch_place;
use super::kinds::{KindInfo, KindKey, REVIEWS, subresources};
use super::object::{self, member, text};
use super::parse::{PathTarget, QueryParams, name_for_rights};
use super::patches::{PatchForm, accepted, check_options, patch};
use super::reads;
use super::reviews;
use super::rights::{ApiUser, AskedRight};
use super::selectors::ObjectFilter;
use super::serve::ClientIdentity;
use super::state::ModelState;
use super::status::{ApiStatus, success};
use super::tokens;
use super::watching::{WatchSession, collection};
use super::writes::{FieldOwners, WriteCall, check_type, create, replace, store};

/// What a request says beside its path.
#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    pub(super) params: QueryParams,
    pub(super) content_type: String,
    pub(super) body: Bytes,
    /// Field manager; empty when the request names none.
    pub(super) manager: String,
}

/// The outcome of a request.
pub(super) enum Performed {
    Answer {
        code: u16,
        body: Vec<u8>,
        /// Whether watches may have news.
        wrote: bool,
    },
    Watch(Box<WatchSession>),
}

fn read(body: &Value) -> Performed {
    Performed::Answer { code: 200, body: body.to_string().into_bytes(), wrote: false }
}

fn wrote(code: u16, body: &Value) -> Performed {
    Performed::Answer { code, body: body.to_string().into_bytes(), wrote: true }
}

/// Manager of writes that name none.
const UNKNOWN_MANAGER: &str = "unknown";

/// Performs a request for a user.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn perform(
    state: &mut ModelState,
    (client, user): (&ClientIdentity, &ApiUser),
    (target, verb): (&PathTarget, &str),
    request: &ApiRequest,
) -> Result<Performed, ApiStatus> {
    let asked = asked_right(target, verb, &request.params);
    authorize(state, user, &asked)?;
    let review =
        REVIEWS.iter().find(|(group, resource, ..)| *group == target.group && *resource == target.resource);
    if let Some((_, resource, kind, _)) = review {
        if verb != "create" {
            return Err(ApiStatus::method_not_allowed());
        }
        let mut body = parse(&request.body)?;
        body["kind"] = (*kind).into();
        body["apiVersion"] = format!("{}/{}", target.group, target.version).into();
        let answer = reviews::answer(state, user, (resource, &target.namespace), body)?;
        return Ok(wrote(201, &answer));
    }
    let kind = state.kind(target).ok_or_else(|| state.unknown(target))?;
    // A kind without namespaces has no collections in them.
    if !kind.namespaced && !target.namespace.is_empty() {
        return Err(ApiStatus::no_such_path());
    }
    match verb {
        "get" | "list" | "watch" => {
            perform_read(state, (client, user), (&kind, target, verb), &request.params)
        }
        _ => perform_write(state, user, (kind, target, verb), request),
    }
}

fn asked_right(target: &PathTarget, verb: &str, params: &QueryParams) -> AskedRight {
    AskedRight {
        verb: verb.to_owned(),
        group: target.group.clone(),
        resource: target.resource.clone(),
        subresource: target.subresource.clone(),
        // A namespace is an object of itself.
        namespace: if target.resource == "namespaces" {
            target.name.clone()
        } else {
            target.namespace.clone()
        },
        name: name_for_rights(target, params),
        field_selector: params.text("fieldSelector").to_owned(),
    }
}

fn authorize(state: &ModelState, user: &ApiUser, asked: &AskedRight) -> Result<(), ApiStatus> {
    state.check(user, asked).map_err(|why| {
        let key = KindKey::new(&asked.group, &asked.resource);
        ApiStatus::forbidden(&key, &asked.name, &asked.refusal(&user.name, &why))
    })
}

fn perform_read(
    state: &mut ModelState,
    (client, user): (&ClientIdentity, &ApiUser),
    (kind, target, verb): (&KindInfo, &PathTarget, &str),
    params: &QueryParams,
) -> Result<Performed, ApiStatus> {
    let seen = state.revision_seen(&watch_place(&client.name, &user.name, &kind.key));
    match verb {
        "watch" => {
            let what = collection((&client.name, &user.name), (kind, target), params)?;
            let session = WatchSession::open(state, what, params)?;
            Ok(Performed::Watch(Box::new(session)))
        }
        "list" => {
            let list = reads::list(state, (kind, target), params, seen)?;
            let era = state.storage.era();
            if let Some(moved) = list.moved(&client.name, (kind, target), (params, era)) {
                state.observers.tell(&moved);
            }
            Ok(Performed::Answer { code: 200, body: list.body(kind), wrote: false })
        }
        _ if target.subresource.is_empty() || (kind.has_status && target.subresource == "status") => {
            reads::get(state, (kind, target), params, seen).map(|object| read(&object))
        }
        _ => Err(ApiStatus::no_such_subresource()),
    }
}

fn perform_write(
    state: &mut ModelState,
    user: &ApiUser,
    (kind, target, verb): (KindInfo, &PathTarget, &str),
    request: &ApiRequest,
) -> Result<Performed, ApiStatus> {
    let has_subresource = match target.subresource.as_str() {
        "" => true,
        "status" => kind.has_status,
        other => subresources(&kind.key).contains(&other),
    };
    if !has_subresource {
        return Err(ApiStatus::no_such_subresource());
    }
    let mut call = WriteCall {
        user: user.clone(),
        kind,
        target: target.clone(),
        manager: request.manager.clone(),
        dry_run: request.params.text("dryRun") == "All",
    };
    match (verb, target.subresource.as_str()) {
        ("update" | "patch", _) if target.name.is_empty() => Err(ApiStatus::method_not_allowed()),
        ("create", "binding" | "eviction" | "token") => connect(state, &call, &request.body),
        ("create", "") if target.name.is_empty() => {
            name_manager(&mut call);
            let mut body = object_of(&call, request)?;
            check_type(&call, &mut body)?;
            let created = create(state, &call, body, FieldOwners::Updated)?;
            Ok(wrote(201, &convert::to_served(&call.kind, created)))
        }
        ("update", _) => {
            name_manager(&mut call);
            let body = object_of(&call, request)?;
            let (is_new, object) = replace(state, &call, body)?;
            Ok(wrote(if is_new { 201 } else { 200 }, &convert::to_served(&call.kind, object)))
        }
        ("patch", _) => perform_patch(state, call, request),
        ("delete", "") => {
            let (code, body) = delete(state, &call, &delete_options(request)?)?;
            Ok(wrote(code, &body))
        }
        ("deletecollection", "") => {
            let params = &request.params;
            let filter = ObjectFilter::parse(
                &call.kind.key,
                params.text("labelSelector"),
                params.text("fieldSelector"),
            )?;
            let gone = delete_all(state, &call, &filter, &delete_options(request)?)?;
            let items: Vec<Value> = gone.iter().map(|one| object::in_list(one, call.kind.built_in)).collect();
            let version = state.storage.revision().to_string();
            Ok(wrote(
                200,
                &json!({
                    "kind": format!("{}List", call.kind.kind), "apiVersion": call.kind.api_version(),
                    "metadata": {"resourceVersion": version}, "items": items,
                }),
            ))
        }
        _ => Err(ApiStatus::method_not_allowed()),
    }
}

fn name_manager(call: &mut WriteCall) {
    if call.manager.is_empty() {
        UNKNOWN_MANAGER.clone_into(&mut call.manager);
    }
}

fn perform_patch(
    state: &mut ModelState,
    mut call: WriteCall,
    request: &ApiRequest,
) -> Result<Performed, ApiStatus> {
    let form = PatchForm::of(&request.content_type);
    let form = form.filter(|form| call.kind.built_in || *form != PatchForm::Strategic);
    let form = form.ok_or_else(|| ApiStatus::unsupported_media(accepted(call.kind.built_in)))?;
    if form == PatchForm::Apply {
        request.params.text("fieldManager").clone_into(&mut call.manager);
    }
    check_options(&call, form, request.params.text("force"))?;
    name_manager(&mut call);
    let exists = state.object(&call.kind, &call.target.namespace, &call.target.name).is_some();
    if form == PatchForm::Apply && !exists {
        authorize(state, &call.user, &asked_right(&call.target, "create", &request.params))?;
    }
    let force = request.params.flag("force");
    let (is_new, object) = patch(state, &call, (form, force), &request.body)?;
    Ok(wrote(if is_new { 201 } else { 200 }, &convert::to_served(&call.kind, object)))
}

fn parse(body: &[u8]) -> Result<Value, ApiStatus> {
    let parsed: Value = serde_json::from_slice(body).map_err(|error| {
        ApiStatus::bad_request(&format!(
            "the object provided is unrecognized (must be of type object): {error}"
        ))
    })?;
    if parsed.is_object() { Ok(parsed) } else { Err(ApiStatus::bad_request("the body is no object")) }
}

/// The object in a body.
fn object_of(call: &WriteCall, request: &ApiRequest) -> Result<Value, ApiStatus> {
    let content_type = request.content_type.split(';').next().unwrap_or_default().trim();
    if !matches!(content_type, "" | "application/json") {
        let all = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
        let count = if call.kind.built_in { all.len() } else { all.len() - 1 };
        return Err(ApiStatus::unsupported_media(&all[..count]));
    }
    parse(&request.body)
}

/// Options of a deletion, from the body or else from the query.
fn delete_options(request: &ApiRequest) -> Result<Value, ApiStatus> {
    if !request.body.is_empty() {
        return parse(&request.body);
    }
    let mut options = json!({});
    if let Some(seconds) = request.params.number("gracePeriodSeconds") {
        options["gracePeriodSeconds"] = seconds.into();
    }
    match request.params.text("propagationPolicy") {
        "" => {}
        policy => options["propagationPolicy"] = policy.into(),
    }
    Ok(options)
}

/// Subresources that do something instead of storing something.
fn connect(state: &mut ModelState, call: &WriteCall, body: &[u8]) -> Result<Performed, ApiStatus> {
    let body = parse(body)?;
    match call.target.subresource.as_str() {
        "token" => {
            let mut answer = tokens::request(state, call, body)?;
            answer["kind"] = "TokenRequest".into();
            answer["apiVersion"] = "authentication.k8s.io/v1".into();
            Ok(wrote(201, &answer))
        }
        "binding" => {
            let name = object::name(&body);
            if name != call.target.name {
                let message = "name in URL does not match name in Binding object";
                return Err(ApiStatus::bad_request(message));
            }
            bind(state, call, text(&body, "/target/name"))?;
            Ok(wrote(
                201,
                &json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
                }),
            ))
        }
        _ => {
            let mut of_pod = call.clone();
            of_pod.target.subresource = String::new();
            delete(state, &of_pod, &body["deleteOptions"])?;
            let mut status = success(&call.kind.key, &call.target.name, None);
            status["code"] = 201.into();
            Ok(wrote(201, &status))
        }
    }
}

/// Binds a pod to a node, as the scheduler does.
fn bind(state: &mut ModelState, call: &WriteCall, node: &str) -> Result<(), ApiStatus> {
    let (kind, target) = (&call.kind, &call.target);
    let Some(live) = state.object(kind, &target.namespace, &target.name).cloned() else {
        return Err(ApiStatus::not_found(&kind.key, &target.name));
    };
    let bindings = KindKey::new("", "pods/binding");
    let refuse = |why: String| Err(ApiStatus::conflict(&bindings, &target.name, &why));
    if object::is_being_deleted(&live) {
        return refuse(format!("pod {} is being deleted, cannot be assigned to a host", target.name));
    }
    let bound = text(&live, "/spec/nodeName");
    if !bound.is_empty() {
        return refuse(format!("pod {} is already assigned to node {bound:?}", target.name));
    }
    let mut next = (*live).clone();
    member(&mut next, "spec").insert("nodeName".to_owned(), node.into());
    let now = state.clock.timestamp(0);
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    let conditions = member(&mut next, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = conditions.as_array_mut() {
        list.retain(|one| one["type"] != "PodScheduled");
        list.push(scheduled);
    }
    store(state, call, next).map(drop)
}
