//! The hub: it keeps one connection at a time, and reconnects (docs/reference/kubeedge.md#hub-loop).

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

/// Consecutive dials before the hub pauses (docs/reference/kubeedge.md#hub-loop).
const DIALS: u32 = 5;

/// Sustained rate at which the hub sends messages, keepalives not counted (docs/reference/kubeedge.md#hub-loop).
const MESSAGES_PER_SECOND: u32 = 30;

/// Messages that it can send at once after a pause (docs/reference/kubeedge.md#hub-loop).
const BURST: f64 = 60.0;

/// A test's manipulation of a connection.
pub(super) enum Order {
    /// Breaks the connection without notifying the hub.
    Cut,
    /// Replaces the connection by this socket. The old socket stays open, but nobody answers on it.
    Forget(Box<Socket>, oneshot::Sender<Forgotten>),
}

/// A connection that its edge has forgotten without closing it.
pub struct Forgotten {
    connection: HubConnection,
}

impl Forgotten {
    /// Waits until the cloud has closed the connection.
    ///
    /// # Errors
    /// When the cloud does not close it.
    pub async fn ended(self) -> Result<()> {
        let reader = self.connection.reader;
        Ok(tokio::time::timeout(DEADLINE, reader.finished()).await?)
    }
}

/// A task that is aborted when its handle is dropped.
struct Owned(JoinHandle<()>);

impl Owned {
    async fn finished(mut self) {
        // An aborted task has ended as well.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One connection: a reader that fills the queue, a receiver that empties it, and the writing half.
struct HubConnection {
    /// None once it is cut.
    sink: Option<SplitSink<Socket, Message>>,
    reader: Owned,
    receiver: Option<Owned>,
    closed: Arc<AtomicBool>,
}

impl HubConnection {
    fn new(bus: &Arc<Bus>, socket: Socket) -> Self {
        let (sink, stream) = socket.split();
        let (fifo, closed) = (Arc::<Fifo>::default(), Arc::<AtomicBool>::default());
        let reader = read(Arc::clone(bus), stream, Arc::clone(&fifo), Arc::clone(&closed));
        let receiver = Some(Owned(tokio::spawn(receive(Arc::clone(bus), fifo))));
        bus.store.lock().connect();
        Self { sink: Some(sink), reader: Owned(tokio::spawn(reader)), receiver, closed }
    }

    /// Fails when the connection is gone. Only a write makes the hub notice that.
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

/// Reads frames. A read error closes the socket and is not reported further (docs/reference/kubeedge.md#hub-loop).
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
            Err(error) => bus.store.lock().harm(format!("a frame that is not a message ({error}): {text}")),
        }
    }
}

/// Serves connections forever.
pub(super) async fn run(
    bus: Arc<Bus>,
    first: Socket,
    dial: Dial,
    mut up: mpsc::Receiver<Value>,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut connection = HubConnection::new(&bus, first);
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
        connection = HubConnection::new(&bus, reach(&bus, &dial).await);
    }
}

/// Dials at a fixed interval until it succeeds.
async fn reach(bus: &Bus, dial: &Dial) -> Socket {
    loop {
        for _ in 0..DIALS {
            match dial().await {
                Ok(socket) => return socket,
                Err(error) => bus.store.lock().ended = Some(format!("{error:#}")),
            }
            // 5 s with a heartbeat of 15 s.
            tokio::time::sleep(bus.pace.heartbeat / 3).await;
        }
        tokio::time::sleep(2 * bus.pace.heartbeat).await;
    }
}

/// Send loops of dead connections. Each stays blocked on the channel, takes the next message before the current
/// connection's loop does, loses it on its dead socket, and ends (docs/reference/kubeedge.md#hub-loop).
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

/// Sends until a write fails, and returns the reason; none when the process ends. The message whose write failed is
/// lost. If that was a keepalive, which another loop sends, the send loop is left behind.
async fn serve(
    bus: &Arc<Bus>,
    connection: &mut HubConnection,
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
                        let old = std::mem::replace(connection, HubConnection::new(bus, *socket));
                        left_behind.0 += 1;
                        // The requester may have ended.
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

/// The rate limit of the hub's messages.
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    /// The next message, once there is one and the limit allows it. Cancel-safe, because it takes the message after all
    /// waiting.
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
