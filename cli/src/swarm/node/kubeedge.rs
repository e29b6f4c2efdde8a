//! A hollow node in dialect `kubeedge`.
//!
//! A cloud of this dialect neither welcomes a node nor reports that nothing is missing. A node counts as connected when
//! the upgrade is done, and as caught up when it holds its pod and the swarm's ConfigMap; after a reconnect, when its
//! first request is answered.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_link::{Clock, DocumentEvent, DocumentLink};
use tombolo_proto::frame::ReplyBody;
use tombolo_proto::session::EdgeEvent;
use tombolo_proto::session::kubeedge::{EdgeConfig, EdgeSession};
use tombolo_proto::{Message, RequestId};
use tombolo_runtime::time::unix_millis;

use super::{Asking, CONFIG_MAP, Command, Ended, HollowNode, HollowNodeReport, REQUEST_TIMEOUT, TimedAnswer};

/// One connection.
struct KubeEdgeConnection {
    link: DocumentLink,
    session: EdgeSession,
    clock: Clock,
    asking: Option<Asking>,
    /// The link accepted no further document when there may have been one to send.
    choked: bool,
    /// The request of a reconnected node, until it is answered.
    back: Option<RequestId>,
    caught_up: bool,
}

impl KubeEdgeConnection {
    fn ask(&mut self, message: Arc<Message>, count: usize) -> Option<Asking> {
        let left = count.checked_sub(1)?;
        let waiting = self.request(&message)?;
        Some(Asking { message, left, waiting, since: Instant::now() })
    }

    fn request(&mut self, message: &Arc<Message>) -> Option<RequestId> {
        self.session.request(self.clock.now(), REQUEST_TIMEOUT, Message::clone(message)).ok()
    }

    fn transmit(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        self.choked = loop {
            if !self.link.can_send() {
                break true;
            }
            let Some(document) = self.session.poll_transmit(now) else { break false };
            self.link.send(document).map_err(|error| error.to_string())?;
        };
        Ok(())
    }

    /// The next event. `Transmitted` events are skipped unless documents wait to be sent: the swarm shares its
    /// processors with the hub that it measures. Cancel-safe.
    async fn next(&mut self) -> DocumentEvent {
        loop {
            match self.link.next().await {
                DocumentEvent::Transmitted(_) if !self.choked => {}
                event => return event,
            }
        }
    }

    fn hear(&mut self, event: DocumentEvent) -> Result<(), String> {
        match event {
            DocumentEvent::Document(document) => {
                self.session.handle_document(self.clock.now(), &document).map_err(|error| error.to_string())
            }
            DocumentEvent::Heard | DocumentEvent::Transmitted(_) => Ok(()),
            DocumentEvent::Closed(error) => Err(error.to_string()),
        }
    }
}

impl HollowNode {
    /// As [`HollowNode::serve`], in the other dialect. `question`: the request that a reconnected node sends.
    pub(super) async fn serve_documents(
        &mut self,
        link: DocumentLink,
        started: Instant,
        question: Option<Arc<Message>>,
    ) -> Ended {
        let clock = Clock::start();
        let config = EdgeConfig::new(self.config.node.clone(), unix_millis(), rand::random());
        let session = EdgeSession::new(config, clock.now());
        let mut connection = KubeEdgeConnection {
            link,
            session,
            clock,
            asking: None,
            choked: false,
            back: None,
            caught_up: question.is_some(),
        };
        connection.back = question.and_then(|question| connection.request(&question));
        self.report(HollowNodeReport::Welcomed { took: started.elapsed() }).await;
        self.drive(connection).await
    }

    async fn drive(&mut self, mut connection: KubeEdgeConnection) -> Ended {
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            if let Err(reason) = connection.transmit() {
                return Ended::Lost(reason);
            }
            let timeout = connection.session.next_timeout();
            let timeout = timeout.map(|moment| connection.clock.instant(moment));
            if let Some(moment) = timeout.filter(|moment| *moment != timer.deadline()) {
                timer.as_mut().reset(moment);
            }
            tokio::select! {
                event = connection.next() => if let Err(reason) = connection.hear(event) {
                    return Ended::Lost(reason);
                },
                () = timer.as_mut(), if timeout.is_some() => {
                    connection.session.handle_timeout(connection.clock.now());
                }
                command = self.commands.recv() => match command {
                    None => return Ended::Stopped,
                    Some(Command::Reconnect(question)) => return Ended::Reconnect(question),
                    Some(Command::Ask(message, count)) => connection.asking = connection.ask(message, count),
                },
            }
            while let Some(event) = connection.session.poll_event() {
                if let Err(reason) = self.take(event, &mut connection).await {
                    return Ended::Lost(reason);
                }
            }
        }
    }

    async fn take(&mut self, event: EdgeEvent, connection: &mut KubeEdgeConnection) -> Result<(), String> {
        match event {
            EdgeEvent::Deliver { seq, change, .. } => {
                self.store(&change);
                connection.session.committed(connection.clock.now(), seq);
                if !connection.caught_up && self.holds_everything() {
                    connection.caught_up = true;
                    self.report(HollowNodeReport::CaughtUp).await;
                }
            }
            EdgeEvent::Reply(reply) => {
                let good = matches!(&reply.body, ReplyBody::Message(message) if message.content.is_object());
                connection.session.reply_stored(connection.clock.now(), reply.id);
                self.answered_in(connection, reply.id, good).await;
            }
            EdgeEvent::RequestTimedOut(id) => self.answered_in(connection, id, false).await,
            EdgeEvent::Closed(goodbye) => return Err(format!("{:?}: {}", goodbye.reason, goodbye.message)),
            EdgeEvent::Welcomed { .. }
            | EdgeEvent::CaughtUp { .. }
            | EdgeEvent::LeaseRenewed { .. }
            | EdgeEvent::Attested(_)
            | EdgeEvent::SubscriptionClosed { .. }
            | EdgeEvent::RoundTrip(_) => {}
        }
        Ok(())
    }

    /// The pod of a node is named after the node.
    fn holds_everything(&self) -> bool {
        let holds = |name: &str, kind: &str| {
            let mut keys = self.holdings.0.keys();
            keys.any(|key| key.name() == name && *key.resource().name == *kind)
        };
        holds(CONFIG_MAP, "configmaps") && holds(self.config.node.as_str(), "pods")
    }

    async fn answered_in(&self, connection: &mut KubeEdgeConnection, id: RequestId, good: bool) {
        if connection.back.take_if(|asked| *asked == id).is_some() {
            return self.report(HollowNodeReport::CaughtUp).await;
        }
        let Some(present) = connection.asking.take_if(|present| present.waiting == id) else { return };
        self.tallies.answers.note(TimedAnswer { took: present.since.elapsed(), good });
        connection.asking = connection.ask(present.message, present.left);
    }
}
