//! Outgoing frames, lane by lane.

use std::collections::VecDeque;

use crate::frame::{Frame, Welcome};
use crate::ids::{CloudRevision, Lane, Moment, SubscriptionId};
use crate::session::cloud::{CloudSession, CloudSessionPhase, KEPT_CAPACITY, NodeView};
use crate::session::{ProtocolVersion, SessionError};

/// Most small frames that may wait for the control lane. More end the session: the peer causes them and does not read
/// them.
const NOTICES_MAX: usize = 512;

/// A small frame that waits for the control lane.
#[derive(Debug)]
pub(super) enum Notice {
    Welcome,
    InventoryRequest(SubscriptionId),
    CaughtUp(SubscriptionId, CloudRevision),
    Closed { subscription: SubscriptionId, code: u16, reason: String },
}

impl Notice {
    /// Bytes that the notice takes.
    pub(super) fn memory(&self) -> usize {
        let reason = match self {
            Self::Closed { reason, .. } => reason.len(),
            Self::Welcome | Self::InventoryRequest(_) | Self::CaughtUp(..) => 0,
        };
        size_of::<Self>().saturating_add(reason)
    }
}

impl CloudSession {
    /// The next frame for a lane, if there is one to send.
    pub fn poll_transmit(&mut self, now: Moment, lane: Lane, view: &impl NodeView) -> Option<Frame> {
        self.now = now;
        let frame = match &self.phase {
            CloudSessionPhase::AwaitingHello { .. } | CloudSessionPhase::Closed => None,
            CloudSessionPhase::Leaving(_) if lane != Lane::Control => None,
            CloudSessionPhase::Leaving(goodbye) => {
                let goodbye = goodbye.clone();
                self.phase = CloudSessionPhase::Closed;
                return Some(Frame::Goodbye(goodbye));
            }
            CloudSessionPhase::Open if lane == Lane::Control => self.poll_control(),
            CloudSessionPhase::Open => self.poll_objects(lane, view),
        };
        if frame.is_some() {
            self.liveness.sent(now);
        }
        frame
    }

    /// Frames in order of urgency: leases before frames that may be many.
    fn poll_control(&mut self) -> Option<Frame> {
        if matches!(self.notices.front(), Some(Notice::Welcome)) {
            return self.poll_notice();
        }
        // Before the mark that a subscription is caught up, so that both are written to the disk together.
        if std::mem::take(&mut self.unattested) {
            return Some(Frame::Attestation { proof: self.attestation.clone() });
        }
        if let Some((renew_time_micros, code)) = self.lease_answer.take() {
            return Some(Frame::LeaseRenewed { renew_time_micros, code });
        }
        self.liveness
            .poll(self.now)
            .or_else(|| self.poll_notice())
            .or_else(|| self.requests.poll(Lane::Control).map(Frame::Reply))
    }

    fn poll_notice(&mut self) -> Option<Frame> {
        let notice = self.notices.pop_front()?;
        if self.notices.is_empty() && self.notices.capacity() > KEPT_CAPACITY {
            self.notices = VecDeque::new();
        }
        Some(match notice {
            Notice::Welcome => Frame::Welcome(self.welcome()),
            Notice::InventoryRequest(subscription) => Frame::InventoryRequest { subscription },
            Notice::CaughtUp(subscription, revision) => {
                Frame::CaughtUp { subscription, epoch: self.config.epoch.clone(), revision }
            }
            Notice::Closed { subscription, code, reason } => {
                Frame::SubscriptionClosed { subscription, code, reason }
            }
        })
    }

    pub(super) fn notify(&mut self, notice: Notice) {
        if self.notices.len() >= NOTICES_MAX {
            let text = format!("{NOTICES_MAX} frames are queued, and the node does not read them");
            self.leave(SessionError::Overloaded(text).goodbye());
            return;
        }
        self.notices.push_back(notice);
    }

    fn welcome(&self) -> Welcome {
        let elapsed = self.now.since(self.opened_at).as_millis();
        Welcome {
            version: ProtocolVersion::NEWEST.number(),
            epoch: self.config.epoch.clone(),
            features: self.features,
            trim_version: self.config.trim_version,
            ping_interval: self.config.ping_interval,
            idle_timeout: self.config.idle_timeout,
            unix_millis: self.config.unix_millis.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)),
            agent: self.config.agent.clone(),
        }
    }
}
