//! What is followed, what should be, and how far it has come. State, not queues: the session with the cloud compares it
//! with what it follows whenever it changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_proto::ids::ScopeId;
use tombolo_proto::limits::SUBSCRIPTIONS_MAX;

use super::entry::{Duty, Entry, Standing};
use super::{Borrower, KEPT_PER_SENDER_MAX};
use crate::store::Selection;

/// Selections that parts of this agent may wish for at a time.
const WISHES_MAX: usize = 16;

/// A selection that a session follows from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) selection: Selection,
    /// Bearer token of the client in whose name it is followed; none: the node itself.
    pub(crate) token: Option<String>,
}

/// Where a selection is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Here, or in a wider selection.
    At(ScopeId),
    /// Here, but about to be forgotten.
    Leaving,
    Nowhere,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Board {
    entries: Mutex<BTreeMap<ScopeId, Entry>>,
    /// Selections that a part of this agent wants and nobody has opened yet, and whether the operator knows that there is no
    /// room for them.
    wishes: Mutex<BTreeMap<Selection, bool>>,
    /// Whether there is a session that can follow anything, and a counter of changes.
    news: watch::Sender<(bool, u64)>,
}

impl Default for Board {
    fn default() -> Self {
        let (entries, wishes) = Default::default();
        Self { entries, wishes, news: watch::Sender::new((false, 0)) }
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

    /// What a session should follow now: the warm set first, then of each sender what was asked for last, what before that, and
    /// so on, and no more than a session may.
    pub(crate) fn wanted(&self) -> Vec<ScopeId> {
        let (now, entries) = (Instant::now(), self.entries.lock());
        let mut ranks: BTreeMap<ScopeId, usize> = BTreeMap::new();
        let mut shares: BTreeMap<Option<&str>, Vec<_>> = BTreeMap::new();
        for (scope, entry) in entries.iter().filter(|(_, entry)| entry.is_wanted(now)) {
            if entry.warm {
                ranks.insert(*scope, 0);
                continue;
            }
            for (share, used) in entry.claims.shares() {
                shares.entry(share).or_default().push((Reverse(used.or(entry.used)), *scope));
            }
        }
        for share in shares.values_mut() {
            share.sort_unstable();
            for (index, (_, scope)) in share.iter().enumerate() {
                let rank = ranks.entry(*scope).or_insert(usize::MAX);
                *rank = (*rank).min(index + 1);
            }
        }
        let mut ranked: Vec<_> = ranks.into_iter().map(|(scope, rank)| (rank, scope)).collect();
        ranked.sort_unstable();
        ranked.truncate(SUBSCRIPTIONS_MAX);
        ranked.into_iter().map(|(_, scope)| scope).collect()
    }

    /// A session follows a selection from now on; none when that is not wanted any more. Until it stands otherwise its copy
    /// is neither cleared nor forgotten.
    pub(crate) fn open(&self, scope: ScopeId) -> Option<Wanted> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(&scope).filter(|entry| entry.is_wanted(Instant::now()))?;
        let token = if entry.selection.borrowed { Some(entry.callers.open()?) } else { None };
        (entry.standing, entry.refused_at) = (Standing::Opening, None);
        // No news, which would have the session look again: nobody waits for this.
        Some(Wanted { selection: entry.selection.clone(), token })
    }

    /// A session cannot follow a selection yet. No news: it would be tried again at once.
    pub(crate) fn put_off(&self, scope: ScopeId) {
        if let Some(entry) = self.entries.lock().get_mut(&scope) {
            entry.standing = Standing::Idle;
        }
    }

    /// A selection has come further in this session. Whether that is news to the operator: what the node itself needs is refused.
    /// Refusals repeat themselves, and of what only clients ask for these are told.
    pub(crate) fn stands(&self, scope: ScopeId, standing: Standing) -> bool {
        let entry = |entry: &mut Entry| entry.stands(standing, Instant::now()) && entry.warm;
        let news = self.entries.lock().get_mut(&scope).is_some_and(entry);
        self.tell();
        news
    }

    pub(super) fn add(&self, scope: ScopeId, selection: Selection, warm: bool) {
        let mut entries = self.entries.lock();
        entries.entry(scope).or_insert_with(|| Entry::new(selection)).warm |= warm;
    }

    /// A client asks for a selection. What several ask for is in the share of each.
    pub(super) fn demand(&self, scope: ScopeId, who: Option<Borrower<'_>>) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let has_its_share = who.is_some_and(|who| has_its_share(&entries, who.sender));
        let Some(entry) = entries.get_mut(&scope) else { return };
        if let Some(who) = who.filter(|_| entry.selection.borrowed) {
            entry.claims.ask(who.sender, now, has_its_share);
        }
        let was_wanted = entry.is_wanted(now);
        entry.demand(who.map(|who| who.token), now);
        let news = entry.is_wanted(now) != was_wanted;
        drop(entries);
        if news {
            self.tell();
        }
    }

    /// How a selection stands, for a caller; none when it is not here, or not for long.
    pub(super) fn standing(&self, scope: ScopeId, token: Option<&str>) -> Option<Standing> {
        let entries = self.entries.lock();
        let entry = entries.get(&scope).filter(|entry| entry.duty != Some(Duty::Forget))?;
        let own = || entry.callers.refusal(token?).map(|(code, reason)| Standing::Refused { code, reason });
        match entry.standing {
            Standing::Live => Some(Standing::Live),
            _ => Some(own().unwrap_or_else(|| entry.standing.clone())),
        }
    }

    /// Whether the copy of a selection may be read: it is not about to be taken away.
    pub(super) fn is_readable(&self, scope: ScopeId) -> bool {
        let entries = self.entries.lock();
        entries.get(&scope).is_some_and(|entry| entry.duty < Some(Duty::Clear))
    }

    /// The selection itself, or a wider one that is being followed or is warm.
    pub(super) fn place(&self, selection: &Selection) -> Place {
        let entries = self.entries.lock();
        let exact = entries.iter().find(|(_, entry)| entry.selection == *selection);
        let leaving = exact.is_some_and(|(_, entry)| entry.duty == Some(Duty::Forget));
        let wider = || {
            let mut covering = entries.iter().filter(|(_, entry)| {
                let usable = entry.warm || entry.standing == Standing::Live;
                usable && entry.duty.is_none() && entry.selection.covers(selection)
            });
            covering.next()
        };
        match exact.filter(|_| !leaving).or_else(wider) {
            Some((scope, _)) => Place::At(*scope),
            None if leaving => Place::Leaving,
            None => Place::Nowhere,
        }
    }

    /// As [`Self::place`], where it is to be found.
    pub(super) fn covering(&self, selection: &Selection) -> Option<ScopeId> {
        match self.place(selection) {
            Place::At(scope) => Some(scope),
            Place::Leaving | Place::Nowhere => None,
        }
    }

    /// The selections outside the warm set that stay.
    pub(super) fn cold(&self) -> BTreeSet<ScopeId> {
        let entries = self.entries.lock();
        let cold = entries.iter().filter(|(_, entry)| !entry.warm && entry.duty < Some(Duty::Forget));
        cold.map(|(scope, _)| *scope).collect()
    }

    /// What can be done now. Nothing is forgotten that a session still follows: what that tells of it would be written into
    /// whatever has its number next.
    pub(super) fn duties(&self) -> Vec<(ScopeId, Duty)> {
        let entries = self.entries.lock();
        let due = entries.iter().filter(|(_, entry)| !entry.is_followed());
        due.filter_map(|(scope, entry)| Some((*scope, entry.duty?))).collect()
    }

    /// A duty was done, and the store has committed it.
    pub(super) fn done(&self, scope: ScopeId, duty: Duty) {
        let mut entries = self.entries.lock();
        if duty == Duty::Forget {
            entries.remove(&scope);
        } else if let Some(entry) = entries.get_mut(&scope).filter(|entry| entry.duty == Some(duty)) {
            entry.duty = None;
        }
        drop(entries);
        self.tell();
    }

    /// Has those selections outside the warm set forgotten that the cloud refused so long ago that nobody waits for the
    /// reason any more, and of which there is nothing to lose.
    pub(super) fn forget_refused(&self, is_empty: impl Fn(ScopeId) -> bool) {
        let now = Instant::now();
        for (scope, entry) in self.entries.lock().iter_mut() {
            let refused = matches!(entry.standing, Standing::Refused { code: 401 | 403 | 404, .. });
            let forgettable = refused && !entry.warm && entry.duty.is_none();
            if forgettable && entry.is_refusal_old(now) && is_empty(*scope) {
                entry.duty = Some(Duty::Forget);
            }
        }
        self.tell();
    }

    /// Has a selection forgotten of those outside the warm set that fit: the sender that has most of them all gives up the one that it
    /// asked for longest ago, and so on, until one is given up that nobody else has asked for. None fits: none.
    pub(super) fn evict(&self, fits: impl Fn(ScopeId, &Selection) -> bool) -> Option<ScopeId> {
        self.evict_by(|_| 1, fits)
    }

    /// The same, of the sender whose selections weigh most.
    pub(super) fn evict_by(
        &self,
        weight: impl Fn(ScopeId) -> u64,
        fits: impl Fn(ScopeId, &Selection) -> bool,
    ) -> Option<ScopeId> {
        let mut entries = self.entries.lock();
        let mut has: BTreeMap<Option<String>, u64> = BTreeMap::new();
        let mut idle = Vec::new();
        for (scope, entry) in entries.iter().filter(|(_, entry)| entry.can_go()) {
            let fits = fits(*scope, &entry.selection);
            for (share, used) in entry.claims.shares() {
                let share = share.map(str::to_owned);
                *has.entry(share.clone()).or_default() += weight(*scope);
                if fits {
                    idle.push((share, used.or(entry.used), *scope));
                }
            }
        }
        let scope = loop {
            let next = idle.iter().enumerate();
            let next = next.min_by_key(|(_, (share, used, _))| (Reverse(has.get(share).copied()), *used))?.0;
            let (share, _, scope) = idle.swap_remove(next);
            if let Some(weighs) = has.get_mut(&share) {
                *weighs = weighs.saturating_sub(weight(scope));
            }
            let Some(entry) = entries.get_mut(&scope) else { continue };
            if entry.claims.give_up(share.as_deref()) {
                entry.duty = Some(Duty::Forget);
                break scope;
            }
        };
        drop(entries);
        self.tell();
        Some(scope)
    }

    /// Has a sender give up one, unless one is about to go; it is forgotten if nobody else has asked for it. False when none of them
    /// fits.
    pub(super) fn evict_of(&self, sender: &str, fits: impl Fn(ScopeId, &Selection) -> bool) -> bool {
        let mut entries = self.entries.lock();
        if owned(&entries, sender).any(|entry| entry.duty == Some(Duty::Forget)) {
            return true;
        }
        let own = entries.iter_mut().filter(|(_, entry)| entry.claims.has(sender));
        let idle = own.filter(|(scope, entry)| entry.can_go() && fits(**scope, &entry.selection));
        let Some((_, entry)) = idle.min_by_key(|(_, entry)| entry.claims.asked(sender)) else { return false };
        if entry.claims.give_up(Some(sender)) {
            entry.duty = Some(Duty::Forget);
        }
        drop(entries);
        self.tell();
        true
    }

    /// Whether as many selections are kept for a sender as for one may be.
    pub(super) fn has_its_share(&self, sender: &str) -> bool {
        has_its_share(&self.entries.lock(), sender)
    }

    /// Whether something is about to be forgotten.
    pub(super) fn is_any_leaving(&self) -> bool {
        self.entries.lock().values().any(|entry| entry.duty == Some(Duty::Forget))
    }

    /// Marks what clients read as used, and has the session compare what is still wanted.
    pub(super) fn rest(&self, is_read: impl Fn(ScopeId, &Selection) -> bool) {
        let now = Instant::now();
        for (scope, entry) in self.entries.lock().iter_mut() {
            if !entry.warm && is_read(*scope, &entry.selection) {
                entry.used = Some(now);
                entry.claims.rest(now);
            }
        }
        self.tell();
    }

    pub(super) fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// A part of this agent wants a selection that is not here. It comes when there is room.
    pub(super) fn wish(&self, selection: Selection) {
        let mut wishes = self.wishes.lock();
        if wishes.len() >= WISHES_MAX || wishes.contains_key(&selection) {
            return;
        }
        wishes.insert(selection, false);
        drop(wishes);
        self.tell();
    }

    pub(super) fn wishes(&self) -> Vec<Selection> {
        self.wishes.lock().keys().cloned().collect()
    }

    /// A wish was fulfilled.
    pub(super) fn grant(&self, selection: &Selection) {
        self.wishes.lock().remove(selection);
    }

    /// A wish has to wait. Whether that is news to the operator.
    pub(super) fn delay(&self, selection: &Selection) -> bool {
        self.wishes.lock().get_mut(selection).is_some_and(|told| !std::mem::replace(told, true))
    }

    fn tell(&self) {
        self.news.send_modify(|(_, count)| *count = count.wrapping_add(1));
    }
}

/// The selections in the share of a sender.
fn owned<'a>(
    entries: &'a BTreeMap<ScopeId, Entry>,
    sender: &'a str,
) -> impl Iterator<Item = &'a Entry> + use<'a> {
    entries.values().filter(move |entry| entry.claims.has(sender))
}

fn has_its_share(entries: &BTreeMap<ScopeId, Entry>, sender: &str) -> bool {
    owned(entries, sender).count() >= KEPT_PER_SENDER_MAX
}
