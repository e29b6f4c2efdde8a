//! Watches: each has a view of its own, which may lag, break or fall silent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::convert;
use super::faults::{CallPlace, WatchFault, watch_place};
use super::kinds::{KindInfo, KindKey};
use super::object;
use super::parse::{PathTarget, QueryParams};
use super::reads::revision_of;
use super::selectors::ObjectFilter;
use super::state::{ModelEvent, ModelState};
use super::status::{ApiStatus, FieldProblem};
use super::storage::{ChangeType, ObjectChange};

/// Interval of bookmarks, and how long before its end a watch gets the last one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// A watch without `timeoutSeconds` lasts so long, and up to twice as long.
const DEFAULT_SECONDS: u64 = 1800;

/// What a watch does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchStep {
    /// Sends a line.
    Emit(String),
    /// Ends.
    End,
    /// Breaks off.
    Cut,
    /// Waits for news, or until so much time has passed since the model began.
    Wait(Option<Duration>),
}

/// Who watches what.
#[derive(Debug, Clone)]
pub(super) struct WatchedCollection {
    pub(super) client: String,
    pub(super) user: String,
    pub(super) kind: KindInfo,
    pub(super) namespace: String,
    pub(super) filter: ObjectFilter,
    /// As in [`ModelEvent::ViewMoved`].
    pub(super) selector: String,
}

impl WatchedCollection {
    fn place<'a>(&'a self, kind: &'a KindKey) -> CallPlace<'a> {
        watch_place(&self.client, &self.user, kind)
    }

    fn selects(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || object::namespace(object) == self.namespace)
            && self.filter.matches(object)
    }
}

/// An open watch. It has many fields because its position, its end and its faults are independent of each other.
#[derive(Debug)]
pub(super) struct WatchSession {
    what: WatchedCollection,
    stored: KindKey,
    boots: u64,
    /// Index of the next change.
    index: usize,
    /// Changes up to this revision are known to the watcher.
    after: u64,
    /// The revision that was reported last.
    shown: Option<u64>,
    initial: VecDeque<Arc<Value>>,
    /// The revision of the bookmark that follows the initial objects, if it is wanted.
    initial_end: Option<u64>,
    /// Whether bookmarks are wanted, and when the next is due.
    bookmarks: bool,
    next_bookmark: Duration,
    ends: Duration,
    /// Number of the newest fault before this watch.
    spared: u64,
    /// The state in which it was broken, for good.
    broken: Option<WatchFault>,
    /// Counts it among the half-open watches.
    counted: Option<Arc<()>>,
    /// The line with which it ends.
    last_words: Option<String>,
    is_ended: bool,
}

impl WatchSession {
    /// Opens a watch.
    ///
    /// # Errors
    /// 400 or 422 for parameters that cannot be used.
    pub(super) fn open(
        state: &mut ModelState,
        what: WatchedCollection,
        params: &QueryParams,
    ) -> Result<Self, ApiStatus> {
        let version = revision_of(params.text("resourceVersion"))?;
        let initial = wants_initial_events(params)?;
        let now = state.clock.elapsed();
        let seconds = match params.number("timeoutSeconds").filter(|seconds| *seconds > 0) {
            Some(seconds) => seconds,
            None => DEFAULT_SECONDS + state.dice.below(DEFAULT_SECONDS),
        };
        let stored = convert::stored_key(&what.kind);
        let mut session = Self {
            stored,
            boots: state.boots,
            index: 0,
            after: 0,
            shown: None,
            initial: VecDeque::new(),
            initial_end: None,
            bookmarks: params.flag("allowWatchBookmarks"),
            next_bookmark: Duration::ZERO,
            ends: now + Duration::from_secs(seconds),
            spared: state.faults.newest(),
            broken: None,
            counted: None,
            last_words: None,
            is_ended: false,
            what,
        };
        session.next_bookmark = session.bookmark_after(now);
        session.begin(state, version, initial);
        Ok(session)
    }

    /// Finds where the watch begins.
    fn begin(&mut self, state: &ModelState, version: Option<u64>, initial: Option<bool>) {
        let seen = state.revision_seen(&self.what.place(&self.stored));
        let current = state.storage.revision();
        let from = match (version, initial) {
            (None, _) => current,
            (Some(0), _) => seen,
            // The watch cache waits until it is as new.
            (Some(version), Some(true)) => seen.max(version.min(current)),
            (Some(version), _) => version,
        };
        let oldest = state.storage.oldest_watch(&self.stored, state.clock.elapsed());
        let with_objects = match initial {
            Some(wanted) => wanted,
            None => matches!(version, None | Some(0)),
        };
        if with_objects {
            let objects = state.storage.state_at(&self.stored, from);
            self.initial = objects.into_values().filter(|object| self.what.selects(object)).collect();
            self.initial_end = (initial == Some(true) && self.bookmarks).then_some(from);
        } else if from < oldest {
            let message = format!("too old resource version: {from} ({oldest})");
            self.last_words = Some(line("ERROR", &ApiStatus::expired(&message).body()));
        }
        self.after = from;
        self.index = state.storage.after(from);
    }

    fn bookmark_after(&self, now: Duration) -> Duration {
        let last = self.ends.saturating_sub(LAST_BOOKMARK);
        let next = now + BOOKMARK_INTERVAL;
        if now < last { next.min(last) } else { self.ends + BOOKMARK_INTERVAL }
    }

    /// What the watcher has been shown, if that is more than at the last call: the line before was read when the next
    /// one is wanted.
    pub(super) fn moved(&mut self, state: &ModelState) -> Option<ModelEvent> {
        let is_complete = self.initial.is_empty() && self.last_words.is_none() && self.boots == state.boots;
        if !is_complete || self.shown == Some(self.after) {
            return None;
        }
        self.shown = Some(self.after);
        Some(ModelEvent::ViewMoved {
            client: self.what.client.clone(),
            kind: self.stored.clone(),
            selector: self.what.namespace.is_empty().then(|| self.what.selector.clone()),
            era: state.storage.era(),
            revision: self.after,
        })
    }

    /// The next step, by the state of the model.
    pub(super) fn step(&mut self, state: &ModelState) -> WatchStep {
        self.suffer(state);
        if self.broken == Some(WatchFault::HalfOpen) {
            return WatchStep::Wait(None);
        }
        if state.boots != self.boots || self.broken == Some(WatchFault::Cut) {
            return WatchStep::Cut;
        }
        if let Some(words) = self.last_words.take() {
            self.is_ended = true;
            return WatchStep::Emit(words);
        }
        let now = state.clock.elapsed();
        if self.is_ended || now >= self.ends {
            return WatchStep::End;
        }
        let held = self.broken == Some(WatchFault::BookmarksOnly);
        let mut wake = self.ends;
        if !held {
            match self.next_event(state, now) {
                Ok(event) => return WatchStep::Emit(event),
                Err(Some(until)) => wake = wake.min(until),
                Err(None) => {}
            }
        }
        if self.bookmarks {
            if now >= self.next_bookmark {
                self.next_bookmark = self.bookmark_after(now);
                let seen = state.revision_seen(&self.what.place(&self.stored));
                // No bookmark goes back behind what the watcher knows.
                if held || seen >= self.after {
                    self.after = if held { self.after } else { seen };
                    return WatchStep::Emit(self.bookmark(self.after, false));
                }
            }
            wake = wake.min(self.next_bookmark);
        }
        WatchStep::Wait(Some(wake))
    }

    /// Takes the fault that befalls the watch now.
    fn suffer(&mut self, state: &ModelState) {
        let found = state.faults.of_watch(&self.what.place(&self.stored), self.spared);
        match (found, self.broken) {
            (_, Some(WatchFault::HalfOpen | WatchFault::Cut)) => {}
            (None, _) => self.broken = None,
            (Some(WatchFault::Expired), _) => {
                let status = ApiStatus::expired("The resourceVersion for the provided watch is too old.");
                self.last_words = (!self.is_ended).then(|| line("ERROR", &status.body()));
            }
            (Some(WatchFault::Closed), _) => self.is_ended = true,
            (Some(fault), _) => self.broken = Some(fault),
        }
        if self.broken == Some(WatchFault::HalfOpen) && self.counted.is_none() {
            self.counted = Some(Arc::clone(&state.half_open));
        }
    }

    /// The next event; if there is none yet, when the next one that has happened becomes visible.
    fn next_event(&mut self, state: &ModelState, now: Duration) -> Result<String, Option<Duration>> {
        if let Some(object) = self.initial.pop_front() {
            return Ok(self.event("ADDED", &object));
        }
        if let Some(revision) = self.initial_end.take() {
            return Ok(self.bookmark(revision, true));
        }
        let lag = state.faults.lag(&self.what.place(&self.stored));
        while let Some(change) = state.storage.changes().get(self.index) {
            let visible = change.at + lag;
            if visible > now {
                return Err(Some(visible));
            }
            self.index += 1;
            // Revisions that the watcher knows from another history are passed over, as by a real watch cache.
            if change.revision <= self.after {
                continue;
            }
            self.after = change.revision;
            if change.kind == self.stored
                && let Some(event) = self.event_of(change)
            {
                return Ok(event);
            }
        }
        Err(None)
    }

    /// How a change appears to this watcher.
    fn event_of(&self, change: &ObjectChange) -> Option<String> {
        let was = change.before.as_ref().is_some_and(|before| self.what.selects(before));
        let is = change.what != ChangeType::Deleted && self.what.selects(&change.object);
        match (was, is) {
            (false, true) => Some(self.event("ADDED", &change.object)),
            (true, true) => Some(self.event("MODIFIED", &change.object)),
            (true, false) if change.what == ChangeType::Deleted => {
                Some(self.event("DELETED", &change.object))
            }
            (true, false) => {
                // The object leaves the selection: its last state within, under the new version.
                let mut last = (**change.before.as_ref()?).clone();
                last["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(self.event("DELETED", &last))
            }
            (false, false) => None,
        }
    }

    fn event(&self, kind: &str, object: &Value) -> String {
        line(kind, &convert::to_served(&self.what.kind, object.clone()))
    }

    fn bookmark(&self, revision: u64, ends_initial: bool) -> String {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        line("BOOKMARK", &convert::to_served(&self.what.kind, json!({ "metadata": metadata })))
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":{kind:?},\"object\":{object}}}\n")
}

fn wants_initial_events(params: &QueryParams) -> Result<Option<bool>, ApiStatus> {
    let given = params.text("sendInitialEvents");
    let matching = params.text("resourceVersionMatch");
    let refused = |why: &str| {
        let problem = FieldProblem::forbidden("resourceVersionMatch", why);
        Err(ApiStatus::invalid_request("meta.k8s.io", "ListOptions", &problem))
    };
    match (given, matching) {
        ("", "") => Ok(None),
        ("", _) => {
            refused("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        }
        (_, "NotOlderThan") => Ok(Some(params.flag("sendInitialEvents"))),
        (..) => refused("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
    }
}

/// The collection that a request watches.
pub(super) fn collection(
    (client, user): (&str, &str),
    (kind, target): (&KindInfo, &PathTarget),
    params: &QueryParams,
) -> Result<WatchedCollection, ApiStatus> {
    let mut fields = params.text("fieldSelector").to_owned();
    if !target.name.is_empty() {
        fields = format!("metadata.name={}", target.name);
    }
    Ok(WatchedCollection {
        client: client.to_owned(),
        user: user.to_owned(),
        kind: kind.clone(),
        namespace: target.namespace.clone(),
        filter: ObjectFilter::parse(&kind.key, params.text("labelSelector"), &fields)?,
        selector: format!("{};{fields}", params.text("labelSelector")),
    })
}

#[cfg(test)]
mod tests;
