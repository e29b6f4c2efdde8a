//! Conflicts of which a stock cloud tells the edge, and which our own settles by itself.

use super::Matcher;
use crate::frame::{Ask, Frame};
use crate::identifiers::Sort;
use crate::transcript::Event;
use crate::value::version;

impl Matcher<'_> {
    /// Whether the recorded cloud told the edge of a conflict, and then did what the edge asked once more, while the run's has done
    /// it at once: of the same object, as far as that is known.
    pub(super) fn is_settled(&self, asked: usize, request: &Frame, recorded: &Frame, live: &Frame) -> bool {
        let conflict =
            recorded.status().is_some_and(|status| status["reason"] == "Conflict" && status["code"] == 409);
        let done = !live.is_refusal() && live.status().is_none();
        let Some(repeated) = self.repeated(asked, request) else { return false };
        let (one, other) = (repeated.objects(), live.objects());
        let same = match (one.first().map(version), other.first().map(version)) {
            (Some((one, _)), Some((other, _))) => {
                self.identifiers.live(Sort::Uid, "", &one).is_none_or(|known| known == other)
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        request.ask() == Ask::Write && conflict && done && same
    }

    /// The answer to the same request of later on the connection, if that was done.
    fn repeated(&self, asked: usize, request: &Frame) -> Option<&Frame> {
        let lines = &self.transcript.lines;
        let same = |frame: &Frame| {
            let of_record = |name: &str| frame.content().get(name) == request.content().get(name);
            frame.operation() == request.operation()
                && frame.resource() == request.resource()
                && (request.source() != "metaserver"
                    || ["Verb", "Key", "Subresource"].into_iter().all(of_record))
        };
        let later = lines.get(asked + 1..)?.iter().filter(|line| line.conn == lines[asked].conn);
        let mut answers = later.filter_map(|line| match &line.event {
            Event::Up(frame) if same(frame) => self.recorded.answers.get(frame.id()).copied(),
            _ => None,
        });
        answers.find_map(|answer| match &lines[answer].event {
            Event::Down(frame) if !frame.is_refusal() && frame.status().is_none() => Some(frame),
            _ => None,
        })
    }
}
