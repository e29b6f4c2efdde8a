//! One endless watch: it lists, follows, and starts again after it ends for any reason.
//!
//! Memory is bounded in bytes, both for a page of the list and for the queued events. While events wait, the watch does
//! not read. If it does not read for long, the API server ends the watch, and everything is listed again, so nothing is
//! lost.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use futures::io::AsyncBufRead;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use http::Request;
use http::header::ACCEPT_ENCODING;
use kube::core::Status;
use kube::runtime::watcher::Event;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tombolo_proto::Resource;
use tombolo_runtime::{Backoff, BackoffConfig, sentence};

use super::call_limits::ListTurns;
use super::paging::Pages;
use super::tree::tree_bytes_max;
use super::waiting::Waiting;
use super::{Answer, CallError, Caller, Kube, RawObject, path_of, query_value};

mod lines;
mod skim;
#[cfg(test)]
mod tests;

use lines::{LINE_LEN_MAX, Lines, in_time};

/// Time after which the API server ends a watch, in seconds. A server grants any time below five minutes that a client
/// requests.
const WATCH_SECONDS: u64 = 290;

/// A connection without data for this long is dead: the API server would have ended the watch by now.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS + 10);

/// A watch that ends within this time without an event does not work. It is restarted after a growing wait.
const SHORT: Duration = Duration::from_secs(1);

/// Memory for queued events of one of cloudcore's own watches, in bytes.
const OWN_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// An event of a watch. Events come in the order of the cloud's history. The objects between `RelistStart` and
/// `RelistEnd` are complete: an object that was known before and is not among them was deleted while the watch was
/// interrupted.
#[derive(Debug)]
pub enum ObjectEvent {
    /// The object exists in this version.
    Applied(RawObject),
    /// The object was deleted; this was its last version.
    Deleted(RawObject),
    /// A complete list begins.
    RelistStart,
    /// The list is complete.
    RelistEnd,
}

/// What to watch.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    /// Group, version and plural.
    pub resource: Resource,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// The source of list turns; none for cloudcore's own needs.
    pub(crate) list_turns: Option<ListTurns>,
    /// Label selector; empty for all.
    pub label_selector: String,
    /// Field selector; empty for all.
    pub field_selector: String,
    /// Memory for queued events; none for a watch of cloudcore's own, which gets its own memory.
    pub waiting: Option<Waiting>,
}

impl WatchSpec {
    /// Everything of one resource, in all namespaces.
    #[must_use]
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            namespace: String::new(),
            list_turns: None,
            label_selector: String::new(),
            field_selector: String::new(),
            waiting: None,
        }
    }

    /// Restricts the watch to objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.field_selector);
        self
    }

    /// Path and query of a list of the same objects.
    #[must_use]
    pub fn path(&self) -> String {
        let path = path_of(&self.resource, &self.namespace, "");
        let selectors = [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)];
        let given = selectors.into_iter().filter(|(_, selector)| !selector.is_empty());
        let given: Vec<_> =
            given.map(|(name, selector)| format!("{name}={}", query_value(selector))).collect();
        if given.is_empty() { path } else { format!("{path}?{}", given.join("&")) }
    }
}

/// The reason why a watch had to restart.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct WatchError {
    /// The API server's status code; none without an answer.
    pub code: Option<u16>,
    /// The text of the error.
    pub text: String,
}

impl WatchError {
    fn new(text: &impl ToString) -> Self {
        Self { code: None, text: text.to_string() }
    }
}

impl From<CallError> for WatchError {
    fn from(error: CallError) -> Self {
        Self::new(&error)
    }
}

impl From<Answer> for WatchError {
    fn from(answer: Answer) -> Self {
        Self { code: Some(answer.code), text: answer.message() }
    }
}

impl From<&Status> for WatchError {
    fn from(status: &Status) -> Self {
        Self { code: Some(status.code), text: status.message.clone() }
    }
}

impl From<kube::Error> for WatchError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(&*status),
            error => Self::new(&sentence(&error)),
        }
    }
}

/// Watches until the receiver is dropped. Failures are reported through `failed`, then retried with a growing, jittered
/// wait. The wait is reset by the first event that arrives; the events of a list only count when the list is complete.
pub async fn watch<T: Send>(
    kube: Kube,
    spec: WatchSpec,
    out: mpsc::Sender<T>,
    into: impl Fn(ObjectEvent) -> T,
    failed: impl Fn(&WatchError),
) {
    let turns = spec.list_turns.clone();
    let backoff = Backoff::new(BackoffConfig {
        first: Duration::from_millis(200),
        max: Duration::from_secs(30),
        ..BackoffConfig::default()
    });
    let path = spec.path();
    let own = || Waiting::with_turns(OWN_BYTES_MAX, kube.own_lines.clone());
    let waiting = spec.waiting.unwrap_or_else(own);
    let most = tree_bytes_max(&path);
    let mut watch = Watch { kube: &kube, path: &path, most, waiting, out: &out, into, backoff, from: None };
    let watching = async {
        loop {
            let outcome = match watch.from.clone() {
                None => watch.list(turns.as_ref()).await,
                Some(revision) => watch.follow(&revision).await,
            };
            if let Err(error) = outcome {
                if error.code == Some(410) {
                    // The API server no longer has the history since then.
                    watch.from = None;
                }
                failed(&error);
                let delay = watch.backoff.next_delay(&mut rand::rng());
                tokio::time::sleep(delay).await;
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = out.closed() => {}
    }
}

/// The same as a stream of the events that reflectors use.
pub(crate) fn watch_events(
    kube: Kube,
    spec: WatchSpec,
    failed: impl Fn(&WatchError) + Send + Sync,
) -> impl Stream<Item = Event<RawObject>> + Send {
    let (out, events) = mpsc::channel(16);
    let watching =
        watch(kube, spec, out, |event| event, failed).into_stream().filter_map(|()| async { None });
    let events =
        stream::unfold(events, |mut events| async { events.recv().await.map(|event| (event, events)) });
    let mut is_listing = false;
    let events = events.map(move |event| match event {
        ObjectEvent::RelistStart => {
            is_listing = true;
            Event::Init
        }
        ObjectEvent::RelistEnd => {
            is_listing = false;
            Event::InitDone
        }
        ObjectEvent::Applied(object) if is_listing => Event::InitApply(object),
        ObjectEvent::Applied(object) => Event::Apply(object),
        ObjectEvent::Deleted(object) => Event::Delete(object),
    });
    stream::select(watching, events)
}

struct Watch<'a, T, F> {
    kube: &'a Kube,
    path: &'a str,
    /// Bytes that the tree of an object may take.
    most: usize,
    waiting: Waiting,
    out: &'a mpsc::Sender<T>,
    into: F,
    backoff: Backoff,
    /// The revision at which the watch continues; none when everything must be listed.
    from: Option<String>,
}

impl<T: Send, F: Fn(ObjectEvent) -> T> Watch<'_, T, F> {
    async fn list(&mut self, turns: Option<&ListTurns>) -> Result<(), WatchError> {
        // Take the turn before the memory for a page, which all watches share.
        let turn = match turns {
            Some(turns) => turns.take().await,
            None => None,
        };
        self.send(ObjectEvent::RelistStart).await;
        let caller = turn.as_ref().map_or(Caller::Own, Caller::OwnInTurn);
        let (mut pages, mut revision) = (Pages::new(self.kube, caller, self.path), None);
        let waiting = self.waiting.clone();
        loop {
            let _page = waiting.page().await;
            let Some(answer) = pages.next().await? else { break };
            if !answer.is_success() {
                return Err(answer.into());
            }
            let mut page = pages.read(&answer)?;
            for item in page.items.take().unwrap_or_default() {
                let reading = waiting.reading().await;
                let mut object =
                    RawObject::read(item.get(), self.most).map_err(|error| WatchError::new(&error))?;
                reading.keep(&mut object).await;
                self.send(ObjectEvent::Applied(object)).await;
            }
            revision = page.revision().map(str::to_owned);
        }
        self.from = Some(revision.ok_or_else(|| WatchError::new(&"the list has no resourceVersion"))?);
        self.send(ObjectEvent::RelistEnd).await;
        Ok(())
    }

    /// Follows until the watch ends. It is then restarted at the same revision.
    async fn follow(&mut self, revision: &str) -> Result<(), WatchError> {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let uri = format!(
            "{}{separator}watch=true&timeoutSeconds={WATCH_SECONDS}&allowWatchBookmarks=true&resourceVersion={}",
            self.path,
            query_value(revision)
        );
        // Newer API servers compress each event separately, which kube's decoder does not support.
        let request = Request::get(uri).header(ACCEPT_ENCODING, "identity").body(Vec::new());
        let request = request.map_err(|error| WatchError::new(&error))?;
        let silent = |_| WatchError::new(&"the API server sends nothing");
        let begun = Instant::now();
        let stream = self.kube.client().request_stream(request);
        let stream = tokio::time::timeout(SILENCE_MAX, stream).await.map_err(silent)??;
        let stream = pin!(stream);
        let mut lines = Lines::new(stream, self.waiting.lines().clone());
        let mut has_told = false;
        while lines.next().await? {
            has_told |= self.take(&mut lines).await?;
        }
        if !has_told && begun.elapsed() < SHORT {
            return Err(WatchError::new(&"the watch ended at once"));
        }
        Ok(())
    }

    /// Processes the event of a line. False when the line is incomplete.
    async fn take<R: AsyncBufRead + Unpin>(&mut self, lines: &mut Lines<R>) -> Result<bool, WatchError> {
        let event: WatchLine<'_> = match serde_json::from_slice(lines.text()) {
            Ok(event) => event,
            Err(error) if error.is_eof() => return Ok(false),
            Err(error) => return Err(refusal(lines.text()).unwrap_or_else(|| WatchError::new(&error))),
        };
        let into_event: fn(RawObject) -> ObjectEvent = match &*event.kind {
            "ADDED" | "MODIFIED" => ObjectEvent::Applied,
            "DELETED" => ObjectEvent::Deleted,
            "BOOKMARK" => {
                let bookmark = serde_json::from_str::<Bookmark>(event.object.get());
                let bookmark = bookmark.map_err(|error| WatchError::new(&error))?;
                self.from = Some(bookmark.metadata.resource_version);
                return Ok(true);
            }
            kind => {
                let unknown = || WatchError::new(&format!("unknown event type {kind:?}"));
                return Err(refusal(event.object.get().as_bytes()).unwrap_or_else(unknown));
            }
        };
        let waiting = self.waiting.clone();
        let reading = in_time(lines.until(), waiting.reading()).await?;
        let mut object =
            RawObject::read(event.object.get(), self.most).map_err(|error| WatchError::new(&error))?;
        if lines.is_skimmed() {
            object.leave_unread(&format!("the API server sends more than {LINE_LEN_MAX} bytes for it"));
        }
        lines.release();
        reading.keep(&mut object).await;
        self.from = Some(revision_of(&object)?);
        self.send(into_event(object)).await;
        Ok(true)
    }

    async fn send(&mut self, event: ObjectEvent) {
        // A list only counts when it is complete.
        if self.from.is_some() {
            self.backoff.reset();
        }
        // When the receiver is dropped, the watch is ended elsewhere.
        let _ = self.out.send((self.into)(event)).await;
    }
}

/// An event of a watch, as it was sent.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// A revision of the cloud's history.
#[derive(Deserialize)]
struct Bookmark {
    metadata: Revision,
}

#[derive(Deserialize)]
struct Revision {
    #[serde(rename = "resourceVersion")]
    resource_version: String,
}

/// The error that the API server sends instead of an event.
fn refusal(text: &[u8]) -> Option<WatchError> {
    let status: Status = serde_json::from_slice(text).ok()?;
    Some(WatchError::from(&status))
}

fn revision_of(object: &RawObject) -> Result<String, WatchError> {
    let revision = object.revision().map_err(|error| WatchError::new(&error))?;
    Ok(revision.0.to_string())
}
