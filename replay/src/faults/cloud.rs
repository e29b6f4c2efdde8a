//! A cloud that misbehaves: between the product and the recorded edge.
//!
//! The run was made once, with a cloud that behaves. A faulty cloud changes what happened in it: the matcher is told
//! what it would have been told in a run with this cloud.

use std::collections::HashMap;

use serde_json::Value;

use super::forms::{with_id, with_next_version, with_object, with_wrong_label, without_owners};
use super::positions::LanePositions;
use super::{ONE_IN, PeerFault, TIMES};
use crate::frame::{Ask, Frame, Key};
use crate::matcher::{Difference, Matcher, Summary};
use crate::run::Happening;
use crate::transcript::{Event, Transcript};
use crate::value::strip;

/// Where a fault applies in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Index of the event that is altered.
    at: usize,
    form: MessageForm,
}

/// Which form of the fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageForm {
    /// The message itself.
    Message,
    /// One message in ten.
    OneInTen,
    /// The message with its own id again.
    SameId,
    /// Together with the message of this event.
    With(usize),
}

/// A run, and what it would have been with a faulty cloud.
pub struct FaultyRun<'t> {
    transcript: &'t Transcript,
    run: &'t [Happening],
    /// What the edge asked for, by the id of the request.
    asked: HashMap<&'t str, Ask>,
}

/// The state of an object before a write, if it existed.
struct StateBefore<'t>(Option<&'t Value>);

/// An event of the altered run.
enum AlteredEvent {
    Same(Happening),
    /// A message on a connection, and the one that the cloud sends if it is asked again.
    Message(u64, Frame, Frame),
}

impl<'t> FaultyRun<'t> {
    /// `run` was made with this transcript.
    #[must_use]
    pub fn new(transcript: &'t Transcript, run: &'t [Happening]) -> Self {
        let mut asked = HashMap::new();
        for happening in run {
            if let Happening::Sent(index, id) = happening
                && let Event::Up(request) = &transcript.lines[*index].event
            {
                asked.insert(id.as_str(), request.ask());
            }
        }
        Self { transcript, run, asked }
    }

    /// The message of an event.
    fn message(&self, at: usize) -> Option<(u64, &'t Frame)> {
        match self.run.get(at)? {
            Happening::Received(conn, frame) => Some((*conn, frame)),
            _ => None,
        }
    }

    /// The messages of the cloud that mean something.
    fn messages(&self) -> impl Iterator<Item = (usize, u64, &'t Frame)> + '_ {
        let all =
            (0..self.run.len()).filter_map(|at| self.message(at).map(|(conn, frame)| (at, conn, frame)));
        all.filter(|(_, _, frame)| frame.operation() != "ping")
    }

    /// Where the fault can occur in this run.
    #[must_use]
    pub fn sites(&self, fault: PeerFault) -> Vec<Site> {
        let site = |at| Site { at, form: MessageForm::Message };
        let altered = |alter: fn(&mut Frame) -> bool| -> Vec<Site> {
            let can = move |frame: &&Frame| frame.operation() != "delete" && alter(&mut (*frame).clone());
            self.messages().filter(move |(_, _, frame)| can(frame)).map(|(at, ..)| site(at)).collect()
        };
        let answers = |wanted: Ask| {
            self.messages().filter(move |(_, _, frame)| self.asked.get(frame.parent()) == Some(&wanted))
        };
        match fault {
            PeerFault::Drop => {
                let all: Vec<Site> = self.messages().map(|(at, ..)| site(at)).collect();
                let ten = (all.len() >= ONE_IN).then_some(Site { at: 0, form: MessageForm::OneInTen });
                ten.into_iter().chain(all).collect()
            }
            PeerFault::TenTimes => {
                let same = self.messages().filter(|(_, _, frame)| !frame.is_tombolo());
                let same = same.map(|(at, ..)| Site { at, form: MessageForm::SameId });
                self.messages().map(|(at, ..)| site(at)).chain(same).collect()
            }
            PeerFault::Swap => self.pairs(|_, _| true),
            PeerFault::Older => {
                let older = |one: &Frame, other: &Frame| number(one.content()) < number(other.content());
                let states = self.messages().filter(|(_, _, frame)| is_update(frame));
                let states = states
                    .filter_map(|(at, _, frame)| self.state_before(at, frame.content()).map(|_| site(at)));
                self.pairs(older).into_iter().chain(states).collect()
            }
            PeerFault::Version => altered(with_next_version),
            PeerFault::Owners => altered(without_owners),
            PeerFault::WrongRead => answers(Ask::Read)
                .filter(|(_, _, frame)| with_wrong_label(&mut (*frame).clone()))
                .map(|(at, ..)| site(at))
                .collect(),
            PeerFault::EarlyAck => {
                (0..self.run.len()).filter(|at| self.before_write(*at).is_some()).map(site).collect()
            }
            PeerFault::NoAck => answers(Ask::Write).take(1).map(|(at, ..)| site(at)).collect(),
        }
    }

    /// Deliveries with the next one to the same place.
    fn pairs(&self, wanted: impl Fn(&Frame, &Frame) -> bool) -> Vec<Site> {
        let mut last: HashMap<(u64, &str, String), (usize, &Frame)> = HashMap::new();
        let mut pairs = Vec::new();
        for (at, conn, frame) in self.messages().filter(|(_, _, frame)| frame.is_push()) {
            let place = (conn, frame.group(), frame.usual_resource());
            if let Some((first, before)) = last.insert(place, (at, frame))
                && before.content() != frame.content()
                // Of two deletions, either may come first.
                && [before, frame].iter().any(|frame| frame.operation() != "delete")
                && wanted(before, frame)
            {
                pairs.push(Site { at: first, form: MessageForm::With(at) });
            }
        }
        pairs
    }

    /// States of objects that the API had before an event.
    fn states(&self, at: usize) -> impl Iterator<Item = &'t Value> {
        self.run[..at].iter().flat_map(states_of)
    }

    /// The last older state of this incarnation of an object before an event.
    fn state_before(&self, at: usize, object: &Value) -> Option<&'t Value> {
        let is_same = |state: &&Value| {
            state["metadata"]["uid"] == object["metadata"]["uid"] && number(state) < number(object)
        };
        number(object)?;
        self.states(at).filter(is_same).max_by_key(|state| number(state))
    }

    /// What the API would have had at an event, if the cloud had answered a write before it was stored. `None` if the
    /// event is no answer to a write that can be looked up.
    fn before_write(&self, at: usize) -> Option<StateBefore<'t>> {
        let Happening::Stored(answer, present) = &self.run[at] else { return None };
        if self.changes_nothing(answer) {
            return None;
        }
        if let Some(object) = answer.objects().first() {
            number(object)?;
            return Some(StateBefore(self.state_before(at, object)));
        }
        if let Some(present) = present {
            let revision: u64 = answer.resource_version().parse().ok()?;
            let older = self.state_before(at, present).filter(|state| number(state) < Some(revision));
            return older.map(|state| StateBefore(Some(state)));
        }
        // A deletion.
        let request = self.request(answer)?;
        let key = request.key()?;
        let kept =
            |state: &&Value| Key::of_object(state) == key && state["metadata"]["deletionTimestamp"].is_null();
        let is_deletion = request.operation().eq_ignore_ascii_case("delete");
        let kept = self.states(at).filter(kept).last().filter(|_| is_deletion);
        kept.map(|state| StateBefore(Some(state)))
    }

    /// Whether the API had the version that this answer shows before the write was sent.
    fn changes_nothing(&self, answer: &Frame) -> bool {
        let is_request =
            |happening: &Happening| matches!(happening, Happening::Sent(_, id) if id == answer.parent());
        let sent = self.run.iter().position(is_request).unwrap_or_default();
        let shown = answer.objects().first().map_or_else(
            || answer.resource_version().to_owned(),
            |object| object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
        );
        !shown.is_empty() && self.states(sent).any(|state| state["metadata"]["resourceVersion"] == *shown)
    }

    fn request(&self, answer: &Frame) -> Option<&'t Frame> {
        self.run.iter().find_map(|happening| match happening {
            Happening::Sent(index, id) if id == answer.parent() => match &self.transcript.lines[*index].event
            {
                Event::Up(request) => Some(request),
                _ => None,
            },
            _ => None,
        })
    }

    /// Judges the run as it would have been with a faulty cloud.
    ///
    /// # Errors
    /// The [`Difference`] by which the fault was found.
    pub fn judge(&self, fault: PeerFault, site: Site) -> Result<Summary, Difference> {
        let mut matcher = Matcher::new(self.transcript)?;
        let mut positions = LanePositions::default();
        let mut messages = 0;
        for at in 0..self.run.len() {
            messages += usize::from(self.message(at).is_some());
            for step in self.steps(fault, site, at, messages) {
                follow(&mut matcher, moved(&mut positions, step))?;
            }
        }
        matcher.finish()
    }

    /// What happens in place of an event. `messages` is how many messages the cloud has sent so far.
    fn steps(&self, fault: PeerFault, site: Site, at: usize, messages: usize) -> Vec<AlteredEvent> {
        let same = vec![AlteredEvent::Same(self.run[at].clone())];
        if fault == PeerFault::EarlyAck {
            return self.early(site.at, at).map_or(same, |step| vec![step]);
        }
        let Some((conn, frame)) = self.message(at) else { return same };
        if fault == PeerFault::NoAck {
            let is_answer = self.asked.get(frame.parent()) == Some(&Ask::Write);
            return if is_answer { Vec::new() } else { same };
        }
        if site.form == MessageForm::OneInTen {
            return if messages % ONE_IN == 0 { Vec::new() } else { same };
        }
        let send = |frame: Frame| AlteredEvent::Message(conn, frame.clone(), frame);
        let with = match site.form {
            MessageForm::With(with) if with == at => self.message(site.at).map(|(_, first)| first.clone()),
            _ => None,
        };
        if let Some(first) = with {
            let first = with_id(&first, &format!("{}-later", first.id()));
            return vec![send(frame.clone()), send(first)];
        }
        if site.at != at {
            return same;
        }
        match fault {
            PeerFault::Drop | PeerFault::Swap => Vec::new(),
            PeerFault::TenTimes => {
                let copy = |number| match site.form {
                    MessageForm::SameId => frame.clone(),
                    _ if number == 0 => frame.clone(),
                    _ => with_id(frame, &format!("{}-{number}", frame.id())),
                };
                (0..TIMES).map(copy).map(send).collect()
            }
            PeerFault::Older if site.form == MessageForm::Message => {
                let older = self.state_before(at, frame.content()).map(|state| of_state(frame, state));
                same.into_iter().chain(older.map(send)).collect()
            }
            PeerFault::Version => vec![altered(conn, frame, with_next_version)],
            PeerFault::Owners => vec![altered(conn, frame, without_owners)],
            PeerFault::WrongRead => vec![altered(conn, frame, with_wrong_label)],
            _ => same,
        }
    }

    /// What the run finds in the API in place of what it found, if the write of a site was not stored yet.
    fn early(&self, site: usize, at: usize) -> Option<AlteredEvent> {
        let before = self.before_write(site)?.0.cloned();
        let Happening::Stored(answer, _) = &self.run[site] else { return None };
        let shown = |object: &Value| answer.objects().iter().any(|shown| identity(shown) == identity(object));
        match &self.run[at] {
            Happening::Stored(answer, _) if at == site => {
                Some(AlteredEvent::Same(Happening::Stored(answer.clone(), before)))
            }
            // The answer's object was looked up just before.
            Happening::Read(object, _) if at < site && shown(object) => {
                Some(AlteredEvent::Same(Happening::Read(object.clone(), before)))
            }
            _ => None,
        }
    }
}

/// Numbers the deliveries of an event anew: a faulty cloud leaves no gap in a lane.
fn moved(positions: &mut LanePositions, event: AlteredEvent) -> AlteredEvent {
    match event {
        AlteredEvent::Same(Happening::Received(conn, frame)) => {
            AlteredEvent::Same(Happening::Received(conn, positions.numbered(frame)))
        }
        AlteredEvent::Message(conn, frame, otherwise) => {
            let frame = positions.numbered(frame);
            let otherwise = if frame.is_push() { with_id(&otherwise, frame.id()) } else { otherwise };
            AlteredEvent::Message(conn, frame, otherwise)
        }
        other => other,
    }
}

/// The states of objects that an event shows.
fn states_of(happening: &Happening) -> Vec<&Value> {
    match happening {
        Happening::Applied(_, states) | Happening::Saw(states) => states.iter().collect(),
        Happening::Read(_, state) | Happening::Stored(_, state) => state.iter().collect(),
        Happening::Own(state) => vec![state],
        _ => Vec::new(),
    }
}

/// Tells the matcher what happened. As in a run, what a message shows is looked up, and a read is made again if its
/// answer was right a moment ago.
fn follow(matcher: &mut Matcher<'_>, step: AlteredEvent) -> Result<(), Difference> {
    match step {
        AlteredEvent::Same(happening) => matcher.follow(happening).map(drop),
        AlteredEvent::Message(conn, frame, otherwise) => {
            // The run looked up what the cloud really sent, unless its cluster does not serve the kind.
            if let Some(claimed) = matcher.unproven(&frame).into_iter().next()
                && matcher.unproven(&otherwise).is_empty()
            {
                matcher.follow(Happening::NeverHad(claimed))?;
            }
            let frame = if matcher.is_stale(&frame).is_some() { otherwise } else { frame };
            matcher.follow(Happening::Received(conn, frame)).map(drop)
        }
    }
}

fn altered(conn: u64, frame: &Frame, alter: impl Fn(&mut Frame) -> bool) -> AlteredEvent {
    let mut other = frame.clone();
    alter(&mut other);
    AlteredEvent::Message(conn, other, frame.clone())
}

/// A delivery of another state of its object.
fn of_state(frame: &Frame, state: &Value) -> Frame {
    let mut older = with_id(frame, &format!("{}-older", frame.id()));
    let revision = state["metadata"]["resourceVersion"].clone();
    with_object(&mut older, |object| {
        object.clone_from(state);
        strip(object, &["managedFields"]);
        true
    });
    older.as_json_mut()["header"]["resourceversion"] = revision;
    older
}

fn is_update(frame: &Frame) -> bool {
    frame.is_push() && matches!(frame.operation(), "insert" | "update")
}

/// The version of an object as a number.
fn number(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn identity(object: &Value) -> [&Value; 2] {
    ["uid", "resourceVersion"].map(|name| &object["metadata"][name])
}
