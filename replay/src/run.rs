//! A run as it was, so that it can be judged again without repeating it.

use serde_json::Value;

use crate::frame::Frame;
use crate::matcher::{Difference, Matcher, Progress, Summary};
use crate::transcript::Transcript;

/// Something that happened in a run. Indices are those of the transcript's lines.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The request of a line was sent under this id.
    Sent(usize, String),
    /// The message of a line that is no message was sent as it is.
    SentEmpty,
    /// The request of a line was not sent: it needs a token that no recording has.
    Unsaid(usize),
    /// The change of a line was made; states of the object, the last is what the API holds.
    Applied(usize, Vec<Value>),
    /// The API was read after a write.
    Saw(Vec<Value>),
    /// The cluster has this object of its own.
    Own(Value),
    /// The cluster does not serve this kind.
    Unserved(String),
    /// The cluster does not serve a resource of which applications ask: group, version, plural.
    Undefined(String, String, String),
    /// The cloud refused what no node may do, and an administrator has done it: the answer that comes next is his.
    Restricted,
    /// The cloud has ended a connection.
    Ended(u64),
    /// The node of a connection has joined again before it.
    JoinedAgain(u64),
    /// The cloud said something on a connection.
    Received(u64, Frame),
    /// The frame of a line had come, or was excused.
    Settled(usize),
}

impl Matcher<'_> {
    /// Takes one happening. Tells whether the edge acknowledges what was received.
    ///
    /// # Errors
    /// The [`Difference`] that it shows.
    pub fn follow(&mut self, happening: Happening) -> Result<bool, Difference> {
        match happening {
            Happening::Sent(index, id) => self.sent(index, &id),
            Happening::SentEmpty => self.sent_empty(),
            Happening::Unsaid(index) => self.unsaid(index),
            Happening::Applied(index, states) => self.applied(index, &states),
            Happening::Saw(states) => self.saw(&states),
            Happening::Own(object) => self.own(&object),
            Happening::Unserved(kind) => self.unserved(&kind),
            Happening::Undefined(group, version, plural) => {
                return Ok(self.undefined(&group, &version, &plural));
            }
            Happening::Restricted => self.restricted(),
            Happening::Ended(conn) => self.ended(conn),
            Happening::JoinedAgain(conn) => return Ok(self.joined_again(conn)),
            Happening::Received(conn, frame) => return self.received(conn, frame),
            Happening::Settled(index) => {
                if self.settle(index)? == Progress::Waiting {
                    return Err(self.missing(index));
                }
            }
        }
        Ok(false)
    }
}

/// Judges a run by a transcript that may differ from the one that it was made with; `origin` is that one.
///
/// # Errors
/// The first [`Difference`].
pub fn judge(transcript: &Transcript, origin: &Transcript, run: &[Happening]) -> Result<Summary, Difference> {
    let mut matcher = Matcher::with_origin(transcript, origin)?;
    for happening in run {
        matcher.follow(happening.clone())?;
    }
    matcher.finish()
}
