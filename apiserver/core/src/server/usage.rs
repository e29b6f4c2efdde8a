//! What a connection is used for, and when it ends for want of use.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{ANSWER_STALL_MAX, FIRST_REQUEST_MAX, HEADER_TIMEOUT};
use crate::body::Body;
use crate::load::Sending;

/// How often a connection is looked at, at least.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Answers are handed over in pieces of this many bytes, as HTTP/2 sends them: that one was sent is how a slow peer differs
/// from one that takes nothing.
const PIECE_LEN: usize = 16 * 1024;

/// Requests of one connection, from their head to the end of their answer.
pub(super) struct Usage(Mutex<State>);

struct State {
    /// Requests under way, watches among them.
    open: usize,
    /// When the last one ended, or the connection began.
    unused_since: Instant,
    /// How long the connection may be without one.
    unused_max: Duration,
    /// Answers that are being sent, and some that were; no more of them than twice the streams of a connection.
    answers: Vec<Weak<Sending>>,
}

impl Usage {
    pub(super) fn new() -> Arc<Self> {
        let (unused_since, unused_max) = (Instant::now(), FIRST_REQUEST_MAX);
        Arc::new(Self(Mutex::new(State { open: 0, unused_since, unused_max, answers: Vec::new() })))
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Used {
        let mut state = self.0.lock();
        state.open += 1;
        state.unused_max = HEADER_TIMEOUT;
        Used(Arc::clone(self))
    }

    /// Resolves when the connection should end once what is under way is answered: it was not used for long, or the server
    /// stops.
    ///
    /// # Errors
    /// When it has to end at once, because an answer is not taken.
    pub(super) async fn end(&self, stop: &CancellationToken) -> io::Result<()> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            outcome = self.unused() => outcome,
        }
    }

    /// Resolves when the peer of a connection that should end does not let it end.
    pub(super) async fn abandoned(&self) -> io::Error {
        self.0.lock().unused_since = Instant::now();
        let outcome = self.unused().await;
        outcome.err().unwrap_or_else(|| timed_out("the peer does not let an unused connection end"))
    }

    async fn unused(&self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let (look, is_stalled) = {
                let state = self.0.lock();
                let end =
                    if state.open > 0 { now + LOOK_INTERVAL } else { state.unused_since + state.unused_max };
                (end.min(now + LOOK_INTERVAL), state.is_stalled(now))
            };
            if is_stalled {
                return Err(timed_out("the peer does not take an answer that it asked for"));
            }
            if look <= now {
                return Ok(());
            }
            sleep_until(look).await;
        }
    }
}

impl State {
    fn note(&mut self, answer: &Arc<Sending>) {
        if self.answers.len() == self.answers.capacity() {
            self.answers.retain(|answer| answer.strong_count() > 0);
        }
        self.answers.push(Arc::downgrade(answer));
    }

    fn is_stalled(&self, now: Instant) -> bool {
        let mut sending = self.answers.iter().filter_map(Weak::upgrade);
        sending.any(|answer| now.duration_since(answer.moved()) >= ANSWER_STALL_MAX)
    }
}

fn timed_out(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// One request under way.
pub(super) struct Used(Arc<Usage>);

impl Used {
    /// The request is under way until its answer is handed over.
    pub(super) fn until_sent(self, mut response: Response<Body>) -> Response<UsedBody> {
        let sending = response.extensions_mut().remove::<Arc<Sending>>();
        if let Some(sending) = &sending {
            self.0.0.lock().note(sending);
        }
        response.map(|body| UsedBody { body, rest: Bytes::new(), sending, _used: self })
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.open -= 1;
        state.unused_since = Instant::now();
    }
}

/// The answer to a request. One that ends is handed over in pieces, each of which is held against the bounds until it is
/// sent: with HTTP/2 it may wait for the peer's window when the body itself is gone.
pub(super) struct UsedBody {
    body: Body,
    /// What is left of a frame.
    rest: Bytes,
    /// None of a watch, and of a stream.
    sending: Option<Arc<Sending>>,
    _used: Used,
}

struct Piece {
    bytes: Bytes,
    sending: Arc<Sending>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.sending.moves();
    }
}

impl HttpBody for UsedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let Some(sending) = &this.sending else { return Pin::new(&mut this.body).poll_frame(context) };
        sending.moves();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE_LEN));
        let piece = Piece { bytes, sending: Arc::clone(sending) };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let upper = hint.upper().map(|upper| upper + rest);
        hint.set_lower(hint.lower() + rest);
        if let Some(upper) = upper {
            hint.set_upper(upper);
        }
        hint
    }
}
