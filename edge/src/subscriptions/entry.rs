//! One selection: who wants it, its progress, and the effect of a refusal by the cloud.
//!
//! A copy that this node follows for callers is shared by all callers whose own rights allow it ([`crate::localapi`]).
//! So it is removed only when the right is lost with which it was fetched. A caller that never had that right, or whose
//! token has expired, does not affect the others.

use tokio::time::Instant;

use super::callers::Callers;
use super::claims::Claims;
use super::{IDLE_LIMIT, REFUSAL_BELIEVED};
use crate::store::Selection;

/// Progress of a selection in the current session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not followed.
    Idle,
    /// Requested; not compared yet.
    Opening,
    /// Complete, and kept up to date.
    Live,
    /// The cloud refuses it.
    Refused {
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Message for the operator.
        reason: String,
    },
}

/// What must be done with a selection before it is followed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Duty {
    /// End its watches, since one may belong to a refused caller. The other callers watch again with their own rights.
    EndWatches,
    /// Delete its copy.
    Clear,
    /// Forget it.
    Forget,
}

/// One selection in the registry.
#[derive(Debug)]
pub(super) struct SelectionEntry {
    pub(super) selection: Selection,
    /// Always followed, never forgotten.
    pub(super) warm: bool,
    /// When a client last requested it; `None` before the first time in this process.
    pub(super) used: Option<Instant>,
    pub(super) callers: Callers,
    /// The senders in whose shares it counts; without any, it counts in the node's.
    pub(super) claims: Claims,
    pub(super) standing: Standing,
    pub(super) refused_at: Option<Instant>,
    /// Code of the last refusal that was reported to the operator.
    reported: Option<u16>,
    /// Until it is done the selection is not followed, so that no inventory has a copy that is about to be deleted.
    pub(super) duty: Option<Duty>,
}

impl SelectionEntry {
    /// A selection without any request yet.
    pub(super) fn new(selection: Selection) -> Self {
        Self {
            selection,
            warm: false,
            used: None,
            callers: Callers::default(),
            claims: Claims::default(),
            standing: Standing::Idle,
            refused_at: None,
            reported: None,
            duty: None,
        }
    }

    /// Whether a session should follow it.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        let asked = self.warm || self.used.is_some_and(|used| now.duration_since(used) < IDLE_LIMIT);
        let refused = self.refused_at.is_some() && !self.is_refusal_old(now);
        asked && !refused && !self.is_nameless() && self.duty.is_none()
    }

    /// Whether it may be forgotten, and is not about to be already.
    pub(super) fn can_go(&self) -> bool {
        !self.warm && self.duty < Some(Duty::Forget)
    }

    /// Whether the last refusal no longer counts.
    pub(super) fn is_refusal_old(&self, now: Instant) -> bool {
        self.refused_at.is_none_or(|at| now.duration_since(at) >= REFUSAL_BELIEVED)
    }

    /// Whether it needs a caller's token and there is none. It is not requested then; the next caller has a token.
    fn is_nameless(&self) -> bool {
        self.selection.borrowed && self.callers.name().is_none()
    }

    /// Whether a session follows it.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.standing, Standing::Opening | Standing::Live)
    }

    /// Whether a refusal concerns only the caller in whose name the selection is followed.
    fn is_personal(&self, code: u16) -> bool {
        self.selection.borrowed && matches!(code, 401 | 403)
    }

    /// Records its standing. Returns whether to report it to the operator.
    pub(super) fn stands(&mut self, standing: Standing, now: Instant) -> bool {
        if let Standing::Refused { code, reason } = &standing {
            return self.refuse(*code, reason, now);
        }
        if standing == Standing::Live {
            self.reported = None;
            self.callers.live();
        }
        self.refused_at = None;
        self.standing = standing;
        false
    }

    fn refuse(&mut self, code: u16, reason: &str, now: Instant) -> bool {
        let personal = self.is_personal(code);
        let had_right = personal && self.callers.refuse(code, reason, now);
        let duty = match code {
            // An expired token says nothing about the rights of an account.
            403 if had_right || !personal => Some(Duty::Clear),
            404 => Some(Duty::Clear),
            _ if personal => Some(Duty::EndWatches),
            _ => None,
        };
        self.duty = self.duty.max(duty.filter(|_| !self.warm));
        if personal && !self.is_nameless() {
            // Another caller may have the right.
            (self.standing, self.refused_at) = (Standing::Idle, None);
        } else {
            self.standing = Standing::Refused { code, reason: reason.to_owned() };
            self.refused_at = Some(now);
        }
        self.reported.replace(code) != Some(code)
    }

    /// Records a client's request. A refusal that is old, or that concerned another caller, is cleared.
    pub(super) fn demand(&mut self, token: Option<&str>, now: Instant) {
        self.used = Some(now);
        // A selection that this node follows in its own name never needs the token of a reader.
        if let Some(token) = token.filter(|_| self.selection.borrowed) {
            self.callers.ask(token, now);
        }
        if let Standing::Refused { code, .. } = self.standing {
            let again = if self.is_personal(code) { !self.is_nameless() } else { self.is_refusal_old(now) };
            if again {
                (self.standing, self.refused_at) = (Standing::Idle, None);
            }
        }
    }
}
