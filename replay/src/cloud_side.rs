//! The cloud's side of a transcript, played against an edge session of ours on the transcript's own clock.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tombolo_proto::session::EdgeEvent;
use tombolo_proto::session::kubeedge::{EdgeConfig, EdgeSession};
use tombolo_proto::{Moment, NodeId, RequestId, kubeedge};

use crate::frame::{Ask, Frame};
use crate::matcher::{Difference, Summary};
use crate::rules::{Rule, Tally};
use crate::transcript::{Event, Line, Transcript};

/// How far apart the two edges' keepalives may be.
const KEEPALIVE_SLACK: Duration = Duration::from_secs(1);

/// Time in which a stock edge has certainly acknowledged, unless its connection ends (reference 3.8).
const ACK_WITHIN_US: u64 = 5_000_000;

/// How long the replayed edge waits for an answer: what a stock edge waits (reference 9.5).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Plays what the cloud said, and compares what an edge session says with what the recorded edge said.
///
/// # Errors
/// The first [`Difference`].
pub fn play_cloud(transcript: &Transcript) -> Result<Summary, Difference> {
    let node = NodeId::parse(&transcript.node).map_err(|error| Difference {
        line: 1,
        recorded: Some(Value::Object(transcript.header.clone())),
        live: None,
        problem: format!("the header's node is no node name: {error}"),
    })?;
    let mut player =
        Player { node, connections: BTreeMap::new(), matched: 0, excused: 0, rules: Tally::default() };
    for line in &transcript.lines {
        let Some(conn) = line.conn else { continue };
        player.play(conn, line)?;
    }
    player.finish()
}

struct Player {
    node: NodeId,
    connections: BTreeMap<u64, Connection>,
    matched: usize,
    excused: usize,
    rules: Tally,
}

/// One connection, and what its session has said that was not looked for yet.
struct Connection {
    session: EdgeSession,
    now: Moment,
    /// Requests of the session by the recorded id.
    requests: HashMap<String, String>,
    /// Lines of deliveries by id, with how often they came.
    deliveries: HashMap<String, (u64, usize)>,
    said: Vec<Frame>,
    last_at_us: u64,
}

impl Player {
    fn play(&mut self, conn: u64, line: &Line) -> Result<(), Difference> {
        let node = self.node.clone();
        let at = Moment::default() + Duration::from_micros(line.at_us);
        let connection = self.connections.entry(conn).or_insert_with(|| Connection::new(node, at));
        connection.now = connection.now.max(at);
        connection.last_at_us = line.at_us;
        connection.pass(line)?;
        match &line.event {
            Event::Up(frame) => self.expect(conn, line, frame),
            Event::Down(frame) => connection.hear(line, frame),
            Event::Api(..) => Ok(()),
        }
    }

    /// The recorded edge said this: so must the session.
    fn expect(&mut self, conn: u64, line: &Line, recorded: &Frame) -> Result<(), Difference> {
        let Some(connection) = self.connections.get_mut(&conn) else { return Ok(()) };
        let said = match recorded.ask() {
            Ask::Zero => {
                self.rules.count(Rule::EmptyMessage);
                self.excused += 1;
                return Ok(());
            }
            Ask::Keepalive => match connection.keepalive() {
                Some(said) => Some(said),
                None => {
                    self.rules.count(Rule::Keepalive);
                    self.excused += 1;
                    return Ok(());
                }
            },
            Ask::Ack => connection.take(|said| said.parent() == recorded.parent() && said.ask() == Ask::Ack),
            asked => {
                let shared = connection.ask(line, recorded, asked)?;
                if shared {
                    self.rules.count(Rule::SharedQuery);
                    self.excused += 1;
                    return Ok(());
                }
                connection.take(|said| {
                    said.resource() == recorded.resource() && said.operation() == recorded.operation()
                })
            }
        };
        let said = said.ok_or_else(|| {
            differ(line, None, "the recorded edge said this, the session did not".to_owned())
        })?;
        if let Some(pointer) = first_difference(recorded, &said) {
            return Err(differ(line, Some(&said), format!("the session's message differs at {pointer}")));
        }
        if !matches!(recorded.ask(), Ask::Ack | Ask::Keepalive) {
            connection.requests.insert(recorded.id().to_owned(), said.id().to_owned());
        }
        self.matched += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Summary, Difference> {
        let mut besides = 0;
        for connection in self.connections.values() {
            for said in &connection.said {
                let rule = connection.reason_of(said).ok_or_else(|| Difference {
                    line: 0,
                    recorded: None,
                    live: Some(said.as_json().clone()),
                    problem: "the session says what the recorded edge did not".to_owned(),
                })?;
                self.rules.count(rule);
                besides += 1;
            }
        }
        Ok(Summary { matched: self.matched, excused: self.excused, besides, rules: self.rules })
    }
}

impl Connection {
    fn new(node: NodeId, now: Moment) -> Self {
        // Ids are compared with nothing: a constant seed makes runs alike.
        let config = EdgeConfig::new(node, 0, [0x5e; 16]);
        Self {
            session: EdgeSession::new(config, now),
            now,
            requests: HashMap::new(),
            deliveries: HashMap::new(),
            said: Vec::new(),
            last_at_us: 0,
        }
    }

    /// Lets the session do what is due, and listens to it.
    fn pass(&mut self, line: &Line) -> Result<(), Difference> {
        self.session.handle_timeout(self.now);
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Deliver { seq, .. } => self.session.committed(self.now, seq),
                EdgeEvent::Reply(reply) => self.session.reply_stored(self.now, reply.id),
                EdgeEvent::RequestTimedOut(_) => {
                    return Err(differ(
                        line,
                        None,
                        "the session has no answer to a request in time".to_owned(),
                    ));
                }
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

    /// The cloud's message; parents are translated to the session's ids.
    fn hear(&mut self, line: &Line, recorded: &Frame) -> Result<(), Difference> {
        let mut json = recorded.as_json().clone();
        if let Some(request) = self.requests.get(recorded.parent()) {
            json["header"]["parent_msg_id"] = request.as_str().into();
        }
        let copies = self.deliveries.entry(recorded.id().to_owned()).or_insert((line.at_us, 0));
        *copies = (line.at_us, copies.1 + 1);
        let document = Bytes::from(json.to_string());
        if let Err(error) = kubeedge::decode(&document) {
            return Err(differ(line, None, format!("the session cannot read this: {error}")));
        }
        let heard = self.session.handle_document(self.now, &document);
        heard.map_err(|error| differ(line, None, format!("the session refuses this: {error}")))?;
        self.pass(line)
    }

    /// Has the session ask what the recorded edge asked. Tells whether an equal question is under way.
    fn ask(&mut self, line: &Line, recorded: &Frame, asked: Ask) -> Result<bool, Difference> {
        let refused = |error: String| differ(line, None, format!("the session does not send this: {error}"));
        let document = Bytes::from(recorded.as_json().to_string());
        let message = kubeedge::decode(&document).map_err(|error| refused(error.to_string()))?;
        let before = self.said.len();
        if asked == Ask::Report {
            self.session.report(self.now, message).map_err(|error| refused(error.to_string()))?;
        } else {
            let id: Result<RequestId, _> = self.session.request(self.now, REQUEST_TIMEOUT, message);
            id.map_err(|error| refused(error.to_string()))?;
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

    /// Why the session may say this although the recorded edge did not.
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

fn differ(line: &Line, said: Option<&Frame>, problem: String) -> Difference {
    let (Event::Up(frame) | Event::Down(frame)) = &line.event else {
        return Difference { line: line.number, recorded: None, live: None, problem };
    };
    let live = said.map(|frame| frame.as_json().clone());
    Difference { line: line.number, recorded: Some(frame.as_json().clone()), live, problem }
}
