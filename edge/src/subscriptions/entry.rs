//! One selection: who wants it, how far it has come, and what a refusal of the cloud does to it.
//!
//! A copy that this node follows for others is shared by callers with rights of their own, each of whom is asked for them
//! ([`crate::localapi`]). So it is taken away only when the right goes with which it was brought here; a caller who never
//! had that right, or whose token has ended, takes nothing from the others.

use tokio::time::Instant;

use super::callers::Callers;
use super::claims::Claims;
use super::{IDLE_LIMIT, REFUSAL_BELIEVED};
use crate::store::Selection;

/// How far a selection has come in the session that there is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not followed.
    Idle,
    /// Asked for; not compared yet.
    Opening,
    /// Complete, and kept up to date.
    Live,
    /// The cloud refuses it.
    Refused {
        /// HTTP status code that a Kubernetes client would see.
        code: u16,
        /// Sentence for the operator.
        reason: String,
    },
}

/// What has to be done with a selection before it is followed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Duty {
    /// Its watches end: one of them may be that of a caller who was refused. The others come again with their own rights.
    EndWatches,
    /// Its copy is taken away.
    Clear,
    /// It is forgotten.
    Forget,
}

/// One selection on the board.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) selection: Selection,
    /// Always followed, never forgotten.
    pub(super) warm: bool,
    /// When a client last asked for it; none before the first time in this process.
    pub(super) used: Option<Instant>,
    pub(super) callers: Callers,
    /// In whose shares it is; in none: in the node's.
    pub(super) claims: Claims,
    pub(super) standing: Standing,
    pub(super) refused_at: Option<Instant>,
    /// Code of the last refusal that the operator was told of.
    told: Option<u16>,
    /// Until it is done nobody follows the selection, so that the cloud is told of no copy that is about to go.
    pub(super) duty: Option<Duty>,
}

impl Entry {
    /// Nobody has asked for it yet.
    pub(super) fn new(selection: Selection) -> Self {
        Self {
            selection,
            warm: false,
            used: None,
            callers: Callers::default(),
            claims: Claims::default(),
            standing: Standing::Idle,
            refused_at: None,
            told: None,
            duty: None,
        }
    }

    /// Whether a session should follow it.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        let asked = self.warm || self.used.is_some_and(|used| now.duration_since(used) < IDLE_LIMIT);
        let refused = self.refused_at.is_some() && !self.is_refusal_old(now);
        asked && !refused && !self.is_nameless() && self.duty.is_none()
    }

    /// Whether it may be forgotten and is not about to be.
    pub(super) fn can_go(&self) -> bool {
        !self.warm && self.duty < Some(Duty::Forget)
    }

    /// Whether a refusal is believed no longer.
    pub(super) fn is_refusal_old(&self, now: Instant) -> bool {
        self.refused_at.is_none_or(|at| now.duration_since(at) >= REFUSAL_BELIEVED)
    }

    /// In nobody's name nothing is asked; the next caller brings a token.
    fn is_nameless(&self) -> bool {
        self.selection.borrowed && self.callers.name().is_none()
    }

    /// Whether a session follows it.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.standing, Standing::Opening | Standing::Live)
    }

    /// Whether a refusal concerns the caller in whose name the selection is followed, and nobody else.
    fn is_personal(&self, code: u16) -> bool {
        self.selection.borrowed && matches!(code, 401 | 403)
    }

    /// It has come further. Whether that is news to the operator.
    pub(super) fn stands(&mut self, standing: Standing, now: Instant) -> bool {
        if let Standing::Refused { code, reason } = &standing {
            return self.refuse(*code, reason, now);
        }
        if standing == Standing::Live {
            self.told = None;
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
            // A token that has ended says nothing about the rights of an account.
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
        self.told.replace(code) != Some(code)
    }

    /// A client asks. A refusal that is old, or that was for somebody else, is tried again.
    pub(super) fn demand(&mut self, token: Option<&str>, now: Instant) {
        self.used = Some(now);
        // What this node follows in its own name stays so, whoever reads it.
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
