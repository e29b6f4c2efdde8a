//! A node without an agent: the real session and link, driven by a test, to send requests that an agent never would.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tombolo_edge::identity::{EnrollOptions, enroll};
use tombolo_link::client::{Target, connect};
use tombolo_link::{Clock, Link, LinkEvent, pump};
use tombolo_proto::frame::{ApiReply, ApiRequest, Goodbye, Inventory, ReplyBody, RequestBody, Subscribe};
use tombolo_proto::session::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView};
use tombolo_proto::{InventoryEntry, NodeId, RequestId, Resource, StoreId, SubscriptionId};
use tombolo_testkit::fresh;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Address and identity for the connection.
#[derive(Debug, Clone)]
pub struct RawNodeOptions {
    /// Hub.
    pub target: Target,
    /// `HOST:PORT` of the join endpoints.
    pub join: String,
    /// Join token.
    pub token: String,
    /// Name in the certificate.
    pub certified: NodeId,
    /// Name in the hello.
    pub claimed: NodeId,
}

/// A connected node.
#[derive(Debug)]
pub struct RawNode {
    asks: mpsc::Sender<Ask>,
    task: JoinHandle<(Goodbye, Link)>,
}

/// A request of the test to the session.
enum Ask {
    Request(RequestBody, Option<String>, oneshot::Sender<ReplyBody>),
    Subscribe(Resource, String, Option<String>, oneshot::Sender<Followed>),
}

/// Outcome of a subscription: caught up, or the code and reason of its end.
pub type Followed = std::result::Result<(), (u16, String)>;

struct NothingHeld;

impl EdgeView for NothingHeld {
    fn inventory(&self, _subscription: SubscriptionId) -> Vec<InventoryEntry> {
        Vec::new()
    }
}

impl RawNode {
    /// Gets a certificate and connects.
    ///
    /// # Errors
    /// When the join or the connection is refused.
    pub async fn connect(options: RawNodeOptions) -> Result<Self> {
        let RawNodeOptions { target, join, token, certified, claimed } = options;
        let identity = enroll(&EnrollOptions { endpoint: join, node: certified, token }).await?;
        let mut link = connect(target, identity.client_tls()?).await?;
        let (asks, questions) = mpsc::channel(16);
        let config = EdgeConfig::new(claimed, StoreId(u128::from(fresh()).to_be_bytes()));
        let task = tokio::spawn(async move { (serve(&mut link, config, questions).await, link) });
        Ok(Self { asks, task })
    }

    /// Makes a Kubernetes API call as the node.
    ///
    /// # Errors
    /// When no answer of the right form comes in time.
    pub async fn api(&self, method: &str, path: &str, content_type: &str, body: &str) -> Result<ApiReply> {
        self.api_as(None, method, path, content_type, body).await
    }

    /// Makes a Kubernetes API call with a bearer token, or as the node if there is none.
    ///
    /// # Errors
    /// When no answer of the right form comes in time.
    pub async fn api_as(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<ApiReply> {
        let request = ApiRequest {
            content_type: content_type.to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            ..ApiRequest::new(method, path)
        };
        match self.ask_as(RequestBody::Api(request), token).await? {
            ReplyBody::Api(reply) => Ok(reply),
            ReplyBody::Message(_) => bail!("{method} {path} was answered with a message"),
        }
    }

    /// Sends any request as the node.
    ///
    /// # Errors
    /// When no answer comes in time.
    pub async fn ask(&self, body: RequestBody) -> Result<ReplyBody> {
        self.ask_as(body, None).await
    }

    async fn ask_as(&self, body: RequestBody, token: Option<&str>) -> Result<ReplyBody> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Request(body, token.map(str::to_owned), answer);
        self.asks.send(ask).await.ok().context("the session has ended")?;
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, answered).await??)
    }

    /// Follows a resource in a namespace with a bearer token, or as the node if there is none.
    ///
    /// # Errors
    /// When the cloud neither accepts nor rejects the subscription in time.
    pub async fn follow(&self, resource: Resource, namespace: &str, token: Option<&str>) -> Result<Followed> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Subscribe(resource, namespace.to_owned(), token.map(str::to_owned), answer);
        self.asks.send(ask).await.ok().context("the session has ended")?;
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, answered).await??)
    }

    /// Waits for the session's end and returns why it ended.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn ended(self) -> Result<Goodbye> {
        Ok(self.ended_and_stays().await?.0)
    }

    /// See [`Self::ended`]. The connection stays open on this side until the link is dropped.
    ///
    /// # Errors
    /// When the session does not end in time.
    pub async fn ended_and_stays(self) -> Result<(Goodbye, Link)> {
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, self.task).await??)
    }
}

fn subscription(
    subscription: SubscriptionId,
    resource: Resource,
    namespace: String,
    token: Option<String>,
) -> Subscribe {
    Subscribe {
        subscription,
        resource,
        namespace,
        label_selector: String::new(),
        field_selector: String::new(),
        caller_token: token,
        epoch: None,
        inventory: Inventory::Full(Vec::new()),
    }
}

async fn serve(link: &mut Link, config: EdgeConfig, mut questions: mpsc::Receiver<Ask>) -> Goodbye {
    let clock = Clock::start();
    let mut session = EdgeSession::new(config, clock.now(), &NothingHeld);
    let mut waiting: HashMap<RequestId, oneshot::Sender<ReplyBody>> = HashMap::new();
    let mut following: HashMap<SubscriptionId, oneshot::Sender<Followed>> = HashMap::new();
    let lost = |message: String| Goodbye {
        reason: tombolo_proto::frame::GoodbyeReason::Other,
        message,
        retry_after: Duration::ZERO,
    };
    loop {
        if let Err(error) = pump(link, |lane| session.poll_transmit(clock.now(), lane)) {
            return lost(error.to_string());
        }
        tokio::select! {
            event = link.next() => match event {
                LinkEvent::Frame(lane, frame) => {
                    if let Err(error) = session.handle_frame(clock.now(), lane, frame, &NothingHeld) {
                        return lost(error.to_string());
                    }
                }
                LinkEvent::Writable => {}
                LinkEvent::Closed(error) => return lost(error.to_string()),
            },
            question = questions.recv() => match question {
                // The handle was dropped: the node leaves.
                None => return lost("left".to_owned()),
                Some(Ask::Request(body, token, answer)) => {
                    match session.request(clock.now(), ANSWER_TIMEOUT, body, token) {
                        Ok(id) => drop(waiting.insert(id, answer)),
                        Err(error) => return lost(error.to_string()),
                    }
                }
                Some(Ask::Subscribe(resource, namespace, token, answer)) => {
                    let wish = subscription(session.next_subscription(), resource, namespace, token);
                    drop(following.insert(wish.subscription, answer));
                    if let Err(error) = session.subscribe(wish) {
                        return lost(error.to_string());
                    }
                }
            }
        }
        while let Some(event) = session.poll_event() {
            match event {
                EdgeEvent::Deliver { lane, seq, .. } => session.committed(lane, seq),
                EdgeEvent::Reply(reply) => {
                    // A test that stopped waiting needs no answer.
                    let _ = waiting.remove(&reply.id).map(|answer| answer.send(reply.body));
                }
                EdgeEvent::CaughtUp { subscription, .. } => {
                    let _ = following.remove(&subscription).map(|answer| answer.send(Ok(())));
                }
                EdgeEvent::SubscriptionClosed { subscription, code, reason } => {
                    let _ = following.remove(&subscription).map(|answer| answer.send(Err((code, reason))));
                }
                EdgeEvent::Closed(goodbye) => return goodbye,
                _ => {}
            }
        }
    }
}
