//! The renewals of a session's lease, and what they show of other processes with the node's identity.

use std::sync::Arc;

use tombolo_proto::Moment;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};

use super::super::rivals::wait_after;
use super::{Done, Owner};
use crate::edgecontroller::upstream::{HeldLease, Renewal};

/// The lease of one session.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// Which process of the edge this session is; 0 when it does not say.
    process: u64,
    /// This hub has reported two processes at the beginning of the session.
    reported: bool,
    running: bool,
    /// The newest renewal that was asked for meanwhile.
    next: Option<i64>,
    /// The lease was this process's in this session.
    held: bool,
    /// A renewal that has found the lease another one's.
    doubt: Option<Box<Doubt>>,
}

#[derive(Debug)]
struct Doubt {
    renew_time_micros: i64,
    lease: Box<HeldLease>,
    /// Whoever answers a question that was asked after this was alive after the other one had the lease.
    since: Moment,
}

impl Owner {
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

    /// One renewal at a time; of those that come meanwhile, the newest follows.
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

    /// A renewal is over, or has found the lease another process's. `proofs` is how often it is proved that there are two, where
    /// this renewal has proved it.
    pub(super) fn lease_done(&mut self, renew_time_micros: i64, renewal: Renewal, proofs: Option<u32>) {
        let code = match renewal {
            Renewal::Answered(code) => code,
            Renewal::OfAnother(lease) => {
                let since = self.hub.clock.now();
                self.lease.doubt = Some(Box::new(Doubt { renew_time_micros, lease, since }));
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
        self.channel.attest(&self.hub.testimony.proof());
        self.start_lease();
    }

    /// The edge has answered a ping that left this long ago.
    pub(super) fn heard_after(&mut self, round_trip: std::time::Duration) {
        let now = self.hub.clock.now();
        let Some(doubt) = self.lease.doubt.take_if(|doubt| round_trip <= now.since(doubt.since)) else {
            return;
        };
        let Doubt { renew_time_micros, lease, .. } = *doubt;
        let process = self.lease.process;
        if self.lease.held && lease.process.is_some_and(|other| other != process) {
            return self.lose_lease(&lease);
        }
        let (hub, node) = (Arc::clone(&self.hub), self.node.clone());
        let proofs = lease.comes_back(process).then(|| lease.proofs().saturating_add(1));
        self.work.push(Box::pin(async move {
            let renewal = hub.upstream.take_lease(&node, renew_time_micros, process, &lease).await;
            Done::Lease { renew_time_micros, renewal, proofs }
        }));
    }

    /// Another process has taken the lease in the middle of this session, at another replica: the session is replaced as it would be
    /// by a connection to this one. Where the other one has come back, its replica has reported that.
    fn lose_lease(&mut self, lease: &HeldLease) {
        let times = lease.proofs();
        if times == 0 {
            self.hub.contested(&self.node, 1);
        }
        self.channel.say_goodbye(Goodbye {
            reason: GoodbyeReason::Replaced,
            message: format!(
                "another process with the identity of {} took over at another cloudcore",
                self.node
            ),
            retry_after: wait_after(times.max(1)),
        });
    }
}
