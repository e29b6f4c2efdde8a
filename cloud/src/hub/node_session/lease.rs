//! Lease renewals of a session, and what they reveal about other processes with the node's identity.

use std::sync::Arc;

use tombolo_proto::Moment;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};

use super::super::duplicate_identity::wait_after;
use super::{Done, NodeSession};
use crate::edgecontroller::upstream::{HeldLease, Renewal};

/// The lease of one session.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// The process of the edge in this session; 0 when the edge does not send it.
    process: u64,
    /// This hub reported two processes when the session began.
    reported: bool,
    running: bool,
    /// The newest renewal that was requested during the running one.
    next: Option<i64>,
    /// This process has held the lease in this session.
    held: bool,
    /// A renewal that found the lease held by another process.
    conflict: Option<Box<LeaseConflict>>,
}

#[derive(Debug)]
struct LeaseConflict {
    renew_time_micros: i64,
    lease: Box<HeldLease>,
    /// When the ping was sent. A process that answers it was alive after the other process held the lease.
    since: Moment,
}

impl NodeSession {
    /// A process of the edge has begun this session.
    pub(super) fn introduce(&mut self, process: u64) {
        self.lease.process = process;
        if let Some(times) = self.handle.introduce(process) {
            self.lease.reported = true;
            self.hub.contested(&self.node, times);
        }
    }

    pub(super) fn renew_lease(&mut self, renew_time_micros: i64) {
        self.lease.next = Some(renew_time_micros);
        self.start_lease();
    }

    /// Runs one renewal at a time. If more arrive meanwhile, only the newest one follows.
    fn start_lease(&mut self) {
        if self.lease.running {
            return;
        }
        let Some(renew_time_micros) = self.lease.next.take() else { return };
        self.lease.running = true;
        let (hub, node, process) = (Arc::clone(&self.hub), self.node.clone(), self.lease.process);
        self.work.push(Box::pin(async move {
            let renewal = hub.upstream.renew_lease(&node, renew_time_micros, process).await;
            Done::Lease { renew_time_micros, renewal, proofs: None }
        }));
    }

    /// A renewal is done, or has found that another process holds the lease. `proofs` is the number of proofs that
    /// there are two processes, if this renewal is such a proof.
    pub(super) fn lease_done(&mut self, renew_time_micros: i64, renewal: Renewal, proofs: Option<u32>) {
        let code = match renewal {
            Renewal::Answered(code) => code,
            Renewal::OfAnother(lease) => {
                let since = self.hub.clock.now();
                self.lease.conflict = Some(Box::new(LeaseConflict { renew_time_micros, lease, since }));
                return self.channel.ask(since);
            }
        };
        self.lease.running = false;
        if code == 200 {
            self.hub.metrics.leases.inc();
            self.lease.held = true;
            if let Some(times) = proofs.filter(|_| !self.lease.reported) {
                self.hub.contested(&self.node, times);
            }
        }
        self.channel.lease_renewed(renew_time_micros, code);
        self.channel.attest(&self.hub.attestations.proof());
        self.start_lease();
    }

    /// The edge has answered a ping that was sent this long ago.
    pub(super) fn heard_after(&mut self, round_trip: std::time::Duration) {
        let now = self.hub.clock.now();
        let Some(conflict) = self.lease.conflict.take_if(|conflict| round_trip <= now.since(conflict.since))
        else {
            return;
        };
        let LeaseConflict { renew_time_micros, lease, .. } = *conflict;
        let process = self.lease.process;
        // A process that takes the lease from this one notes that in the lease. A lease without such a note is an older
        // version: the cloud's history went back.
        if self.lease.held && lease.comes_back(process) {
            return self.lose_lease(&lease);
        }
        let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
        let proofs = lease.comes_back(process).then(|| lease.proofs().saturating_add(1));
        self.work.push(Box::pin(async move {
            let renewal = hub.upstream.take_lease(&node, renew_time_micros, process, &lease).await;
            Done::Lease { renew_time_micros, renewal, proofs }
        }));
    }

    /// Another process has taken the lease during this session, at another replica. The session is replaced as it would
    /// be by a connection to this replica. If the other process has come back, its own replica has reported that.
    fn lose_lease(&mut self, lease: &HeldLease) {
        let times = lease.proofs();
        if times == 0 {
            self.hub.contested(&self.node, 1);
        }
        self.channel.say_goodbye(Goodbye {
            reason: GoodbyeReason::Replaced,
            message: format!(
                "another process with the identity of {} took over the session at another cloudcore",
                self.node
            ),
            retry_after: wait_after(times.max(1)),
        });
    }
}
