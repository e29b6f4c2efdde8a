//! Checks the hollow node itself: it plays against the cloud of a transcript, and its messages are compared with those
//! of the recorded KubeEdge edge.
//!
//! A request must occur once for each connection in which KubeEdge sent it, with the same meaning. How often a kubelet
//! reports or renews is not compared. Every recorded acknowledgement must occur, and no request that KubeEdge never
//! made.

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
use super::{KubeEdgeNode, Pace};

/// Longest wait for a message that KubeEdge sent at some point.
const PATIENCE: Duration = Duration::from_secs(5);

/// Size of the pipe between node and cloud, in bytes.
const PIPE: usize = 64 * 1024;

/// One recorded frame.
#[derive(Debug, Clone)]
pub struct Line {
    /// Number of its connection in the transcript.
    pub connection: u64,
    /// Whether the edge sent it.
    pub up: bool,
    /// The message.
    pub frame: Value,
}

/// Reads a transcript. Returns the node's name and the frames.
///
/// # Errors
/// When the file is not a transcript.
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
/// The first difference between the record and the node's messages or rows.
pub async fn play(name: &str, lines: &[Line]) -> Result<()> {
    let (give, mut given) = mpsc::channel(1);
    let mut node = KubeEdgeNode::over(name, in_memory(give));
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
        ensure!(kept == recorded, "the rows are {kept:?}, but {recorded:?} in the record");
        Ok(())
    })
}

/// Types of rows that are compared at the end.
const KEPT: [&str; 4] = ["node", "pod", "configmap", "secret"];

/// Paths of the rows that remain at the end, according to the cloud's messages.
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

/// Dials by creating a pipe whose other end it sends to the recorded cloud.
fn in_memory(give: mpsc::Sender<DuplexStream>) -> Dial {
    Arc::new(move || {
        let give = give.clone();
        async move {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            give.send(theirs).await.ok().context("the recorded cloud has ended")?;
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
    /// Requests of the node that match no recorded request yet.
    asked: Vec<Value>,
    /// Received acknowledgements, by the id of the acknowledged message.
    acked: HashMap<String, Value>,
    /// Id of the node's request for each recorded request.
    stands_for: HashMap<String, String>,
    /// Subjects of the node's requests, by id.
    subjects: HashMap<String, Subject>,
    /// The last recorded answer to each request.
    answers: HashMap<Subject, Value>,
    /// Recorded requests that are still expected.
    ahead: BTreeMap<Subject, usize>,
    /// Requests that the node has made.
    met: HashSet<Subject>,
    /// Recorded frames that were not sent, because the node did not make the request.
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

    async fn play(mut self, node: &KubeEdgeNode, lines: &[&Line]) -> Result<()> {
        for Line { up, frame, .. } in lines {
            match (up, route(frame, "operation"), route(frame, "source")) {
                (true, "keepalive", _) => {}
                (true, "response", _) => self.expect_acknowledgement(frame).await?,
                (true, _, "edged") => self.expect_request(frame).await?,
                // From modules that the node does not have: the recorded message is used.
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

    /// Sends a recorded frame of the cloud, unless it answers a request that the node did not make.
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
            self.receive(until).await.with_context(|| format!("KubeEdge acknowledged here: {recorded}"))?;
        }
        let (said, meant) = (&self.acked[parent], &recorded["route"]);
        ensure!(
            said["route"] == *meant && said["content"] == recorded["content"],
            "{said}, and kubeedge: {recorded}"
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
                    self.receive(until).await.with_context(|| format!("KubeEdge asked here: {recorded}"))?;
                }
                found => break found,
            }
        };
        if let Some(left) = self.ahead.get_mut(&subject) {
            *left -= 1;
        }
        if let Some(position) = position {
            let asked = self.asked.remove(position);
            ensure!(meaning(&asked) == meaning(recorded), "{asked}, and kubeedge: {recorded}");
            self.stands_for.insert(id(recorded).to_owned(), id(&asked).to_owned());
            self.subjects.insert(id(&asked).to_owned(), subject.clone());
            self.met.insert(subject);
        }
        Ok(())
    }

    /// Receives the node's next frame; keepalives do not prolong the wait.
    async fn receive(&mut self, until: Instant) -> Result<()> {
        let received = tokio::time::timeout_at(until, self.socket.next()).await;
        let received =
            received.with_context(|| format!("the node sent nothing more; unanswered: {:?}", self.asked))?;
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

    /// Repeats the last answer for requests that KubeEdge made less often.
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
            Some(asked) => bail!("KubeEdge never asked {asked}"),
            None => Ok(()),
        }
    }
}

fn id(frame: &Value) -> &str {
    frame["header"]["msg_id"].as_str().unwrap_or_default()
}

/// The part that must be equal in two requests: everything except times and the content of the kubelet's reports.
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
