//! Faults of the API server, which a plan switches on and off while the model runs.

use std::time::Duration;

use super::clock::ServerDice;
use super::kinds::KindKey;

/// Which calls or watches a fault concerns: all for which every given part holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultScope {
    /// The name that the client was made with.
    pub client: Option<String>,
    /// Plural of the kind.
    pub resource: Option<String>,
    /// Verb as authorizers see it.
    pub verb: Option<String>,
    /// User under whom the call runs, after impersonation.
    pub user: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
}

impl FaultScope {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// All clients, for one kind.
    #[must_use]
    pub fn of_resource(resource: &str) -> Self {
        Self { resource: Some(resource.to_owned()), ..Self::default() }
    }

    /// All kinds, for one client.
    #[must_use]
    pub fn of_client(client: &str) -> Self {
        Self { client: Some(client.to_owned()), ..Self::default() }
    }

    /// The same for one kind alone.
    #[must_use]
    pub fn on(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// The same for one verb alone.
    #[must_use]
    pub fn doing(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }
}

/// The call or watch that a scope is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallPlace<'a> {
    pub(super) client: &'a str,
    pub(super) resource: &'a str,
    pub(super) verb: &'a str,
    pub(super) user: &'a str,
    pub(super) name: &'a str,
}

impl FaultScope {
    fn covers(&self, place: &CallPlace<'_>) -> bool {
        let holds = |part: &Option<String>, value: &str| part.as_ref().is_none_or(|part| part == value);
        holds(&self.client, place.client)
            && holds(&self.resource, place.resource)
            && holds(&self.verb, place.verb)
            && holds(&self.user, place.user)
            && holds(&self.name, place.name)
    }
}

/// What goes wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFault {
    /// The call takes so much longer, and then has its effect.
    Delay(Duration),
    /// A write takes effect, and its answer so much longer.
    AnswerDelay(Duration),
    /// 409: somebody else has written.
    Conflict,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 429, with `Retry-After` in seconds, from a server that sheds load: in plain text.
    TooManyRequests(u32),
    /// 500.
    Internal,
    /// 503.
    Unavailable,
    /// The call has no effect and no answer, ever.
    Unanswered,
    /// The call takes effect, and no answer ever comes.
    AnswerLost,
    /// The call takes effect, and the connection is cut before the answer.
    AnswerCut,
    /// A webhook hangs for so long. Then the write is refused, or goes on when failures are ignored.
    Webhook {
        /// Timeout of the webhook.
        hangs: Duration,
        /// `failurePolicy: Ignore`.
        ignored: bool,
    },
}

/// What goes wrong with a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFault {
    /// The watch ends with an event of code 410: its history is gone.
    Expired,
    /// The watch ends as if its time were over.
    Closed,
    /// The connection is cut.
    Cut,
    /// The connection is half open: nothing more ever arrives, not even its end.
    HalfOpen,
    /// Only bookmarks arrive, of the revision that was told last.
    BookmarksOnly,
}

/// How often a fault occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultRate {
    /// Each time.
    Always,
    /// The next so many times.
    Times(u32),
    /// Once in so many times on average, by the model's own generator.
    OneIn(u32),
}

/// A fault that was switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

#[derive(Debug)]
struct Knob<T> {
    id: FaultId,
    scope: FaultScope,
    rate: FaultRate,
    fault: T,
}

/// All faults of a model.
#[derive(Debug, Default)]
pub(super) struct FaultTable {
    last: u64,
    calls: Vec<Knob<CallFault>>,
    watches: Vec<Knob<WatchFault>>,
    lags: Vec<Knob<Duration>>,
    /// Faults that befall the watches which are open at the time, each with its number.
    strokes: Vec<Knob<WatchFault>>,
}

impl FaultTable {
    fn id(&mut self) -> FaultId {
        self.last += 1;
        FaultId(self.last)
    }

    pub(super) fn add_call(&mut self, scope: FaultScope, fault: CallFault, rate: FaultRate) -> FaultId {
        let id = self.id();
        self.calls.push(Knob { id, scope, rate, fault });
        id
    }

    pub(super) fn add_watch(&mut self, scope: FaultScope, fault: WatchFault) -> FaultId {
        let id = self.id();
        self.watches.push(Knob { id, scope, rate: FaultRate::Always, fault });
        id
    }

    pub(super) fn add_lag(&mut self, scope: FaultScope, lag: Duration) -> FaultId {
        let id = self.id();
        self.lags.push(Knob { id, scope, rate: FaultRate::Always, fault: lag });
        id
    }

    pub(super) fn strike(&mut self, scope: FaultScope, fault: WatchFault) {
        let id = self.id();
        self.strokes.push(Knob { id, scope, rate: FaultRate::Always, fault });
    }

    pub(super) fn lift(&mut self, id: FaultId) {
        self.calls.retain(|knob| knob.id != id);
        self.watches.retain(|knob| knob.id != id);
        self.lags.retain(|knob| knob.id != id);
    }

    pub(super) fn lift_all(&mut self) {
        self.calls.clear();
        self.watches.clear();
        self.lags.clear();
    }

    /// The faults of a call, in the order in which they were switched on. Each use counts.
    pub(super) fn of_call(&mut self, place: &CallPlace<'_>, dice: &mut ServerDice) -> Vec<CallFault> {
        let mut found = Vec::new();
        for knob in self.calls.iter_mut().filter(|knob| knob.scope.covers(place)) {
            if matches!(knob.fault, CallFault::Webhook { .. }) && !is_admitted(place.verb) {
                continue;
            }
            let occurs = match &mut knob.rate {
                FaultRate::Always => true,
                FaultRate::OneIn(sides) => dice.hits(*sides),
                FaultRate::Times(left) => {
                    let occurs = *left > 0;
                    *left = left.saturating_sub(1);
                    occurs
                }
            };
            if occurs {
                found.push(knob.fault.clone());
            }
        }
        self.calls.retain(|knob| knob.rate != FaultRate::Times(0));
        found
    }

    /// The number of the newest stroke; a watch that opens now is spared those before it.
    pub(super) fn newest(&self) -> u64 {
        self.last
    }

    /// What befalls an open watch now, given the newest stroke that it has seen.
    pub(super) fn of_watch(&self, place: &CallPlace<'_>, seen: u64) -> Option<WatchFault> {
        let strokes = self.strokes.iter().filter(|knob| knob.id.0 > seen);
        let all = strokes.chain(&self.watches);
        all.filter(|knob| knob.scope.covers(place)).map(|knob| knob.fault).next()
    }

    /// How much later a client hears of the changes of a kind.
    pub(super) fn lag(&self, place: &CallPlace<'_>) -> Duration {
        let lags = self.lags.iter().filter(|knob| knob.scope.covers(place));
        lags.map(|knob| knob.fault).max().unwrap_or_default()
    }
}

/// The place of a watch of a kind.
pub(super) fn watch_place<'a>(client: &'a str, user: &'a str, kind: &'a KindKey) -> CallPlace<'a> {
    CallPlace { client, resource: &kind.resource, verb: "watch", user, name: "" }
}

/// Whether webhooks are asked about a verb.
fn is_admitted(verb: &str) -> bool {
    matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(verb: &'static str) -> CallPlace<'static> {
        CallPlace { client: "a", resource: "pods", verb, user: "u", name: "p" }
    }

    #[test]
    fn a_fault_befalls_what_its_scope_covers_as_often_as_it_says() {
        let (mut table, mut dice) = (FaultTable::default(), ServerDice::new(1));
        table.add_call(
            FaultScope::of_resource("pods").doing("get"),
            CallFault::Internal,
            FaultRate::Times(2),
        );
        table.add_call(FaultScope::of_client("b"), CallFault::Conflict, FaultRate::Always);
        let id = table.add_call(FaultScope::all(), CallFault::Forbidden, FaultRate::Always);
        let mut faults = |table: &mut FaultTable, verb| table.of_call(&place(verb), &mut dice);
        assert_eq!(faults(&mut table, "list"), [CallFault::Forbidden]);
        for _ in 0..2 {
            assert_eq!(faults(&mut table, "get"), [CallFault::Internal, CallFault::Forbidden]);
        }
        assert_eq!(faults(&mut table, "get"), [CallFault::Forbidden]);
        table.lift(id);
        assert_eq!(faults(&mut table, "get"), []);
        table.add_call(FaultScope::all(), CallFault::NotFound, FaultRate::OneIn(4));
        let hits = (0..400).filter(|_| !faults(&mut table, "get").is_empty()).count();
        assert!((60..140).contains(&hits), "{hits}");
    }

    #[test]
    fn webhooks_are_asked_about_writes_alone() {
        let (mut table, mut dice) = (FaultTable::default(), ServerDice::new(1));
        let fault = CallFault::Webhook { hangs: Duration::from_secs(10), ignored: false };
        table.add_call(FaultScope::all(), fault, FaultRate::Times(1));
        assert_eq!(table.of_call(&place("get"), &mut dice), []);
        assert_eq!(table.of_call(&place("create"), &mut dice).len(), 1);
    }

    #[test]
    fn a_stroke_befalls_open_watches_and_a_standing_fault_all() {
        let (mut table, pods) = (FaultTable::default(), KindKey::new("", "pods"));
        let place = watch_place("a", "u", &pods);
        let before = table.newest();
        table.strike(FaultScope::of_resource("pods"), WatchFault::Expired);
        assert_eq!(table.of_watch(&place, before), Some(WatchFault::Expired));
        assert_eq!(table.of_watch(&place, table.newest()), None);
        let id = table.add_watch(FaultScope::of_client("a"), WatchFault::HalfOpen);
        assert_eq!(table.of_watch(&place, table.newest()), Some(WatchFault::HalfOpen));
        table.lift(id);
        assert_eq!(table.of_watch(&place, table.newest()), None);
        table.add_lag(FaultScope::of_resource("pods"), Duration::from_secs(5));
        table.add_lag(FaultScope::of_client("a"), Duration::from_secs(3));
        assert_eq!(table.lag(&place), Duration::from_secs(5));
        assert_eq!(table.lag(&watch_place("a", "u", &KindKey::new("", "nodes"))), Duration::from_secs(3));
    }
}
