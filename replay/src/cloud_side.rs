//! Plays the cloud's side of a transcript against our edge sessions, on the transcript's own clock.

mod kubeedge;
mod tombolo;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tombolo_proto::session::kubeedge::Kinds;
use tombolo_proto::{Moment, NodeId};

use crate::frame::{Ask, Frame};
use crate::holdings::Holdings;
use crate::matcher::{Difference, Summary};
use crate::rules::{Rule, Tally};
use crate::transcript::{Event, Line, Transcript};

/// An edge session on one connection.
trait EdgePeer {
    /// Lets the session do what is due by the time of this line.
    fn advance(&mut self, line: &Line) -> Result<(), Difference>;

    /// The recorded edge sent this frame, so the session must send it too.
    fn expect(&mut self, line: &Line, recorded: &Frame, held: &mut Holdings) -> Result<Met, Difference>;

    /// The cloud sends this frame.
    fn hear(&mut self, line: &Line, recorded: &Frame, held: &mut Holdings) -> Result<(), Difference>;

    /// Frames that the session sent and that matched nothing, with the rule that allows each.
    fn leftovers(&self) -> Vec<(Frame, Option<Rule>)>;
}

/// How the session reproduced a frame of the recorded edge.
enum Met {
    Same,
    Excused(Rule),
}

/// Plays the cloud's frames, and compares what an edge session sends with what the recorded edge sent.
///
/// # Errors
/// The first [`Difference`].
pub fn play_cloud(transcript: &Transcript) -> Result<Summary, Difference> {
    let kinds = Arc::new(crate::kinds::of(transcript));
    let mut player = Player { refusals: refusals(transcript), kinds, ..Player::default() };
    for line in &transcript.lines {
        let Some(conn) = line.conn else { continue };
        let node = transcript.node_of(conn);
        let node = NodeId::parse(node).map_err(|error| Difference {
            line: 1,
            recorded: Some(Value::Object(transcript.header.clone())),
            live: None,
            problem: format!("{node:?} is not a node name: {error}"),
        })?;
        player.play(conn, node, line)?;
    }
    player.finish()
}

/// What edges of dialect `kubeedge` answered to deliveries whose first copy they could not store, by connection and id.
fn refusals(transcript: &Transcript) -> HashMap<u64, HashMap<String, String>> {
    let mut answered = HashSet::new();
    let mut refusals: HashMap<u64, HashMap<String, String>> = HashMap::new();
    for line in &transcript.lines {
        let (Some(conn), Event::Up(frame)) = (line.conn, &line.event) else { continue };
        if frame.is_tombolo() || frame.ask() != Ask::Ack || !answered.insert((conn, frame.parent())) {
            continue;
        }
        if frame.operation() == "error" {
            let text = frame.content().as_str().unwrap_or_default().to_owned();
            refusals.entry(conn).or_default().insert(frame.parent().to_owned(), text);
        }
    }
    refusals
}

#[derive(Default)]
struct Player {
    connections: BTreeMap<u64, Box<dyn EdgePeer>>,
    /// Deliveries that are refused at first, of connections that have not started yet.
    refusals: HashMap<u64, HashMap<String, String>>,
    /// The kinds of the cluster that an edge knows.
    kinds: Arc<Kinds>,
    /// What each node holds.
    held: BTreeMap<NodeId, Holdings>,
    matched: usize,
    excused: usize,
    rules: Tally,
}

impl Player {
    fn play(&mut self, conn: u64, node: NodeId, line: &Line) -> Result<(), Difference> {
        let held = self.held.entry(node.clone()).or_default();
        let connection = match self.connections.entry(conn) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let refusals = self.refusals.remove(&conn).unwrap_or_default();
                new.insert(connect(conn, node, line, held, (refusals, &self.kinds))?)
            }
        };
        connection.advance(line)?;
        match &line.event {
            Event::Up(frame) => match connection.expect(line, frame, held)? {
                Met::Same => self.matched += 1,
                Met::Excused(rule) => {
                    self.rules.count(rule);
                    self.excused += 1;
                }
            },
            Event::Down(frame) => connection.hear(line, frame, held)?,
            Event::Api(..) => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Summary, Difference> {
        let mut besides = 0;
        for (said, rule) in self.connections.values().flat_map(|connection| connection.leftovers()) {
            let rule = rule.ok_or_else(|| Difference {
                line: 0,
                recorded: None,
                live: Some(said.as_json().clone()),
                problem: "the session sends a message that the recorded edge did not send".to_owned(),
            })?;
            self.rules.count(rule);
            besides += 1;
        }
        Ok(Summary { matched: self.matched, excused: self.excused, besides, rules: self.rules })
    }
}

/// The session of a new connection, in the dialect of its first line.
fn connect(
    conn: u64,
    node: NodeId,
    line: &Line,
    held: &mut Holdings,
    (refusals, kinds): (HashMap<String, String>, &Arc<Kinds>),
) -> Result<Box<dyn EdgePeer>, Difference> {
    let now = Moment::default() + Duration::from_micros(line.at_us);
    match &line.event {
        Event::Up(frame) | Event::Down(frame) if frame.is_tombolo() => {
            Ok(Box::new(tombolo::TomboloPeer::new(conn, node, now, line, frame, held)?))
        }
        _ => Ok(Box::new(kubeedge::KubeEdgePeer::new(node, now, refusals, Arc::clone(kinds)))),
    }
}

fn unsaid(line: &Line) -> Difference {
    differ(line, None, "the recorded edge sent this, the session did not".to_owned())
}

fn differ(line: &Line, said: Option<&Frame>, problem: String) -> Difference {
    let (Event::Up(frame) | Event::Down(frame)) = &line.event else {
        return Difference { line: line.number, recorded: None, live: None, problem };
    };
    let live = said.map(|frame| frame.as_json().clone());
    Difference { line: line.number, recorded: Some(frame.as_json().clone()), live, problem }
}
