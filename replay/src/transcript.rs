//! Transcripts: JSON lines of what two peers said, and of what the Kubernetes API saw meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::frame::Frame;

/// Longest transcript that is read, in lines: beyond that a recording is cut into files.
pub const LINES_MAX: usize = 1_000_000;

/// A transcript that cannot be read: which line, what is wrong with it, and what is expected there.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {problem}")]
pub struct TranscriptError {
    /// Line of the file, the first is 1.
    pub line: usize,
    problem: String,
}

/// What happened to an object in the Kubernetes API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// It came into being.
    Create,
    /// It got another content.
    Update,
    /// It is gone.
    Delete,
}

impl Verb {
    /// The word in a transcript.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// What one line tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The edge said something.
    Up(Frame),
    /// The cloud said something.
    Down(Frame),
    /// The Kubernetes API saw a change.
    Api(Verb, Value),
}

/// One line of a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Line of the file, the first is 1; 0 for lines that were derived.
    pub number: usize,
    /// Microseconds since the recording began.
    pub at_us: u64,
    /// Which connection of the node; changes of the API belong to none.
    pub conn: Option<u64>,
    /// What happened.
    pub event: Event,
}

/// A recording of one node, or of several: then the lines of their connections name them.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The first line, as it is.
    pub header: Map<String, Value>,
    /// Name of the node; of the first one where there are several.
    pub node: String,
    /// Nodes of connections that are not that node's.
    pub nodes: BTreeMap<u64, String>,
    /// Everything after the header.
    pub lines: Vec<Line>,
}

impl Transcript {
    /// Reads the text of a transcript.
    ///
    /// # Errors
    /// [`TranscriptError`] names the line.
    pub fn parse(text: &str) -> Result<Self, TranscriptError> {
        let fault = |line, problem: &str| TranscriptError { line, problem: problem.to_owned() };
        let mut header: Option<Map<String, Value>> = None;
        let mut lines = Vec::new();
        let mut nodes = BTreeMap::new();
        for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let number = index + 1;
            if lines.len() >= LINES_MAX {
                return Err(fault(number, "a transcript has at most a million lines; cut it into files"));
            }
            let value: Value =
                serde_json::from_str(text).map_err(|error| fault(number, &format!("is no JSON: {error}")))?;
            let Value::Object(members) = value else {
                return Err(fault(number, "is no JSON object"));
            };
            if header.is_none() {
                header = Some(members);
                continue;
            }
            let node = members.get("node").and_then(Value::as_str).map(str::to_owned);
            let line = parse_line(number, members).map_err(|text| fault(number, &text))?;
            if let (Some(conn), Some(node)) = (line.conn, node)
                && nodes.insert(conn, node.clone()).is_some_and(|known| known != node)
            {
                return Err(fault(number, "a connection is that of one node, \"node\" names another"));
            }
            lines.push(line);
        }
        let header = header.ok_or_else(|| fault(1, "a header is missing: the file is empty"))?;
        let named = header.get("node").and_then(Value::as_str).filter(|name| !name.is_empty());
        let node = named.map(str::to_owned).or_else(|| nodes.values().next().cloned());
        let node = node.ok_or_else(|| fault(1, "the header needs \"node\", the name of the node"))?;
        Ok(Self { header, node, nodes, lines })
    }

    /// The node of a connection.
    #[must_use]
    pub fn node_of(&self, conn: u64) -> &str {
        self.nodes.get(&conn).unwrap_or(&self.node)
    }

    /// The names of all nodes.
    pub fn all_nodes(&self) -> impl Iterator<Item = &str> {
        let conns = self.lines.iter().filter_map(|line| line.conn);
        let all: BTreeSet<&str> = conns.map(|conn| self.node_of(conn)).collect();
        all.into_iter()
    }

    /// Whether the recorder saw the Kubernetes API.
    #[must_use]
    pub fn has_api_lines(&self) -> bool {
        self.lines.iter().any(|line| matches!(line.event, Event::Api(..)))
    }

    /// The text of this transcript, with derived lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = Value::Object(self.header.clone()).to_string();
        text.push('\n');
        for line in &self.lines {
            let mut json = line.to_json();
            if let Some(node) = line.conn.and_then(|conn| self.nodes.get(&conn)) {
                json["node"] = node.as_str().into();
            }
            text.push_str(&json.to_string());
            text.push('\n');
        }
        text
    }
}

impl Line {
    /// The line as it is written.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = match &self.event {
            Event::Up(frame) => json!({"dir": "up", "frame": frame.as_json()}),
            Event::Down(frame) => json!({"dir": "down", "frame": frame.as_json()}),
            Event::Api(verb, object) => json!({"dir": "api", "verb": verb.word(), "object": object}),
        };
        json["at_us"] = self.at_us.into();
        if let Some(conn) = self.conn {
            json["conn"] = conn.into();
        }
        json
    }
}

fn parse_line(number: usize, mut members: Map<String, Value>) -> Result<Line, String> {
    let at_us = match members.get("at_us") {
        None => 0,
        Some(value) => value.as_u64().ok_or("\"at_us\" must be a number of microseconds")?,
    };
    let conn = match members.get("conn") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_u64().ok_or("\"conn\" must be the number of a connection")?),
    };
    let direction = members.get("dir").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut take = |name: &str| match members.remove(name) {
        Some(value @ Value::Object(_)) => Ok(value),
        _ => Err(format!("\"{name}\" must be an object where \"dir\" is \"{direction}\"")),
    };
    let event = match direction.as_str() {
        "up" => Event::Up(Frame::new(take("frame")?)),
        "down" => Event::Down(Frame::new(take("frame")?)),
        "api" => {
            let object = take("object")?;
            let verb = match members.get("verb").and_then(Value::as_str) {
                Some("create") => Verb::Create,
                Some("update") => Verb::Update,
                Some("delete") => Verb::Delete,
                _ => return Err("\"verb\" must be \"create\", \"update\" or \"delete\"".to_owned()),
            };
            Event::Api(verb, object)
        }
        other => return Err(format!("\"dir\" must be \"up\", \"down\" or \"api\", not {other:?}")),
    };
    if conn.is_none() && !matches!(event, Event::Api(..)) {
        return Err("\"conn\" is missing: the number of the connection".to_owned());
    }
    Ok(Line { number, at_us, conn, event })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_line() {
        let header = "{\"node\":\"a\"}\n";
        for (text, wanted) in [
            ("", "line 1: a header is missing: the file is empty"),
            ("{}", "line 1: the header needs \"node\", the name of the node"),
            (&format!("{header}[]"), "line 2: is no JSON object"),
            (
                &format!("{header}\n{{\"dir\":\"left\"}}"),
                "line 3: \"dir\" must be \"up\", \"down\" or \"api\", not \"left\"",
            ),
            (
                &format!("{header}{{\"dir\":\"up\",\"frame\":{{}}}}"),
                "line 2: \"conn\" is missing: the number of the connection",
            ),
            (
                &format!("{header}{{\"dir\":\"api\",\"object\":{{}}}}"),
                "line 2: \"verb\" must be \"create\", \"update\" or \"delete\"",
            ),
            (
                &format!("{header}{{\"dir\":\"down\",\"conn\":1}}"),
                "line 2: \"frame\" must be an object where \"dir\" is \"down\"",
            ),
        ] {
            assert_eq!(Transcript::parse(text).expect_err(text).to_string(), wanted);
        }
    }

    #[test]
    fn a_transcript_is_written_as_it_was_read() {
        let text = "{\"node\":\"a\"}\n{\"at_us\":1,\"conn\":1,\"dir\":\"up\",\"frame\":{}}\n{\"at_us\":2,\"dir\":\"api\",\"object\":{},\"verb\":\"create\"}\n";
        let transcript = Transcript::parse(text).expect("a transcript");
        assert!(transcript.has_api_lines());
        assert_eq!(Transcript::parse(&transcript.to_text()).expect("again"), transcript);
    }
}
