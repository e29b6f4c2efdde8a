//! Counts the bytes read for an unfinished document. They are counted where they leave the connection, because the
//! part of a message that the WebSocket has gathered is not visible from outside.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tombolo_runtime::{Held, Share};

/// Number of copies of an unfinished document's byte in memory: in its frame, and in the message that the frames are
/// assembled to.
const COPIES: usize = 2;

/// A stream whose unfinished input can be bounded.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    stream: S,
    /// Memory held for the bytes since the last whole document.
    unfinished: Option<Held>,
    refused: bool,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, unfinished: None, refused: false }
    }

    /// The metered stream.
    pub(crate) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// From now on accounts the memory for unfinished documents to a share. Without room, reading fails.
    pub(crate) fn bound(&mut self, share: &Share) {
        self.unfinished = Some(share.nothing());
    }

    /// A document is complete.
    pub(crate) fn finished(&mut self) {
        if let Some(unfinished) = &mut self.unfinished {
            // Holding less never fails.
            let _ = unfinished.set(0);
        }
    }

    /// This many bytes did not belong to a document.
    pub(crate) fn passed(&mut self, bytes: usize) {
        if let Some(unfinished) = &mut self.unfinished {
            let rest = unfinished.bytes().saturating_sub(bytes.saturating_mul(COPIES));
            // Holding less never fails.
            let _ = unfinished.set(rest);
        }
    }

    /// Whether reading has failed because there was no room.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        let this = &mut *self;
        if let Some(unfinished) = &mut this.unfinished
            && !unfinished.grow(read.saturating_mul(COPIES))
        {
            this.refused = true;
            return Poll::Ready(Err(io::Error::other("no memory is left for this peer")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tombolo_runtime::Budget;

    use super::*;

    #[tokio::test]
    async fn partial_document_counts_towards_the_share() {
        let share = Budget::new(usize::MAX).share(100);
        let mut stream = Metered::new(&[7_u8; 100][..]);
        stream.bound(&share);
        let mut buffer = [0; 40];
        stream.read_exact(&mut buffer).await.expect("room");
        assert_eq!(share.used(), 40 * COPIES);
        stream.passed(15);
        assert_eq!(share.used(), 25 * COPIES, "a ping is no end of a document");
        stream.finished();
        assert_eq!(share.used(), 0);
        stream.read_exact(&mut buffer).await.expect("room again");
        assert!(stream.read_exact(&mut buffer[..20]).await.is_err() && stream.is_refused());
        drop(stream);
        assert_eq!(share.used(), 0);
    }
}
