//! Parses a transcript.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Event, LINE_LEN_MAX, LINES_MAX, Line, Transcript, TranscriptError, Verb, nodes};
use crate::frame::Frame;

/// Parses the text of a transcript.
pub(super) fn transcript(text: &str) -> Result<Transcript, TranscriptError> {
    let mut parser = TranscriptParser::default();
    let whole = text.is_empty() || text.ends_with('\n');
    let mut lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()).peekable();
    while let Some((index, text)) = lines.next() {
        let may_be_cut = !whole && lines.peek().is_none();
        parser.take(index + 1, text, may_be_cut)?;
    }
    parser.finish()
}

#[derive(Default)]
struct TranscriptParser {
    header: Option<Map<String, Value>>,
    lines: Vec<Line>,
    nodes: BTreeMap<u64, String>,
    cut: Option<usize>,
}

impl TranscriptParser {
    /// Takes one line. The last line of a file may be incomplete.
    fn take(&mut self, number: usize, text: &str, may_be_cut: bool) -> Result<(), TranscriptError> {
        if text.len() > LINE_LEN_MAX {
            let problem = format!("the line has {} bytes; the maximum is {LINE_LEN_MAX}", text.len());
            return Err(TranscriptError { line: number, column: LINE_LEN_MAX, problem });
        }
        if self.lines.len() >= LINES_MAX {
            return Err(fault(number, text, "a transcript has at most a million lines; split it into files"));
        }
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) if may_be_cut && self.header.is_some() && error.is_eof() => {
                self.cut = Some(number);
                return Ok(());
            }
            Err(error) => return Err(no_json(number, &error)),
        };
        let Value::Object(members) = value else {
            return Err(fault(number, text, "this is not a JSON object"));
        };
        if self.header.is_some() {
            return self.line(number, text, members);
        }
        if members.contains_key("dir") {
            let problem =
                "this is not a header: the first line must be an object with \"node\", the name of the node";
            return Err(fault(number, text, problem).at(text, "dir"));
        }
        self.header = Some(members);
        Ok(())
    }

    fn line(
        &mut self,
        number: usize,
        text: &str,
        members: Map<String, Value>,
    ) -> Result<(), TranscriptError> {
        let node = members.get("node").and_then(Value::as_str).map(str::to_owned);
        let line = parse(number, members)
            .map_err(|(member, problem)| fault(number, text, &problem).at(text, member))?;
        if let (Some(conn), Some(node)) = (line.conn, node)
            && self.nodes.insert(conn, node.clone()).is_some_and(|known| known != node)
        {
            let problem = "a connection belongs to one node; an earlier line names a different one";
            return Err(fault(number, text, problem).at(text, "node"));
        }
        self.lines.push(line);
        Ok(())
    }

    fn finish(mut self) -> Result<Transcript, TranscriptError> {
        let header = self.header.ok_or_else(|| fault(1, "", "the header is missing: the file is empty"))?;
        let named = header.get("node").and_then(Value::as_str).filter(|name| !name.is_empty());
        nodes::infer(&self.lines, named, &mut self.nodes);
        let node = named.map(str::to_owned).or_else(|| self.nodes.values().next().cloned());
        let node = node.ok_or_else(|| {
            fault(1, "", "the header needs \"node\", the name of the node, and no frame names one")
        })?;
        let nodes = self.nodes;
        for line in &mut self.lines {
            let named = line.conn.and_then(|conn| nodes.get(&conn)).unwrap_or(&node);
            if let Event::Up(frame) | Event::Down(frame) = &mut line.event {
                as_on_the_wire(frame, named);
            }
        }
        Ok(Transcript { header, node, nodes, lines: self.lines, cut: self.cut, forgotten: 0 })
    }
}

/// A recorder inside a KubeEdge cloud sees paths that begin with `node/NAME`. This prefix never crosses the wire
/// (docs/reference/kubeedge.md#resource-paths).
fn as_on_the_wire(frame: &mut Frame, node: &str) {
    let inside =
        frame.resource().strip_prefix("node/").and_then(|rest| rest.strip_prefix(node)?.strip_prefix('/'));
    if let Some(path) = inside.filter(|_| !frame.is_tombolo()).map(str::to_owned) {
        frame.as_json_mut()["route"]["resource"] = path.into();
    }
}

fn fault(line: usize, text: &str, problem: &str) -> TranscriptError {
    let column = text.len() - text.trim_start().len() + 1;
    TranscriptError { line, column, problem: problem.to_owned() }
}

impl TranscriptError {
    /// The same error at a member of the line, if the line has it.
    fn at(mut self, text: &str, member: &str) -> Self {
        if let Some(found) = text.find(&format!("\"{member}\"")) {
            self.column = found + 1;
        }
        self
    }
}

/// The library's text ends with the position, but only its column is meaningful here.
fn no_json(line: usize, error: &serde_json::Error) -> TranscriptError {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    TranscriptError { line, column: error.column(), problem: format!("this is not JSON: {what}") }
}

/// Parses one line. The error has the member that is wrong, and the reason.
fn parse(number: usize, mut members: Map<String, Value>) -> Result<Line, (&'static str, String)> {
    let at_us = match members.get("at_us") {
        None => 0,
        Some(value) => {
            value.as_u64().ok_or(("at_us", "\"at_us\" must be a number of microseconds".to_owned()))?
        }
    };
    let conn = match members.get("conn") {
        None | Some(Value::Null) => None,
        Some(value) => {
            Some(value.as_u64().ok_or(("conn", "\"conn\" must be the number of a connection".to_owned()))?)
        }
    };
    let frame = members.remove("frame").map(Frame::new);
    let frame = || frame.ok_or(("frame", "\"frame\" is missing: the message".to_owned()));
    let event = match members.get("dir").and_then(Value::as_str).unwrap_or_default() {
        "up" => Event::Up(frame()?),
        "down" => Event::Down(frame()?),
        "api" => change(members)?,
        other => return Err(("dir", format!("\"dir\" must be \"up\", \"down\" or \"api\", not {other:?}"))),
    };
    if conn.is_none() && !matches!(event, Event::Api(..)) {
        return Err(("conn", "\"conn\" is missing: the number of the connection".to_owned()));
    }
    Ok(Line { number, at_us, conn, event })
}

fn change(mut members: Map<String, Value>) -> Result<Event, (&'static str, String)> {
    let verb = match members.get("verb").and_then(Value::as_str) {
        Some("create") => Verb::Create,
        Some("update") => Verb::Update,
        Some("delete") => Verb::Delete,
        _ => return Err(("verb", "\"verb\" must be \"create\", \"update\" or \"delete\"".to_owned())),
    };
    match members.remove("object") {
        Some(object @ Value::Object(_)) => Ok(Event::Api(verb, object)),
        _ => Err(("object", "\"object\" must be an object".to_owned())),
    }
}
