//! Drives one session of dialect `kubeedge` and its link: receives and sends documents, and passes deliveries to the
//! store.
//!
//! A cloud of this dialect does not compare its objects with those of this edge, and never reports that all were sent.
//! The store counts as complete when the cloud has sent no delivery for a while ([`QUIET`]). Until then lists may be
//! incomplete.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tombolo_apicore::store::Store as _;
use tombolo_link::{Clock, DocumentEvent, DocumentLink, Transport};
use tombolo_proto::frame::{ApiReply, ApiRequest, Change, Goodbye, ReplyBody, RequestBody};
use tombolo_proto::ids::{CloudRevision, Epoch, NodeId, RequestId, SubscriptionId, Uid};
use tombolo_proto::message::{Content, Message, Operation, StatusError};
use tombolo_proto::references;
use tombolo_proto::session::EdgeEvent;
use tombolo_proto::session::kubeedge::{Down, EdgeConfig, EdgeSession, path_of};
use tombolo_runtime::Drain;
use tombolo_runtime::time::{sleep_until, unix_millis};
use tracing::{debug, info, warn};

use super::apply::{Applier, ApplyOutcome, Work};
use super::calls::{self, Form};
use super::client_parts::ClientParts;
use super::failure::SessionFailure;
use super::lease::{LeaseKeeper, LeaseStep};
use super::session_end::{Achieved, Ended, draining};
use super::{CallError, Command};
use crate::store::{Store, Welcome};

/// Time to send the last documents of a session that this side ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time without a delivery after which the store counts as complete: twice the period in which a KubeEdge cloud checks
/// what it has sent (docs/reference/kubeedge.md#sync-controller).
const QUIET: Duration = Duration::from_secs(10);

/// Timeout of the agent's own requests, as of a KubeEdge edge (docs/reference/kubeedge.md#edgecore-settings).
const QUESTION_TIMEOUT: Duration = Duration::from_secs(60);

/// The history to which revisions of this dialect belong. Its clouds do not name one.
const HISTORY: &str = "kubeedge";

type ReplySender = super::Asker;

/// The receiver of a reply.
enum ReplyTarget {
    Message(ReplySender),
    Call(Form, ReplySender),
    Lease,
    /// The driver itself, which requested an object that a pod refers to.
    Reference,
}

/// The mark of a complete store: its content up to a revision.
struct Completion {
    epoch: Epoch,
    revision: CloudRevision,
    /// When the store counts as complete; `None` once it does.
    due: Option<Instant>,
}

/// One session and its link.
pub(super) struct KubeEdgeDriver {
    node: NodeId,
    link: DocumentLink,
    session: EdgeSession,
    clock: Clock,
    store: Store,
    applier: Applier,
    /// Bounded by the session, which takes a bounded number of requests.
    waiting: HashMap<RequestId, ReplyTarget>,
    lease: LeaseKeeper,
    completion: Completion,
    /// The cloud has sent a document, so it has accepted this node.
    heard: bool,
    achieved: Achieved,
    goodbye: Option<Goodbye>,
}

impl KubeEdgeDriver {
    pub(super) fn start(parts: &ClientParts, link: DocumentLink) -> Result<Self, SessionFailure> {
        let standing = parts.store.standing()?;
        let clock = Clock::start();
        let config = EdgeConfig::new(parts.node.clone(), unix_millis(), rand::random());
        let cluster = Uid::parse(HISTORY)?;
        let epoch = Epoch { cluster, generation: 0 };
        let mut applier = Applier::new(parts.store.clone());
        let resumed = standing.epoch.as_ref() == Some(&epoch);
        applier.push(Work::Welcome(Welcome { epoch: epoch.clone(), resumed, trim_version: 0 }));
        let mut session = EdgeSession::new(config, clock.now());
        session.learn(Arc::clone(&parts.kinds.discovered.borrow()));
        let driver = Self {
            node: parts.node.clone(),
            session,
            link,
            clock,
            store: parts.store.clone(),
            applier,
            waiting: HashMap::new(),
            lease: LeaseKeeper::new(parts.node.clone()),
            completion: Completion {
                epoch,
                revision: CloudRevision::default(),
                due: Some(Instant::now() + QUIET),
            },
            heard: false,
            achieved: Achieved::begin(),
            goodbye: None,
        };
        info!(dialect = "kubeedge", "connected to the cloud");
        parts.connected(Some(Transport::WebSocket));
        Ok(driver)
    }

    /// Runs until the session or the link ends; returns why.
    pub(super) async fn run(&mut self, parts: &mut ClientParts, drain: &Drain) -> Result<(), SessionFailure> {
        loop {
            self.take_events(parts);
            let now = self.clock.now();
            while self.link.can_send()
                && let Some(document) = self.session.poll_transmit(now)
            {
                self.link.send(document)?;
            }
            if self.session.is_closed() {
                return Ok(());
            }
            let timeout = self.session.next_timeout().map(|moment| self.clock.instant(moment));
            tokio::select! {
                event = self.link.next() => self.handle(parts, event)?,
                () = sleep_until(timeout) => self.session.handle_timeout(self.clock.now()),
                () = sleep_until(self.completion.due) => self.complete(),
                outcome = self.applier.applied() => self.finish_applying(parts, outcome?),
                Some(command) = parts.commands.recv() => self.command(parts, command),
                Ok(()) = parts.kinds.discovered.changed() => self.learn(parts),
                Ok(()) = parts.identity.changed() => {
                    self.session.say_goodbye(draining("the node's certificate was renewed"));
                }
                () = drain.started() => self.session.say_goodbye(draining("edgecore stops")),
            }
        }
    }

    fn handle(&mut self, parts: &ClientParts, event: DocumentEvent) -> Result<(), SessionFailure> {
        match event {
            DocumentEvent::Document(document) => {
                self.heard = true;
                if let Err(error) = self.session.handle_document(self.clock.now(), &document) {
                    warn!(%error, "the cloud broke the protocol");
                }
                if self.session.take_unknown_kind() {
                    parts.kinds.ask();
                }
                Ok(())
            }
            DocumentEvent::Heard | DocumentEvent::Transmitted(_) => Ok(()),
            DocumentEvent::Closed(error) => Err(error.into()),
        }
    }

    /// Takes newer kinds of the cluster from the local API's discovery.
    fn learn(&mut self, parts: &mut ClientParts) {
        self.session.learn(Arc::clone(&parts.kinds.discovered.borrow_and_update()));
    }

    fn command(&mut self, parts: &ClientParts, command: Command) {
        match command {
            Command::RenewLease(micros) => {
                if let Some(question) = self.lease.renew(micros) {
                    self.ask_about_lease(parts, question);
                }
            }
            Command::Request { body: RequestBody::Message(message), timeout, reply, .. } => {
                self.ask(*message, timeout, ReplyTarget::Message(reply));
            }
            Command::Request { caller_token: Some(_), reply, .. } => {
                let text = "the cloud speaks dialect kubeedge, in which only the node can send requests: use \
                            the operator's kubeconfig of this node, or a cloud that speaks dialect tombolo";
                let error = StatusError::new(501, "NotImplemented", text);
                reply.send(Ok(ReplyBody::Api(ApiReply::refusal(&error))));
            }
            Command::Request { body: RequestBody::Api(call), timeout, reply, .. } => {
                self.call(&call, timeout, reply);
            }
        }
    }

    fn call(&mut self, call: &ApiRequest, timeout: Duration, reply: ReplySender) {
        let message = match calls::message_of(call, &self.node) {
            Ok(message) => message,
            Err(error) => {
                reply.send(Ok(ReplyBody::Api(ApiReply::refusal(&error))));
                return;
            }
        };
        let form = Form::of(&message);
        if form.is_answered() {
            self.ask(message, timeout.min(form.patience()), ReplyTarget::Call(form, reply));
        } else {
            self.report(form, message, reply);
        }
    }

    fn ask(&mut self, message: Message, timeout: Duration, waiting: ReplyTarget) -> bool {
        match self.session.request(self.clock.now(), timeout, message) {
            Ok(id) => {
                self.waiting.insert(id, waiting);
                true
            }
            Err(error) => {
                if let ReplyTarget::Message(reply) | ReplyTarget::Call(_, reply) = waiting {
                    reply.send(Err(CallError::Refused(error.to_string())));
                }
                false
            }
        }
    }

    /// The cloud does not answer such a message: the object of the call is returned as the answer.
    fn report(&mut self, form: Form, message: Message, reply: ReplySender) {
        let answer = calls::answer(self.session.kinds(), form, &message);
        let sent = self.session.report(self.clock.now(), message);
        let sent = sent.map(|()| ReplyBody::Api(answer));
        reply.send(sent.map_err(|error| CallError::Refused(error.to_string())));
    }

    fn ask_about_lease(&mut self, parts: &ClientParts, question: Message) {
        if !self.ask(question, QUESTION_TIMEOUT, ReplyTarget::Lease) {
            self.lease_answered(parts, None);
        }
    }

    fn lease_answered(&mut self, parts: &ClientParts, reply: Option<&Message>) {
        match self.lease.answered(reply) {
            Some(LeaseStep::Ask(question)) => self.ask_about_lease(parts, *question),
            Some(LeaseStep::Ended(micros, code)) => {
                parts.state.send_modify(|state| state.lease = Some((micros, code)));
                if let Some(question) = self.lease.waiting() {
                    self.ask_about_lease(parts, question);
                }
            }
            None => {}
        }
    }

    fn take_events(&mut self, parts: &ClientParts) {
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Deliver { lane, seq, subscription, change } => {
                    parts.metrics.deliveries.inc();
                    if let Some(due) = &mut self.completion.due {
                        *due = Instant::now() + QUIET;
                    }
                    self.consider(&change);
                    self.applier.push(Work::Deliver { lane, seq, subscription: Some(subscription), change });
                }
                EdgeEvent::Reply(reply) => {
                    let ReplyBody::Message(message) = reply.body else { continue };
                    self.store_reply(parts, reply.id, *message);
                }
                EdgeEvent::RequestTimedOut(id) => match self.waiting.remove(&id) {
                    Some(ReplyTarget::Message(reply) | ReplyTarget::Call(_, reply)) => {
                        reply.send(Err(CallError::TimedOut));
                    }
                    Some(ReplyTarget::Lease) => self.lease_answered(parts, None),
                    Some(ReplyTarget::Reference) | None => {}
                },
                EdgeEvent::Closed(goodbye) => self.goodbye = Some(goodbye),
                // Only sessions of dialect `tombolo` have these events.
                EdgeEvent::Welcomed { .. }
                | EdgeEvent::CaughtUp { .. }
                | EdgeEvent::LeaseRenewed { .. }
                | EdgeEvent::Attested(_)
                | EdgeEvent::RoundTrip(_)
                | EdgeEvent::SubscriptionClosed { .. } => {}
            }
        }
    }

    /// Records the newest revision, and requests objects that a pod refers to and the store lacks.
    fn consider(&mut self, change: &Change) {
        let Change::Upsert(object) = change else { return };
        self.completion.revision = self.completion.revision.max(object.version.revision);
        if &*object.key.resource().name != "pods" {
            return;
        }
        let pod = serde_json::from_slice(&object.body).unwrap_or_default();
        for key in references::of_pod(object.key.namespace(), &pod) {
            if !matches!(self.store.get(&key), Ok(Some(_)))
                && let Some(path) = path_of(&key)
            {
                debug!(%key, "requesting an object that a pod refers to");
                let question = calls::message(Operation::Query, path, Content::null());
                self.ask(question, QUESTION_TIMEOUT, ReplyTarget::Reference);
            }
        }
    }

    /// Stores an object in a reply before the reply is passed on, because the cloud counts the object as delivered.
    fn store_reply(&mut self, parts: &ClientParts, id: RequestId, reply: Message) {
        match Down::carried(&reply) {
            Some(change) => self.applier.push(Work::Reply { id, reply: Box::new(reply), change }),
            None => self.answer(parts, id, reply),
        }
    }

    fn answer(&mut self, parts: &ClientParts, id: RequestId, reply: Message) {
        match self.waiting.remove(&id) {
            // The caller may have given up.
            Some(ReplyTarget::Message(answer)) => {
                answer.send(Ok(ReplyBody::Message(Box::new(reply))));
            }
            Some(ReplyTarget::Call(form, answer)) => {
                answer.send(Ok(ReplyBody::Api(calls::answer(self.session.kinds(), form, &reply))));
            }
            Some(ReplyTarget::Lease) => self.lease_answered(parts, Some(&reply)),
            Some(ReplyTarget::Reference) if reply.route.operation == Operation::Error => {
                let why = reply.content.as_text().unwrap_or_default().into_owned();
                debug!(
                    resource = %reply.route.resource.to_wire(), why,
                    "the cloud does not return an object that a pod refers to"
                );
            }
            Some(ReplyTarget::Reference) | None => {}
        }
        self.session.reply_stored(self.clock.now(), id);
    }

    /// Marks the store as complete, since the cloud has sent nothing for a while.
    fn complete(&mut self) {
        self.completion.due = None;
        let (epoch, revision) = (self.completion.epoch.clone(), self.completion.revision);
        self.applier.push(Work::CaughtUp { subscription: SubscriptionId::NODE, epoch, revision });
    }

    fn finish_applying(&mut self, parts: &ClientParts, outcome: ApplyOutcome) {
        self.achieved.note(outcome.stored);
        let now = self.clock.now();
        for refusal in &outcome.refused {
            self.session.refused(now, refusal);
        }
        for (_, seq) in outcome.committed {
            self.session.committed(now, seq);
        }
        for (id, reply) in outcome.replies {
            self.answer(parts, id, *reply);
        }
    }

    /// Waits for the store, fails pending requests, and closes the link.
    pub(super) async fn finish(mut self, result: Result<(), SessionFailure>) -> Ended {
        self.applier.settle().await;
        for (_, waiting) in self.waiting.drain() {
            if let ReplyTarget::Message(reply) | ReplyTarget::Call(_, reply) = waiting {
                reply.send(Err(CallError::Lost));
            }
        }
        self.link.close(CLOSE_TIMEOUT).await;
        let last = std::iter::from_fn(|| self.session.poll_event());
        Ended::of(self.goodbye, last, result, self.heard, self.achieved)
    }
}
