//! The callers in whose names a selection can be followed that the node has no right to follow itself. Several callers
//! share the selection. A refusal to one of them does not affect the others.

use tokio::time::Instant;

use super::REFUSAL_BELIEVED;

/// Maximum number of callers of one selection whose tokens are remembered. The one with the oldest request makes room.
const CALLERS_MAX: usize = 16;

/// The callers of one selection.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// In the order of their last requests, newest last.
    asked: Vec<SelectionCaller>,
    /// Token of the current or last subscription.
    opened: Option<String>,
    /// Token of the subscription that last brought the copy up to date.
    holder: Option<String>,
}

#[derive(Debug)]
struct SelectionCaller {
    token: String,
    refusal: Option<CallerRefusal>,
}

#[derive(Debug)]
struct CallerRefusal {
    at: Instant,
    code: u16,
    reason: String,
}

impl Callers {
    /// Records a request. Clears an old refusal, so that the caller is tried again.
    pub(super) fn ask(&mut self, token: &str, now: Instant) {
        let known = self.asked.iter().position(|caller| caller.token == token);
        let caller = match known {
            Some(index) => self.asked.remove(index),
            None => SelectionCaller { token: token.to_owned(), refusal: None },
        };
        let fresh = |refusal: &CallerRefusal| now.duration_since(refusal.at) < REFUSAL_BELIEVED;
        self.asked.push(SelectionCaller { refusal: caller.refusal.filter(fresh), ..caller });
        if self.asked.len() > CALLERS_MAX {
            let used = |caller: &SelectionCaller| {
                [&self.opened, &self.holder].iter().any(|used| used.as_ref() == Some(&caller.token))
            };
            let oldest = self.asked.iter().position(|caller| !used(caller)).unwrap_or_default();
            self.asked.remove(oldest);
        }
    }

    /// The token to follow the selection with: the one that is known to have the right, or else the newest.
    pub(super) fn name(&self) -> Option<&str> {
        let mut able = self.asked.iter().rev().filter(|caller| caller.refusal.is_none());
        let holds = |caller: &&SelectionCaller| self.holder.as_ref() == Some(&caller.token);
        let caller = able.clone().find(holds).or_else(|| able.next());
        caller.map(|caller| caller.token.as_str())
    }

    /// Begins a subscription. Returns its token.
    pub(super) fn open(&mut self) -> Option<String> {
        self.opened = self.name().map(str::to_owned);
        self.opened.clone()
    }

    /// Records that the subscription brought the copy up to date.
    pub(super) fn live(&mut self) {
        self.holder.clone_from(&self.opened);
    }

    /// Records that the cloud refused the subscription. Returns whether its caller had the right before.
    pub(super) fn refuse(&mut self, code: u16, reason: &str, now: Instant) -> bool {
        let Some(opened) = self.opened.take() else { return false };
        if let Some(caller) = self.asked.iter_mut().find(|caller| caller.token == opened) {
            caller.refusal = Some(CallerRefusal { at: now, code, reason: reason.to_owned() });
        }
        let held = self.holder.as_ref() == Some(&opened);
        if held {
            self.holder = None;
        }
        held
    }

    /// The cloud's refusal to one of the callers.
    pub(super) fn refusal(&self, token: &str) -> Option<(u16, String)> {
        let caller = self.asked.iter().find(|caller| caller.token == token)?;
        caller.refusal.as_ref().map(|refusal| (refusal.code, refusal.reason.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorised_caller_is_remembered_among_many() {
        let (mut callers, now) = (Callers::default(), Instant::now());
        callers.ask("holder", now);
        assert_eq!(callers.open().as_deref(), Some("holder"));
        callers.live();
        for number in 0..2 * CALLERS_MAX {
            callers.ask(&format!("t{number}"), now);
        }
        assert_eq!(callers.asked.len(), CALLERS_MAX);
        assert_eq!(callers.open().as_deref(), Some("holder"));
        assert!(callers.refuse(403, "", now), "it had the right");
        let newest = format!("t{}", 2 * CALLERS_MAX - 1);
        assert_eq!(callers.open(), Some(newest.clone()));
        assert!(!callers.refuse(403, "", now), "this one never had it");
        assert_eq!(callers.refusal(&newest).map(|(code, _)| code), Some(403));
        callers.ask(&newest, now + REFUSAL_BELIEVED / 2);
        assert_ne!(callers.name(), Some(newest.as_str()), "a refusal is believed for a while");
        callers.ask(&newest, now + REFUSAL_BELIEVED);
        assert_eq!(callers.name(), Some(newest.as_str()));
    }
}
