//! The cloud's side of dialect `tombolo`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tombolo_proto::frame::{Hello, Inventory, Subscribe};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{Frame as Wire, InventoryEntry, Lane, Moment, NodeId, RequestId, Seq, SubscriptionId};

use super::{EdgePeer, Met, differ, unsaid};
use crate::frame::{Ask, Frame};
use crate::holdings::Holdings;
use crate::matcher::Difference;
use crate::rules::Rule;
use crate::tombolo::{render, wire};
use crate::transcript::Line;

/// One connection, and the frames of its session that are not matched yet.
pub(super) struct TomboloPeer {
    number: u64,
    session: EdgeSession,
    now: Moment,
    /// Maps recorded request ids to those of the session, and the other way round.
    requests: HashMap<RequestId, RequestId>,
    said: Vec<Frame>,
    /// Highest position that the session has acknowledged; below, the same for the recorded edge.
    acked: HashMap<Lane, Seq>,
    acked_recorded: HashMap<Lane, Seq>,
    /// Pings that the session sent.
    pings: HashSet<String>,
    closed: bool,
}

/// The part of the holdings that the session sees.
struct SessionHoldings<'a>(u64, &'a Holdings);

impl EdgeView for SessionHoldings<'_> {
    fn inventory(&self, subscription: SubscriptionId) -> Vec<InventoryEntry> {
        self.1.entries(self.0, subscription)
    }
}

impl TomboloPeer {
    /// A session that greets in the same way as the recorded edge did.
    pub(super) fn new(
        number: u64,
        node: NodeId,
        now: Moment,
        line: &Line,
        first: &Frame,
        held: &mut Holdings,
    ) -> Result<Self, Difference> {
        let broken = |problem: String| differ(line, None, problem);
        let (_, frame) = wire(first).map_err(|error| broken(format!("this is not a frame: {error}")))?;
        let Wire::Hello(hello) = frame else {
            return Err(broken("a connection of dialect tombolo begins with a hello".to_owned()));
        };
        let Hello { store, epoch, trim_version, agent, features, inventory, attestation, .. } = hello;
        if let Inventory::Full(entries) = &inventory {
            // Only the edge knows whether it stored what was in flight when the previous connection ended.
            held.adopt(number, SubscriptionId::NODE, entries);
        }
        let config =
            EdgeConfig { epoch, trim_version, agent, features, attestation, ..EdgeConfig::new(node, store) };
        let session = EdgeSession::new(config, now, &SessionHoldings(number, held));
        let (requests, said, acked, acked_recorded, pings, closed) = Default::default();
        Ok(Self { number, session, now, requests, said, acked, acked_recorded, pings, closed })
    }

    fn pass(&mut self, line: &Line, held: &mut Holdings) -> Result<(), Difference> {
        self.session.handle_timeout(self.now);
        self.take_events(line)?;
        self.listen(held);
        Ok(())
    }

    fn take_events(&mut self, line: &Line) -> Result<(), Difference> {
        while let Some(event) = self.session.poll_event() {
            match event {
                EdgeEvent::Deliver { lane, seq, .. } => self.session.committed(lane, seq),
                EdgeEvent::Closed(goodbye) => {
                    self.closed = true;
                    let is_told = matches!(&line.event, crate::transcript::Event::Up(frame)
                        | crate::transcript::Event::Down(frame) if frame.is_frame("session", "goodbye"));
                    if !is_told {
                        return Err(differ(line, None, format!("the session ends: {}", goodbye.message)));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Collects what the session sends, in rounds until it is silent.
    fn listen(&mut self, _: &Holdings) {
        loop {
            let mut silent = true;
            for lane in Lane::ALL {
                while let Some(frame) = self.session.poll_transmit(self.now, lane) {
                    silent = false;
                    self.note(lane, &frame);
                }
            }
            if silent {
                return;
            }
        }
    }

    fn note(&mut self, lane: Lane, frame: &Wire) {
        if let Wire::Ack { lanes } = frame {
            for (lane, seq) in lanes {
                let known = self.acked.entry(*lane).or_default();
                *known = (*known).max(*seq);
            }
            return;
        }
        let rendered = render(self.number, lane, frame);
        if matches!(frame, Wire::Ping { .. }) {
            self.pings.insert(rendered.id().to_owned());
        }
        self.said.push(rendered);
    }

    fn take(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let index = self.said.iter().position(wanted)?;
        Some(self.said.remove(index))
    }

    /// Whether the session has acknowledged as much as the recorded edge.
    fn acknowledged(&mut self, line: &Line, lanes: &[(Lane, Seq)]) -> Result<Met, Difference> {
        for (lane, seq) in lanes {
            self.acked_recorded.insert(*lane, *seq);
            let mine = self.acked.get(lane).copied().unwrap_or_default();
            if mine < *seq {
                let problem = format!("the session has acknowledged lane {lane:?} only up to {}", mine.0);
                return Err(differ(line, None, problem));
            }
        }
        Ok(Met::Same)
    }

    /// Lets the session send what the recorded edge sent unasked.
    fn say(&mut self, line: &Line, frame: Wire, held: &mut Holdings) -> Result<(), Difference> {
        let refused = |error: String| differ(line, None, format!("the session does not send this: {error}"));
        match frame {
            Wire::Request(request) => {
                let asked =
                    self.session.request(self.now, request.timeout, request.body, request.caller_token);
                let id = asked.map_err(|error| refused(error.to_string()))?;
                self.requests.insert(request.id, id);
            }
            Wire::LeaseRenew { renew_time_micros } => self.session.renew_lease(renew_time_micros),
            Wire::Subscribe(subscribe) => self.subscribe(subscribe, held, refused)?,
            Wire::Unsubscribe { subscription } => self.session.unsubscribe(subscription),
            Wire::Goodbye(goodbye) => self.session.say_goodbye(goodbye),
            _ => {}
        }
        self.pass(line, held)
    }

    fn subscribe(
        &mut self,
        subscribe: Subscribe,
        held: &mut Holdings,
        refused: impl Fn(String) -> Difference,
    ) -> Result<(), Difference> {
        held.subscribe(self.number, &subscribe);
        if let Inventory::Full(entries) = &subscribe.inventory {
            held.adopt(self.number, subscribe.subscription, entries);
        }
        self.session.subscribe(subscribe).map_err(|error| refused(error.to_string()))
    }
}

impl EdgePeer for TomboloPeer {
    fn advance(&mut self, line: &Line) -> Result<(), Difference> {
        self.now = self.now.max(Moment::default() + Duration::from_micros(line.at_us));
        if self.closed {
            return Ok(());
        }
        self.pass(line, &mut Holdings::default())
    }

    fn expect(&mut self, line: &Line, recorded: &Frame, held: &mut Holdings) -> Result<Met, Difference> {
        let (_, frame) =
            wire(recorded).map_err(|error| differ(line, None, format!("this is not a frame: {error}")))?;
        match &frame {
            Wire::Ack { lanes } => return self.acknowledged(line, lanes),
            Wire::Ping { .. } => return Ok(Met::Excused(Rule::Keepalive)),
            // The session stores everything. A delivery that the recorded edge refused is repeated later.
            Wire::Refuse(_) => return Ok(Met::Excused(Rule::Repeated)),
            _ => {}
        }
        if recorded.ask() != Ask::Ack {
            self.say(line, frame.clone(), held)?;
        }
        let resource = recorded.resource();
        let wanted = |said: &Frame| {
            said.operation() == recorded.operation()
                && said.group() == recorded.group()
                && said.resource() == resource
        };
        let said = self.take(wanted).ok_or_else(|| unsaid(line))?;
        match first_difference(recorded, &said) {
            Some(pointer) => {
                Err(differ(line, Some(&said), format!("the session's frame differs at {pointer}")))
            }
            None => Ok(Met::Same),
        }
    }

    fn hear(&mut self, line: &Line, recorded: &Frame, held: &mut Holdings) -> Result<(), Difference> {
        let (lane, mut frame) = wire(recorded)
            .map_err(|error| differ(line, None, format!("the session cannot read this: {error}")))?;
        match &mut frame {
            // The answer to a ping of the recorded edge that this session did not send.
            Wire::Pong { .. } if !self.pings.contains(recorded.parent()) => return Ok(()),
            Wire::Reply(reply) => {
                reply.id = self.requests.get(&reply.id).copied().unwrap_or(reply.id);
            }
            Wire::Deliver(deliver) => held.store(self.number, deliver),
            _ => {}
        }
        let heard = self.session.handle_frame(self.now, lane, frame, &SessionHoldings(self.number, held));
        heard.map_err(|error| differ(line, None, format!("the session refuses this: {error}")))?;
        self.take_events(line)?;
        self.listen(held);
        Ok(())
    }

    fn leftovers(&self) -> Vec<(Frame, Option<Rule>)> {
        let reason = |said: &Frame| match said.operation() {
            "ping" | "pong" => Some(Rule::Keepalive),
            _ => None,
        };
        self.said.iter().map(|said| (said.clone(), reason(said))).collect()
    }
}

/// Where two frames of an edge differ, apart from the session's own request count. An inventory digest may also differ,
/// because an agent of another version hashes an inventory differently, and a cloud that does not know the digest
/// requests the list.
fn first_difference(recorded: &Frame, said: &Frame) -> Option<String> {
    let pointers = ["/lane", "/route", "/content", "/header/resourceversion", "/request/caller_token"];
    let part = |frame: &Frame, pointer: &str| {
        let mut part = frame.as_json().pointer(pointer).cloned();
        if let Some(digest) = part.as_mut().and_then(|part| part.pointer_mut("/inventory/digest")) {
            digest.take();
        }
        part
    };
    let differs = |pointer: &&&str| part(recorded, pointer) != part(said, pointer);
    pointers.iter().find(differs).map(|pointer| (*pointer).to_owned())
}
