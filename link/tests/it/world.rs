//! A hub on loopback and edges that dial it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tombolo_link::client::{Choice, Connector, Target};
use tombolo_link::server::{self, Accepted, Arrival, Incoming, Limits, Listen, ServerConfig};
use tombolo_link::tls::{ClientTls, ServerTls};
use tombolo_link::{ConnectError, Link, LinkError, LinkEvent};
use tombolo_proto::frame::{ApiRequest, Request, RequestBody};
use tombolo_proto::{Frame, Lane, RequestId};
use tombolo_runtime::{Tasks, Trigger, drain};

use crate::pki::Ca;

pub(crate) const BOTH: [Choice; 2] = [Choice::WebSocket, Choice::Quic];

/// Longest time that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what} took too long"))
}

pub(crate) struct Hub {
    pub(crate) incoming: Incoming,
    pub(crate) websocket: SocketAddr,
    pub(crate) quic: SocketAddr,
    pub(crate) trigger: Trigger,
    pub(crate) tasks: Tasks,
}

impl Hub {
    pub(crate) async fn start(tls: &ServerTls) -> Self {
        Self::start_with(tls, false, Limits::default()).await
    }

    pub(crate) async fn start_with(tls: &ServerTls, kubeedge: bool, limits: Limits) -> Self {
        let listen =
            |setting: &str| Listen { address: "127.0.0.1:0".parse().unwrap(), setting: setting.to_owned() };
        let config = ServerConfig {
            websocket: Some(listen("hub.websocket")),
            quic: Some(listen("hub.quic")),
            kubeedge,
            limits,
        };
        let bound = server::bind(&config, tls).await.unwrap();
        let (websocket, quic) = (bound.websocket_addr().unwrap(), bound.quic_addr().unwrap());
        let (trigger, drain) = drain::channel(Duration::from_secs(5));
        let tasks = Tasks::new();
        Self { incoming: bound.start(&tasks, &drain), websocket, quic, trigger, tasks }
    }

    pub(crate) fn target(&self, choice: Choice) -> Target {
        Target {
            host: "127.0.0.1".to_owned(),
            websocket_port: self.websocket.port(),
            quic_port: self.quic.port(),
            choice,
        }
    }

    pub(crate) async fn dial(&self, tls: ClientTls, choice: Choice) -> Result<Link, ConnectError> {
        soon("dialling", Connector::new(self.target(choice), tls).connect()).await
    }

    pub(crate) async fn accept(&mut self) -> Accepted {
        match soon("an arrival", self.incoming.next()).await {
            Some(Arrival::Tombolo(accepted)) => accepted,
            other => panic!("expected a link, got {other:?}"),
        }
    }
}

/// A connected pair. The hub stays alive with it.
pub(crate) struct Pair {
    pub(crate) cloud: Link,
    pub(crate) edge: Link,
    _hub: Hub,
}

pub(crate) async fn pair(choice: Choice) -> Pair {
    let ca = Ca::new("one");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let edge = hub.dial(ca.client_tls("edge-1"), choice).await.unwrap();
    let accepted = hub.accept().await;
    assert_eq!(accepted.node.as_str(), "edge-1");
    assert_eq!(accepted.transport, edge.peer().transport);
    Pair { cloud: accepted.link, edge, _hub: hub }
}

pub(crate) async fn frame(link: &mut Link) -> (Lane, Frame) {
    loop {
        match soon("a frame", link.next()).await {
            LinkEvent::Frame(lane, frame) => return (lane, frame),
            LinkEvent::Writable => {}
            LinkEvent::Closed(error) => panic!("closed: {error}"),
        }
    }
}

pub(crate) async fn ending(link: &mut Link) -> LinkError {
    loop {
        match soon("the end", link.next()).await {
            LinkEvent::Closed(error) => return error,
            LinkEvent::Frame(..) | LinkEvent::Writable => {}
        }
    }
}

/// Drives a link until it ends.
pub(crate) fn drive(mut link: Link) -> tokio::task::JoinHandle<LinkError> {
    tokio::spawn(async move {
        loop {
            if let LinkEvent::Closed(error) = link.next().await {
                return error;
            }
        }
    })
}

/// A frame of about this many bytes.
pub(crate) fn large(id: u64, bytes: usize) -> Frame {
    let body = ApiRequest {
        content_type: "application/json".to_owned(),
        body: Bytes::from((0..bytes).map(|i| (i % 251) as u8).collect::<Vec<_>>()),
        ..ApiRequest::new("POST", "/api/v1/namespaces/default/configmaps")
    };
    Frame::Request(Request {
        id: RequestId(id),
        timeout: Duration::from_secs(30),
        body: RequestBody::Api(body),
        caller_token: None,
    })
}
