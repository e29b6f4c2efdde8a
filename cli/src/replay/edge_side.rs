//! The edge's side of a transcript, played against a cloudcore.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tombolo_edge::identity::{EnrollOptions, Identity, enroll};
use tombolo_proto::NodeId;
use tombolo_replay::{
    Ask, Difference, Event, Frame, Happening, Line, Matcher, Progress, Summary, Transcript,
};
use tombolo_runtime::time::unix_millis;

use super::Target;
use super::api::Administrator;
use super::socket::{Heard, Socket, acknowledgement, ears, new_id};

/// How long an expected frame may take: more than a resend, less than a stock edge's patience.
const FRAME_WITHIN: Duration = Duration::from_secs(12);

/// Silence after which the cloud is taken to have said everything at the end.
const QUIET: Duration = Duration::from_millis(500);

/// A run.
#[derive(Debug)]
pub struct Run {
    /// What came of it.
    pub outcome: Result<Summary, Difference>,
    /// What the transcript needs that a cluster does not have by itself.
    pub preconditions: Vec<String>,
    /// Everything that happened.
    pub happenings: Vec<Happening>,
}

/// Plays a transcript that has its lines of the API.
///
/// # Errors
/// When the run cannot be made; a difference is an outcome.
pub async fn play_edge(transcript: &Transcript, target: &Target) -> Result<Run> {
    let matcher = match Matcher::new(transcript) {
        Ok(matcher) => matcher,
        Err(difference) => {
            return Ok(Run { outcome: Err(difference), preconditions: Vec::new(), happenings: Vec::new() });
        }
    };
    let mut preconditions: Vec<String> = matcher
        .preconditions()
        .map(|added| format!("the recorded cluster adds to what is inserted: {added}"))
        .collect();
    let node = NodeId::parse(&transcript.node).context("the header's node is no node name")?;
    let options = EnrollOptions { endpoint: target.join.clone(), node, token: target.token.clone() };
    let identity = enroll(&options).await.context("the node cannot join")?;
    let (sender, heard) = ears();
    let mut player = Player {
        transcript,
        target,
        identity,
        matcher,
        administrator: Administrator::new(target.client.clone()),
        connections: HashMap::new(),
        sender,
        heard,
        happenings: Vec::new(),
    };
    preconditions.extend(player.prepare().await?);
    let outcome = match player.play().await {
        Ok(()) => player.matcher.finish(),
        Err(Fault::Differs(difference)) => Err(*difference),
        Err(Fault::Broken(error)) => return Err(error),
    };
    Ok(Run { outcome, preconditions, happenings: player.happenings })
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
    target: &'t Target,
    identity: Identity,
    matcher: Matcher<'t>,
    administrator: Administrator,
    connections: HashMap<u64, Socket>,
    sender: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
    happenings: Vec<Happening>,
}

impl Player<'_> {
    /// Grants what the recorded node was granted, and looks for objects that the cluster has by itself.
    async fn prepare(&mut self) -> Result<Vec<String>> {
        let wanted = granted(self.transcript);
        let rules: Vec<Value> = wanted.keys().map(Grant::rule).collect();
        let node = self.transcript.node.clone();
        if !rules.is_empty() {
            self.administrator.grant(&node, &rules).await?;
        }
        for grant in wanted.keys() {
            for object in self.administrator.list(&grant.group, &grant.version, &grant.resource).await? {
                // Cannot differ: nothing has been expected yet.
                let _ = self.happen(Happening::Own(object));
            }
        }
        Ok(wanted
            .into_keys()
            .map(|grant| format!("role tombolo-replay-{node} lets the node {grant}"))
            .collect())
    }

    async fn play(&mut self) -> Result<(), Fault> {
        let mut last_lines: HashMap<u64, usize> = HashMap::new();
        for (index, line) in self.transcript.lines.iter().enumerate() {
            if let Some(conn) = line.conn {
                last_lines.insert(conn, index);
            }
        }
        for (index, line) in self.transcript.lines.iter().enumerate() {
            self.listen()?;
            if let Some(conn) = line.conn {
                self.connect(conn).await?;
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

    async fn connect(&mut self, conn: u64) -> Result<()> {
        if !self.connections.contains_key(&conn) {
            let (address, node) = (&self.target.websocket, &self.transcript.node);
            let socket = Socket::connect(address, node, &self.identity, conn, self.sender.clone()).await?;
            self.connections.insert(conn, socket);
        }
        Ok(())
    }

    async fn line(&mut self, index: usize, line: &Line) -> Result<(), Fault> {
        match &line.event {
            Event::Api(verb, _) => {
                let object = self.matcher.object(index).unwrap_or_default();
                if let Some(kept) = self.administrator.kept(&object).await? {
                    self.happen(Happening::Own(kept))?;
                    return Ok(());
                }
                let states = self.administrator.apply(*verb, &object).await;
                let states = states.with_context(|| {
                    format!("the change before line {} cannot be made", self.next_number(index))
                })?;
                self.happen(Happening::Applied(index, states))?;
            }
            // Acknowledgements follow what is received.
            Event::Up(frame) if frame.ask() == Ask::Ack => {}
            Event::Up(frame) => self.say(index, line, frame).await?,
            Event::Down(_) => self.expect(index).await?,
        }
        Ok(())
    }

    fn next_number(&self, index: usize) -> usize {
        self.transcript.lines[index..].iter().map(|line| line.number).find(|number| *number != 0).unwrap_or(0)
    }

    async fn say(&mut self, index: usize, line: &Line, frame: &Frame) -> Result<(), Fault> {
        let socket = line.conn.and_then(|conn| self.connections.get(&conn)).context("no connection")?;
        if frame.ask() == Ask::Zero {
            socket.say(frame.as_json()).await?;
            self.happen(Happening::SentEmpty)?;
            return Ok(());
        }
        let id = new_id();
        let request = self.matcher.request(index, &id, unix_millis()).context("no request")?;
        socket.say(&request).await?;
        self.happen(Happening::Sent(index, id))?;
        Ok(())
    }

    async fn expect(&mut self, index: usize) -> Result<(), Fault> {
        let deadline = Instant::now() + FRAME_WITHIN;
        loop {
            self.listen()?;
            if self.matcher.settle(index)? == Progress::Done {
                self.happenings.push(Happening::Settled(index));
                return Ok(());
            }
            match tokio::time::timeout_at(deadline, self.heard.recv()).await {
                Ok(Some(heard)) => self.hear(heard)?,
                Ok(None) | Err(_) => return Err(self.matcher.missing(index).into()),
            }
        }
    }

    /// Takes what has come, without waiting.
    fn listen(&mut self) -> Result<(), Fault> {
        while let Ok(heard) = self.heard.try_recv() {
            self.hear(heard)?;
        }
        Ok(())
    }

    /// Listens until the cloud has nothing more to say.
    async fn quiet(&mut self) -> Result<(), Fault> {
        while let Ok(Some(heard)) = tokio::time::timeout(QUIET, self.heard.recv()).await {
            self.hear(heard)?;
        }
        Ok(())
    }

    fn hear(&mut self, (conn, frame): Heard) -> Result<(), Fault> {
        let Some(frame) = frame else {
            self.connections.remove(&conn);
            return Ok(());
        };
        let acknowledged = acknowledgement(&frame);
        if self.happen(Happening::Received(conn, frame))?
            && let Some(socket) = self.connections.get(&conn)
        {
            socket.try_say(&acknowledged)?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<bool, Difference> {
        self.happenings.push(happening.clone());
        self.matcher.follow(happening)
    }
}

/// What a node was allowed through MetaServer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    group: String,
    version: String,
    resource: String,
    verb: String,
}

impl Grant {
    /// A watch begins with a list.
    fn verbs(&self) -> Vec<&str> {
        if self.verb == "watch" { vec!["list", "watch"] } else { vec![&self.verb] }
    }

    fn rule(&self) -> Value {
        json!({"apiGroups": [self.group], "resources": [self.resource, format!("{}/status", self.resource)], "verbs": self.verbs()})
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => write!(f, "{} {}", self.verb, self.resource),
            group => write!(f, "{} {}.{group}", self.verb, self.resource),
        }
    }
}

/// MetaServer's requests that the recorded cloud approved (design 9.1).
fn granted(transcript: &Transcript) -> BTreeMap<Grant, ()> {
    let answers = transcript.lines.iter().filter_map(|line| match &line.event {
        Event::Down(frame) if frame.application("Status") == "Approved" => Some(frame),
        _ => None,
    });
    answers
        .filter_map(|frame| grant(&frame.application("Key"), &frame.application("Verb")))
        .map(|grant| (grant, ()))
        .collect()
}

fn grant(key: &str, verb: &str) -> Option<Grant> {
    let parts: Vec<&str> = key.strip_prefix('/')?.split('/').collect();
    let [group, version, resource, _, _] = parts[..] else { return None };
    let group = if group == "core" { "" } else { group };
    let verb = if verb == "updatestatus" { "update" } else { verb };
    Some(Grant {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        verb: verb.to_owned(),
    })
}
