//! What a connection is used for, and when it ends for want of use.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{FIRST_REQUEST_MAX, HEADER_TIMEOUT};
use crate::body::Body;

/// How often a connection that is used is looked at, at least.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Requests of one connection, from their head to the end of their answer.
pub(super) struct Usage(Mutex<State>);

struct State {
    /// Requests under way, watches among them.
    open: usize,
    /// When the last one ended, or the connection began.
    unused_since: Instant,
    /// How long the connection may be without one.
    unused_max: Duration,
}

impl Usage {
    pub(super) fn new() -> Arc<Self> {
        let state = State { open: 0, unused_since: Instant::now(), unused_max: FIRST_REQUEST_MAX };
        Arc::new(Self(Mutex::new(state)))
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
    /// When it has to end at once.
    pub(super) async fn end(&self, stop: &CancellationToken) -> io::Result<()> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = self.unused() => Ok(()),
        }
    }

    /// Resolves when a connection that should end has nothing under way, and its peer does not let it end.
    pub(super) async fn abandoned(&self) -> io::Error {
        {
            let mut state = self.0.lock();
            state.unused_since = Instant::now();
        }
        self.unused().await;
        io::Error::new(io::ErrorKind::TimedOut, "the peer does not let an unused connection end")
    }

    async fn unused(&self) {
        loop {
            let now = Instant::now();
            let look = {
                let state = self.0.lock();
                if state.open > 0 { now + LOOK_INTERVAL } else { state.unused_since + state.unused_max }
            };
            if look <= now {
                return;
            }
            sleep_until(look).await;
        }
    }
}

/// One request under way.
pub(super) struct Used(Arc<Usage>);

impl Used {
    /// The request is under way until its answer is handed over.
    pub(super) fn until_sent(self, response: Response<Body>) -> Response<UsedBody> {
        response.map(|body| UsedBody { body, _used: self })
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.open -= 1;
        state.unused_since = Instant::now();
    }
}

/// The answer to a request.
pub(super) struct UsedBody {
    body: Body,
    _used: Used,
}

impl HttpBody for UsedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
