//! The cloud's side of dialect `kubeedge`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{Refusal, RefusalReason};
use tombolo_proto::limits::IDLE_TIMEOUT;
use tombolo_proto::session::EdgeEvent;
use tombolo_proto::session::kubeedge::{EdgeConfig, EdgeSession, Kinds};
use tombolo_proto::{Lane, Moment, NodeId, RequestId, Seq, kubeedge};

use super::{EdgePeer, Met, differ, unsaid};
use crate::frame::{Ask, Frame};
use crate::holdings::Holdings;
use crate::matcher::Difference;
use crate::rules::Rule;
use crate::transcript::Line;

/// Maximum difference between the keepalive times of the two edges.
const KEEPALIVE_SLACK: Duration = Duration::from_secs(1);

/// Time within which a KubeEdge edge has certainly acknowledged a delivery, unless its connection ends
/// (docs/reference/kubeedge.md#resends).
const ACK_WITHIN_US: u64 = 5_000_000;

/// How long the replayed edge waits for an answer: the same time as a KubeEdge edge
/// (docs/reference/kubeedge.md#remote-calls).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One connection, and the frames of its session that are not matched yet. It has many fields because the session's ids
/// are not the recorded ones: by id, the maps tell what became of requests, queries and deliveries.
pub(super) struct KubeEdgePeer {
    session: EdgeSession,
    now: Moment,
    /// Ids of the session's requests, by recorded id.
    requests: HashMap<String, String>,
    /// The session's query for each resource. Equal queries are sent once.
    queries: HashMap<String, String>,
    /// Answers to queries that were already answered.
    superfluous: HashSet<String>,
    /// Recorded ids of the requests that the session waits for.
    waiting: HashMap<RequestId, String>,
    /// Requests of the session that the cloud has answered.
    done: HashSet<String>,
    /// Recorded ids of the requests that the cloud has answered.
    answered: HashSet<String>,
    /// For each delivery id, the time of its line and how often it was sent.
    deliveries: HashMap<String, (u64, usize)>,
    /// Deliveries of controllers that this project does not have. At a KubeEdge edge, the module that receives them
    /// answers them.
    elsewhere: HashSet<String>,
    /// Deliveries that do not name their kind and whose kind the transcript does not define.
    unknown: HashSet<String>,
    /// What the recorded edge answered to deliveries that it could not store at first, by their id.
    refusals: HashMap<String, String>,
    said: Vec<Frame>,
    last_at_us: u64,
    /// When the cloud last sent something.
    heard: Moment,
    /// The session has given up on the cloud.
    given_up: bool,
}

impl EdgePeer for KubeEdgePeer {
    fn advance(&mut self, line: &Line) -> Result<(), Difference> {
        self.now = self.now.max(Moment::default() + Duration::from_micros(line.at_us));
        self.last_at_us = line.at_us;
        self.pass(line)
    }

    /// The recorded edge sent this frame, so the session must send it too.
    fn expect(&mut self, line: &Line, recorded: &Frame, _: &mut Holdings) -> Result<Met, Difference> {
        if self.given_up {
            return Ok(Met::Excused(Rule::Patience));
        }
        let said = match recorded.ask() {
            Ask::Zero => return Ok(Met::Excused(Rule::EmptyMessage)),
            Ask::Keepalive => match self.keepalive() {
                Some(said) => Some(said),
                None => return Ok(Met::Excused(Rule::Keepalive)),
            },
            Ask::Ack => self.take(|said| said.parent() == recorded.parent() && said.ask() == Ask::Ack),
            asked => {
                if self.ask(line, recorded, asked)? {
                    if let Some(query) = self.queries.get(recorded.resource()) {
                        self.requests.insert(recorded.id().to_owned(), query.clone());
                    }
                    return Ok(Met::Excused(Rule::SharedQuery));
                }
                self.take(|said| {
                    said.resource() == recorded.resource() && said.operation() == recorded.operation()
                })
            }
        };
        if said.is_none() && self.superfluous.contains(recorded.parent()) {
            return Ok(Met::Excused(Rule::SharedQuery));
        }
        if said.is_none() && recorded.ask() == Ask::Ack && self.elsewhere.contains(recorded.parent()) {
            return Ok(Met::Excused(Rule::Elsewhere));
        }
        let said = said.ok_or_else(|| unsaid(line))?;
        if recorded.ask() == Ask::Ack
            && said.operation() == "error"
            && self.unknown.contains(recorded.parent())
        {
            return Ok(Met::Excused(Rule::NotServed));
        }
        if let Some(pointer) = first_difference(recorded, &said) {
            return Err(differ(line, Some(&said), format!("the session's message differs at {pointer}")));
        }
        if !matches!(recorded.ask(), Ask::Ack | Ask::Keepalive) {
            self.requests.insert(recorded.id().to_owned(), said.id().to_owned());
            self.queries.insert(recorded.resource().to_owned(), said.id().to_owned());
        }
        Ok(Met::Same)
    }

    /// Passes on the cloud's message, with parent ids translated to those of the session.
    fn hear(&mut self, line: &Line, recorded: &Frame, _: &mut Holdings) -> Result<(), Difference> {
        let mut json = recorded.as_json().clone();
        if let Some(request) = self.requests.get(recorded.parent()) {
            if !self.done.insert(request.clone()) {
                self.superfluous.insert(recorded.id().to_owned());
            }
            json["header"]["parent_msg_id"] = request.as_str().into();
        }
        let copies = self.deliveries.entry(recorded.id().to_owned()).or_insert((line.at_us, 0));
        *copies = (line.at_us, copies.1 + 1);
        let document = Bytes::from(json.to_string());
        if let Err(error) = kubeedge::decode(&document)
            && recorded.as_json().is_object()
        {
            return Err(differ(line, None, format!("the session cannot read this: {error}")));
        }
        if self.given_up {
            return Ok(());
        }
        self.heard = self.now;
        self.answered.insert(recorded.parent().to_owned());
        if recorded.is_elsewhere() {
            self.elsewhere.insert(recorded.id().to_owned());
        }
        let heard = self.session.handle_document(self.now, &document);
        heard.map_err(|error| differ(line, None, format!("the session refuses this: {error}")))?;
        if self.session.take_unknown_kind() {
            self.unknown.insert(recorded.id().to_owned());
        }
        let refusal = self.refusals.remove(recorded.id());
        self.pass_with(line, refusal)
    }

    fn leftovers(&self) -> Vec<(Frame, Option<Rule>)> {
        self.said.iter().map(|said| (said.clone(), self.reason_of(said))).collect()
    }
}

impl KubeEdgePeer {
    /// A session whose store fails as the recorded one did. `refusals` has the error texts, by delivery id.
    pub(super) fn new(
        node: NodeId,
        now: Moment,
        refusals: HashMap<String, String>,
        kinds: Arc<Kinds>,
    ) -> Self {
        // Ids are not compared: a constant seed makes runs repeatable.
        let config = EdgeConfig::new(node, 0, [0x5e; 16]);
        let mut session = EdgeSession::new(config, now);
        session.learn(kinds);
        Self {
            session,
            now,
            requests: HashMap::new(),
            queries: HashMap::new(),
            superfluous: HashSet::new(),
            waiting: HashMap::new(),
            done: HashSet::new(),
            answered: HashSet::new(),
            deliveries: HashMap::new(),
            elsewhere: HashSet::new(),
            unknown: HashSet::new(),
            refusals,
            said: Vec::new(),
            last_at_us: 0,
            heard: now,
            given_up: false,
        }
    }

    /// Lets the session do what is due, and collects what it sends.
    fn pass(&mut self, line: &Line) -> Result<(), Difference> {
        self.pass_with(line, None)
    }

    /// The same, with a store that refuses the delivery that just arrived.
    fn pass_with(&mut self, line: &Line, mut refusal: Option<String>) -> Result<(), Difference> {
        self.session.handle_timeout(self.now);
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Deliver { seq, .. } => match refusal.take() {
                    Some(message) => self.refuse(seq, message),
                    None => self.session.committed(self.now, seq),
                },
                EdgeEvent::Reply(reply) => {
                    self.waiting.remove(&reply.id);
                    self.session.reply_stored(self.now, reply.id);
                }
                EdgeEvent::RequestTimedOut(id) => self.timed_out(line, id)?,
                EdgeEvent::Closed(_) if self.now.since(self.heard) >= IDLE_TIMEOUT => self.given_up = true,
                EdgeEvent::Closed(goodbye) => {
                    return Err(differ(line, None, format!("the session ends: {}", goodbye.message)));
                }
                _ => {}
            }
        }
        while let Some(document) = self.session.poll_transmit(self.now) {
            if let Ok(json) = serde_json::from_slice(&document.to_bytes()) {
                self.said.push(Frame::new(json));
            }
        }
        Ok(())
    }

    fn refuse(&mut self, seq: Seq, message: String) {
        let refusal = Refusal { lane: Lane::Delivery, seq, reason: RefusalReason::Other, message };
        self.session.refused(self.now, &refusal);
    }

    /// The recorded edge waited as long. The session cannot have an answer to a request that the recorded cloud did not
    /// answer.
    fn timed_out(&mut self, line: &Line, id: RequestId) -> Result<(), Difference> {
        match self.waiting.remove(&id) {
            Some(recorded) if !self.answered.contains(&recorded) => Ok(()),
            _ => Err(differ(line, None, "the session has no answer to a request in time".to_owned())),
        }
    }

    /// Lets the session send the recorded edge's request. Returns whether an equal query is already in flight.
    fn ask(&mut self, line: &Line, recorded: &Frame, asked: Ask) -> Result<bool, Difference> {
        let refused = |error: String| differ(line, None, format!("the session does not send this: {error}"));
        let document = Bytes::from(recorded.as_json().to_string());
        let message = kubeedge::decode(&document).map_err(|error| refused(error.to_string()))?;
        let before = self.said.len();
        if asked == Ask::Report {
            self.session.report(self.now, message).map_err(|error| refused(error.to_string()))?;
        } else {
            let id = self.session.request(self.now, REQUEST_TIMEOUT, message);
            let id = id.map_err(|error| refused(error.to_string()))?;
            self.waiting.insert(id, recorded.id().to_owned());
        }
        self.pass(line)?;
        Ok(asked == Ask::Read
            && self.said[before..].iter().all(|said| said.resource() != recorded.resource()))
    }

    fn keepalive(&mut self) -> Option<Frame> {
        let due = self.session.next_timeout()?;
        if due > self.now && due.since(self.now) <= KEEPALIVE_SLACK {
            self.now = due;
        }
        while let Some(document) = self.session.poll_transmit(self.now) {
            self.said.push(Frame::new(serde_json::from_slice(&document.to_bytes()).ok()?));
        }
        self.take(|said| said.ask() == Ask::Keepalive)
    }

    fn take(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let index = self.said.iter().position(wanted)?;
        Some(self.said.remove(index))
    }

    /// The rule that lets the session send this although the recorded edge did not.
    fn reason_of(&self, said: &Frame) -> Option<Rule> {
        if said.ask() == Ask::Keepalive {
            return Some(Rule::Keepalive);
        }
        let (at_us, copies) = self.deliveries.get(said.parent())?;
        if *copies > 1 {
            return Some(Rule::Repeated);
        }
        (at_us + ACK_WITHIN_US > self.last_at_us).then_some(Rule::RecordingEnds)
    }
}

/// Where two messages of an edge differ, apart from ids and times.
fn first_difference(recorded: &Frame, said: &Frame) -> Option<String> {
    let pointers = ["/route", "/content", "/header/resourceversion", "/header/sync", "/header/type"];
    let differs = |pointer: &&&str| recorded.as_json().pointer(pointer) != said.as_json().pointer(pointer);
    pointers.iter().find(differs).map(|pointer| (*pointer).to_owned())
}
