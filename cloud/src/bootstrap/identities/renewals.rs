//! Limits the rate of renewals per name: each renewal writes a Secret of up to 900 KiB that a quarter of the fleet
//! shares, and every replica receives it. The time of the last renewal is in the record, so all replicas apply the same
//! rate.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;
use tombolo_runtime::doubled;

use super::entry::{CLOCK_SKEW_SECONDS, CertificateStatus, Denied, Entry, Key};
use super::{Identities, IdentityError};

/// Consecutive renewals without a pause: an agent whose answer was lost asks again within seconds.
const AT_ONCE: u32 = 3;

/// The pause after these. It doubles with each further renewal.
const PAUSE: Duration = Duration::from_secs(60);

/// The longest pause. Certificates live for at least a day, and are renewed when most of that is over.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Renewals of one name in short succession.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewals {
    /// Number of renewals.
    count: u32,
    /// Time of the last recorded one, in Unix seconds.
    last: u64,
}

impl Renewals {
    fn pause(self) -> Duration {
        match self.count.checked_sub(AT_ONCE) {
            Some(beyond) => doubled(PAUSE, beyond.saturating_add(1), PAUSE_MAX),
            None => Duration::ZERO,
        }
    }

    /// How long the next renewal must wait; none when it may run now. If the last renewal is in the future, because a
    /// clock was corrected since, there is no wait.
    fn left(self, now: u64) -> Option<Duration> {
        if self.last > now.saturating_add(CLOCK_SKEW_SECONDS) {
            return None;
        }
        let left = self.pause().saturating_sub(Duration::from_secs(now.saturating_sub(self.last)));
        (!left.is_zero()).then_some(left)
    }

    /// The same with one more renewal. After a rest as long as its pause plus the longest pause, counting starts again.
    pub(super) fn with_one_more(former: Option<Self>, now: u64) -> Self {
        let rest = |former: &Self| former.pause().saturating_add(PAUSE_MAX).as_secs();
        let close = former.filter(|former| now.saturating_sub(former.last) <= rest(former));
        Self { count: close.map_or(0, |former| former.count).saturating_add(1), last: now }
    }
}

/// Why a renewal is not recorded.
enum RenewalRefusal {
    Denied(Denied),
    TooOften(Duration),
}

impl Entry {
    /// How long the next renewal with a certificate must wait. A certificate that is not in force gets no wait, because
    /// it is refused anyway.
    fn pause_left(&self, with: &PeerCertificate, now: u64) -> Option<Duration> {
        let is_own = !self.revoked && self.keys.contains(&Key::from(with));
        self.renewals.filter(|_| is_own)?.left(now)
    }
}

impl Identities {
    /// How long a node must wait before the next renewal with a certificate, as far as known here.
    pub(crate) fn renewal_pause(&self, node: &NodeId, with: &PeerCertificate) -> Option<Duration> {
        self.shards.get(node)?.pause_left(with, self.now())
    }

    /// Records a renewal with a certificate, which must still be in force.
    ///
    /// # Errors
    /// [`IdentityError`]: the certificate must then not be handed out.
    pub(crate) async fn renewed(
        &self,
        node: &NodeId,
        with: &PeerCertificate,
        new: &PeerCertificate,
    ) -> Result<Result<(), Denied>, IdentityError> {
        let turn = self.questions.turn(node)?;
        let _renewing = turn.begin().await;
        // A caller that had to wait may find the pause after the previous renewal here.
        if let Some(left) = self.renewal_pause(node, with) {
            return Err(IdentityError::TooOften(left));
        }
        let (state, now) = (self.nodes.state(node).await?, self.now());
        let recorded = self.change(node, |entry| {
            let present = match (self.judge(node, entry, state.uid(), with), entry) {
                (CertificateStatus::Denied(why), _) => return Err(RenewalRefusal::Denied(why)),
                (CertificateStatus::Record(changed), _) => changed,
                (CertificateStatus::InForce, Some(entry)) => entry.clone(),
                (CertificateStatus::InForce, None) => return Ok(None),
            };
            // This is our own write, whose answer was lost.
            if present.keys.contains(&Key::from(new)) {
                return Ok(None);
            }
            match present.pause_left(with, now) {
                Some(left) => Err(RenewalRefusal::TooOften(left)),
                None => Ok(Some(present.renewed(with, new, now))),
            }
        });
        match recorded.await? {
            Ok(()) => Ok(Ok(())),
            Err(RenewalRefusal::Denied(why)) => Ok(Err(why)),
            Err(RenewalRefusal::TooOften(left)) => Err(IdentityError::TooOften(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits of this many renewals that arrive as soon as they may.
    fn waits(count: usize) -> Vec<u64> {
        let (mut now, mut last) = (1_000_000, None);
        let renewals = (0..count).map(|_| {
            let left = last.and_then(|last: Renewals| last.left(now)).unwrap_or_default().as_secs();
            now += left;
            last = Some(Renewals::with_one_more(last, now));
            left
        });
        renewals.collect()
    }

    #[test]
    fn pauses_between_renewals_grow_to_an_hour() {
        assert_eq!(waits(12), [0, 0, 0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    }

    #[test]
    fn who_renews_at_the_usual_time_never_waits() {
        let (mut now, mut last) = (1_000_000, None);
        for _ in 0..20 {
            let renewals = Renewals::with_one_more(last, now);
            assert_eq!((renewals.count, renewals.left(now)), (1, None));
            (now, last) = (now + 86_400 * 7 / 10, Some(renewals));
        }
    }

    #[test]
    fn a_clock_that_was_ahead_keeps_nobody_waiting() {
        let renewals = Renewals { count: 20, last: 1_000_000 };
        assert_eq!(renewals.left(1_000_000 - CLOCK_SKEW_SECONDS), Some(PAUSE_MAX));
        assert_eq!(renewals.left(1_000_000 - CLOCK_SKEW_SECONDS - 1), None);
    }
}
