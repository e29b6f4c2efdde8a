//! Bodies of requests that are answered before they have come.
//!
//! A client that is still sending when its stream is reset, or its connection closed, often sees that and not the answer. So
//! what still comes of a body that nobody reads is taken in and thrown away, within a bound, while the answer is on its way
//! (as Go's server does).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::request;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use crate::load::BODY_LEN_MAX;

/// Bytes of such a body that are taken in, at most: three times the largest body that a server takes at all. Whoever sends one that is
/// too large hears that, and not less where he is refused for another reason.
pub const UNREAD_LEN_MAX: usize = 3 * BODY_LEN_MAX;

/// Time in which they may come.
pub const UNREAD_WITHIN: Duration = Duration::from_secs(10);

/// The body of a request. What is left of it when it is dropped is taken in by a task of its own.
#[derive(Debug)]
pub struct Unread<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    body: Option<B>,
    ended: bool,
}

impl<B> Unread<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// Wraps the body of a request. Of a client that waits for leave to send its body nothing comes, unless it is asked for:
    /// such a body is let go.
    pub fn of(head: &request::Parts, body: B) -> Self {
        Self { body: Some(body), ended: head.headers.contains_key(EXPECT) }
    }
}

impl<B> Body for Unread<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            this.ended = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> Drop for Unread<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !self.ended && !body.is_end_stream()) else { return };
        // Without a runtime there is no connection either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // What is left then is the connection's business: it is reset.
                let _ = tokio::time::timeout(UNREAD_WITHIN, take_in(body)).await;
            });
        }
    }
}

async fn take_in(mut body: impl Body<Data = Bytes> + Unpin) {
    let mut taken = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken += frame.data_ref().map_or(0, Bytes::len);
        if taken > UNREAD_LEN_MAX {
            return;
        }
    }
}
