//! Transcripts: JSON lines of what two peers sent, and of the Kubernetes API changes in between.

mod nodes;
mod order;
mod parse;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::frame::Frame;

/// Maximum number of lines of a transcript; longer recordings are cut into several files.
pub const LINES_MAX: usize = 1_000_000;

/// Maximum length of a line in bytes: twice the largest message of either dialect.
pub const LINE_LEN_MAX: usize = 64 * 1024 * 1024;

/// A transcript that cannot be read: the position, what is wrong there, and what is expected.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}, column {column}: {problem}")]
pub struct TranscriptError {
    /// Line of the file, starting at 1.
    pub line: usize,
    /// Byte of the line, starting at 1.
    pub column: usize,
    problem: String,
}

/// What happened to an object in the Kubernetes API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The object was created.
    Create,
    /// The object was changed.
    Update,
    /// The object was deleted.
    Delete,
}

impl Verb {
    /// The keyword in a transcript.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// The content of one line.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The edge sent a message.
    Up(Frame),
    /// The cloud sent a message.
    Down(Frame),
    /// The Kubernetes API saw a change.
    Api(Verb, Value),
}

/// One line of a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Line of the file, starting at 1; 0 for derived lines.
    pub number: usize,
    /// Microseconds since the recording began.
    pub at_us: u64,
    /// Connection of the node; `None` for changes of the API.
    pub conn: Option<u64>,
    /// What happened.
    pub event: Event,
}

/// A recording of one node, or of several. With several, the lines of their connections name the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The first line, unchanged.
    pub header: Map<String, Value>,
    /// Name of the node; of the first one if there are several.
    pub node: String,
    /// Nodes of connections that belong to other nodes.
    pub nodes: BTreeMap<u64, String>,
    /// Everything after the header.
    pub lines: Vec<Line>,
    /// The last line of the file if the recording ended in the middle of it; that line is left out.
    pub cut: Option<usize>,
    /// Number of frames whose objects were completed, because the recorded cloud's types lack members.
    pub(crate) forgotten: usize,
}

impl Transcript {
    /// Reads the text of a transcript.
    ///
    /// # Errors
    /// [`TranscriptError`] names the line.
    pub fn parse(text: &str) -> Result<Self, TranscriptError> {
        parse::transcript(text)
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

    /// The text of this transcript, including derived lines.
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
    /// The line as it is written to a file.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_line() {
        let header = "{\"node\":\"a\"}\n";
        let huge = "x".repeat(LINE_LEN_MAX + 1);
        for (text, wanted) in [
            ("", "line 1, column 1: the header is missing: the file is empty"),
            (
                "{}\n",
                "line 1, column 1: the header needs \"node\", the name of the node, and no frame names one",
            ),
            ("{\"node\":\n", "line 1, column 8: this is not JSON: EOF while parsing a value"),
            (&format!("{header}[]\n"), "line 2, column 1: this is not a JSON object"),
            (
                &format!("{header}{{\"dir\":up}}\n{header}"),
                "line 2, column 8: this is not JSON: expected value",
            ),
            (
                "{\"dir\":\"up\",\"conn\":1,\"frame\":{}}\n",
                "line 1, column 2: this is not a header: the first line must be an object with \"node\", the name of the node",
            ),
            (
                &format!("{header}\n{{\"dir\":\"left\"}}"),
                "line 3, column 2: \"dir\" must be \"up\", \"down\" or \"api\", not \"left\"",
            ),
            (
                &format!("{header}{{\"dir\":\"up\",\"frame\":{{}}}}"),
                "line 2, column 1: \"conn\" is missing: the number of the connection",
            ),
            (
                &format!("{header}{{\"dir\":\"api\",\"object\":{{}}}}"),
                "line 2, column 1: \"verb\" must be \"create\", \"update\" or \"delete\"",
            ),
            (
                &format!("{header}{{\"dir\":\"api\",\"verb\":\"create\",\"object\":7}}"),
                "line 2, column 30: \"object\" must be an object",
            ),
            (
                &format!("{header}{{\"dir\":\"down\",\"conn\":1}}"),
                "line 2, column 1: \"frame\" is missing: the message",
            ),
            (
                &format!("{header}{huge}\n"),
                "line 2, column 67108864: the line has 67108865 bytes; the maximum is 67108864",
            ),
        ] {
            let error = Transcript::parse(text).expect_err(wanted);
            assert_eq!(error.to_string(), wanted);
        }
    }

    #[test]
    fn a_transcript_is_written_as_it_was_read() {
        let text = "{\"node\":\"a\"}\n{\"at_us\":1,\"conn\":1,\"dir\":\"up\",\"frame\":{}}\n{\"at_us\":2,\"dir\":\"api\",\"object\":{},\"verb\":\"create\"}\n";
        let transcript = Transcript::parse(text).expect("a transcript");
        assert!(matches!(transcript.lines[1].event, Event::Api(..)));
        assert_eq!(Transcript::parse(&transcript.to_text()).expect("again"), transcript);
    }
    #[test]
    fn paths_inside_of_a_kubeedge_cloud_are_read_as_those_on_the_wire() {
        let line = |resource: &str| {
            let frame = json!({"header": {"msg_id": "a"}, "route": {"resource": resource}, "content": null});
            json!({"at_us": 1, "conn": 1, "dir": "down", "frame": frame}).to_string()
        };
        for (recorded, read) in [
            ("node/a/default/endpointslice/echo", "default/endpointslice/echo"),
            ("node/a/ignore/Application/ignore", "ignore/Application/ignore"),
            ("null/node/a", "null/node/a"),
            ("node/b/default/pod/p", "node/b/default/pod/p"),
            ("node", "node"),
        ] {
            let text = [json!({"node": "a"}).to_string(), line(recorded)].join("\n");
            let transcript = Transcript::parse(&text).expect("a transcript");
            let Event::Down(frame) = &transcript.lines[0].event else { panic!("a frame") };
            assert_eq!(frame.resource(), read);
        }
    }

    #[test]
    fn a_recording_may_end_in_the_middle_of_a_line() {
        let whole = "{\"node\":\"a\"}\n{\"conn\":1,\"dir\":\"up\",\"frame\":{}}\n";
        let transcript =
            Transcript::parse(&format!("{whole}{{\"conn\":1,\"dir\":\"do")).expect("a transcript");
        assert_eq!((transcript.lines.len(), transcript.cut), (1, Some(3)));
        let transcript = Transcript::parse(whole).expect("a transcript");
        assert_eq!((transcript.lines.len(), transcript.cut), (1, None));
    }

    #[test]
    fn non_message_line_is_a_frame() {
        let text = "{\"node\":\"a\"}\n{\"conn\":1,\"dir\":\"up\",\"frame\":\"GET /\"}\n";
        let transcript = Transcript::parse(text).expect("a transcript");
        assert_eq!(transcript.lines[0].event, Event::Up(Frame::new("GET /".into())));
    }

    #[test]
    fn connections_belong_to_the_node_that_their_frames_name() {
        let line = |conn: u64, resource: &str, node: &str| {
            format!(
                "{{\"conn\":{conn},\"dir\":\"up\",\"frame\":{{\"route\":{{\"resource\":{resource:?}}}}}{node}}}\n"
            )
        };
        let text = format!(
            "{{}}\n{}{}{}{}",
            line(1, "node", ""),
            line(1, "null/node/a", ""),
            line(2, "kube-node-lease/lease/b", ""),
            line(3, "default/nodepatch/b", ",\"node\":\"c\"")
        );
        let transcript = Transcript::parse(&text).expect("a transcript");
        assert_eq!((transcript.node_of(1), transcript.node_of(2), transcript.node_of(3)), ("a", "b", "c"));
        let other = Transcript::parse(&text.replacen("{}", "{\"node\":\"b\"}", 1)).expect("a transcript");
        assert_eq!((other.node_of(1), other.node_of(2), other.node_of(3)), ("a", "b", "c"));
    }
}
