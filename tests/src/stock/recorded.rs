//! The check of the hollow node itself: it plays against the cloud of a transcript, and what it says is compared with what
//! the recorded stock edge said.
//!
//! A request must come once for each connection in which stock sent it, with the same meaning; how often a kubelet reports
//! or renews is its own affair. Every recorded acknowledgement must come, and no request that stock never made.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::dial::{Dial, Stream};
use super::wire::{kind, route};
use super::{Pace, StockNode};

/// Longest wait for what stock said at a point.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes under way between node and cloud.
const PIPE: usize = 64 * 1024;

/// One recorded frame.
#[derive(Debug, Clone)]
pub struct Line {
    /// Number of its connection.
    pub connection: u64,
    /// Whether the edge sent it.
    pub up: bool,
    /// The message.
    pub frame: Value,
}

/// Reads a transcript: the node's name, and its frames.
///
/// # Errors
/// When the file is no transcript.
pub fn read(path: &Path) -> Result<(String, Vec<Line>)> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let (header, lines) = lines.split_first().context("an empty file")?;
    let node = header["node"].as_str().context("the header names no node")?;
    let lines = lines.iter().filter(|line| line["frame"]["route"]["operation"].is_string());
    let line = |line: &Value| Line {
        connection: line["conn"].as_u64().unwrap_or_default(),
        up: line["dir"] == "up",
        frame: line["frame"].clone(),
    };
    Ok((node.to_owned(), lines.map(line).collect()))
}

/// Plays a node through all connections of a transcript, with a new process for each.
///
/// # Errors
/// The first difference between what the node says, or keeps, and the record.
pub async fn play(name: &str, lines: &[Line]) -> Result<()> {
    let (give, mut given) = mpsc::channel(1);
    let mut node = StockNode::over(name, in_memory(give));
    node.pace = Pace { lease: Duration::from_millis(200), ..Pace::QUICK };
    let connections: HashSet<u64> = lines.iter().map(|line| line.connection).collect();
    for number in 1..=connections.len() as u64 {
        let lines: Vec<&Line> = lines.iter().filter(|line| line.connection == number).collect();
        let accept = async {
            tokio_tungstenite::accept_async(given.recv().await.context("no dial")?)
                .await
                .map_err(anyhow::Error::from)
        };
        let (booted, socket) = tokio::join!(node.boot(), accept);
        booted?;
        Cloud::new(socket?, &lines)
            .play(&node, &lines)
            .await
            .with_context(|| format!("connection {number}"))?;
        node.disconnect();
    }
    node.look(|store| {
        ensure!(store.harms.is_empty(), "{:?}", store.harms);
        let kept: Vec<&str> =
            KEPT.iter().flat_map(|kind| store.of_kind(kind).map(|(path, _)| path)).collect();
        let recorded = rows(lines);
        let recorded: Vec<&str> = KEPT
            .iter()
            .flat_map(|each| recorded.iter().filter(move |row| kind(row) == *each))
            .map(String::as_str)
            .collect();
        ensure!(kept == recorded, "rows {kept:?}, by the record {recorded:?}");
        Ok(())
    })
}

/// Types of rows that are compared at the end.
const KEPT: [&str; 4] = ["node", "pod", "configmap", "secret"];

/// Paths that are left at the end, by what the cloud sent.
fn rows(lines: &[Line]) -> std::collections::BTreeSet<String> {
    let mut rows = std::collections::BTreeSet::new();
    for Line { frame, .. } in lines.iter().filter(|line| !line.up) {
        let (operation, path) = (route(frame, "operation"), route(frame, "resource").to_owned());
        if operation == "delete" {
            rows.remove(&path);
        } else if matches!(operation, "insert" | "update" | "response") && frame["content"] != "OK" {
            rows.insert(path);
        }
    }
    rows
}

/// Dials that end in a pipe whose other end is given away.
fn in_memory(give: mpsc::Sender<DuplexStream>) -> Dial {
    Arc::new(move || {
        let give = give.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            give.send(theirs).await.ok().context("the cloud is gone")?;
            let ours: Box<dyn Stream> = Box::new(ours);
            Ok(tokio_tungstenite::client_async("ws://cloud/", ours).await?.0)
        }
        .boxed()
    })
}

/// Operation and resource of a request.
type Subject = (String, String);

fn subject(frame: &Value) -> Subject {
    (route(frame, "operation").to_owned(), route(frame, "resource").to_owned())
}

/// The recorded cloud of one connection.
struct Cloud {
    socket: WebSocketStream<DuplexStream>,
    /// Requests of the node that no recorded one stands for yet.
    asked: Vec<Value>,
    /// Acknowledgements that came, by what they acknowledge.
    acked: HashMap<String, Value>,
    /// Id of the node's request for each recorded one.
    stands_for: HashMap<String, String>,
    /// What the node's requests are about, by id.
    subjects: HashMap<String, Subject>,
    /// The last recorded answer to each request.
    answers: HashMap<Subject, Value>,
    /// Recorded requests that are still to come.
    ahead: BTreeMap<Subject, usize>,
    /// Requests that the node has made.
    met: HashSet<Subject>,
    /// Recorded frames that were not sent, because the node did not ask.
    skipped: HashSet<String>,
}

impl Cloud {
    fn new(socket: WebSocketStream<DuplexStream>, lines: &[&Line]) -> Self {
        let mut ahead = BTreeMap::new();
        for line in lines.iter().filter(|line| line.up && route(&line.frame, "source") == "edged") {
            *ahead.entry(subject(&line.frame)).or_default() += 1;
        }
        Self {
            socket,
            asked: Vec::new(),
            acked: HashMap::new(),
            stands_for: HashMap::new(),
            subjects: HashMap::new(),
            answers: HashMap::new(),
            ahead,
            met: HashSet::new(),
            skipped: HashSet::new(),
        }
    }

    async fn play(mut self, node: &StockNode, lines: &[&Line]) -> Result<()> {
        for Line { up, frame, .. } in lines {
            match (up, route(frame, "operation"), route(frame, "source")) {
                (true, "keepalive", _) => {}
                (true, "response", _) => self.expect_acknowledgement(frame).await?,
                (true, _, "edged") => self.expect_request(frame).await?,
                // Parts of the edge that the node does not have: the record speaks for them.
                (true, ..) => {
                    let id = id(frame).to_owned();
                    self.stands_for.insert(id.clone(), id);
                    node.say(frame.clone()).await?;
                }
                (false, ..) => self.send(frame).await?,
            }
        }
        Ok(())
    }

    /// Sends what the recorded cloud sent, unless it answers what the node did not ask.
    async fn send(&mut self, frame: &Value) -> Result<()> {
        let mut frame = frame.clone();
        if let Some(parent) = frame["header"]["parent_msg_id"].as_str().map(str::to_owned) {
            let Some(asked) = self.stands_for.get(&parent) else {
                self.skipped.insert(id(&frame).to_owned());
                return Ok(());
            };
            if let Some(subject) = self.subjects.get(asked) {
                self.answers.insert(subject.clone(), frame.clone());
            }
            frame["header"]["parent_msg_id"] = asked.as_str().into();
        }
        Ok(self.socket.send(Message::text(frame.to_string())).await?)
    }

    async fn expect_acknowledgement(&mut self, recorded: &Value) -> Result<()> {
        let parent = recorded["header"]["parent_msg_id"].as_str().unwrap_or_default();
        if self.skipped.contains(parent) {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        while !self.acked.contains_key(parent) {
            self.receive(until).await.with_context(|| format!("stock acknowledged here: {recorded}"))?;
        }
        let (said, meant) = (&self.acked[parent], &recorded["route"]);
        ensure!(
            said["route"] == *meant && said["content"] == recorded["content"],
            "{said}, and stock: {recorded}"
        );
        Ok(())
    }

    async fn expect_request(&mut self, recorded: &Value) -> Result<()> {
        let subject = subject(recorded);
        let again = self.met.contains(&subject);
        let same = |asked: &Value| self::subject(asked) == subject;
        let until = Instant::now() + PATIENCE;
        let position = loop {
            match self.asked.iter().position(same) {
                None if !again => {
                    self.receive(until).await.with_context(|| format!("stock asked here: {recorded}"))?;
                }
                found => break found,
            }
        };
        if let Some(left) = self.ahead.get_mut(&subject) {
            *left -= 1;
        }
        if let Some(position) = position {
            let asked = self.asked.remove(position);
            ensure!(meaning(&asked) == meaning(recorded), "{asked}, and stock: {recorded}");
            self.stands_for.insert(id(recorded).to_owned(), id(&asked).to_owned());
            self.subjects.insert(id(&asked).to_owned(), subject.clone());
            self.met.insert(subject);
        }
        Ok(())
    }

    /// Takes the node's next frame; keepalives alone do not prolong the wait.
    async fn receive(&mut self, until: Instant) -> Result<()> {
        let received = tokio::time::timeout_at(until, self.socket.next()).await;
        let received =
            received.with_context(|| format!("the node said nothing more; unanswered: {:?}", self.asked))?;
        let Message::Text(text) = received.context("the node hung up")?? else { return Ok(()) };
        let frame: Value = serde_json::from_str(&text)?;
        match (route(&frame, "operation"), frame["header"]["parent_msg_id"].as_str()) {
            ("keepalive", _) => {}
            ("response", Some(parent)) => drop(self.acked.insert(parent.to_owned(), frame)),
            _ if route(&frame, "source") != "edged" => {}
            _ => self.asked.push(frame),
        }
        self.answer_surplus().await
    }

    /// Answers requests that stock made less often as it was answered last.
    async fn answer_surplus(&mut self) -> Result<()> {
        let (surplus, waiting) =
            std::mem::take(&mut self.asked).into_iter().partition::<Vec<_>, _>(|asked| {
                let subject = subject(asked);
                self.ahead.get(&subject).is_none_or(|left| *left == 0) && self.answers.contains_key(&subject)
            });
        self.asked = waiting;
        for asked in surplus {
            let mut answer = self.answers[&subject(&asked)].clone();
            answer["header"]["msg_id"] = format!("again-{}", id(&asked)).into();
            answer["header"]["parent_msg_id"] = asked["header"]["msg_id"].clone();
            self.socket.send(Message::text(answer.to_string())).await?;
        }
        match self.asked.iter().find(|asked| !self.ahead.contains_key(&subject(asked))) {
            Some(asked) => bail!("stock never asked {asked}"),
            None => Ok(()),
        }
    }
}

fn id(frame: &Value) -> &str {
    frame["header"]["msg_id"].as_str().unwrap_or_default()
}

/// What must be the same in two requests: everything but times, and what the kubelet has to report.
fn meaning(frame: &Value) -> Value {
    let (content, operation) = (&frame["content"], route(frame, "operation"));
    let fields = |value: &Value| -> Vec<String> {
        value.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
    };
    let patch: Value = content.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let content = match (operation, kind(route(frame, "resource"))) {
        ("patch", _) => json!([patch.is_object(), patch["metadata"]]),
        (_, "node") => json!([fields(content), content["metadata"]["labels"], content["metadata"]["name"]]),
        ("insert", "lease") => json!([content["metadata"], fields(&content["spec"])]),
        (_, "lease") if !content.is_null() => json!([content["metadata"]["uid"], fields(&content["spec"])]),
        _ => content.clone(),
    };
    json!([frame["route"], content])
}
