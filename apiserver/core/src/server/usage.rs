//! Tracks the requests of a connection, and ends the connection when it is unused.

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
use crate::request_limits::Sending;

/// Maximum interval between checks of a connection.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Answers are handed over in pieces of this many bytes, as HTTP/2 sends them: a sent piece distinguishes a slow peer
/// from one that reads nothing.
const PIECE_LEN: usize = 16 * 1024;

/// Requests of one connection, from their head to the end of their answer.
pub(super) struct Usage(Mutex<UsageState>);

struct UsageState {
    /// Requests in progress, including watches.
    open: usize,
    /// When the last request ended, or the connection began.
    unused_since: Instant,
    /// How long the connection may be without a request.
    unused_max: Duration,
    /// Answers being sent, and some finished ones; no more than twice the number of streams of a connection.
    answers: Vec<Weak<Sending>>,
}

impl Usage {
    pub(super) fn new() -> Arc<Self> {
        let (unused_since, unused_max) = (Instant::now(), FIRST_REQUEST_MAX);
        Arc::new(Self(Mutex::new(UsageState { open: 0, unused_since, unused_max, answers: Vec::new() })))
    }

    /// A request arrived.
    pub(super) fn begin(self: &Arc<Self>) -> Used {
        let mut state = self.0.lock();
        state.open += 1;
        state.unused_max = HEADER_TIMEOUT;
        Used(Arc::clone(self))
    }

    /// Resolves when the connection should end after its current requests: it was unused for long, or the server stops.
    ///
    /// # Errors
    /// When it must end at once, because an answer is not being read.
    pub(super) async fn end(&self, stop: &CancellationToken) -> io::Result<()> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            outcome = self.unused() => outcome,
        }
    }

    /// Resolves when a connection that should end is kept open by its peer.
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

impl UsageState {
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

/// One request in progress.
pub(super) struct Used(Arc<Usage>);

impl Used {
    /// Keeps the request in progress until its answer is handed over.
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

/// The answer to a request. A finite one is handed over in pieces, each of which counts against the limits until it is
/// sent: with HTTP/2 it may wait for the peer's window after the body itself was dropped.
pub(super) struct UsedBody {
    body: Body,
    /// The rest of a frame.
    rest: Bytes,
    /// None for watches and streams.
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
