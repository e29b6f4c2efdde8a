//! The senders that request a selection. It counts in the share of each, and stays until all have given it up. So a
//! sender cannot evict what others read by requesting it too.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Maximum number of senders with a claim to a selection. The first ones keep their claims.
pub(super) const CLAIMS_MAX: usize = 16;

/// The claims to one selection, with the time of each sender's last request.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Instant>);

impl Claims {
    /// Records a request. A sender with a full share gets no claim to a selection that is already kept for others.
    pub(super) fn ask(&mut self, sender: &str, now: Instant, has_its_share: bool) {
        if let Some(used) = self.0.get_mut(sender) {
            *used = now;
        } else if self.0.is_empty() || (!has_its_share && self.0.len() < CLAIMS_MAX) {
            self.0.insert(sender.to_owned(), now);
        }
    }

    pub(super) fn has(&self, sender: &str) -> bool {
        self.0.contains_key(sender)
    }

    /// Time of a sender's last request; `None` if it has no claim.
    pub(super) fn asked(&self, sender: &str) -> Option<Instant> {
        self.0.get(sender).copied()
    }

    /// Renews all claims, because an unknown one of the senders is reading the selection.
    pub(super) fn rest(&mut self, now: Instant) {
        self.0.values_mut().for_each(|used| *used = now);
    }

    /// The senders in whose shares it counts, with their last requests; the node (`None`) if there are no claims.
    pub(super) fn shares(&self) -> impl Iterator<Item = (Option<&str>, Option<Instant>)> {
        let node = self.0.is_empty().then_some((None, None));
        node.into_iter().chain(self.0.iter().map(|(sender, used)| (Some(sender.as_str()), Some(*used))))
    }

    /// Gives up the claim of a sender. Returns true if it was the last one, or if there was none.
    pub(super) fn give_up(&mut self, share: Option<&str>) -> bool {
        if self.0.len() > 1
            && let Some(sender) = share
        {
            self.0.remove(sender);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_claims_are_kept_up_to_a_bound() {
        let (mut claims, now) = (Claims::default(), Instant::now());
        claims.ask("full", now, true);
        assert!(claims.has("full"), "bytes that count for no share");
        claims.ask("other", now, true);
        assert!(!claims.has("other"));
        for number in 0..2 * CLAIMS_MAX {
            claims.ask(&format!("s{number}"), now, false);
        }
        assert_eq!((claims.shares().count(), claims.has("full")), (CLAIMS_MAX, true));
        let senders: Vec<String> = claims.0.keys().cloned().collect();
        for (index, sender) in senders.iter().enumerate() {
            assert_eq!(claims.give_up(Some(sender)), index + 1 == CLAIMS_MAX, "{sender}");
        }
        assert!(Claims::default().give_up(None));
    }
}
