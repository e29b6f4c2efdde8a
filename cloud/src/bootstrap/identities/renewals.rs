//! Records renewals, at a limited rate for each name.

use std::time::Duration;

use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

use super::entry::{CertificateStatus, Denied, Entry, Key};
use super::{Identities, IdentityError};

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
