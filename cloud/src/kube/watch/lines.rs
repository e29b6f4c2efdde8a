//! The lines of a watch. Each line is one event.
//!
//! A short line is read immediately. A longer line waits for a permit and must be complete within a time limit. So the
//! text of a large object is in memory only once, however many watches report it, and no watch waits for a permit for
//! ever. While a watch waits it does not read, and the data stays with the API server.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tombolo_runtime::sentence;

use super::skim::Skim;
use super::{SILENCE_MAX, WatchError};

/// Longest line that needs no permit, in bytes. An ordinary pod or Node has 4 to 12 KiB.
pub(super) const SHORT_LEN_MAX: usize = 16 * 1024;

/// Capacity of the line buffer that a watch keeps for the next line, in bytes.
const KEPT_MAX: usize = 8 * 1024;

/// Longest line that is read completely. etcd accepts 1.5 MiB unless configured otherwise, and kube-apiserver writes
/// some characters as six. For a longer line only the object's identity is read.
pub(super) const LINE_LEN_MAX: usize = 3 * 1024 * 1024;

/// Time limit from getting the permit until the line is complete and parsed. After that the watch is restarted.
pub(super) const TURN_MAX: Duration = Duration::from_secs(30);

/// The lines of one stream.
pub(super) struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    /// The remainder of a line that is too long.
    skim: Option<Skim>,
    turns: Arc<Semaphore>,
    /// The permit of the line, and the end of its time limit.
    turn: Option<(Option<OwnedSemaphorePermit>, Instant)>,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// The lines of this stream. Long lines wait for one of these permits.
    pub(super) fn new(reader: R, turns: Arc<Semaphore>) -> Self {
        Self { reader, line: Vec::new(), skim: None, turns, turn: None }
    }

    /// Reads the next line, which is kept until [`Self::release`]. False when the stream has ended, or nothing arrives.
    pub(super) async fn next(&mut self) -> Result<bool, WatchError> {
        self.release();
        loop {
            let until = self.until().unwrap_or_else(|| Instant::now() + SILENCE_MAX);
            let chunk = match timeout_at(until, self.reader.fill_buf()).await {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(error)) if is_end(&error) => return Ok(false),
                Ok(Err(error)) => return Err(WatchError::new(&sentence(&error))),
                Err(_) if self.turn.is_some() => return Err(too_slow()),
                Err(_) => return Ok(false),
            };
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if self.line.len() + part.len() > SHORT_LEN_MAX && self.turn.is_none() {
                // The semaphore is never closed.
                let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
                self.turn = Some((turn, Instant::now() + TURN_MAX));
                continue;
            }
            let (taken, is_last) = (part.len() + usize::from(end.is_some()), chunk.is_empty());
            append(&mut self.line, &mut self.skim, part);
            self.reader.consume_unpin(taken);
            let is_empty = self.line.is_empty() && self.skim.is_none();
            if is_last || (end.is_some() && !is_empty) {
                if let Some(skim) = &self.skim {
                    self.line = skim.text();
                }
                return Ok(!is_empty);
            }
        }
    }

    /// The line. If the line [is too long](Self::is_skimmed), only the part of the event that identifies the object.
    pub(super) fn text(&self) -> &[u8] {
        &self.line
    }

    /// Whether most of the line was left out.
    pub(super) fn is_skimmed(&self) -> bool {
        self.skim.is_some()
    }

    /// The end of the line's time limit, if it has one.
    pub(super) fn until(&self) -> Option<Instant> {
        self.turn.as_ref().map(|(_, until)| *until)
    }

    /// Frees the memory of a line that was used, and then its permit.
    pub(super) fn release(&mut self) {
        self.line.clear();
        self.line.shrink_to(KEPT_MAX);
        self.skim = None;
        self.turn = None;
    }
}

/// Waits for what a line needs to become an object, but not beyond its time limit.
pub(super) async fn in_time<T>(
    until: Option<Instant>,
    what: impl Future<Output = T>,
) -> Result<T, WatchError> {
    match until {
        Some(until) => timeout_at(until, what).await.map_err(|_| too_slow()),
        None => Ok(what.await),
    }
}

fn append(line: &mut Vec<u8>, skim: &mut Option<Skim>, part: &[u8]) {
    let len = line.len() + part.len();
    match skim {
        Some(skim) => skim.read(part),
        None if len > LINE_LEN_MAX => {
            let mut begun = Skim::default();
            begun.read(line);
            begun.read(part);
            *line = Vec::new();
            *skim = Some(begun);
        }
        None => {
            if len > line.capacity() {
                // Grow by a quarter each time: doubling would take the memory of another line.
                let capacity = len.max(line.capacity() + line.capacity() / 4);
                line.reserve_exact(capacity - line.len());
            }
            line.extend_from_slice(part);
        }
    }
}

fn too_slow() -> WatchError {
    let text = format!(
        "an object of more than {SHORT_LEN_MAX} bytes did not arrive, or was not read, within {TURN_MAX:?}"
    );
    WatchError::new(&text)
}

/// Whether a stream was only cut off, as proxies and API servers do with old watches.
fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
        || error.to_string().contains("unexpected EOF during chunk")
        || is_cut_off(error)
}

fn is_cut_off(error: &(dyn Error + 'static)) -> bool {
    // An error wrapped in an I/O error is not among its sources.
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| {
        io.kind() == io::ErrorKind::UnexpectedEof || io.get_ref().is_some_and(|inner| is_cut_off(inner))
    }) || error.source().is_some_and(is_cut_off)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use bytes::Bytes;
    use futures::stream::{self, Stream, StreamExt as _, TryStreamExt as _};

    use super::*;

    const CHUNK: usize = 8 * 1024;

    type Reader = Pin<Box<dyn AsyncBufRead + Send>>;

    fn lines(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Lines<Reader> {
        let reader: Reader = Box::pin(chunks.map(Ok::<_, io::Error>).into_async_read());
        Lines::new(reader, Arc::new(Semaphore::new(1)))
    }

    /// These lines in pieces.
    fn pieces(texts: &[String]) -> impl Stream<Item = Bytes> + Send + 'static {
        let all = Bytes::from(texts.join("\n") + "\n");
        let starts = (0..all.len()).step_by(CHUNK);
        stream::iter(starts.map(move |start| all.slice(start..all.len().min(start + CHUNK))))
    }

    #[tokio::test]
    async fn lines_of_all_lengths_arrive_intact_and_leave_no_large_buffer() {
        let lengths = [1, 7, SHORT_LEN_MAX - 1, SHORT_LEN_MAX, SHORT_LEN_MAX + 1, 1 << 20, LINE_LEN_MAX, 3];
        let texts: Vec<_> = lengths.iter().map(|len| format!("{}{len}", "x".repeat(*len))).collect();
        let mut expected = texts.clone();
        // A line that is not an event has no identity to keep.
        expected[6] = r#"{"object":{"metadata":{}}}"#.to_owned();
        let mut lines = lines(pieces(&texts));
        for (text, expected) in texts.iter().zip(&expected) {
            assert!(lines.next().await.expect("a line"));
            assert!(lines.text() == expected.as_bytes(), "{} bytes", text.len());
            assert_eq!(lines.turns.available_permits() == 0, text.len() > SHORT_LEN_MAX);
            assert_eq!(lines.is_skimmed(), text.len() > LINE_LEN_MAX);
            assert!(lines.line.capacity() <= text.len() + text.len() / 4 + CHUNK);
            lines.release();
            assert!(lines.line.capacity() <= KEPT_MAX);
        }
        assert_eq!((lines.next().await.expect("an end"), lines.turns.available_permits()), (false, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn endless_watch_line_is_bounded_in_bytes_and_time() {
        let endless = stream::repeat(Bytes::from(vec![b'['; 64 * 1024])).then(|chunk| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            chunk
        });
        let (mut lines, begun) = (lines(endless), Instant::now());
        let error = lines.next().await.expect_err("it has no end");
        assert!(error.text.contains("within 30s"), "{error}");
        assert_eq!(begun.elapsed().as_secs(), TURN_MAX.as_secs());
        assert!(lines.line.capacity() == 0 && lines.skim.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_stream_counts_as_ended() {
        let begun = Instant::now();
        let mut lines = lines(stream::iter([Bytes::from("x")]).chain(stream::pending()));
        assert!(!lines.next().await.expect("an end"));
        assert_eq!(begun.elapsed(), SILENCE_MAX);
    }

    #[test]
    fn truncated_stream_counts_as_ended() {
        let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "x");
        assert!(is_end(&io::Error::other(cut)));
        assert!(is_end(&io::Error::other("unexpected EOF during chunk size line")));
        assert!(is_end(&io::ErrorKind::TimedOut.into()));
        assert!(!is_end(&io::Error::other("no")));
    }
}
