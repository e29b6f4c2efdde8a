use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::Instant;

use super::*;

const LIMIT: Duration = Duration::from_millis(300);

#[tokio::test(start_paused = true)]
async fn peer_that_stops_reading_is_disconnected() {
    let (near, _far) = duplex(16);
    let mut guarded = WriteTimeout::new(near, LIMIT);
    let begin = Instant::now();
    let error = guarded.write_all(&[0; 64]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begin.elapsed() >= LIMIT, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_peer_is_waited_for() {
    let (near, mut far) = duplex(16);
    let mut guarded = WriteTimeout::new(near, LIMIT);
    let writer = tokio::spawn(async move { guarded.write_all(&[7; 64]).await });
    let mut bytes = [0; 16];
    for _ in 0..4 {
        // Longer than the limit in total, but never at once.
        sleep(LIMIT / 3).await;
        far.read_exact(&mut bytes).await.unwrap();
    }
    writer.await.unwrap().unwrap();
    assert_eq!(bytes, [7; 16]);
}
