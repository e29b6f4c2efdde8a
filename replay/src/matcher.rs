//! Follows a run along a transcript: what was expected, what arrived, and where they differ.

mod deliveries;
mod index;
mod notices;
mod restricted;
mod unserved;

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use crate::application;
use crate::compare::{Additions, Comparison, Own, additions, learn};
use crate::frame::{Ask, Frame, Key};
use crate::identifiers::Identifiers;
use crate::kinds;
use crate::rules::{Rule, Tally};
use crate::soundness;
use crate::transcript::{Event, Line, Transcript, Verb};
use index::{TranscriptIndex, Version};
pub use restricted::{Call, approved, call_of};

/// The first deviation from the recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Line of the transcript; 0 where it has none.
    pub line: usize,
    /// What was recorded.
    pub recorded: Option<Value>,
    /// What arrived.
    pub live: Option<Value>,
    /// How they differ.
    pub problem: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |frame: &Option<Value>| frame.as_ref().map_or("nothing".to_owned(), Value::to_string);
        writeln!(f, "line {}: {}", self.line, self.problem)?;
        writeln!(f, "recorded: {}", shown(&self.recorded))?;
        write!(f, "came:     {}", shown(&self.live))
    }
}

impl std::error::Error for Difference {}

/// Whether an expected frame has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It has arrived, or a rule says that it need not.
    Done,
    /// Not yet.
    Waiting,
}

/// The result of a run without differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Expected frames that arrived.
    pub matched: usize,
    /// Expected frames that a rule excused.
    pub excused: usize,
    /// Additional frames, each allowed by a rule.
    pub besides: usize,
    /// Rules that were needed.
    pub rules: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineState {
    Open,
    Met,
    Excused(Rule),
}

struct Push {
    conn: u64,
    frame: Frame,
    used: bool,
}

/// Compares a run with a transcript that has its API lines. It must be told everything that happens, in order. It has
/// many fields because a frame is judged by all that the run has shown before: requests, versions, ended connections.
pub struct Matcher<'t> {
    transcript: &'t Transcript,
    states: Vec<LineState>,
    recorded: TranscriptIndex<'t>,
    /// Requests of the run, by id.
    sent: HashMap<String, usize>,
    answered: HashSet<usize>,
    heard: HashSet<String>,
    pushes: Vec<Push>,
    /// Which pushes are about a resource, in order: by the path with the usual word.
    by_resource: HashMap<String, Vec<usize>>,
    /// Live versions that lie between two recorded ones.
    between: HashSet<Version>,
    /// Uids of objects that the run's own cluster manages, and other properties of it.
    own: Own,
    /// Subscriptions of local clients, which this run does not make: connection and group.
    unfollowed: HashSet<(Option<u64>, String)>,
    /// Kinds that the run's cluster does not serve, in lower case.
    unserved: HashSet<String>,
    /// Resources that the run's cluster does not serve, as the beginning of record keys: `group/version/plural`.
    undefined: HashSet<String>,
    /// Nodes whose Node was deleted by an API line, with that line.
    without_node: HashMap<String, usize>,
    /// Connections that ended with their Node, with the line of its deletion. Nothing of later lines arrives on them.
    over: HashMap<u64, usize>,
    additions: Additions,
    identifiers: Identifiers,
    rules: Tally,
    besides: usize,
}

impl<'t> Matcher<'t> {
    /// A run that has not started. What answers to inserts show beyond the request is also taken from `transcript`.
    ///
    /// # Errors
    /// [`Difference`] if the transcript contradicts itself.
    pub fn new(transcript: &'t Transcript) -> Result<Self, Difference> {
        Self::with_origin(transcript, transcript)
    }

    /// Like [`Self::new`], for a transcript that was altered: what the cluster added is taken from `origin`.
    ///
    /// # Errors
    /// [`Difference`] if the transcript contradicts itself.
    pub fn with_origin(transcript: &'t Transcript, origin: &Transcript) -> Result<Self, Difference> {
        if let Some(fault) = soundness::check(transcript) {
            let line = &transcript.lines[fault.index];
            return Err(at(line, None, fault.problem));
        }
        let recorded = TranscriptIndex::new(transcript);
        let own = Own { moving_heartbeats: recorded.has_node_reports, ..Own::default() };
        Ok(Self {
            transcript,
            states: vec![LineState::Open; transcript.lines.len()],
            recorded,
            sent: HashMap::new(),
            answered: HashSet::new(),
            heard: HashSet::new(),
            pushes: Vec::new(),
            by_resource: HashMap::new(),
            between: HashSet::new(),
            own,
            unfollowed: HashSet::new(),
            unserved: HashSet::new(),
            undefined: HashSet::new(),
            without_node: HashMap::new(),
            over: HashMap::new(),
            additions: all_additions(origin),
            identifiers: Identifiers::default(),
            rules: Tally::of(Rule::OlderTypes, transcript.forgotten),
            besides: 0,
        })
    }

    /// What the recorded cluster added to objects that the edge wrote: preconditions for equal answers.
    pub fn preconditions(&self) -> impl Iterator<Item = String> + '_ {
        self.additions.iter().map(|(pointer, value)| format!("{pointer} = {value}"))
    }

    /// The request of a line as an edge of this run sends it, with a new id and time.
    #[must_use]
    pub fn request(&self, index: usize, id: &str, timestamp_millis: u64) -> Option<Value> {
        let Event::Up(frame) = &self.transcript.lines.get(index)?.event else { return None };
        let mut json = frame.as_json().clone();
        self.identifiers.translate_content(&mut json);
        if frame.source() == "metaserver" {
            application::translate(&self.identifiers, &mut json["content"]);
        }
        json["header"]["msg_id"] = id.into();
        json["header"]["timestamp"] = timestamp_millis.into();
        Some(json)
    }

    /// The object of an API line as the API of this run knows it: uid and version are replaced if known.
    #[must_use]
    pub fn object(&self, index: usize) -> Option<Value> {
        let Event::Api(_, object) = &self.transcript.lines.get(index)?.event else { return None };
        let mut object = object.clone();
        self.identifiers.translate_content(&mut object);
        Some(object)
    }

    /// Records that the request of a line was sent with this id.
    pub fn sent(&mut self, index: usize, id: &str) {
        self.sent.insert(id.to_owned(), index);
    }

    /// Records that the request of a line was not sent, because a local client's token is not in the recording. Neither
    /// its answer nor the deliveries of its subscription are expected.
    pub fn unsaid(&mut self, index: usize) {
        let Some(Line { conn, event: Event::Up(frame), .. }) = self.transcript.lines.get(index) else {
            return;
        };
        if let Some(answer) = self.recorded.answers.get(frame.id()).copied() {
            self.excuse(answer, Rule::Token);
        }
        if frame.operation() == "subscribe" {
            self.unfollowed.insert((*conn, frame.group().to_owned()));
        }
    }

    /// Records that the change of a line was made. The last state is what the API holds now; the others are
    /// intermediate states.
    pub fn applied(&mut self, index: usize, states: &[Value]) {
        let Some(Line { event: Event::Api(verb, recorded), .. }) = self.transcript.lines.get(index) else {
            return;
        };
        if *verb == Verb::Delete && recorded["kind"] == "Node" {
            let name = recorded["metadata"]["name"].as_str().unwrap_or_default();
            self.without_node.insert(name.to_owned(), index);
        }
        let Some((last, on_the_way)) = states.split_last() else { return };
        self.between.extend(on_the_way.iter().map(version));
        if self.own.uids.contains(&version(last).0) {
            return;
        }
        if recorded["metadata"]["resourceVersion"].is_null() || *verb == Verb::Delete {
            self.between.insert(version(last));
        }
        learn(&mut self.identifiers, recorded, last);
        if *verb != Verb::Delete {
            let uid = version(recorded).0;
            self.own.added.insert(uid.clone(), additions(recorded, last));
            self.own.left_out.insert(uid, additions(last, recorded));
        }
    }

    /// Records an object of the run's own cluster: the run may show it although the recording does not.
    pub fn own(&mut self, object: &Value) {
        self.own.uids.insert(version(object).0);
    }

    /// Records that the cluster of the run does not serve this kind: its objects are not expected.
    pub fn unserved(&mut self, kind: &str) {
        self.unserved.insert(kind.to_ascii_lowercase());
    }

    /// Records that the cluster of the run does not serve this resource, which applications request, unless the
    /// transcript defines it. A request for it may then be refused where the recorded cloud answered. Returns whether
    /// it was recorded.
    pub fn undefined(&mut self, group: &str, version: &str, plural: &str) -> bool {
        let defined = kinds::defines(self.transcript, &format!("{plural}.{group}"));
        if !defined {
            self.undefined.insert(format!("{group}/{version}/{plural}"));
        }
        !defined
    }

    /// Records that the cloud ended a connection. Frames are excused only if its Node was deleted.
    pub fn ended(&mut self, conn: u64) {
        if let Some(deleted) = self.without_node.get(self.transcript.node_of(conn)) {
            self.over.entry(conn).or_insert(*deleted);
        }
    }

    /// Records that the node of a connection joined again because its Node was deleted. Returns whether it was deleted.
    pub fn joined_again(&mut self, conn: u64) -> bool {
        let deleted = self.without_node.remove(self.transcript.node_of(conn)).is_some();
        if deleted {
            self.rules.count(Rule::JoinsAgain);
        }
        deleted
    }

    /// Whether a connection ended with its Node before this line.
    fn is_over(&self, conn: Option<u64>, index: usize) -> bool {
        conn.and_then(|conn| self.over.get(&conn)).is_some_and(|deleted| *deleted < index)
    }

    /// The line with the answer to the request of this line.
    #[must_use]
    pub fn answer_of(&self, request: usize) -> Option<usize> {
        let Event::Up(frame) = &self.transcript.lines.get(request)?.event else { return None };
        self.recorded.answers.get(frame.id()).copied()
    }

    /// Whether an API line is the effect of a write of the edge, so that the run must not make the change itself.
    #[must_use]
    pub fn is_effect(&self, index: usize) -> bool {
        let Some(Line { event: Event::Api(verb, object), .. }) = self.transcript.lines.get(index) else {
            return false;
        };
        let (uid, revision) = version(object);
        // A creation may take several steps, and the answer shows the last one.
        let on_the_way = self.recorded.born.get(&uid).is_some_and(|(asked, born)| {
            *asked < index && revision.parse::<u64>().is_ok_and(|revision| revision <= *born)
        });
        let made = self.recorded.written.get(&(Key::of_object(object), revision));
        *verb != Verb::Delete && (on_the_way || made.is_some_and(|asked| *asked < index))
    }

    /// Records the states that the API of the run held when it was read after a write.
    pub fn saw(&mut self, states: &[Value]) {
        self.between.extend(states.iter().map(version));
    }

    /// What an edge of this run says it holds where the recorded edge said `recorded`, in a frame of dialect `tombolo`.
    #[must_use]
    pub fn translate(&self, recorded: &Value) -> Value {
        let mut json = recorded.clone();
        self.identifiers.translate_content(&mut json);
        json
    }

    /// Records that the empty message of a stopped edge was sent.
    pub fn sent_empty(&mut self) {
        self.rules.count(Rule::EmptyMessage);
    }

    /// Takes a message of the cloud. Returns whether the recorded edge acknowledged it.
    ///
    /// # Errors
    /// [`Difference`] if an answer is not the recorded one, or answers no request.
    pub fn received(&mut self, conn: u64, frame: Frame) -> Result<bool, Difference> {
        if !frame.id().is_empty() && !self.heard.insert(frame.id().to_owned()) {
            return Ok(true);
        }
        if frame.is_push() || frame.is_notice() {
            self.by_resource.entry(frame.usual_resource()).or_default().push(self.pushes.len());
            self.pushes.push(Push { conn, frame, used: false });
            return Ok(true);
        }
        let Some(asked) = self.sent.get(frame.parent()).copied() else {
            return Err(unexpected(&frame, "the cloud answers a request that the edge did not send"));
        };
        let line = &self.transcript.lines[asked];
        let Event::Up(request) = &line.event else { return Ok(false) };
        if !self.answered.insert(asked) {
            return Err(at(line, Some(&frame), "the request is answered a second time".to_owned()));
        }
        let Some(index) = self.recorded.answers.get(request.id()).copied() else {
            return self.unrecorded(asked, request, &frame);
        };
        let expected = &self.transcript.lines[index];
        let Event::Down(recorded) = &expected.event else { return Ok(false) };
        if request.source() == "twin" && frame.is_refusal() {
            self.rules.count(Rule::TwinConfirmed);
            self.states[index] = LineState::Met;
            return Ok(false);
        }
        let served = unserved::answer(&self.undefined, recorded, &frame);
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        match comparison.reply(recorded, served.as_ref().unwrap_or(&frame)) {
            Ok(()) => comparison.learned().keep(&mut self.identifiers, &mut self.rules),
            Err(mismatch) => {
                return Err(at(expected, Some(&frame), format!("the answer differs at {mismatch}")));
            }
        }
        self.states[index] = LineState::Met;
        if served.is_some() {
            self.excuse(index, Rule::NotServed);
        }
        Ok(self.recorded.acked.contains(recorded.id()))
    }

    /// The line of a request whose answer is not the recorded one because the cloud may not yet have learned what the
    /// API saw. The same applies if a report gets a conflict with what the run wrote in its place. Nothing was changed
    /// in either case.
    #[must_use]
    pub fn is_stale(&self, frame: &Frame) -> Option<usize> {
        let asked = self.sent.get(frame.parent()).copied()?;
        let Event::Up(request) = &self.transcript.lines.get(asked)?.event else { return None };
        let index = self.recorded.answers.get(request.id()).copied()?;
        let Event::Down(recorded) = &self.transcript.lines.get(index)?.event else { return None };
        let conflicts = |frame: &Frame| frame.status().is_some_and(|status| status["reason"] == "Conflict");
        let again = request.ask() == Ask::Read
            || request.operation() == "patch" && conflicts(frame) && !conflicts(recorded);
        if !again || self.answered.contains(&asked) {
            return None;
        }
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        let served = unserved::answer(&self.undefined, recorded, frame);
        comparison.reply(recorded, served.as_ref().unwrap_or(frame)).is_err().then_some(asked)
    }

    /// Whether the answer to the request of this line arrived.
    #[must_use]
    pub fn is_answered(&self, request: usize) -> bool {
        self.answered.contains(&request)
    }

    /// Handles an answer that the recording does not have.
    fn unrecorded(&mut self, asked: usize, request: &Frame, frame: &Frame) -> Result<bool, Difference> {
        let line = &self.transcript.lines[asked];
        if request.source() == "twin" {
            self.rules.count(Rule::TwinConfirmed);
            return Ok(false);
        }
        if request.operation() == "UpdateNodeActionStatus" {
            self.rules.count(Rule::Elsewhere);
            return Ok(false);
        }
        if request.source() == "metaserver" && !self.recorded.has_dynamic {
            self.rules.count(Rule::Answered);
            return Ok(false);
        }
        if self.recorded.last_answer.get(&line.conn).is_none_or(|last| *last <= asked) {
            self.rules.count(Rule::RecordingEnds);
            return Ok(request.ask() != Ask::Write);
        }
        if frame.is_refusal() && !request.is_patch_or_application() && !request.is_tombolo() {
            self.rules.count(Rule::Answered);
            return Ok(false);
        }
        if request.ask() == Ask::Read && self.is_one_of_equal(asked, request) {
            self.rules.count(Rule::Answered);
            return Ok(true);
        }
        Err(at(line, Some(frame), "the request is answered, but the recording has no answer".to_owned()))
    }

    /// Whether a later equal query was answered: a KubeEdge cloud answers only the last of the equal queries in flight
    /// (docs/reference/kubeedge.md#equal-queries).
    fn is_one_of_equal(&self, asked: usize, request: &Frame) -> bool {
        let conn = self.transcript.lines[asked].conn;
        let equal = self.recorded.queries.get(request.resource()).into_iter().flatten();
        let is_kubeedge = request.source() != "metaserver" && !request.is_tombolo();
        is_kubeedge
            && equal.into_iter().filter(|later| **later > asked).any(|later| {
                let line = &self.transcript.lines[*later];
                let answered = |frame: &Frame| self.recorded.answers.contains_key(frame.id());
                line.conn == conn && matches!(&line.event, Event::Up(frame) if answered(frame))
            })
    }

    /// Whether the expected frame of a line arrived.
    ///
    /// # Errors
    /// [`Difference`] if another frame arrived in its place.
    pub fn settle(&mut self, index: usize) -> Result<Progress, Difference> {
        let line = &self.transcript.lines[index];
        let Event::Down(recorded) = &line.event else { return Ok(Progress::Done) };
        if self.states[index] != LineState::Open {
            return Ok(Progress::Done);
        }
        if self.unfollowed.contains(&(line.conn, recorded.group().to_owned())) {
            return Ok(self.excuse(index, Rule::Token));
        }
        if recorded.is_hub_notice() {
            return Ok(self.excuse(index, Rule::HubNotice));
        }
        if self.is_over(line.conn, index) && self.candidates(line.conn, recorded).is_empty() {
            return Ok(self.excuse(index, Rule::JoinsAgain));
        }
        if let Some(first) = self.recorded.once_more.get(&index).copied() {
            return self.settle_once_more(index, first);
        }
        if recorded.is_elsewhere() && !self.came(line.conn, recorded) {
            return Ok(self.excuse(index, Rule::Elsewhere));
        }
        if recorded.is_push() {
            return self.settle_push(index, recorded);
        }
        if recorded.is_notice() {
            return self.settle_notice(index, recorded);
        }
        match self.recorded.requests.get(recorded.parent()) {
            Some(_) => Ok(Progress::Waiting),
            None => Err(at(
                line,
                None,
                "the recorded frame is neither a delivery nor an answer to a request".to_owned(),
            )),
        }
    }

    /// Settles a copy of a frame, which a KubeEdge cloud sends until it is acknowledged, or one of several answers to a
    /// report about several pods (docs/reference/kubeedge.md#resends).
    fn settle_once_more(&mut self, index: usize, first: usize) -> Result<Progress, Difference> {
        let (Event::Down(recorded), Event::Down(known)) =
            (&self.transcript.lines[index].event, &self.transcript.lines[first].event)
        else {
            return Ok(Progress::Done);
        };
        let same = |member: &str| recorded.as_json().get(member) == known.as_json().get(member);
        if same("route") && same("content") {
            return Ok(self.excuse(index, Rule::Repeated));
        }
        let problem = "copies of a frame, or answers to one request, differ in the recording";
        Err(at(&self.transcript.lines[index], None, problem.to_owned()))
    }

    /// What the cloud of the run sent on a connection about the resource of a recorded frame, in order.
    fn about(&self, conn: Option<u64>, recorded: &Frame) -> impl DoubleEndedIterator<Item = (usize, &Push)> {
        // Names that the API server generated are those of the run.
        let resource = self.identifiers.translate(&recorded.usual_resource());
        let known = self.by_resource.get(&resource).into_iter().flatten();
        let pushes = known.map(|index| (*index, &self.pushes[*index]));
        pushes.filter(move |(_, push)| Some(push.conn) == conn)
    }

    /// Whether the cloud of the run sent anything about the same resource.
    fn came(&self, conn: Option<u64>, recorded: &Frame) -> bool {
        self.about(conn, recorded).next().is_some()
    }

    fn excuse(&mut self, index: usize, rule: Rule) -> Progress {
        self.states[index] = LineState::Excused(rule);
        self.rules.count(rule);
        Progress::Done
    }

    /// The difference to report if the frame of a line did not arrive in time.
    #[must_use]
    pub fn missing(&self, index: usize) -> Difference {
        let line = &self.transcript.lines[index];
        let Event::Down(recorded) = &line.event else {
            return at(line, None, "this did not arrive".to_owned());
        };
        match self.about(line.conn, recorded).next_back() {
            None => at(line, None, "the recorded frame did not arrive".to_owned()),
            Some((_, last)) => {
                let problem =
                    "the recorded frame did not arrive; the last frame about the same object differs";
                at(line, Some(&last.frame), problem.to_owned())
            }
        }
    }

    /// Ends the run. Everything that was expected must have arrived, and nothing else.
    ///
    /// # Errors
    /// [`Difference`] for the first frame that is missing or that no rule allows.
    pub fn finish(mut self) -> Result<Summary, Difference> {
        for index in 0..self.transcript.lines.len() {
            if self.settle(index)? == Progress::Waiting {
                return Err(self.missing(index));
            }
        }
        for candidate in 0..self.pushes.len() {
            if !self.pushes[candidate].used {
                self.explain(candidate)?;
            }
        }
        let count = |wanted: fn(&LineState) -> bool| self.states.iter().filter(|state| wanted(state)).count();
        Ok(Summary {
            matched: count(|state| *state == LineState::Met),
            excused: count(|state| matches!(state, LineState::Excused(_))),
            besides: self.besides,
            rules: self.rules,
        })
    }
}

/// Uid and version of an object.
fn version(object: &Value) -> Version {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

fn all_additions(transcript: &Transcript) -> Additions {
    let mut requests: HashMap<&str, &Frame> = HashMap::new();
    let mut all = Additions::new();
    for line in &transcript.lines {
        match &line.event {
            Event::Up(frame) if frame.operation() == "insert" || frame.is_frame("api", "POST") => {
                requests.insert(frame.id(), frame);
            }
            Event::Down(frame) => {
                if let Some(request) = requests.get(frame.parent())
                    && let Some(object) = frame.objects().first()
                {
                    let body = &request.content()["body"];
                    let asked =
                        if request.is_tombolo() && body.is_object() { body } else { request.content() };
                    let mut added = additions(asked, object);
                    added.retain(|(pointer, _)| !matches!(pointer.as_str(), "/kind" | "/apiVersion"));
                    all.extend(added);
                }
            }
            _ => {}
        }
    }
    all.dedup();
    all
}

fn at(line: &Line, live: Option<&Frame>, problem: String) -> Difference {
    let recorded = match &line.event {
        Event::Up(frame) | Event::Down(frame) => frame.as_json().clone(),
        Event::Api(_, object) => object.clone(),
    };
    Difference {
        line: line.number,
        recorded: Some(recorded),
        live: live.map(|frame| frame.as_json().clone()),
        problem,
    }
}

fn unexpected(frame: &Frame, problem: &str) -> Difference {
    Difference { line: 0, recorded: None, live: Some(frame.as_json().clone()), problem: problem.to_owned() }
}
