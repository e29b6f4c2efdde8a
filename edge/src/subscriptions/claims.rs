//! Who asks for a selection. It is in the share of each of them, and stays until all have given it up: nobody makes what others
//! read go by asking for it too.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Senders that can have a claim to a selection; it stays for those who came first.
pub(super) const CLAIMS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Instant>);

impl Claims {
    /// A sender asks. One that has all it may have gets no claim to what is kept for others already.
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

    /// When a sender asked last; none: it has no claim.
    pub(super) fn asked(&self, sender: &str) -> Option<Instant> {
        self.0.get(sender).copied()
    }

    /// Somebody reads it all the time: nobody knows who.
    pub(super) fn rest(&mut self, now: Instant) {
        self.0.values_mut().for_each(|used| *used = now);
    }

    /// Whose share it is in, and when each of them asked last; the node's where nobody has a claim.
    pub(super) fn shares(&self) -> impl Iterator<Item = (Option<&str>, Option<Instant>)> {
        let node = self.0.is_empty().then_some((None, None));
        node.into_iter().chain(self.0.iter().map(|(sender, used)| (Some(sender.as_str()), Some(*used))))
    }

    /// Somebody has no room for it. Whether it is in nobody's share any more.
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
    fn who_comes_first_keeps_a_claim_and_there_is_a_bound() {
        let (mut claims, now) = (Claims::default(), Instant::now());
        claims.ask("full", now, true);
        assert!(claims.has("full"), "what is in nobody's share");
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
