//! A hollow edge node: the real session over a real link, with a map as its store.

mod kubeedge;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};
use tombolo_link::client::{Connector, Target, connect_documents};
use tombolo_link::tls::ClientTls;
use tombolo_link::{Clock, Link, LinkEvent, Tap, pump};
use tombolo_proto::frame::{Change, ReplyBody, RequestBody};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{
    HeldState, InventoryEntry, Message, NodeId, ObjectKey, RequestId, StoreId, SubscriptionId,
};

use super::cluster::CONFIG_MAP;
use super::tally::Tally;
use super::traffic::Traffic;

/// How long a hollow node waits for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A command to a hollow node.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// Send this many requests, one after the other.
    Ask(Arc<Message>, usize),
    /// Close the connection, keep the held objects, connect again. A cloud of dialect `kubeedge` does not report that
    /// nothing is missing: there, the answer to this request shows that the node is caught up.
    Reconnect(Arc<Message>),
}

/// A report of a hollow node.
#[derive(Debug)]
pub(super) enum HollowNodeReport {
    /// The hub accepted the hello.
    Welcomed { took: Duration },
    /// All missing objects have arrived.
    CaughtUp,
    /// The connection ended unexpectedly.
    Lost { node: NodeId, reason: String },
}

/// Events that are too frequent for one report each.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// Times at which a version of the swarm's ConfigMap was stored.
    pub(super) arrivals: Tally<Instant>,
    /// Answers to requests.
    pub(super) answers: Tally<TimedAnswer>,
    /// Deliveries stored.
    pub(super) deliveries: AtomicUsize,
}

/// An answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedAnswer {
    /// Time since the request.
    pub(super) took: Duration,
    /// Whether it contains the object.
    pub(super) good: bool,
}

/// The node's map of held objects, in the form that the session needs.
#[derive(Debug, Default)]
struct Holdings(HashMap<ObjectKey, HeldState>);

impl EdgeView for Holdings {
    fn inventory(&self, _subscription: SubscriptionId) -> Vec<InventoryEntry> {
        let entry =
            |(key, held): (&ObjectKey, &HeldState)| InventoryEntry { key: key.clone(), held: held.clone() };
        self.0.iter().map(entry).collect()
    }
}

impl Holdings {
    fn store(&mut self, change: &Change) {
        match change {
            Change::Upsert(object) => {
                self.0.insert(object.key.clone(), HeldState::Present(object.version.clone()));
            }
            Change::Absent { key } => {
                self.0.insert(key.clone(), HeldState::Absent);
            }
            Change::Unreadable { key } => {
                let held = self.0.entry(key.clone()).or_insert(HeldState::Unreadable);
                if *held == HeldState::Absent {
                    *held = HeldState::Unreadable;
                }
            }
            Change::Delete { key, .. } => {
                self.0.remove(key);
            }
            Change::Adopt { key, version } => {
                self.0.insert(key.clone(), HeldState::Present(version.clone()));
            }
        }
    }
}

/// How a node connects, and so its dialect.
pub(super) enum Way {
    /// Dialect `tombolo`.
    Tombolo(Box<Connector>),
    /// Dialect `kubeedge`.
    KubeEdge(Box<Target>, ClientTls),
}

/// One hollow node.
pub(super) struct HollowNode {
    config: EdgeConfig,
    way: Way,
    /// Permits to dial; never closed.
    dials: Arc<Semaphore>,
    holdings: Holdings,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Sender<HollowNodeReport>,
    tallies: Arc<Tallies>,
    traffic: Option<Arc<Traffic>>,
}

/// The remaining requests of one command.
struct Asking {
    message: Arc<Message>,
    left: usize,
    waiting: RequestId,
    since: Instant,
}

enum Ended {
    Reconnect(Arc<Message>),
    Stopped,
    Lost(String),
}

impl HollowNode {
    /// A node that is not connected yet.
    pub(super) fn new(
        node: NodeId,
        store: StoreId,
        way: Way,
        dials: Arc<Semaphore>,
        commands: mpsc::Receiver<Command>,
        reports: mpsc::Sender<HollowNodeReport>,
        tallies: Arc<Tallies>,
    ) -> Self {
        let config = EdgeConfig::new(node, store);
        let (holdings, traffic) = Default::default();
        Self { config, way, dials, holdings, commands, reports, tallies, traffic }
    }

    /// Counts this node's frames.
    pub(super) fn watch(&mut self, traffic: Arc<Traffic>) {
        self.traffic = Some(traffic);
    }

    /// Connects and stays connected until the commands end.
    pub(super) async fn run(mut self) {
        let mut question = None;
        loop {
            match self.connection(question.take()).await {
                Ended::Reconnect(asked) => question = Some(asked),
                Ended::Stopped => return,
                Ended::Lost(reason) => {
                    self.report(HollowNodeReport::Lost { node: self.config.node.clone(), reason }).await;
                    return;
                }
            }
        }
    }

    /// One connection, from dialling to its end. `question`: the first request to send.
    async fn connection(&mut self, question: Option<Arc<Message>>) -> Ended {
        let turn = self.dials.acquire().await;
        let started = Instant::now();
        match &mut self.way {
            Way::Tombolo(connector) => {
                let link = connector.connect().await;
                drop(turn);
                match link {
                    Ok(link) => self.serve(link, started).await,
                    Err(error) => Ended::Lost(error.to_string()),
                }
            }
            Way::KubeEdge(target, tls) => {
                let link = connect_documents(target, &self.config.node, tls).await;
                drop(turn);
                match link {
                    Ok(link) => self.serve_documents(link, started, question).await,
                    Err(error) => Ended::Lost(error.to_string()),
                }
            }
        }
    }

    async fn serve(&mut self, mut link: Link, started: Instant) -> Ended {
        if let Some(traffic) = &self.traffic {
            traffic.restart();
            link.set_tap(Arc::clone(traffic) as Arc<dyn Tap>);
        }
        let clock = Clock::start();
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut session = EdgeSession::new(self.config.clone(), clock.now(), &self.holdings);
        let mut asking: Option<Asking> = None;
        loop {
            if let Err(error) = pump(&mut link, |lane| session.poll_transmit(clock.now(), lane)) {
                return Ended::Lost(error.to_string());
            }
            let timeout = session.next_timeout().map(|moment| clock.instant(moment));
            if let Some(moment) = timeout.filter(|moment| *moment != timer.deadline()) {
                timer.as_mut().reset(moment);
            }
            tokio::select! {
                event = link.next() => match event {
                    LinkEvent::Frame(lane, frame) => {
                        if let Err(error) = session.handle_frame(clock.now(), lane, frame, &self.holdings) {
                            return Ended::Lost(error.to_string());
                        }
                    }
                    LinkEvent::Writable => {}
                    LinkEvent::Closed(error) => return Ended::Lost(error.to_string()),
                },
                () = timer.as_mut(), if timeout.is_some() => session.handle_timeout(clock.now()),
                command = self.commands.recv() => match command {
                    None => return Ended::Stopped,
                    Some(Command::Reconnect(question)) => return Ended::Reconnect(question),
                    Some(Command::Ask(message, count)) => {
                        asking = ask(&mut session, &clock, message, count);
                    }
                },
            }
            while let Some(event) = session.poll_event() {
                if let Err(reason) = self.handle(event, &mut session, &mut asking, &clock, started).await {
                    return Ended::Lost(reason);
                }
            }
        }
    }

    async fn handle(
        &mut self,
        event: EdgeEvent,
        session: &mut EdgeSession,
        asking: &mut Option<Asking>,
        clock: &Clock,
        started: Instant,
    ) -> Result<(), String> {
        match event {
            EdgeEvent::Welcomed { trim_version, .. } => {
                self.config.trim_version = trim_version;
                self.report(HollowNodeReport::Welcomed { took: started.elapsed() }).await;
            }
            EdgeEvent::Deliver { lane, seq, change, .. } => {
                self.store(&change);
                session.committed(lane, seq);
            }
            EdgeEvent::CaughtUp { epoch, .. } => {
                self.config.epoch = Some(epoch);
                self.report(HollowNodeReport::CaughtUp).await;
            }
            EdgeEvent::Reply(reply) => {
                let good = matches!(&reply.body, ReplyBody::Message(message) if message.content.is_object());
                self.answered(reply.id, good, session, asking, clock);
            }
            EdgeEvent::RequestTimedOut(id) => self.answered(id, false, session, asking, clock),
            EdgeEvent::Closed(goodbye) => return Err(format!("{:?}: {}", goodbye.reason, goodbye.message)),
            EdgeEvent::Attested(attestation) => self.config.attestation = attestation,
            EdgeEvent::LeaseRenewed { .. }
            | EdgeEvent::SubscriptionClosed { .. }
            | EdgeEvent::RoundTrip(_) => {}
        }
        Ok(())
    }

    fn store(&mut self, change: &Change) {
        self.holdings.store(change);
        self.tallies.deliveries.fetch_add(1, Ordering::Relaxed);
        if change.key().name() == CONFIG_MAP {
            self.tallies.arrivals.note(Instant::now());
        }
    }

    fn answered(
        &self,
        id: RequestId,
        good: bool,
        session: &mut EdgeSession,
        asking: &mut Option<Asking>,
        clock: &Clock,
    ) {
        let Some(present) = asking.take_if(|present| present.waiting == id) else { return };
        self.tallies.answers.note(TimedAnswer { took: present.since.elapsed(), good });
        *asking = ask(session, clock, present.message, present.left);
    }

    async fn report(&self, report: HollowNodeReport) {
        // Fails only after the run is over and reports are no longer counted.
        let _ = self.reports.send(report).await;
    }
}

/// Sends one request; `None` if there is none to send or the session accepts no request.
fn ask(session: &mut EdgeSession, clock: &Clock, message: Arc<Message>, count: usize) -> Option<Asking> {
    let left = count.checked_sub(1)?;
    let body = RequestBody::Message(Box::new(Message::clone(&message)));
    let waiting = session.request(clock.now(), REQUEST_TIMEOUT, body, None).ok()?;
    Some(Asking { message, left, waiting, since: Instant::now() })
}
