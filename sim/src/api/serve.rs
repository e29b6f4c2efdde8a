//! Serves requests: who asks, what goes wrong, and what the answer is.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::calls::{ApiRequest, Performed, perform};
use super::faults::{CallFault, CallPlace};
use super::kinds::KindKey;
use super::parse::{QueryParams, RequestRoute, name_for_rights, route, verb};
use super::rights::{ApiUser, AskedRight};
use super::state::ModelState;
use super::status::ApiStatus;
use super::watching::{WatchSession, WatchStep};
use super::{documents, tokens};

/// Longest body of a request, in bytes (docs/reference/kubernetes.md#sizes).
const BODY_LEN_MAX: usize = 3 * 1024 * 1024;

/// How long a read waits for a version that the server has not reached.
const FRESH_WAIT: Duration = Duration::from_secs(3);

pub(super) type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;
type HttpAnswer = Response<AnswerBody>;

/// The model and the news of its changes.
#[derive(Debug)]
pub(super) struct SharedModel {
    pub(super) state: Mutex<ModelState>,
    news: watch::Sender<u64>,
}

impl SharedModel {
    pub(super) fn new(state: ModelState) -> Self {
        Self { state: Mutex::new(state), news: watch::Sender::new(0) }
    }

    /// Changes the state, and wakes all who wait for news.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut ModelState) -> T) -> T {
        let outcome = change(&mut self.state.lock());
        self.news.send_modify(|number| *number += 1);
        outcome
    }

    /// Told of every change.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Waits for news, or until so much time has passed since the model began. For ever without either.
    async fn wait(&self, news: &mut watch::Receiver<u64>, until: Option<Duration>) {
        let until = until.map(|until| self.state.lock().clock.at(until));
        let sleep = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            changed = news.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

/// The name and user of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientIdentity {
    pub(super) name: String,
    pub(super) user: ApiUser,
}

/// Serves one request of a client. An error is a connection that failed.
pub(super) async fn serve(
    model: Arc<SharedModel>,
    client: ClientIdentity,
    request: Request<Body>,
) -> Result<HttpAnswer, io::Error> {
    let boots = model.state.lock().boots;
    let mut news = model.news();
    let serving = answer(&model, &client, request);
    let ended = async {
        // A restart ends every connection, whatever the request waits for.
        loop {
            let is_same = model.state.lock().boots == boots;
            if !is_same || news.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        answer = serving => answer,
        () = ended => Err(cut()),
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection to the API server was closed")
}

async fn answer(
    model: &Arc<SharedModel>,
    client: &ClientIdentity,
    request: Request<Body>,
) -> Result<HttpAnswer, io::Error> {
    {
        let state = model.state.lock();
        if state.clock.elapsed() < state.down_until {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"));
        }
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let asked = match read(model, client, (&parts.method, &parts.uri, &parts.headers), body) {
        Ok(asked) => asked,
        Err(refused) => return Ok(refusal(&refused)),
    };
    let faults = {
        let state = &mut *model.state.lock();
        state.faults.of_call(&asked.place(&client.name), &mut state.dice)
    };
    serve_with(model, client, asked, faults).await
}

/// A request as far as it was read.
struct ReadRequest {
    user: ApiUser,
    route: RequestRoute,
    verb: &'static str,
    /// Name for faults.
    name: String,
    accept: String,
    request: ApiRequest,
}

impl ReadRequest {
    fn place<'a>(&'a self, client: &'a str) -> CallPlace<'a> {
        let resource = match &self.route {
            RequestRoute::Resource(target) => target.resource.as_str(),
            RequestRoute::Document(_) => "",
        };
        CallPlace { client, resource, verb: self.verb, user: &self.user.name, name: &self.name }
    }
}

fn read(
    model: &SharedModel,
    client: &ClientIdentity,
    (method, uri, headers): (&Method, &http::Uri, &HeaderMap),
    body: Bytes,
) -> Result<ReadRequest, ApiStatus> {
    let params = QueryParams::parse(uri.query().unwrap_or_default());
    let route = route(uri.path())?;
    let header = |name: &http::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (verb, name) = match &route {
        RequestRoute::Resource(target) => {
            let verb = verb(method, target, &params).ok_or_else(ApiStatus::method_not_allowed)?;
            (verb, name_for_rights(target, &params))
        }
        RequestRoute::Document(_) => ("get", String::new()),
    };
    let user = identify(&model.state.lock(), client, headers, (&route, verb))?;
    if body.len() > BODY_LEN_MAX {
        return Err(ApiStatus::too_large(BODY_LEN_MAX));
    }
    let manager = match params.text("fieldManager") {
        "" => header(&USER_AGENT).unwrap_or_default().split('/').next().unwrap_or_default().to_owned(),
        manager => manager.to_owned(),
    };
    let request = ApiRequest {
        params,
        content_type: header(&CONTENT_TYPE).unwrap_or_default().to_owned(),
        body,
        manager,
    };
    let accept = header(&ACCEPT).unwrap_or_default().to_owned();
    Ok(ReadRequest { user, route, verb, name, accept, request })
}

/// The user under whom a request runs: the client's own, the owner of a token, or an impersonated one
/// (docs/reference/kubernetes.md#impersonation).
fn identify(
    state: &ModelState,
    client: &ClientIdentity,
    headers: &HeaderMap,
    (route, verb): (&RequestRoute, &str),
) -> Result<ApiUser, ApiStatus> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let caller = match bearer {
        Some(token) => tokens::owner(state, token).ok_or_else(ApiStatus::unauthorized)?.user,
        None => client.user.clone(),
    };
    let Some(wanted) = text("impersonate-user") else { return Ok(caller) };
    let groups: Vec<&str> =
        headers.get_all("impersonate-group").iter().filter_map(|value| value.to_str().ok()).collect();
    let legacy = || {
        let may = |resource: &str, name: &str| {
            let asked = AskedRight {
                verb: "impersonate".to_owned(),
                resource: resource.to_owned(),
                name: name.to_owned(),
                ..AskedRight::default()
            };
            let key = KindKey::new("", resource);
            state
                .check(&caller, &asked)
                .map_err(|why| ApiStatus::forbidden(&key, name, &asked.refusal(&caller.name, &why)))
        };
        may("users", wanted)?;
        groups.iter().try_for_each(|group| may("groups", group))?;
        let mut groups: BTreeSet<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        groups.insert("system:authenticated".to_owned());
        Ok(ApiUser { name: wanted.to_owned(), groups, uid: String::new() })
    };
    let may_constrained = state.constrained_impersonation
        && groups.is_empty()
        && wanted.starts_with("system:node:")
        && may_act_as_node(state, &caller, wanted, (route, verb));
    if may_constrained { Ok(ApiUser::named(wanted)) } else { legacy() }
}

/// Constrained impersonation: the right to act as any node, and to do this as one.
fn may_act_as_node(
    state: &ModelState,
    caller: &ApiUser,
    wanted: &str,
    (route, verb): (&RequestRoute, &str),
) -> bool {
    let RequestRoute::Resource(target) = route else { return false };
    let node = wanted.strip_prefix("system:node:").unwrap_or_default();
    let asked = AskedRight {
        verb: "impersonate:arbitrary-node".to_owned(),
        group: "authentication.k8s.io".to_owned(),
        resource: "nodes".to_owned(),
        name: node.to_owned(),
        ..AskedRight::default()
    };
    let on = AskedRight {
        verb: format!("impersonate-on:arbitrary-node:{verb}"),
        group: target.group.clone(),
        resource: target.resource.clone(),
        subresource: target.subresource.clone(),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        field_selector: String::new(),
    };
    state.check(caller, &asked).is_ok() && state.check(caller, &on).is_ok()
}

/// Serves a request with the faults that befall it.
async fn serve_with(
    model: &Arc<SharedModel>,
    client: &ClientIdentity,
    asked: ReadRequest,
    faults: Vec<CallFault>,
) -> Result<HttpAnswer, io::Error> {
    let mut after = Vec::new();
    for fault in faults {
        match fault {
            CallFault::Delay(delay) => tokio::time::sleep(delay).await,
            CallFault::Unanswered => return std::future::pending().await,
            CallFault::Webhook { hangs, ignored } => {
                tokio::time::sleep(hangs).await;
                if !ignored {
                    return Ok(refusal(&ApiStatus::internal(
                        "failed calling webhook \"hangs.example.com\": context deadline exceeded",
                    )));
                }
            }
            CallFault::AnswerDelay(_) | CallFault::AnswerLost | CallFault::AnswerCut => after.push(fault),
            refused => return Ok(refusal(&refusal_of(&refused, &asked))),
        }
    }
    let answer = serve_well(model, client, &asked).await;
    for fault in after {
        match fault {
            CallFault::AnswerDelay(delay) => tokio::time::sleep(delay).await,
            CallFault::AnswerLost => return std::future::pending().await,
            _ => return Err(cut()),
        }
    }
    Ok(answer)
}

fn refusal_of(fault: &CallFault, asked: &ReadRequest) -> ApiStatus {
    let key = match &asked.route {
        RequestRoute::Resource(target) => target.key(),
        RequestRoute::Document(_) => KindKey::new("", ""),
    };
    match fault {
        CallFault::Conflict => ApiStatus::modified(&key, &asked.name),
        CallFault::Forbidden => ApiStatus::forbidden(&key, &asked.name, "the right was taken away"),
        CallFault::NotFound => ApiStatus::not_found(&key, &asked.name),
        CallFault::TooManyRequests(seconds) => {
            // Priority and fairness answers in plain text (docs/reference/kubernetes.md#too-many-requests).
            let message = "Too many requests, please try again later.\n";
            ApiStatus { retry_after: Some(*seconds), ..ApiStatus::new(429, "", message) }
        }
        CallFault::Unavailable => {
            ApiStatus::new(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        }
        _ => ApiStatus::internal("etcdserver: leader changed"),
    }
}

async fn serve_well(model: &Arc<SharedModel>, client: &ClientIdentity, asked: &ReadRequest) -> HttpAnswer {
    let target = match &asked.route {
        RequestRoute::Resource(target) => target,
        RequestRoute::Document(path) => {
            let document = documents::read(&model.state.lock(), path, &asked.accept);
            return match document {
                Ok((content_type, body)) => whole(200, content_type, body),
                Err(refused) => refusal(&refused),
            };
        }
    };
    if !accepts_json(&asked.accept) {
        return refusal(&ApiStatus::not_acceptable());
    }
    let mut news = model.news();
    let fresh_by = model.state.lock().clock.elapsed() + FRESH_WAIT;
    loop {
        news.mark_unchanged();
        let performed = {
            let mut state = model.state.lock();
            perform(&mut state, (client, &asked.user), (target, asked.verb), &asked.request)
        };
        let may_wait = model.state.lock().clock.elapsed() < fresh_by;
        match performed {
            Ok(Performed::Watch(session)) => return stream_of(Arc::clone(model), *session),
            Ok(Performed::Answer { code, body, wrote }) => {
                if wrote {
                    model.change(|_| ());
                }
                return whole(code, "application/json", body);
            }
            Err(refused) if refused.code == 504 && may_wait => {
                model.wait(&mut news, Some(fresh_by)).await;
            }
            Err(refused) => return refusal(&refused),
        }
    }
}

/// Whether a client reads JSON, which is all that the model writes.
fn accepts_json(accept: &str) -> bool {
    let mut types = accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim());
    accept.is_empty() || types.any(|one| matches!(one, "application/json" | "application/*" | "*/*"))
}

fn whole(code: u16, content_type: &'static str, body: Vec<u8>) -> HttpAnswer {
    let length = body.len();
    let mut answer = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    answer
}

fn refusal(refused: &ApiStatus) -> HttpAnswer {
    let mut answer = match refused.reason.as_str() {
        "" if matches!(refused.code, 404 | 429) => {
            whole(refused.code, "text/plain; charset=utf-8", refused.message.clone().into_bytes())
        }
        _ => whole(refused.code, "application/json", refused.body().to_string().into_bytes()),
    };
    if let Some(seconds) = refused.retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

/// The answer whose body is a watch.
fn stream_of(model: Arc<SharedModel>, session: WatchSession) -> HttpAnswer {
    let news = model.news();
    let lines = stream::unfold(Some((model, session, news)), |open| async move {
        let (model, mut session, mut news) = open?;
        loop {
            news.mark_unchanged();
            let step = {
                let mut state = model.state.lock();
                if let Some(moved) = session.moved(&state) {
                    state.observers.tell(&moved);
                }
                session.step(&state)
            };
            match step {
                WatchStep::Emit(line) => {
                    return Some((Ok(Frame::data(Bytes::from(line))), Some((model, session, news))));
                }
                WatchStep::End => return None,
                WatchStep::Cut => return Some((Err(cut()), None)),
                WatchStep::Wait(until) => model.wait(&mut news, until).await,
            }
        }
    });
    let mut answer = Response::new(StreamBody::new(lines).boxed_unsync());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests;
