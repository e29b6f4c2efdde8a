//! What is followed, what should be, and how far it has come. State, not queues: the session with the cloud compares it
//! with what it follows whenever it changes.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_proto::ids::ScopeId;
use tombolo_proto::limits::SUBSCRIPTIONS_MAX;

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

/// A selection that a session should follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) scope: ScopeId,
    pub(crate) selection: Selection,
    /// Bearer token of the client in whose name it is followed; none: the node itself.
    pub(crate) token: Option<String>,
}

#[derive(Debug)]
struct Entry {
    selection: Selection,
    /// Always followed, never forgotten.
    warm: bool,
    /// When a client last asked for it; none before the first time in this process.
    used: Option<Instant>,
    token: Option<String>,
    standing: Standing,
    refused_at: Option<Instant>,
    /// Code of the last refusal that the operator was told of.
    told: Option<u16>,
    /// Whether the copy was taken away with the right to read it.
    cleared: bool,
}

impl Entry {
    fn is_wanted(&self, now: Instant) -> bool {
        let asked = self.warm || self.used.is_some_and(|used| now.duration_since(used) < IDLE_LIMIT);
        // In nobody's name nothing is asked; the next caller brings a token.
        let nameless = self.selection.borrowed && self.token.is_none();
        let refused = self.refused_at.is_some_and(|at| now.duration_since(at) < REFUSAL_BELIEVED);
        asked && !refused && !nameless
    }

    fn is_revoked(&self) -> bool {
        !self.warm && matches!(self.standing, Standing::Refused { code: 401 | 403 | 404, .. })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Board {
    entries: Mutex<BTreeMap<ScopeId, Entry>>,
    /// Whether there is a session that can follow anything, and a counter of changes.
    news: watch::Sender<(bool, u64)>,
}

impl Default for Board {
    fn default() -> Self {
        Self { entries: Mutex::default(), news: watch::Sender::new((false, 0)) }
    }
}

impl Board {
    /// Changes whenever the board does.
    pub(crate) fn news(&self) -> watch::Receiver<(bool, u64)> {
        self.news.subscribe()
    }

    /// A session began that can follow selections, or it is over.
    pub(crate) fn session(&self, open: bool) {
        for entry in self.entries.lock().values_mut() {
            if !matches!(entry.standing, Standing::Refused { .. }) {
                entry.standing = Standing::Idle;
            }
            // Another session may be with another cloudcore.
            entry.refused_at = None;
        }
        self.news.send_modify(|(session, count)| (*session, *count) = (open, count.wrapping_add(1)));
    }

    pub(super) fn has_session(&self) -> bool {
        self.news.borrow().0
    }

    /// What a session should follow now: the warm set first, and no more than a session may.
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        let (now, entries) = (Instant::now(), self.entries.lock());
        let mut wanted: Vec<_> = entries.iter().filter(|(_, entry)| entry.is_wanted(now)).collect();
        wanted.sort_by_key(|(_, entry)| (!entry.warm, std::cmp::Reverse(entry.used)));
        wanted.truncate(SUBSCRIPTIONS_MAX);
        let wanted = wanted.into_iter().map(|(scope, entry)| Wanted {
            scope: *scope,
            selection: entry.selection.clone(),
            token: entry.token.clone(),
        });
        wanted.collect()
    }

    /// A selection has come further in this session. Whether that is news to the operator: refusals repeat themselves for
    /// as long as something is asked for that the cloud does not have.
    pub(crate) fn stands(&self, scope: ScopeId, standing: Standing) -> bool {
        let mut news = false;
        if let Some(entry) = self.entries.lock().get_mut(&scope) {
            entry.refused_at = matches!(standing, Standing::Refused { .. }).then(Instant::now);
            entry.cleared &= standing != Standing::Live;
            if let Standing::Refused { code, .. } = standing {
                news = entry.told.replace(code) != Some(code);
            } else if standing == Standing::Live {
                entry.told = None;
            }
            entry.standing = standing;
        }
        self.tell();
        news
    }

    pub(super) fn add(&self, scope: ScopeId, selection: Selection, warm: bool) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(scope).or_insert_with(|| Entry {
            selection,
            warm,
            used: None,
            token: None,
            standing: Standing::Idle,
            refused_at: None,
            told: None,
            cleared: false,
        });
        entry.warm |= warm;
    }

    pub(super) fn remove(&self, scope: ScopeId) {
        self.entries.lock().remove(&scope);
        self.tell();
    }

    /// A client asks for a selection. A refusal that is old, or that was for somebody else, is tried again.
    pub(super) fn demand(&self, scope: ScopeId, token: Option<&str>) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&scope) else { return };
        // What this node follows in its own name stays so, whoever reads it.
        let token = token.filter(|_| entry.selection.borrowed);
        let was_wanted = entry.is_wanted(now);
        entry.used = Some(now);
        if let Standing::Refused { .. } = entry.standing {
            let old = entry.refused_at.is_none_or(|at| now.duration_since(at) >= REFUSAL_BELIEVED);
            let other = token.is_some() && entry.token.as_deref() != token;
            if old || other {
                entry.standing = Standing::Idle;
                entry.refused_at = None;
            }
        }
        if token.is_some() {
            entry.token = token.map(str::to_owned);
        }
        let news = entry.is_wanted(now) != was_wanted;
        drop(entries);
        if news {
            self.tell();
        }
    }

    pub(super) fn standing(&self, scope: ScopeId) -> Option<Standing> {
        self.entries.lock().get(&scope).map(|entry| entry.standing.clone())
    }

    /// The selection itself, or a wider one that is being followed or is warm.
    pub(super) fn covering(&self, selection: &Selection) -> Option<ScopeId> {
        let entries = self.entries.lock();
        let exact = entries.iter().find(|(_, entry)| entry.selection == *selection);
        let wider = || {
            let mut covering = entries.iter().filter(|(_, entry)| {
                let usable = entry.warm || entry.standing == Standing::Live;
                usable && entry.selection.covers(selection)
            });
            covering.next()
        };
        exact.or_else(wider).map(|(scope, _)| *scope)
    }

    /// The selections outside the warm set.
    pub(super) fn cold(&self) -> Vec<ScopeId> {
        self.select(|entry| !entry.warm)
    }

    /// Selections outside the warm set that the cloud does not allow (any more), and whose copies are still there.
    pub(super) fn revoked(&self) -> Vec<ScopeId> {
        self.select(|entry| entry.is_revoked() && !entry.cleared)
    }

    /// The copy was taken away.
    pub(super) fn cleared(&self, scope: ScopeId) {
        if let Some(entry) = self.entries.lock().get_mut(&scope) {
            entry.cleared = true;
        }
    }

    /// What was revoked so long ago that nobody waits for the reason any more.
    pub(super) fn forgettable(&self) -> Vec<ScopeId> {
        let now = Instant::now();
        let old =
            |entry: &Entry| entry.refused_at.is_none_or(|at| now.duration_since(at) >= REFUSAL_BELIEVED);
        self.select(|entry| entry.is_revoked() && entry.cleared && old(entry))
    }

    fn select(&self, fits: impl Fn(&Entry) -> bool) -> Vec<ScopeId> {
        let entries = self.entries.lock();
        entries.iter().filter(|(_, entry)| fits(entry)).map(|(scope, _)| *scope).collect()
    }

    /// Marks what clients read as used, and has the session compare what is still wanted.
    pub(super) fn rest(&self, is_read: impl Fn(ScopeId, &Selection) -> bool) {
        let now = Instant::now();
        for (scope, entry) in self.entries.lock().iter_mut() {
            if !entry.warm && is_read(*scope, &entry.selection) {
                entry.used = Some(now);
            }
        }
        self.tell();
    }

    /// Of those that fit, the selection outside the warm set that was read longest ago.
    pub(super) fn evictable(&self, fits: impl Fn(ScopeId, &Selection) -> bool) -> Option<ScopeId> {
        let entries = self.entries.lock();
        let idle = entries.iter().filter(|(scope, entry)| !entry.warm && fits(**scope, &entry.selection));
        idle.min_by_key(|(_, entry)| entry.used).map(|(scope, _)| *scope)
    }

    pub(super) fn count(&self) -> usize {
        self.entries.lock().len()
    }

    fn tell(&self) {
        self.news.send_modify(|(_, count)| *count = count.wrapping_add(1));
    }
}
