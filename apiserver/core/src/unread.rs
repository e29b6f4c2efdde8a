//! Request bodies that are answered before they have arrived.
//!
//! A client that is still sending when its stream is reset or its connection closed often sees only that and not the
//! answer. So the rest of an unread body is received and discarded, within limits, while the answer is sent (as Go's
//! server does).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::request;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use crate::request_limits::BODY_LEN_MAX;

/// Maximum number of bytes of such a body that are received: three times the largest accepted body. So a client that
/// sends a body that is too large still gets the answer, and so does one that is refused for another reason.
pub const UNREAD_LEN_MAX: usize = 3 * BODY_LEN_MAX;

/// Time limit for receiving them.
pub const UNREAD_WITHIN: Duration = Duration::from_secs(10);

/// The body of a request. When it is dropped, a separate task receives the rest.
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
    /// Wraps the body of a request. A client that sends `Expect` waits for permission before it sends its body, so such
    /// a body is not received unless it was asked for.
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
        // Whoever asks for the first frame gives a waiting client its permission to send.
        this.ended = matches!(frame, Poll::Ready(None | Some(Err(_))));
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
                // The connection resets what is left after that.
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
