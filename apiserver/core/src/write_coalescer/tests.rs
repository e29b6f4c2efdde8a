use std::collections::VecDeque;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

/// Accepts every write and records the pieces.
#[derive(Default)]
struct Pieces {
    written: Vec<Vec<u8>>,
    flushes: usize,
    refuses: bool,
}

impl AsyncWrite for Pieces {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.refuses {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.written.push(bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Waits until everything that was written is sent.
async fn left(pipe: &Arc<Mutex<Pipe<Pieces>>>) {
    while !pipe.lock().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn writes_of_one_turn_are_sent_together() {
    let (mut corked, outlet) = coalesce_writes(Pieces::default());
    let pipe = Arc::clone(&corked.0);
    let writes = async {
        for round in 0..2 {
            for number in 0..5_u8 {
                corked.write_all(&[number; 3]).await.unwrap();
                corked.flush().await.unwrap();
            }
            assert_eq!(pipe.lock().written().len(), round, "no write overtakes the others");
            left(&pipe).await;
        }
        let long = vec![7; COPIED_MAX + 1];
        corked.write_all(&[1]).await.unwrap();
        corked.write_all(&long).await.unwrap();
        left(&pipe).await;
    };
    outlet.drive(writes).await.unwrap();
    let pipe = pipe.lock();
    let lengths: Vec<usize> = pipe.written().iter().map(Vec::len).collect();
    assert_eq!(lengths, [15, 15, 1, COPIED_MAX + 1], "long writes keep their position");
    assert_eq!((pipe.stream.flushes, pipe.waiting.capacity()), (3, 0));
}

#[tokio::test]
async fn http_1_answer_is_sent_immediately() {
    let (mut corked, outlet) = coalesce_writes(Pieces::default());
    let pipe = Arc::clone(&corked.0);
    let writes = async {
        for text in ["HTTP/1.1 200 OK\r\n\r\n", "a piece"] {
            corked.write_all(text.as_bytes()).await.unwrap();
            corked.flush().await.unwrap();
        }
    };
    outlet.drive(writes).await.unwrap();
    let pipe = pipe.lock();
    let lengths: Vec<usize> = pipe.written().iter().map(Vec::len).collect();
    assert_eq!((lengths, pipe.stream.flushes), (vec![19, 7], 2));
}

impl Pipe<Pieces> {
    fn written(&self) -> &[Vec<u8>] {
        &self.stream.written
    }
}

#[tokio::test]
async fn write_failure_ends_the_connection_without_further_writes() {
    let (mut corked, outlet) = coalesce_writes(Pieces { refuses: true, ..Pieces::default() });
    let connection = async {
        corked.write_all(b"lost").await.unwrap();
        std::future::pending::<()>().await;
    };
    assert_eq!(outlet.drive(connection).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_slow_peer_gets_every_byte_in_order() {
    let (near, mut far) = duplex(100);
    let (mut corked, outlet) = coalesce_writes(near);
    let lengths: VecDeque<usize> = (0..300).map(|number| number * 97 % (2 * WAITING_MAX)).collect();
    let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|index: usize| (index % 251) as u8).collect();
    let expected = bytes.clone();
    let reader = tokio::spawn(async move {
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        read
    });
    let connection = async move {
        let mut rest = bytes.as_slice();
        for length in lengths {
            let (now, later) = rest.split_at(length);
            corked.write_all(now).await.unwrap();
            rest = later;
        }
        corked.shutdown().await.unwrap();
    };
    outlet.drive(connection).await.unwrap();
    assert!(reader.await.unwrap() == expected);
}
