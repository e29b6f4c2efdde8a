//! Plays the edge's side of a transcript against a cloudcore.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::time::Instant;
use tombolo_edge::identity::{EnrollOptions, Identity, enroll};
use tombolo_link::client::Choice;
use tombolo_proto::NodeId;
use tombolo_replay::{
    Ask, Difference, Event, Frame, Happening, Line, Matcher, Progress, Summary, Transcript, approved,
};
use tombolo_runtime::time::unix_millis;

use super::ReplayTarget;
use super::api::{Administrator, Applied};
use super::edge_frames::EdgeFrames;
use super::grants::granted;
use super::socket::{Heard, ReceivedFrames, Saying, Socket, new_id};

/// How long to wait for an expected frame: longer than a resend takes, shorter than a KubeEdge edge waits.
const FRAME_WITHIN: Duration = Duration::from_secs(12);

/// The cloud sees a change through its watch, a moment later, while the recorded answers already include it. A request
/// whose answer still differs is repeated for this long.
const WATCH_LAG_MAX: Duration = Duration::from_secs(10);

/// Wait before a request is repeated.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// At the end: silence after which the cloud is assumed to have sent everything.
const QUIET: Duration = Duration::from_secs(1);

/// Result of a run.
#[derive(Debug)]
pub struct Run {
    /// Summary, or the first difference.
    pub outcome: Result<Summary, Difference>,
    /// Objects and rights that the transcript needs and a cluster does not have by default.
    pub preconditions: Vec<String>,
    /// All events of the run.
    pub happenings: Vec<Happening>,
}

/// Plays a transcript that already contains its API lines.
///
/// # Errors
/// When the run cannot be made; a difference is a regular outcome.
pub async fn play_edge(transcript: &Transcript, target: &ReplayTarget) -> Result<Run> {
    let transcript = &transcript.with_changes_before_answers();
    let matcher = match Matcher::new(transcript) {
        Ok(matcher) => matcher,
        Err(difference) => {
            return Ok(Run { outcome: Err(difference), preconditions: Vec::new(), happenings: Vec::new() });
        }
    };
    let preconditions = matcher
        .preconditions()
        .map(|added| format!("the recorded cluster adds to inserted objects: {added}"))
        .collect();
    let mut player = Player {
        transcript,
        target,
        identities: BTreeMap::new(),
        matcher,
        administrator: Administrator::new(target.client.clone()),
        connections: HashMap::new(),
        frames: EdgeFrames::default(),
        open: BTreeSet::new(),
        changed: None,
        received: ReceivedFrames::default(),
        preconditions,
        happenings: Vec::new(),
    };
    player.prepare().await?;
    let outcome = match player.play().await {
        Ok(()) => player.matcher.finish(),
        Err(Fault::Differs(difference)) => Err(*difference),
        Err(Fault::Broken(error)) => return Err(error),
    };
    Ok(Run { outcome, preconditions: player.preconditions, happenings: player.happenings })
}

/// Why a run stops.
enum Fault {
    Differs(Box<Difference>),
    Broken(anyhow::Error),
}

impl From<Difference> for Fault {
    fn from(difference: Difference) -> Self {
        Self::Differs(Box::new(difference))
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

struct Player<'t> {
    transcript: &'t Transcript,
    target: &'t ReplayTarget,
    identities: BTreeMap<NodeId, Identity>,
    matcher: Matcher<'t>,
    administrator: Administrator,
    connections: HashMap<u64, Socket>,
    frames: EdgeFrames,
    /// Requests whose recorded answers were not awaited. API changes wait for them, because these answers show the
    /// state before the change.
    open: BTreeSet<usize>,
    /// Time of the last recorded API change that was repeated.
    changed: Option<Instant>,
    received: ReceivedFrames,
    preconditions: Vec<String>,
    happenings: Vec<Happening>,
}

impl Player<'_> {
    /// Lets every node join, grants the recorded rights, and looks up objects that the cluster has by itself.
    async fn prepare(&mut self) -> Result<()> {
        for name in self.transcript.all_nodes() {
            let node = NodeId::parse(name).with_context(|| format!("{name:?} is not a node name"))?;
            self.join(node).await?;
            let wanted = granted(self.transcript, name);
            let rules: Vec<Value> = wanted.iter().map(super::grants::Grant::rule).collect();
            if !rules.is_empty() {
                self.administrator.grant(name, &rules).await?;
            }
            for grant in &wanted {
                for object in self.administrator.list(&grant.group, &grant.version, &grant.resource).await? {
                    // Cannot differ, because nothing is expected yet.
                    let _ = self.happen(Happening::Own(object));
                }
                self.preconditions.push(format!("role tombolo-replay-{name} allows the node to {grant}"));
                if !self.administrator.serves_resource(&grant.group, &grant.version, &grant.resource).await? {
                    self.undefined(grant)?;
                }
            }
        }
        Ok(())
    }

    async fn join(&mut self, node: NodeId) -> Result<()> {
        let (endpoint, token) = (self.target.join.clone(), self.target.token.clone());
        let options = EnrollOptions { endpoint, node: node.clone(), token };
        let identity = enroll(&options).await.with_context(|| format!("node {node} cannot join"))?;
        self.identities.insert(node, identity);
        Ok(())
    }

    /// Expects nothing of a resource that the cluster does not serve, unless the transcript defines it.
    fn undefined(&mut self, grant: &super::grants::Grant) -> Result<()> {
        let [group, version, plural] = [&grant.group, &grant.version, &grant.resource].map(Clone::clone);
        let line = format!("the cluster does not serve {plural}.{group}: requests for it are refused");
        if self.happen(Happening::Undefined(group, version, plural))? && !self.preconditions.contains(&line) {
            self.preconditions.push(line);
        }
        Ok(())
    }

    async fn play(&mut self) -> Result<(), Fault> {
        let mut last_lines: HashMap<u64, usize> = HashMap::new();
        for (index, line) in self.transcript.lines.iter().enumerate() {
            if let Some(conn) = line.conn {
                last_lines.insert(conn, index);
            }
        }
        for (index, line) in self.transcript.lines.iter().enumerate() {
            self.listen().await?;
            if let Some(conn) = line.conn {
                self.connect(conn, line).await?;
            }
            self.line(index, line).await?;
            if let Some(conn) = line.conn
                && last_lines.get(&conn) == Some(&index)
            {
                self.quiet().await?;
                self.connections.remove(&conn);
            }
        }
        Ok(())
    }

    async fn connect(&mut self, conn: u64, line: &Line) -> Result<()> {
        if self.connections.contains_key(&conn) || self.frames.has_ended(conn) {
            return Ok(());
        }
        let node = NodeId::parse(self.transcript.node_of(conn)).context("the connection names no node")?;
        if self.happen(Happening::JoinedAgain(conn))? {
            self.join(node.clone()).await?;
        }
        let identity = self.identities.get(&node).context("the node has not joined")?;
        let (Event::Up(frame) | Event::Down(frame)) = &line.event else { return Ok(()) };
        let socket = if frame.is_tombolo() {
            let choice = match self.transcript.header.get("transport").and_then(Value::as_str) {
                Some("quic") => Choice::Quic,
                _ => Choice::WebSocket,
            };
            Socket::frames(&self.target.dial(choice)?, identity, conn, self.received.sender.clone()).await?
        } else {
            let target = self.target.dial(Choice::WebSocket)?;
            Socket::documents(&target, &node, identity, conn, self.received.sender.clone()).await?
        };
        self.frames.connected(conn, &node);
        self.connections.insert(conn, socket);
        Ok(())
    }

    async fn line(&mut self, index: usize, line: &Line) -> Result<(), Fault> {
        match &line.event {
            Event::Api(..) => {
                self.change(index).await?;
                self.changed = Some(Instant::now());
            }
            // Acknowledgements and similar frames are sent in response to received ones.
            Event::Up(frame) if frame.ask() == Ask::Ack => {}
            Event::Up(frame) => self.say(index, line, frame).await?,
            Event::Down(frame) => {
                if frame.is_frame("session", "goodbye") && frame.content()["reason"] == "Replaced" {
                    self.replace(index).await?;
                }
                self.expect(index).await?;
            }
        }
        Ok(())
    }

    /// Opens the node's next connection, which replaces the one of this line. Its first frame may follow in the
    /// transcript after the goodbye that it causes.
    async fn replace(&mut self, index: usize) -> Result<()> {
        let lines = &self.transcript.lines[index..];
        let Some(conn) = lines.first().and_then(|line| line.conn) else { return Ok(()) };
        let node = self.transcript.node_of(conn);
        let next = lines.iter().find_map(|line| {
            let other = line.conn.filter(|other| *other > conn && self.transcript.node_of(*other) == node)?;
            Some((other, line))
        });
        match next {
            Some((conn, line)) => self.connect(conn, line).await,
            None => Ok(()),
        }
    }

    /// Makes the change that the recorded API received, unless a write of the edge already made it.
    async fn change(&mut self, index: usize) -> Result<(), Fault> {
        let Event::Api(verb, _) = &self.transcript.lines[index].event else { return Ok(()) };
        for request in std::mem::take(&mut self.open) {
            if let Some(answer) =
                self.matcher.answer_of(request).filter(|_| !self.matcher.is_answered(request))
            {
                self.expect(answer).await?;
            }
        }
        let object = self.matcher.object(index).unwrap_or_default();
        if self.matcher.is_effect(index) {
            let present = self.administrator.present(&object).await?;
            self.happen(Happening::Saw(present.into_iter().collect()))?;
            return Ok(());
        }
        let applied = self
            .administrator
            .make(*verb, &object)
            .await
            .with_context(|| format!("cannot make the change before line {}", self.next_number(index)))?;
        match applied {
            Applied::Kept(object) => self.happen(Happening::Own(object))?,
            Applied::Made(states) => self.happen(Happening::Applied(index, states))?,
            Applied::Unserved(kind) => {
                let line = format!("the cluster does not serve kind {kind}: its objects are skipped");
                if !self.preconditions.contains(&line) {
                    self.preconditions.push(line);
                }
                self.happen(Happening::Unserved(kind))?
            }
        };
        Ok(())
    }

    fn next_number(&self, index: usize) -> usize {
        self.transcript.lines[index..].iter().map(|line| line.number).find(|number| *number != 0).unwrap_or(0)
    }

    async fn say(&mut self, index: usize, line: &Line, frame: &Frame) -> Result<(), Fault> {
        let conn = line.conn.context("the line names no connection")?;
        // The cloud may have closed it already, as the recorded one did a little later.
        let Some(socket) = self.connections.get(&conn) else { return Ok(()) };
        if frame.ask() == Ask::Zero {
            socket.say(Saying::Document(frame.as_json().clone())).await?;
            self.happen(Happening::SentEmpty)?;
            return Ok(());
        }
        if self.frames.is_foreign(frame) {
            self.happen(Happening::Unsaid(index))?;
            return Ok(());
        }
        self.ask(index, conn, frame).await?;
        self.open.insert(index);
        Ok(())
    }

    async fn ask(&mut self, index: usize, conn: u64, frame: &Frame) -> Result<(), Fault> {
        let Some(socket) = self.connections.get(&conn) else { return Ok(()) };
        let id = if frame.is_tombolo() { frame.id().to_owned() } else { new_id() };
        let request = self.matcher.request(index, &id, unix_millis()).context("not a request")?;
        let saying = self.frames.saying(conn, request)?;
        socket.say(saying).await?;
        self.happen(Happening::Sent(index, id))?;
        Ok(())
    }

    /// Repeats a request if the cloud's answer does not reflect the last API change yet. Returns whether it was
    /// repeated.
    async fn ask_again(&mut self, conn: u64, answer: &Frame) -> Result<bool, Fault> {
        if self.changed.is_none_or(|changed| changed.elapsed() > WATCH_LAG_MAX) {
            return Ok(false);
        }
        let Some(index) = self.matcher.is_stale(answer) else { return Ok(false) };
        let Event::Up(frame) = &self.transcript.lines[index].event else { return Ok(false) };
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
        self.ask(index, conn, frame).await?;
        Ok(true)
    }

    async fn expect(&mut self, index: usize) -> Result<(), Fault> {
        let deadline = Instant::now() + FRAME_WITHIN;
        loop {
            self.listen().await?;
            if self.matcher.settle(index)? == Progress::Done {
                self.happenings.push(Happening::Settled(index));
                return Ok(());
            }
            match tokio::time::timeout_at(deadline, self.received.heard.recv()).await {
                Ok(Some(heard)) => self.hear(heard).await?,
                Ok(None) | Err(_) => return Err(self.matcher.missing(index).into()),
            }
        }
    }

    /// Handles everything that has arrived, without waiting.
    async fn listen(&mut self) -> Result<(), Fault> {
        while let Ok(heard) = self.received.heard.try_recv() {
            self.hear(heard).await?;
        }
        Ok(())
    }

    /// Receives until the cloud sends nothing more.
    async fn quiet(&mut self) -> Result<(), Fault> {
        while let Ok(Some(heard)) = tokio::time::timeout(QUIET, self.received.heard.recv()).await {
            self.hear(heard).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, (conn, frame): Heard) -> Result<(), Fault> {
        let Some(frame) = frame else {
            self.connections.remove(&conn);
            self.frames.ended(conn);
            self.happen(Happening::Ended(conn))?;
            return Ok(());
        };
        if self.ask_again(conn, &frame).await? {
            return Ok(());
        }
        let frame = self.in_place_of_the_node(frame).await?;
        let answers = self.frames.answers(conn, &frame)?;
        if self.happen(Happening::Received(conn, frame))?
            && let Some(socket) = self.connections.get(&conn)
        {
            answers.into_iter().try_for_each(|answer| socket.try_say(answer))?;
        }
        Ok(())
    }

    /// Returns the answer. If it says that nodes are not allowed to make the write, makes the write as administrator
    /// and returns its result: the recorded cloud made it in its own name.
    async fn in_place_of_the_node(&mut self, answer: Frame) -> Result<Frame, Fault> {
        let Some(index) = self.matcher.is_restricted(&answer) else { return Ok(answer) };
        let asked = self.matcher.request(index, answer.parent(), unix_millis()).context("not a request")?;
        let made = self.administrator.in_place_of_the_node(&asked["content"]).await?;
        self.happen(Happening::Restricted)?;
        Ok(approved(&answer, &made))
    }

    fn happen(&mut self, happening: Happening) -> Result<bool, Difference> {
        self.happenings.push(happening.clone());
        self.matcher.follow(happening)
    }
}
