//! Checks what a hello attests of the cloud's history before the hello is answered
//! (`docs/decisions/0010-epoch-witness.md`).

use std::time::Duration;

use tombolo_link::LinkEvent;
use tombolo_proto::frame::{Frame, Goodbye, GoodbyeReason};

use super::{ChannelEvent, Done, NodeSession, Sender};
use crate::epoch::{AttestationCheck, ClaimOutcome};
use crate::metrics::Label;

/// How long a hello may be held back: shorter than an edge waits for its welcome.
const VOUCH_LIMIT: Duration = Duration::from_secs(5);

/// Retry time for a node if the API server has not answered in time.
const VOUCH_RETRY: Duration = Duration::from_secs(5);

/// Progress of checking the first hello of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Examination {
    NotBegun,
    UnderWay,
    Over,
}

impl NodeSession {
    /// Holds back the hello of an edge that has seen more of the cloud's history than this replica. The edge is
    /// welcomed once the API server has shown that much history. Only the first hello of a connection is checked. A
    /// second one is a protocol error, even before the first is answered: it must not be welcomed in place of the
    /// first.
    pub(super) fn examine(&mut self, event: ChannelEvent) -> Option<ChannelEvent> {
        let ChannelEvent::Tombolo(LinkEvent::Frame(_, Frame::Hello(hello))) = &event else {
            return Some(event);
        };
        if self.examination == Examination::UnderWay {
            self.examination = Examination::Over;
            let message = "a second hello arrived on the same connection".to_owned();
            let (reason, retry_after) = (GoodbyeReason::ProtocolError, Duration::ZERO);
            self.channel.say_goodbye(Goodbye { reason, message, retry_after });
            return None;
        }
        let seen = std::mem::replace(&mut self.examination, Examination::Over) == Examination::Over;
        if seen || hello.attestation.is_empty() {
            return Some(event);
        }
        let claim = match self.hub.attestations.judge(&hello.attestation) {
            AttestationCheck::Known => return Some(event),
            AttestationCheck::Invalid => {
                self.complain();
                return Some(event);
            }
            AttestationCheck::News(claim) => claim,
        };
        self.count("news");
        self.examination = Examination::UnderWay;
        let answer = self.hub.attestations.ask(&self.node, claim);
        self.work.push(Box::pin(async move {
            let outcome = tokio::time::timeout(VOUCH_LIMIT, answer).await;
            Done::Vouched { hello: Box::new(event), outcome: outcome.ok().and_then(Result::ok) }
        }));
        None
    }

    /// Continues with a hello that was held back.
    pub(super) fn vouched(&mut self, hello: ChannelEvent, outcome: Option<ClaimOutcome>) {
        self.examination = Examination::Over;
        if self.leave_by.is_some() {
            return;
        }
        match outcome {
            Some(ClaimOutcome::Holds) => {
                let from = Sender { node: &self.node, registry: &self.hub.registry };
                self.channel.handle(self.hub.clock.now(), hello, &from, &self.view);
            }
            // The goodbye to all sessions of the old epoch is already in the mailbox.
            Some(ClaimOutcome::Restored) => self.count("restored"),
            None => {
                if let Some(left_out) = self.hub.registry.may_log(&self.node) {
                    tracing::warn!(node = %self.node, left_out,
                        "the edge attests newer revisions, and the API server does not answer whether it has them");
                }
                let message =
                    "the API server does not answer whether the cluster was restored to an earlier state";
                let (reason, message) = (GoodbyeReason::Other, message.to_owned());
                self.channel.say_goodbye(Goodbye { reason, message, retry_after: VOUCH_RETRY });
            }
        }
    }

    fn complain(&self) {
        self.count("invalid");
        if self.hub.attestations.may_complain() {
            tracing::warn!(node = %self.node,
                "ignoring an attestation of the edge that no cloudcore of this cluster has issued");
        }
    }

    fn count(&self, kind: &'static str) {
        self.hub.metrics.attestations.get_or_create(&Label { kind }).inc();
    }
}
