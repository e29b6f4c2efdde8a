//! The hub: one connection at a time, and the way back to one (docs/reference/kubeedge.md#hub-loop).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use super::bus::Bus;
use super::dial::{Dial, Socket};
use super::fifo::Fifo;
use super::wire::message;
use crate::world::DEADLINE;

/// Dials in a row before the hub rests (docs/reference/kubeedge.md#hub-loop).
const DIALS: u32 = 5;

/// Messages a second that the hub sends in the long run, keepalives not counted (docs/reference/kubeedge.md#hub-loop).
const MESSAGES_PER_SECOND: u32 = 30;

/// Messages that it sends at once after a rest (docs/reference/kubeedge.md#hub-loop).
const BURST: f64 = 60.0;

/// What a test does to a connection.
pub(super) enum Order {
    /// The connection breaks; the hub is not told.
    Cut,
    /// This socket takes over; the old one stays open, with nobody who answers.
    Forget(Box<Socket>, oneshot::Sender<Forgotten>),
}

/// A connection that its edge has forgotten without closing it.
pub struct Forgotten {
    connection: Connection,
}

impl Forgotten {
    /// Waits until the cloud has ended it.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(self) -> Result<()> {
        let reader = self.connection.reader;
        Ok(tokio::time::timeout(DEADLINE, reader.finished()).await?)
    }
}

/// A task that ends with its handle.
struct Owned(JoinHandle<()>);

impl Owned {
    async fn finished(mut self) {
        // An aborted task is over as well.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One connection: a reader that fills the queue, a receiver that empties it, and the writing half.
struct Connection {
    /// None once it was cut.
    sink: Option<SplitSink<Socket, Message>>,
    reader: Owned,
    receiver: Option<Owned>,
    closed: Arc<AtomicBool>,
}

impl Connection {
    fn new(bus: &Arc<Bus>, socket: Socket) -> Self {
        let (sink, stream) = socket.split();
        let (fifo, closed) = (Arc::<Fifo>::default(), Arc::<AtomicBool>::default());
        let reader = read(Arc::clone(bus), stream, Arc::clone(&fifo), Arc::clone(&closed));
        let receiver = Some(Owned(tokio::spawn(receive(Arc::clone(bus), fifo))));
        bus.store.lock().connect();
        Self { sink: Some(sink), reader: Owned(tokio::spawn(reader)), receiver, closed }
    }

    /// Fails when the connection is gone: only here does the hub notice.
    async fn write(&mut self, message: &Value) -> Result<()> {
        ensure!(!self.closed.load(Ordering::Relaxed), "the socket was closed when it could not be read");
        let Some(sink) = &mut self.sink else { bail!("cut") };
        Ok(sink.send(Message::text(message.to_string())).await?)
    }

    fn cut(&mut self) {
        self.sink = None;
        self.reader.0.abort();
    }

    fn forget(mut self) -> Forgotten {
        self.receiver = None;
        Forgotten { connection: self }
    }
}

/// A read error closes the socket; nobody else is told (docs/reference/kubeedge.md#hub-loop).
async fn read(bus: Arc<Bus>, mut stream: SplitStream<Socket>, fifo: Arc<Fifo>, closed: Arc<AtomicBool>) {
    while let Some(Ok(received)) = stream.next().await {
        if let Message::Text(text) = received
            && fifo.push(text.to_string())
        {
            bus.store.lock().dropped += 1;
        }
    }
    closed.store(true, Ordering::Relaxed);
}

async fn receive(bus: Arc<Bus>, fifo: Arc<Fifo>) {
    loop {
        let text = fifo.pop().await;
        match serde_json::from_str(&text) {
            Ok(message) => bus.deliver(message),
            Err(error) => bus.store.lock().harm(format!("a frame that is no message ({error}): {text}")),
        }
    }
}

/// Serves connections for ever.
pub(super) async fn run(
    bus: Arc<Bus>,
    first: Socket,
    dial: Dial,
    mut up: mpsc::Receiver<Value>,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut connection = Connection::new(&bus, first);
    let mut left_behind = LeftBehind(0);
    loop {
        let served = serve(&bus, &mut connection, &mut up, &mut orders, &mut left_behind).await;
        let Some(ended) = served else { return };
        {
            let mut store = bus.store.lock();
            store.connected = false;
            store.ended = Some(format!("{ended:#}"));
        }
        drop(connection);
        tokio::time::sleep(2 * bus.pace.heartbeat).await;
        connection = Connection::new(&bus, reach(&bus, &dial).await);
    }
}

/// Dials until it succeeds, at a fixed pace.
async fn reach(bus: &Bus, dial: &Dial) -> Socket {
    loop {
        for _ in 0..DIALS {
            match dial().await {
                Ok(socket) => return socket,
                Err(error) => bus.store.lock().ended = Some(format!("{error:#}")),
            }
            // 5 s beside a heartbeat of 15 s.
            tokio::time::sleep(bus.pace.heartbeat / 3).await;
        }
        tokio::time::sleep(2 * bus.pace.heartbeat).await;
    }
}

/// Send loops of dead connections. Each stays blocked on the channel, takes the next message before the loop of the
/// present connection does, loses it in its dead socket, and ends (docs/reference/kubeedge.md#hub-loop).
struct LeftBehind(u32);

impl LeftBehind {
    /// Whether one of them takes this message.
    fn takes(&mut self, bus: &Bus, message: &Value) -> bool {
        let takes = self.0 > 0;
        if takes {
            self.0 -= 1;
            bus.lose(message);
        }
        takes
    }
}

/// Sends until a write fails, and gives the reason; none when the process ends. The message that failed is lost. When
/// that was a keepalive, which another loop sends, the send loop is left behind.
async fn serve(
    bus: &Arc<Bus>,
    connection: &mut Connection,
    up: &mut mpsc::Receiver<Value>,
    orders: &mut mpsc::Receiver<Order>,
    left_behind: &mut LeftBehind,
) -> Option<anyhow::Error> {
    let mut heartbeat = tokio::time::interval(bus.pace.heartbeat);
    let mut bucket = Bucket { tokens: BURST, filled: Instant::now() };
    loop {
        let next = tokio::select! {
            _ = heartbeat.tick() => {
                let keepalive = message("websocket", "resource", "keepalive", "node", &json!("ping"));
                if let Err(error) = connection.write(&keepalive).await {
                    left_behind.0 += 1;
                    return Some(error);
                }
                continue;
            }
            message = bucket.next(up) => {
                let message = message?;
                if left_behind.takes(bus, &message) {
                    continue;
                }
                message
            }
            order = orders.recv() => {
                match order? {
                    Order::Cut => connection.cut(),
                    Order::Forget(socket, give) => {
                        let old = std::mem::replace(connection, Connection::new(bus, *socket));
                        left_behind.0 += 1;
                        // Whoever asked may have gone.
                        let _ = give.send(old.forget());
                    }
                }
                continue;
            }
        };
        if let Err(error) = connection.write(&next).await {
            bus.lose(&next);
            return Some(error);
        }
    }
}

/// The limit on what the hub sends.
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    /// The next message, when there is one and it may go. Cancel-safe: waiting comes first.
    async fn next(&mut self, up: &mut mpsc::Receiver<Value>) -> Option<Value> {
        let rate = f64::from(MESSAGES_PER_SECOND);
        let now = Instant::now();
        self.tokens = (self.tokens + (now - self.filled).as_secs_f64() * rate).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            tokio::time::sleep(Duration::from_secs_f64((1.0 - self.tokens) / rate)).await;
            let later = Instant::now();
            self.tokens = (self.tokens + (later - self.filled).as_secs_f64() * rate).min(BURST);
            self.filled = later;
        }
        let message = up.recv().await?;
        self.tokens -= 1.0;
        Some(message)
    }
}
