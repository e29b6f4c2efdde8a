//! The watches of a KubeEdge edge's MetaServer (docs/reference/kubeedge.md#metaserver): which watches are open, for
//! which applications, and until when.
//!
//! This is pure state: the node session opens and closes what this module asks for. Applications with the same
//! selection share a subscription. A subscription that no application wants any more lingers for a while: clients often
//! watch again with other options, and the edge should not drop and reload its objects each time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use tombolo_apicore::selector::field::FieldSelector;
use tombolo_proto::frame::{Inventory, Reply, ReplyBody, Request, RequestBody, Subscribe};
use tombolo_proto::limits::SUBSCRIPTIONS_MAX;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source, StatusError,
};
use tombolo_proto::session::kubeedge::{Application, ApplicationStatus, Up, Verb, Watch};
use tombolo_proto::{RequestId, SubscriptionId};
use tombolo_runtime::doubled;

use super::closed::Closed;
use crate::edgecontroller::upstream::{ApplicationTarget, reason_of};

/// How long the objects of a watch stay at the edge after its last client has gone.
const LINGER: Duration = Duration::from_secs(600);

/// Wait before a watch of an earlier connection is reopened when the API server did not answer. It doubles up to
/// [`REOPEN_MAX`].
const REOPEN_MIN: Duration = Duration::from_secs(5);

/// Longest wait before a watch is reopened.
const REOPEN_MAX: Duration = Duration::from_secs(300);

/// Number of applications of one selection that are remembered. The oldest is forgotten first.
const APPLICATIONS_MAX: usize = 64;

/// Longest record that asks for a watch, and longest list of such records, in bytes. They are kept while the watches
/// are open.
const WATCH_LEN_MAX: usize = 32 * 1024;
const SYNC_LEN_MAX: usize = 1024 * 1024;

/// Bytes that a record of a watch takes in addition to its texts.
const RECORD_OVERHEAD: usize = 512;

/// What the node session must do next.
#[derive(Debug)]
pub(super) enum Action {
    /// Check rights and open the subscription, then report the outcome.
    Open(Box<Subscribe>),
    /// The same after this time. The API server did not answer, and the edge keeps what it holds meanwhile.
    OpenLater(Box<Subscribe>, Duration),
    /// Close the subscription. Objects that only this subscription selected are deleted at the edge.
    Close(SubscriptionId),
    /// Send an answer to a request.
    Reply(Reply),
}

/// The request that waits for an answer, and until when it waits.
#[derive(Debug, Clone, Copy)]
struct Asker {
    request: RequestId,
    /// The request is a watch sync, which has other records as well.
    sync: bool,
    until: Instant,
}

#[derive(Debug)]
enum Stage {
    /// The requests that wait, in order of arrival. For a watch sync only the names of its records are kept.
    Opening(Vec<(Asker, Application)>),
    Open,
    /// Open, but unwanted. The subscription closes at this time.
    Lingering(Instant),
}

#[derive(Debug)]
struct MetaSubscription {
    subscribe: Subscribe,
    applications: VecDeque<Watch>,
    stage: Stage,
    /// Belongs to an earlier connection, and is not open again yet.
    restoring: bool,
    /// Consecutive failures to open.
    failures: u32,
}

/// A watch sync that waits until all its watches are open or have failed.
#[derive(Debug)]
struct Sync {
    until: Instant,
    waits_for: usize,
    /// The failed records, by name.
    failed: BTreeMap<String, Application>,
}

/// All watches of one edge.
#[derive(Debug, Default)]
pub(super) struct MetaServer {
    /// At most [`SUBSCRIPTIONS_MAX`].
    entries: Vec<MetaSubscription>,
    newest: u32,
    /// Bounded by the number of open requests of a session.
    syncs: BTreeMap<RequestId, Sync>,
    actions: VecDeque<Action>,
    /// The list of watches differs from the one that the ledger has.
    changed: bool,
    /// Memory of all of it, in bytes.
    bytes: usize,
}

impl MetaServer {
    /// Restores the watches of the previous connection; a KubeEdge edge does not ask for them again.
    pub(super) fn restore(&mut self, watches: Vec<Watch>) {
        for watch in watches {
            let Ok(subscribe) = self.subscribe_of(&watch.key, &watch.option) else { continue };
            match self.entries.iter_mut().find(|entry| same(&entry.subscribe, &subscribe)) {
                Some(entry) => entry.remember(watch),
                None => {
                    let mut entry = self.add(subscribe);
                    entry.restoring = true;
                    entry.remember(watch);
                    self.entries.push(entry);
                }
            }
        }
        self.weigh();
    }

    /// Bytes that the edge makes this module keep.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }

    fn weigh(&mut self) {
        let syncs = self.syncs.values().map(Sync::memory);
        self.bytes =
            self.entries.iter().map(MetaSubscription::memory).chain(syncs).fold(0, usize::saturating_add);
    }

    /// Whether a request is about watches, and therefore not only for the API server. Looks at the verb only; whole
    /// records are parsed where they are processed.
    pub(super) fn concerns(request: &Request) -> bool {
        #[derive(serde::Deserialize)]
        struct AskedVerb {
            #[serde(rename = "Verb")]
            verb: Verb,
        }
        let RequestBody::Message(message) = &request.body else { return false };
        Up::is_application(message)
            && (message.route.resource == ResourcePath::WatchSync
                || message.content.read::<AskedVerb>().is_ok_and(|asked| asked.verb == Verb::Watch))
    }

    /// Processes a request for which [`Self::concerns`] is true.
    pub(super) fn take(&mut self, request: Request, now: Instant) {
        let RequestBody::Message(message) = request.body else { return };
        let sync = message.route.resource == ResourcePath::WatchSync;
        let asker = Asker { request: request.id, sync, until: now + request.timeout };
        let (len, max) = (message.content.as_json().len(), if sync { SYNC_LEN_MAX } else { WATCH_LEN_MAX });
        if len > max {
            let text =
                format!("the request for watches has {len} bytes; the limit is {max}: watch less at a time");
            return self.refuse(request.id, &text);
        }
        match sync {
            true => self.take_sync(asker, &message.content, now),
            false => self.take_watch(asker, &message.content, now),
        }
        self.weigh();
    }

    fn take_watch(&mut self, asker: Asker, content: &Content, now: Instant) {
        match Application::read(content) {
            Ok(application) => self.ask(asker, application, now),
            Err(error) => self.refuse(asker.request, &format!("the content is not an application: {error}")),
        }
    }

    /// Processes the edge's list of its watches. Missing watches are opened; watches that are not in the list are no
    /// longer wanted.
    fn take_sync(&mut self, asker: Asker, content: &Content, now: Instant) {
        let wanted = match Application::read_all(content) {
            Ok(wanted) => wanted,
            Err(error) => {
                return self.refuse(asker.request, &format!("the content is not a list of watches: {error}"));
            }
        };
        for entry in &mut self.entries {
            let before = entry.applications.len();
            entry.applications.retain(|watch| wanted.contains_key(&*watch.id));
            self.changed |= entry.applications.len() != before;
            if entry.applications.is_empty() && matches!(entry.stage, Stage::Open) {
                entry.stage = Stage::Lingering(now + LINGER);
            }
        }
        let sync = Sync { until: asker.until, waits_for: wanted.len() + 1, failed: BTreeMap::new() };
        self.syncs.insert(asker.request, sync);
        for application in wanted.into_values() {
            self.ask(asker, application, now);
        }
        self.synced(asker.request, None);
    }

    fn ask(&mut self, asker: Asker, application: Application, now: Instant) {
        let option = application.option.as_deref().unwrap_or_default();
        let subscribe = match self.subscribe_of(&application.key, option) {
            Ok(subscribe) => subscribe,
            Err(closed) => return self.answer(asker, application, Some(&closed)),
        };
        let watch = Watch {
            id: application.id.as_str().into(),
            key: application.key.as_str().into(),
            option: option.into(),
        };
        let application = if asker.sync { application.name_alone() } else { application };
        if let Some(entry) = self.entries.iter_mut().find(|entry| same(&entry.subscribe, &subscribe)) {
            self.changed = true;
            entry.remember(watch);
            match &mut entry.stage {
                Stage::Opening(askers) => return askers.push((asker, application)),
                stage => *stage = Stage::Open,
            }
            return self.answer(asker, application, None);
        }
        if self.entries.len() >= SUBSCRIPTIONS_MAX && !self.drop_lingering(now) {
            let text = format!("a node follows at most {SUBSCRIPTIONS_MAX} selections at a time");
            return self.answer(asker, application, Some(&Closed::new(429, &text)));
        }
        let mut entry = self.add(subscribe);
        entry.remember(watch);
        entry.stage = Stage::Opening(vec![(asker, application)]);
        self.entries.push(entry);
    }

    fn subscribe_of(&mut self, key: &str, option: &[u8]) -> Result<Subscribe, Closed> {
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct ListOptions {
            label_selector: String,
            field_selector: String,
        }
        let bad = |text: String| Closed::new(400, &text);
        let target = ApplicationTarget::parse(key).map_err(bad)?;
        let mut options = ListOptions::default();
        if !option.is_empty() {
            options = serde_json::from_slice(option)
                .map_err(|error| bad(format!("the option is not a list option: {error}")))?;
        }
        if !target.name.is_empty() {
            let mut fields = FieldSelector::parse(&options.field_selector)
                .map_err(|error| bad(format!("invalid field selector: {error}")))?;
            fields.require("metadata.name", &target.name);
            options.field_selector = fields.to_string();
        }
        Ok(Subscribe {
            subscription: SubscriptionId::NODE,
            resource: target.resource,
            namespace: target.namespace,
            label_selector: options.label_selector,
            field_selector: options.field_selector,
            caller_token: None,
            epoch: None,
            inventory: Inventory::Full(Vec::new()),
        })
    }

    fn add(&mut self, mut subscribe: Subscribe) -> MetaSubscription {
        self.newest += 1;
        self.changed = true;
        subscribe.subscription = SubscriptionId(self.newest);
        self.actions.push_back(Action::Open(Box::new(subscribe.clone())));
        MetaSubscription {
            subscribe,
            applications: VecDeque::new(),
            stage: Stage::Opening(Vec::new()),
            restoring: false,
            failures: 0,
        }
    }

    /// Makes room by closing the watch that has lingered longest. False when no watch lingers.
    fn drop_lingering(&mut self, now: Instant) -> bool {
        let until = |entry: &MetaSubscription| match entry.stage {
            Stage::Lingering(until) => Some(until),
            Stage::Opening(_) | Stage::Open => None,
        };
        let Some(oldest) = self.entries.iter().filter_map(until).min() else { return false };
        self.close_lingering(oldest.max(now));
        true
    }

    fn close_lingering(&mut self, end: Instant) {
        let actions = &mut self.actions;
        self.entries.retain(|entry| match entry.stage {
            Stage::Lingering(until) if until <= end => {
                actions.push_back(Action::Close(entry.subscribe.subscription));
                false
            }
            _ => true,
        });
    }

    /// Handles the outcome of an [`Action::Open`].
    pub(super) fn opened(
        &mut self,
        subscription: SubscriptionId,
        outcome: Result<(), &Closed>,
        now: Instant,
    ) {
        let Some(index) = self.entries.iter().position(|entry| entry.subscribe.subscription == subscription)
        else {
            return;
        };
        let entry = &mut self.entries[index];
        let closed = outcome.err();
        if closed.is_some_and(|closed| matches!(closed.code, 429 | 503 | 504)) && entry.restoring {
            entry.failures = entry.failures.saturating_add(1);
            let wait = doubled(REOPEN_MIN, entry.failures, REOPEN_MAX);
            self.actions.push_back(Action::OpenLater(Box::new(entry.subscribe.clone()), wait));
            return;
        }
        let unwanted = entry.applications.is_empty();
        let next = if unwanted { Stage::Lingering(now + LINGER) } else { Stage::Open };
        entry.restoring = false;
        let former = std::mem::replace(&mut entry.stage, next);
        if closed.is_some() {
            self.entries.swap_remove(index);
            self.changed = true;
        }
        if let Stage::Opening(askers) = former {
            for (asker, application) in askers {
                self.answer(asker, application, closed);
            }
        }
        self.weigh();
    }

    /// The cloud has ended a subscription.
    pub(super) fn ended(&mut self, subscription: SubscriptionId) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.subscribe.subscription != subscription);
        self.changed |= self.entries.len() != before;
        self.weigh();
    }

    /// Closes watches that have lingered long enough, and forgets requests that no longer wait for an answer.
    pub(super) fn expire(&mut self, now: Instant) {
        self.syncs.retain(|_, sync| sync.until > now);
        for entry in &mut self.entries {
            if let Stage::Opening(askers) = &mut entry.stage {
                askers.retain(|(asker, _)| asker.until > now);
            }
        }
        self.close_lingering(now);
        self.weigh();
    }

    /// When to call [`Self::expire`] next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = |entry: &MetaSubscription| match &entry.stage {
            Stage::Lingering(until) => Some(*until),
            Stage::Opening(askers) => askers.first().map(|(asker, _)| asker.until),
            Stage::Open => None,
        };
        self.entries.iter().filter_map(until).chain(self.syncs.values().map(|sync| sync.until)).min()
    }

    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether watches of the previous connection are still to be opened.
    pub(super) fn is_restoring(&self) -> bool {
        self.entries.iter().any(|entry| entry.restoring)
    }

    /// The watches to store beyond this connection, one for each selection. None when they have not changed since the
    /// last call.
    pub(super) fn poll_watches(&mut self) -> Option<Vec<Watch>> {
        let newest = |entry: &MetaSubscription| entry.applications.back().cloned();
        std::mem::take(&mut self.changed).then(|| self.entries.iter().filter_map(newest).collect())
    }

    fn answer(&mut self, asker: Asker, application: Application, closed: Option<&Closed>) {
        let application = if asker.sync { application.name_alone() } else { application };
        let done = match closed {
            None => Application { status: ApplicationStatus::Approved, ..application },
            Some(closed) => {
                let error = StatusError::new(closed.code, reason_of(closed.code), &closed.reason);
                application.rejected(&error)
            }
        };
        match asker.sync {
            false => self.reply(asker.request, Operation::Response, done.to_content()),
            true => self.synced(asker.request, closed.map(|_| done)),
        }
    }

    /// Records the outcome of one watch of a sync. The last outcome sends the answer.
    fn synced(&mut self, id: RequestId, failed: Option<Application>) {
        let Some(sync) = self.syncs.get_mut(&id) else { return };
        sync.failed.extend(failed.map(|failed| (failed.id.clone(), failed)));
        sync.waits_for = sync.waits_for.saturating_sub(1);
        if sync.waits_for == 0
            && let Some(Sync { failed, .. }) = self.syncs.remove(&id)
        {
            // These are plain records, which serde_json always serialises.
            let content = Content::from_value(&failed).unwrap_or_else(|_| Content::null());
            self.reply(id, Operation::Response, content);
        }
    }

    /// Sends an answer. The session fills in id, time, route and parent, so nothing of the request need be kept for
    /// them.
    fn reply(&mut self, id: RequestId, operation: Operation, content: Content) {
        let path = ResourcePath::ApplicationReply;
        let route = Route::new(Source::DynamicController, Group::Resource, operation, path);
        let answer = Message::new(MessageId::from_random_bytes([0; 16]), 0, route, content);
        self.actions.push_back(Action::Reply(Reply { id, body: ReplyBody::Message(Box::new(answer)) }));
    }

    fn refuse(&mut self, id: RequestId, sentence: &str) {
        self.reply(id, Operation::Error, Content::text(sentence));
    }
}

/// Memory of a record, in bytes.
fn size_of_record(record: &Application) -> usize {
    let Application { id, key, nodename, subresource, reason, timestamp, error, .. } = record;
    let texts = [id, key, nodename, subresource, reason, timestamp].into_iter().map(String::len);
    let bytes = [&record.option, &record.req_body, &record.resp_body].into_iter().flatten().map(Vec::len);
    texts.chain(bytes).fold(RECORD_OVERHEAD.saturating_add(error.text_len()), usize::saturating_add)
}

impl Sync {
    fn memory(&self) -> usize {
        let failed = self.failed.iter().map(|(id, record)| id.len().saturating_add(size_of_record(record)));
        failed.fold(RECORD_OVERHEAD, usize::saturating_add)
    }
}

impl MetaSubscription {
    fn memory(&self) -> usize {
        let watch = |watch: &Watch| RECORD_OVERHEAD + watch.id.len() + watch.key.len() + watch.option.len();
        let opening: usize = match &self.stage {
            Stage::Opening(askers) => askers.iter().map(|(_, record)| size_of_record(record)).sum(),
            Stage::Open | Stage::Lingering(_) => 0,
        };
        let watches: usize = self.applications.iter().map(watch).sum();
        // Its texts exist twice: here, and in the watch that serves the subscription.
        size_of_texts(&self.subscribe).saturating_mul(2).saturating_add(watches).saturating_add(opening)
    }

    fn remember(&mut self, watch: Watch) {
        self.applications.retain(|known| known.id != watch.id);
        if self.applications.len() >= APPLICATIONS_MAX {
            self.applications.pop_front();
        }
        self.applications.push_back(watch);
    }
}

/// Bytes of the texts of a subscription.
pub(super) fn size_of_texts(subscribe: &Subscribe) -> usize {
    let Subscribe { resource, namespace, label_selector, field_selector, caller_token, .. } = subscribe;
    let token = caller_token.as_ref().map_or(0, String::len);
    let resource = resource.group.len() + resource.version.len() + resource.name.len();
    RECORD_OVERHEAD + resource + namespace.len() + label_selector.len() + field_selector.len() + token
}

/// Whether two subscriptions have the same selection.
fn same(one: &Subscribe, other: &Subscribe) -> bool {
    one.resource == other.resource
        && one.namespace == other.namespace
        && one.label_selector == other.label_selector
        && one.field_selector == other.field_selector
}

#[cfg(test)]
mod tests;
