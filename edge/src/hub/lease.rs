//! Renews the node's lease with messages. Reads the lease once, then updates it with the version of the last answer,
//! because the API refuses an update without a version.

use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_proto::ids::NodeId;
use tombolo_proto::message::{Content, Message, ObjectPath, Operation, Outcome, ResourceType};

use super::calls::message;
use crate::paths::LEASE_NAMESPACE;

/// The known lease and the pending renewals.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    node: NodeId,
    /// The lease as the cloud last returned it.
    held: Option<Value>,
    /// Time of the current renewal, in microseconds since the Unix epoch.
    renewing: Option<i64>,
    /// The newest renewal requested meanwhile.
    next: Option<i64>,
}

/// The next step after an answer.
#[derive(Debug, PartialEq)]
pub(super) enum LeaseStep {
    /// Send this request.
    Ask(Box<Message>),
    /// The renewal of this time ended with this code.
    Ended(i64, u16),
}

impl LeaseKeeper {
    pub(super) fn new(node: NodeId) -> Self {
        Self { node, held: None, renewing: None, next: None }
    }

    /// Begins a renewal, or keeps it for later while another one is pending. Only the newest is kept.
    pub(super) fn renew(&mut self, micros: i64) -> Option<Message> {
        if self.renewing.is_some() {
            self.next = Some(micros);
            return None;
        }
        self.renewing = Some(micros);
        Some(self.question(micros))
    }

    /// Begins the renewal that was kept for later. Call it when the previous one has ended.
    pub(super) fn waiting(&mut self) -> Option<Message> {
        let micros = self.next.take()?;
        self.renew(micros)
    }

    /// Handles the answer to the last request; `None` means no answer.
    pub(super) fn answered(&mut self, reply: Option<&Message>) -> Option<LeaseStep> {
        let micros = self.renewing?;
        let outcome = reply.map(|reply| Outcome::read(&reply.content));
        match outcome {
            Some(Ok(Outcome::Done(lease))) => {
                let read_first = self.held.is_none();
                self.held = lease.read().ok();
                if read_first && self.held.is_some() {
                    return Some(LeaseStep::Ask(Box::new(self.question(micros))));
                }
                Some(self.ended(micros, 200))
            }
            Some(Ok(Outcome::Failed(error))) => {
                // Deleted, or changed by another client: the next renewal reads it again.
                self.held = None;
                Some(self.ended(micros, error.code))
            }
            Some(Err(_)) | None => {
                self.held = None;
                Some(self.ended(micros, 503))
            }
        }
    }

    fn ended(&mut self, micros: i64, code: u16) -> LeaseStep {
        self.renewing = None;
        LeaseStep::Ended(micros, code)
    }

    fn question(&self, micros: i64) -> Message {
        let path = ObjectPath::new(LEASE_NAMESPACE, ResourceType::Lease, self.node.as_str());
        let Some(held) = &self.held else { return message(Operation::Query, path, Content::null()) };
        let mut lease = held.clone();
        let time = Timestamp::from_microsecond(micros).unwrap_or_default();
        lease["spec"]["renewTime"] = json!(format!("{time:.6}"));
        lease["spec"]["holderIdentity"] = json!(self.node.as_str());
        let content = Content::from_value(&lease).unwrap_or_else(|_| Content::null());
        message(Operation::Update, path, content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(content: &Value) -> Message {
        let content = Content::from_value(content).expect("JSON");
        message(Operation::Response, ObjectPath::new(LEASE_NAMESPACE, ResourceType::Lease, "n"), content)
    }

    fn found(version: &str) -> Message {
        reply(
            &json!({"Object": {"metadata": {"name": "n", "resourceVersion": version}, "spec": {}}, "Err": null}),
        )
    }

    fn keeper() -> LeaseKeeper {
        LeaseKeeper::new(NodeId::parse("n").expect("a node"))
    }

    fn asked(step: Option<LeaseStep>) -> Message {
        match step {
            Some(LeaseStep::Ask(message)) => *message,
            other => panic!("a question, not {other:?}"),
        }
    }

    #[test]
    fn a_lease_is_read_once_and_then_updated_from_its_version() {
        let mut keeper = keeper();
        let first = keeper.renew(1_790_000_001_000_001).expect("a question");
        assert_eq!(first.route.operation, Operation::Query);
        assert_eq!(first.route.resource.to_wire(), "kube-node-lease/lease/n");
        let update = asked(keeper.answered(Some(&found("7"))));
        let lease: Value = update.content.read().expect("a lease");
        assert_eq!(update.route.operation, Operation::Update);
        assert_eq!(lease["metadata"]["resourceVersion"], "7");
        assert_eq!(lease["spec"]["renewTime"], "2026-09-21T14:13:21.000001Z");
        assert_eq!(keeper.answered(Some(&found("8"))), Some(LeaseStep::Ended(1_790_000_001_000_001, 200)));
        let second = keeper.renew(1_790_000_002_000_000).expect("an update at once");
        let lease: Value = second.content.read().expect("a lease");
        assert_eq!(lease["metadata"]["resourceVersion"], "8");
    }

    #[test]
    fn lease_failures_are_reported_and_the_newest_renewal_follows() {
        let mut keeper = keeper();
        keeper.renew(1).expect("a question");
        assert!(keeper.renew(2).is_none() && keeper.renew(3).is_none());
        let gone = reply(&json!({"Object": null, "Err": {"ErrStatus": {"message": "no", "code": 404}}}));
        assert_eq!(keeper.answered(Some(&gone)), Some(LeaseStep::Ended(1, 404)));
        assert!(keeper.waiting().is_some(), "the renewal of time 3");
        assert_eq!(keeper.answered(None), Some(LeaseStep::Ended(3, 503)));
        assert!(keeper.waiting().is_none());
        assert_eq!(keeper.answered(None), None, "no call was made");
    }
}
