//! The connection to the cloud and its interface for the rest of the agent.

use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tombolo_link::Transport;
use tombolo_proto::frame::{ApiReply, ApiRequest, ReplyBody, RequestBody};
use tombolo_proto::limits;
use tombolo_proto::message::Message;

mod application;
mod apply;
mod calls;
mod client;
mod client_parts;
mod clients;
mod dial;
mod driver;
mod failure;
mod follow;
mod kinds;
mod kubeedge;
mod lease;
mod session_end;

pub(crate) use client::Client;
pub(crate) use client_parts::ClientParts;
#[cfg(test)]
pub(crate) use clients::STRANGERS_MAX;
pub(crate) use clients::{Caller, RequestSlots, SharedHub};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use dial::Connection;
pub(crate) use dial::{Dial, NetworkDialer};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use failure::SessionFailure;
pub(crate) use kinds::{KindsPublisher, KnownKinds};

/// Maximum number of requests queued for the session's owner.
const COMMANDS_MAX: usize = limits::REQUESTS_MAX;

/// A command to the owner of the session.
#[derive(Debug)]
pub(crate) enum Command {
    Request { body: RequestBody, timeout: Duration, caller_token: Option<String>, reply: Asker },
    RenewLease(i64),
}

/// The caller that waits for an answer of the cloud.
#[derive(Debug)]
pub(crate) struct Asker {
    answer: oneshot::Sender<Result<ReplyBody, CallError>>,
    /// Released when the request ends, not when its client disconnects: the session continues with the request.
    _held: Option<Box<RequestSlots>>,
}

impl Asker {
    /// Answers. The asker may have given up.
    pub(crate) fn send(self, answer: Result<ReplyBody, CallError>) {
        let _ = self.answer.send(answer);
    }
}

/// State of the connection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HubState {
    /// Transport of the session; `None` while not connected.
    pub transport: Option<Transport>,
    /// When the session began.
    pub since: Option<Instant>,
    /// Number of sessions so far, which identifies the current one.
    pub sessions: u64,
    /// Why the agent is not connected, for operators.
    pub trouble: Option<String>,
    /// The last answer to a lease renewal: its time in microseconds since the Unix epoch, and the code.
    pub lease: Option<(i64, u16)>,
    /// Last measured round-trip time.
    pub round_trip: Option<Duration>,
}

impl HubState {
    /// Whether the agent is connected.
    #[must_use]
    pub fn online(&self) -> bool {
        self.transport.is_some()
    }
}

/// Why a request got no answer from the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The agent is not connected.
    #[error("the cloud cannot be reached now")]
    Offline,
    /// The session ended before the answer: the request may have been executed.
    #[error("the connection to the cloud ended before the answer came")]
    Lost,
    /// No answer in time: the request may have been executed.
    #[error("the cloud did not answer in time")]
    TimedOut,
    /// This client has too many pending requests.
    #[error("too many requests of this client are pending at the cloud: try again later")]
    Busy,
    /// Too many requests are pending, or this one is too large.
    #[error("{0}")]
    Refused(String),
    /// The answer does not have the form of the request.
    #[error("the cloud's answer has the wrong form")]
    WrongForm,
}

impl CallError {
    /// Whether the cause is a missing or ended session. The request is not at fault, and the session itself logs it.
    pub fn is_end_of_session(&self) -> bool {
        matches!(self, Self::Offline | Self::Lost)
    }
}

/// Sends requests to the cloud. Clones share the connection.
#[derive(Debug, Clone)]
pub struct HubHandle {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<HubState>,
}

impl HubHandle {
    /// A handle, with the ends of its channels for the owner of the session.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Command>, watch::Sender<HubState>) {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let (state, observer) = watch::channel(HubState::default());
        (Self { commands, state: observer }, inbox, state)
    }

    /// Receives the state of the connection and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<HubState> {
        self.state.clone()
    }

    /// Sends a request and waits for the answer. Fails at once if not connected.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer.
    pub async fn request(
        &self,
        body: RequestBody,
        timeout: Duration,
        caller_token: Option<String>,
    ) -> Result<ReplyBody, CallError> {
        self.request_holding(body, timeout, caller_token, None).await
    }

    async fn request_holding(
        &self,
        body: RequestBody,
        timeout: Duration,
        caller_token: Option<String>,
        held: Option<RequestSlots>,
    ) -> Result<ReplyBody, CallError> {
        if !self.state.borrow().online() {
            return Err(CallError::Offline);
        }
        let (reply, answer) = oneshot::channel();
        let reply = Asker { answer: reply, _held: held.map(Box::new) };
        let command = Command::Request { body, timeout, caller_token, reply };
        self.commands.send(command).await.map_err(|_| CallError::Offline)?;
        answer.await.map_err(|_| CallError::Lost)?
    }

    /// Makes a Kubernetes API call as the node, or as the local client whose token is given.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer. Refusals of the API are answers.
    pub async fn api(
        &self,
        call: ApiRequest,
        timeout: Duration,
        caller_token: Option<String>,
    ) -> Result<ApiReply, CallError> {
        self.api_holding(call, timeout, caller_token, None).await
    }

    async fn api_holding(
        &self,
        call: ApiRequest,
        timeout: Duration,
        caller_token: Option<String>,
        held: Option<RequestSlots>,
    ) -> Result<ApiReply, CallError> {
        match self.request_holding(RequestBody::Api(call), timeout, caller_token, held).await? {
            ReplyBody::Api(reply) => Ok(reply),
            ReplyBody::Message(_) => Err(CallError::WrongForm),
        }
    }

    /// Sends one of KubeEdge's messages and waits for the answer.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer; a refusal before the message was read is [`CallError::Refused`].
    pub async fn message(&self, message: Message, timeout: Duration) -> Result<Message, CallError> {
        match self.request(RequestBody::Message(Box::new(message)), timeout, None).await? {
            ReplyBody::Message(reply) => Ok(*reply),
            ReplyBody::Api(reply) => {
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                Err(CallError::Refused(format!("{}: {text}", reply.code)))
            }
        }
    }

    /// Renews the node's lease and waits for the code of the answer.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer.
    pub async fn lease_renewed(&self, renew_time_micros: i64, timeout: Duration) -> Result<u16, CallError> {
        let mut state = self.state.clone();
        let session = state.borrow_and_update().sessions;
        self.renew_lease(renew_time_micros).await;
        let answered = |state: &HubState| state.lease.is_some_and(|(time, _)| time == renew_time_micros);
        let over = |state: &HubState| !state.online() || state.sessions != session;
        let waited = state.wait_for(|state| answered(state) || over(state));
        match tokio::time::timeout(timeout, waited).await {
            Ok(Ok(state)) => {
                state.lease.filter(|_| answered(&state)).map(|(_, code)| code).ok_or(CallError::Lost)
            }
            Ok(Err(_)) => Err(CallError::Offline),
            Err(_) => Err(CallError::TimedOut),
        }
    }

    /// Renews the node's lease; the answer arrives in [`HubState::lease`]. Does nothing if not connected.
    pub async fn renew_lease(&self, renew_time_micros: i64) {
        if self.state.borrow().online() {
            // An error means that the agent stops.
            let _ = self.commands.send(Command::RenewLease(renew_time_micros)).await;
        }
    }
}
