//! A recorded run, so that it can be judged again without repeating it.

use serde_json::Value;

use crate::frame::Frame;
use crate::matcher::{Difference, Matcher, Progress, Summary};
use crate::transcript::Transcript;

/// An event of a run. Indices are those of the transcript's lines.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The request of a line was sent with this id.
    Sent(usize, String),
    /// The content of a line that is not a message was sent unchanged.
    SentEmpty,
    /// The request of a line was not sent: it needs a token that no recording has.
    Unsaid(usize),
    /// The change of a line was made. The last of the object's states is what the API holds.
    Applied(usize, Vec<Value>),
    /// The API was read after a write.
    Saw(Vec<Value>),
    /// The object belongs to the run's own cluster.
    Own(Value),
    /// The cluster does not serve this kind.
    Unserved(String),
    /// The cluster does not serve a resource that applications request: group, version, plural.
    Undefined(String, String, String),
    /// The cloud refused a write that no node may make, and an administrator made it: the next answer is the
    /// administrator's.
    Restricted,
    /// The cloud ended a connection.
    Ended(u64),
    /// The node of a connection joined again before the connection.
    JoinedAgain(u64),
    /// The cloud sent a message on a connection.
    Received(u64, Frame),
    /// The frame of a line arrived, or was excused.
    Settled(usize),
}

impl Matcher<'_> {
    /// Applies one event. Returns whether the edge acknowledges what was received.
    ///
    /// # Errors
    /// The [`Difference`] that the event shows.
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

/// Judges a run by a transcript. It may differ from `origin`, the transcript that the run was made with.
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
