//! Coalesces the small writes of one connection.
//!
//! HTTP/2 passes every frame of more than a few hundred bytes to its stream on its own and then flushes it, which costs
//! a TLS record and a system call each. An event that goes to a hundred watches of one connection would cost a hundred
//! of both. This module delays the output of a connection until every task that is ready to add to it has run. An
//! HTTP/1 connection has one answer at a time, so it gains nothing from waiting.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[cfg(test)]
mod tests;

/// Longer writes are passed on without copying. This is the content of one TLS record.
const COPIED_MAX: usize = 16 * 1024;

/// Maximum number of waiting bytes: as many TLS records as one system call sends.
const WAITING_MAX: usize = 4 * COPIED_MAX;

/// The stream as a connection uses it. [`Outlet::drive`] flushes it.
pub(crate) struct WriteCoalescer<S>(Arc<Mutex<Pipe<S>>>);

/// Sends the waiting bytes.
pub(crate) struct Outlet<S>(Arc<Mutex<Pipe<S>>>);

struct Pipe<S> {
    stream: S,
    /// Whether several answers share the connection; known after the first write.
    shared: Option<bool>,
    waiting: BytesMut,
    /// Whether bytes were passed on and not flushed.
    unflushed: bool,
}

/// Wraps a stream so that its writes are coalesced.
pub(crate) fn coalesce_writes<S>(stream: S) -> (WriteCoalescer<S>, Outlet<S>) {
    let pipe =
        Arc::new(Mutex::new(Pipe { stream, shared: None, waiting: BytesMut::new(), unflushed: false }));
    (WriteCoalescer(Arc::clone(&pipe)), Outlet(pipe))
}

impl<S: AsyncWrite + Unpin> Outlet<S> {
    /// Runs a connection that writes to the wrapped stream, and sends what it wrote.
    ///
    /// # Errors
    /// When sending fails, and with it the connection.
    pub(crate) async fn drive<F: Future>(self, connection: F) -> io::Result<F::Output> {
        let mut connection = pin!(connection);
        let mut others_had_their_turn = false;
        poll_fn(|context| {
            if let Poll::Ready(output) = connection.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            let mut pipe = self.0.lock();
            if pipe.is_empty() {
                return Poll::Pending;
            }
            if !std::mem::replace(&mut others_had_their_turn, true) {
                // A task that wakes itself runs after those that are ready now.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(pipe.poll_flush(context))?;
            others_had_their_turn = false;
            Poll::Pending
        })
        .await
    }
}

impl<S> Pipe<S> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }
}

impl<S: AsyncWrite + Unpin> Pipe<S> {
    /// Whether writes are coalesced. The first output of an HTTP/2 server is a frame.
    fn is_shared(&mut self, slices: &[IoSlice<'_>]) -> bool {
        if self.shared.is_none() {
            let first = slices.iter().find(|slice| !slice.is_empty());
            self.shared = first.map(|first| !first.starts_with(b"HTTP/1"));
        }
        self.shared != Some(false)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if !self.is_shared(slices) {
            return Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        }
        let length = slices.iter().map(|slice| slice.len()).sum();
        if length > COPIED_MAX || self.waiting.len() + length > WAITING_MAX {
            ready!(self.poll_pass_on(context))?;
        }
        if length > COPIED_MAX {
            self.unflushed = true;
            return Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        }
        if self.waiting.capacity() == 0 {
            self.waiting.reserve(COPIED_MAX);
        }
        slices.iter().for_each(|slice| self.waiting.extend_from_slice(slice));
        Poll::Ready(Ok(length))
    }

    /// Passes on the waiting bytes.
    fn poll_pass_on(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting.has_remaining() {
            self.unflushed = true;
            let taken = ready!(Pin::new(&mut self.stream).poll_write(context, &self.waiting))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(taken);
        }
        // An idle connection holds no buffer.
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pass_on(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteCoalescer<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteCoalescer<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.lock();
        match pipe.shared {
            Some(false) => Pin::new(&mut pipe.stream).poll_flush(context),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.lock();
        ready!(pipe.poll_pass_on(context))?;
        Pin::new(&mut pipe.stream).poll_shutdown(context)
    }
}
