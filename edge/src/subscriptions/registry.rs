//! The selections that are followed or should be, and their progress. The registry is state, not a queue: on every
//! change the session with the cloud compares it with the selections it follows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_proto::ids::SubscriptionId;
use tombolo_proto::limits::SUBSCRIPTIONS_MAX;

use super::entry::{Duty, SelectionEntry, Standing};
use super::{KEPT_PER_SENDER_MAX, TokenCaller};
use crate::store::Selection;

/// Maximum number of selections that parts of this agent may wish for at a time.
const WISHES_MAX: usize = 16;

/// A selection that a session follows from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) selection: Selection,
    /// Bearer token of the client in whose name it is followed; `None` means the node itself.
    pub(crate) token: Option<String>,
}

/// Where to find a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelectionLookup {
    /// In the selection itself or a wider one.
    At(SubscriptionId),
    /// In the registry, but about to be forgotten.
    Leaving,
    Nowhere,
}

/// All selections, for the session with the cloud and for local clients.
#[derive(Debug)]
pub(crate) struct SelectionRegistry {
    entries: Mutex<BTreeMap<SubscriptionId, SelectionEntry>>,
    /// Selections that a part of this agent wants and that are not open yet, and whether a lack of room for them was
    /// logged.
    wishes: Mutex<BTreeMap<Selection, bool>>,
    /// Whether there is a session that can follow selections, and a counter of changes.
    news: watch::Sender<(bool, u64)>,
}

impl Default for SelectionRegistry {
    fn default() -> Self {
        let (entries, wishes) = Default::default();
        Self { entries, wishes, news: watch::Sender::new((false, 0)) }
    }
}

impl SelectionRegistry {
    /// Receives a notification of every change of the registry.
    pub(crate) fn news(&self) -> watch::Receiver<(bool, u64)> {
        self.news.subscribe()
    }

    /// Records the start or the end of a session that can follow selections.
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

    /// The selections that a session should follow now, up to the limit of a session: the warm set first, then the last
    /// one that each sender requested, then the second-last of each, and so on.
    pub(crate) fn wanted(&self) -> Vec<SubscriptionId> {
        let (now, entries) = (Instant::now(), self.entries.lock());
        let mut ranks: BTreeMap<SubscriptionId, usize> = BTreeMap::new();
        let mut shares: BTreeMap<Option<&str>, Vec<_>> = BTreeMap::new();
        for (subscription, entry) in entries.iter().filter(|(_, entry)| entry.is_wanted(now)) {
            if entry.warm {
                ranks.insert(*subscription, 0);
                continue;
            }
            for (share, used) in entry.claims.shares() {
                shares.entry(share).or_default().push((Reverse(used.or(entry.used)), *subscription));
            }
        }
        for share in shares.values_mut() {
            share.sort_unstable();
            for (index, (_, subscription)) in share.iter().enumerate() {
                let rank = ranks.entry(*subscription).or_insert(usize::MAX);
                *rank = (*rank).min(index + 1);
            }
        }
        let mut ranked: Vec<_> = ranks.into_iter().map(|(subscription, rank)| (rank, subscription)).collect();
        ranked.sort_unstable();
        ranked.truncate(SUBSCRIPTIONS_MAX);
        ranked.into_iter().map(|(_, subscription)| subscription).collect()
    }

    /// Records that a session starts to follow a selection; `None` if it is no longer wanted. Until its standing
    /// changes, its copy is neither cleared nor forgotten.
    pub(crate) fn open(&self, subscription: SubscriptionId) -> Option<Wanted> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(&subscription).filter(|entry| entry.is_wanted(Instant::now()))?;
        let token = if entry.selection.borrowed { Some(entry.callers.open()?) } else { None };
        (entry.standing, entry.refused_at) = (Standing::Opening, None);
        // No notification, which would make the session compare again: nothing waits for this change.
        Some(Wanted { selection: entry.selection.clone(), token })
    }

    /// Records that a session cannot follow a selection yet. No notification, because it would be retried at once.
    pub(crate) fn put_off(&self, subscription: SubscriptionId) {
        if let Some(entry) = self.entries.lock().get_mut(&subscription) {
            entry.standing = Standing::Idle;
        }
    }

    /// Records the standing of a selection in this session. Returns whether to warn the operator: for a new refusal of
    /// a selection of the warm set. Refusals of other selections are reported to the clients that request them.
    pub(crate) fn stands(&self, subscription: SubscriptionId, standing: Standing) -> bool {
        let entry = |entry: &mut SelectionEntry| entry.stands(standing, Instant::now()) && entry.warm;
        let news = self.entries.lock().get_mut(&subscription).is_some_and(entry);
        self.notify();
        news
    }

    pub(super) fn add(&self, subscription: SubscriptionId, selection: Selection, warm: bool) {
        let mut entries = self.entries.lock();
        entries.entry(subscription).or_insert_with(|| SelectionEntry::new(selection)).warm |= warm;
    }

    /// Records the request of a client. A selection that several senders request counts in the share of each.
    pub(super) fn demand(&self, subscription: SubscriptionId, who: Option<TokenCaller<'_>>) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let has_its_share = who.is_some_and(|who| has_its_share(&entries, who.sender));
        let Some(entry) = entries.get_mut(&subscription) else { return };
        if let Some(who) = who.filter(|_| entry.selection.borrowed) {
            entry.claims.ask(who.sender, now, has_its_share);
        }
        let was_wanted = entry.is_wanted(now);
        entry.demand(who.map(|who| who.token), now);
        let news = entry.is_wanted(now) != was_wanted;
        drop(entries);
        if news {
            self.notify();
        }
    }

    /// Standing of a selection for a caller; `None` if it is not in the registry or about to be forgotten.
    pub(super) fn standing(&self, subscription: SubscriptionId, token: Option<&str>) -> Option<Standing> {
        let entries = self.entries.lock();
        let entry = entries.get(&subscription).filter(|entry| entry.duty != Some(Duty::Forget))?;
        let own = || entry.callers.refusal(token?).map(|(code, reason)| Standing::Refused { code, reason });
        match entry.standing {
            Standing::Live => Some(Standing::Live),
            _ => Some(own().unwrap_or_else(|| entry.standing.clone())),
        }
    }

    /// Whether the copy of a selection may be read, that is, is not about to be cleared or forgotten.
    pub(super) fn is_readable(&self, subscription: SubscriptionId) -> bool {
        let entries = self.entries.lock();
        entries.get(&subscription).is_some_and(|entry| entry.duty < Some(Duty::Clear))
    }

    /// The selection itself, or a wider one that is being followed or is warm.
    pub(super) fn look_up(&self, selection: &Selection) -> SelectionLookup {
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
            Some((subscription, _)) => SelectionLookup::At(*subscription),
            None if leaving => SelectionLookup::Leaving,
            None => SelectionLookup::Nowhere,
        }
    }

    /// As [`Self::look_up`], if the selection was found.
    pub(super) fn covering(&self, selection: &Selection) -> Option<SubscriptionId> {
        match self.look_up(selection) {
            SelectionLookup::At(subscription) => Some(subscription),
            SelectionLookup::Leaving | SelectionLookup::Nowhere => None,
        }
    }

    /// The selections outside the warm set that are not about to be forgotten.
    pub(super) fn cold(&self) -> BTreeSet<SubscriptionId> {
        let entries = self.entries.lock();
        let cold = entries.iter().filter(|(_, entry)| !entry.warm && entry.duty < Some(Duty::Forget));
        cold.map(|(subscription, _)| *subscription).collect()
    }

    /// Duties that can be done now. A selection that a session still follows is not forgotten, because its deliveries
    /// would be written to the next selection with the same number.
    pub(super) fn duties(&self) -> Vec<(SubscriptionId, Duty)> {
        let entries = self.entries.lock();
        let due = entries.iter().filter(|(_, entry)| !entry.is_followed());
        due.filter_map(|(subscription, entry)| Some((*subscription, entry.duty?))).collect()
    }

    /// Records that a duty was done and committed by the store.
    pub(super) fn done(&self, subscription: SubscriptionId, duty: Duty) {
        let mut entries = self.entries.lock();
        if duty == Duty::Forget {
            entries.remove(&subscription);
        } else if let Some(entry) = entries.get_mut(&subscription).filter(|entry| entry.duty == Some(duty)) {
            entry.duty = None;
        }
        drop(entries);
        self.notify();
    }

    /// Forgets selections outside the warm set that have no copy and that the cloud refused so long ago that no client
    /// waits for the reason.
    pub(super) fn forget_refused(&self, is_empty: impl Fn(SubscriptionId) -> bool) {
        let now = Instant::now();
        for (subscription, entry) in self.entries.lock().iter_mut() {
            let refused = matches!(entry.standing, Standing::Refused { code: 401 | 403 | 404, .. });
            let forgettable = refused && !entry.warm && entry.duty.is_none();
            if forgettable && entry.is_refusal_old(now) && is_empty(*subscription) {
                entry.duty = Some(Duty::Forget);
            }
        }
        self.notify();
    }

    /// Evicts one selection outside the warm set for which `fits` holds. The sender with the most selections gives up
    /// the one it requested longest ago, and so on, until one is given up that no other sender has requested. Returns
    /// `None` if none fits.
    pub(super) fn evict(&self, fits: impl Fn(SubscriptionId, &Selection) -> bool) -> Option<SubscriptionId> {
        self.evict_by(|_| 1, fits)
    }

    /// As [`Self::evict`], starting with the sender whose selections weigh most.
    pub(super) fn evict_by(
        &self,
        weight: impl Fn(SubscriptionId) -> u64,
        fits: impl Fn(SubscriptionId, &Selection) -> bool,
    ) -> Option<SubscriptionId> {
        let mut entries = self.entries.lock();
        let mut has: BTreeMap<Option<String>, u64> = BTreeMap::new();
        let mut idle = Vec::new();
        for (subscription, entry) in entries.iter().filter(|(_, entry)| entry.can_go()) {
            let fits = fits(*subscription, &entry.selection);
            for (share, used) in entry.claims.shares() {
                let share = share.map(str::to_owned);
                *has.entry(share.clone()).or_default() += weight(*subscription);
                if fits {
                    idle.push((share, used.or(entry.used), *subscription));
                }
            }
        }
        let subscription = loop {
            let next = idle.iter().enumerate();
            let next = next.min_by_key(|(_, (share, used, _))| (Reverse(has.get(share).copied()), *used))?.0;
            let (share, _, subscription) = idle.swap_remove(next);
            if let Some(weighs) = has.get_mut(&share) {
                *weighs = weighs.saturating_sub(weight(subscription));
            }
            let Some(entry) = entries.get_mut(&subscription) else { continue };
            if entry.claims.give_up(share.as_deref()) {
                entry.duty = Some(Duty::Forget);
                break subscription;
            }
        };
        drop(entries);
        self.notify();
        Some(subscription)
    }

    /// Makes a sender give up a selection, unless one of its selections is about to be forgotten already. The selection
    /// is forgotten if no other sender has requested it. Returns false if none fits.
    pub(super) fn evict_of(&self, sender: &str, fits: impl Fn(SubscriptionId, &Selection) -> bool) -> bool {
        let mut entries = self.entries.lock();
        if owned(&entries, sender).any(|entry| entry.duty == Some(Duty::Forget)) {
            return true;
        }
        let own = entries.iter_mut().filter(|(_, entry)| entry.claims.has(sender));
        let idle =
            own.filter(|(subscription, entry)| entry.can_go() && fits(**subscription, &entry.selection));
        let Some((_, entry)) = idle.min_by_key(|(_, entry)| entry.claims.asked(sender)) else { return false };
        if entry.claims.give_up(Some(sender)) {
            entry.duty = Some(Duty::Forget);
        }
        drop(entries);
        self.notify();
        true
    }

    /// Whether a sender has the maximum number of selections.
    pub(super) fn has_its_share(&self, sender: &str) -> bool {
        has_its_share(&self.entries.lock(), sender)
    }

    /// Whether any selection is about to be forgotten.
    pub(super) fn is_any_leaving(&self) -> bool {
        self.entries.lock().values().any(|entry| entry.duty == Some(Duty::Forget))
    }

    /// Marks selections that clients read as used, and makes the session compare what is still wanted.
    pub(super) fn rest(&self, is_read: impl Fn(SubscriptionId, &Selection) -> bool) {
        let now = Instant::now();
        for (subscription, entry) in self.entries.lock().iter_mut() {
            if !entry.warm && is_read(*subscription, &entry.selection) {
                entry.used = Some(now);
                entry.claims.rest(now);
            }
        }
        self.notify();
    }

    pub(super) fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// Records that a part of this agent wants a selection that is not in the registry. It is opened when there is room.
    pub(super) fn wish(&self, selection: Selection) {
        let mut wishes = self.wishes.lock();
        if wishes.len() >= WISHES_MAX || wishes.contains_key(&selection) {
            return;
        }
        wishes.insert(selection, false);
        drop(wishes);
        self.notify();
    }

    pub(super) fn wishes(&self) -> Vec<Selection> {
        self.wishes.lock().keys().cloned().collect()
    }

    /// Removes a fulfilled wish.
    pub(super) fn grant(&self, selection: &Selection) {
        self.wishes.lock().remove(selection);
    }

    /// Records that a wish has to wait. Returns whether to log that.
    pub(super) fn delay(&self, selection: &Selection) -> bool {
        self.wishes.lock().get_mut(selection).is_some_and(|logged| !std::mem::replace(logged, true))
    }

    fn notify(&self) {
        self.news.send_modify(|(_, count)| *count = count.wrapping_add(1));
    }
}

/// The selections in the share of a sender.
fn owned<'a>(
    entries: &'a BTreeMap<SubscriptionId, SelectionEntry>,
    sender: &'a str,
) -> impl Iterator<Item = &'a SelectionEntry> + use<'a> {
    entries.values().filter(move |entry| entry.claims.has(sender))
}

fn has_its_share(entries: &BTreeMap<SubscriptionId, SelectionEntry>, sender: &str) -> bool {
    owned(entries, sender).count() >= KEPT_PER_SENDER_MAX
}
