//! Watches: initial events, changes, bookmarks while nothing happens, and a clean end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rand::Rng;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::accept::Form;
use crate::body::{self, Body};
use crate::encode::{Encoder, Include};
use crate::event_cache::{SameKind, ShownKey};
use crate::history::{Change, ChangeKind, ChangeStream, Histories};
use crate::kinds::KindInfo;
use crate::list;
use crate::query::params::ListParams;
use crate::registry::Registry;
use crate::request_limits::Slot;
use crate::selector::RequestSelection;
use crate::status::ApiError;
use crate::store::{Revision, Store, StoreError, Stored};
use crate::stored::Newest;

#[cfg(test)]
mod tests;

/// Range of the timeout of a watch when the client gives none (as in kube-apiserver).
pub const TIMEOUT_SECONDS: std::ops::RangeInclusive<u64> = 1800..=3600;

/// Maximum timeout that a client can request.
pub const TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;

/// How often a bookmark is sent.
pub const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// A bookmark is also sent this long before the timeout, so that the client resumes from a fresh revision.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Events are joined up to about this many bytes before they are sent; larger ones are sent alone, without copying.
const PIECE_LEN: usize = 32 * 1024;

/// The text around the type and the object of an event.
const LINE_TYPE: &[u8] = b"{\"type\":\"";
const LINE_OBJECT: &[u8] = b"\",\"object\":";
const LINE_END: &[u8] = b"}\n";

const ADDED: &str = "ADDED";
const DELETED: &str = "DELETED";

/// How often a snapshot is retried when the history overtakes it.
const HANDOVER_ATTEMPTS: usize = 3;

/// One watch request.
pub struct WatchRequest {
    /// The kind.
    pub kind: Arc<KindInfo>,
    /// The selected objects.
    pub selection: RequestSelection,
    /// Revision, initial events, bookmarks, timeout.
    pub params: ListParams,
    /// The form of the objects.
    pub form: Form,
    /// What Table rows contain.
    pub include: Include,
}

/// What a watch needs from its server.
pub(crate) struct Surroundings<'a, R> {
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) registry: &'a Registry,
    pub(crate) rng: &'a mut R,
    pub(crate) stop: CancellationToken,
    /// Held while the watch runs.
    pub(crate) slot: Option<Slot>,
}

/// Answers a watch request. If its revision was not reached, its only event says so, as in kube-apiserver.
///
/// # Errors
/// 503 when the store is not synced.
pub(crate) fn respond<R: Rng>(
    request: WatchRequest,
    around: Surroundings<'_, R>,
    unreached: Option<ApiError>,
) -> Result<Response<Body>, ApiError> {
    let seconds = match request.params.timeout_seconds {
        Some(seconds) => seconds.min(TIMEOUT_SECONDS_MAX),
        None => around.rng.random_range(TIMEOUT_SECONDS),
    };
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let start = match unreached {
        Some(error) => Start::Refused(error),
        None => Start::of(&request, around.store.as_ref())?,
    };
    let last = deadline.checked_sub(LAST_BOOKMARK_BEFORE_END).unwrap_or(deadline);
    let next = last.min(Instant::now() + BOOKMARK_INTERVAL);
    let feed = Box::new(Feed {
        store: Arc::clone(around.store),
        registry: around.registry.clone(),
        bookmarks: Bookmarks { wanted: request.params.bookmarks, next, last },
        request,
        stop: Box::pin(around.stop.cancelled_owned()),
        timer: Box::pin(sleep_until(deadline)),
        _slot: around.slot,
        start: Some(start),
        deadline,
        columns_sent: false,
        ended: false,
        out: Out::default(),
    });
    // The stream would hold an unboxed state twice.
    let frames = stream::unfold(feed, |mut feed| async move {
        let bytes = feed.next_piece().await?;
        Some((Ok(Frame::data(bytes)), feed))
    });
    Ok(body::typed(StatusCode::OK, StreamBody::new(frames).boxed_unsync(), "application/json"))
}

/// Waits, before a watch with initial events, until the store is as new as the client's last list.
///
/// # Errors
/// 504 when this is not reached in time.
pub async fn ready(store: &dyn Store, params: &ListParams) -> Result<(), ApiError> {
    match params.revision {
        Some(revision) if params.initial_events == Some(true) => list::reach(store, revision).await,
        _ => Ok(()),
    }
}

/// The first events of a watch.
enum Start {
    /// These objects as ADDED, possibly a bookmark after them, then the changes.
    Objects { items: VecDeque<Arc<Stored>>, mark_at: Option<Revision>, changes: ChangeStream },
    /// The changes.
    Changes(ChangeStream),
    /// One error event and the end.
    Refused(ApiError),
}

impl Start {
    fn of(request: &WatchRequest, store: &dyn Store) -> Result<Self, ApiError> {
        let params = &request.params;
        let resource = &request.kind.storage;
        let revision = params.revision.filter(|revision| revision.0 > 0);
        let since = match (params.initial_events, revision) {
            (Some(true), _) | (None, None) => None,
            // From the current revision on.
            (Some(false), None) => Some(store.revision()),
            (_, Some(revision)) => Some(revision),
        };
        if let Some(since) = since {
            return match store.watch(resource, since) {
                Ok(changes) => Ok(Self::Changes(changes)),
                Err(error @ (StoreError::Expired { .. } | StoreError::Unreached { .. })) => {
                    Ok(Self::Refused(error.into()))
                }
                Err(error) => Err(error.into()),
            };
        }
        let mut attempt = 1;
        loop {
            // The changes continue at the snapshot's revision: nothing is lost or repeated in between.
            let snapshot = store.list(resource, request.selection.namespace.as_deref())?;
            match store.watch(resource, snapshot.revision) {
                Ok(changes) => {
                    let wanted = |item: &Arc<Stored>| request.selection.matches(&request.kind, item);
                    let items = snapshot.items.into_iter().filter(wanted).collect();
                    let mark_at = (params.initial_events == Some(true)).then_some(snapshot.revision);
                    return Ok(Self::Objects { items, mark_at, changes });
                }
                Err(StoreError::Expired { .. }) if attempt < HANDOVER_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// When a watch sends bookmarks.
struct Bookmarks {
    wanted: bool,
    next: Instant,
    /// The time of the last one before the deadline.
    last: Instant,
}

impl Bookmarks {
    /// Sets the time of the next one after one was sent.
    fn sent(&mut self, now: Instant) {
        self.next = now + BOOKMARK_INTERVAL;
        if now < self.last {
            self.next = self.next.min(self.last);
        }
    }
}

/// The state of one running watch.
struct Feed {
    store: Arc<dyn Store>,
    registry: Registry,
    request: WatchRequest,
    /// Registered once and not for every event. The same holds for the timer, which is reset when the next time
    /// changes.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: Pin<Box<Sleep>>,
    _slot: Option<Slot>,
    /// What comes next; none while it is processed, and after the end.
    start: Option<Start>,
    deadline: Instant,
    bookmarks: Bookmarks,
    columns_sent: bool,
    ended: bool,
    out: Out,
}

impl Feed {
    /// The next bytes to send; `None` at the end.
    async fn next_piece(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.out.take() {
                return Some(piece);
            }
            if self.ended {
                return None;
            }
            match self.start.take()? {
                Start::Refused(error) => {
                    self.fail(&error);
                }
                Start::Objects { items, mark_at, changes } => self.initial(items, mark_at, changes),
                Start::Changes(mut changes) => {
                    self.advance(&mut changes).await;
                    self.start = Some(Start::Changes(changes));
                }
            }
        }
    }

    /// Writes initial objects until a piece is full.
    fn initial(
        &mut self,
        mut items: VecDeque<Arc<Stored>>,
        mark_at: Option<Revision>,
        changes: ChangeStream,
    ) {
        while !self.out.is_full() {
            if (!items.is_empty() || (mark_at.is_some() && self.bookmarks.wanted)) && self.has_no_form() {
                return;
            }
            let Some(item) = items.pop_front() else {
                if let (Some(revision), true) = (mark_at, self.bookmarks.wanted) {
                    let object = self.encoder().bookmark(revision, true);
                    self.out.event("BOOKMARK", &object);
                }
                self.start = Some(Start::Changes(changes));
                return;
            };
            self.existing(&item);
        }
        self.start = Some(Start::Objects { items, mark_at, changes });
    }

    /// Waits for changes, the time of the next bookmark, or the end.
    async fn advance(&mut self, changes: &mut ChangeStream) {
        let bookmark = Some(self.bookmarks.next).filter(|_| self.bookmarks.wanted);
        let wake = bookmark.map_or(self.deadline, |next| next.min(self.deadline));
        if self.timer.deadline() != wake {
            self.timer.as_mut().reset(wake);
        }
        tokio::select! {
            // A watch nearly always wakes because of a change; the rest is checked when there is none.
            biased;
            batch = changes.next() => match batch {
                Ok(Some(_)) if Instant::now() >= self.deadline => self.ended = true,
                // The client watches again from here, under the new definition.
                Ok(Some(_)) if self.is_superseded() => self.ended = true,
                Ok(Some(batch)) => self.changes(changes.histories(), &batch),
                Ok(None) => self.ended = true,
                Err(error) => self.fail(&error.into()),
            },
            () = self.timer.as_mut() => self.tick(changes),
            () = self.stop.as_mut() => self.ended = true,
        }
    }

    /// Whether the definition of the kind has changed since the watch began. kube-apiserver ends such watches too.
    fn is_superseded(&self) -> bool {
        self.request.kind.custom && self.registry.is_superseded(&self.request.kind)
    }

    fn tick(&mut self, changes: &mut ChangeStream) {
        if Instant::now() >= self.deadline || self.is_superseded() {
            self.ended = true;
            return;
        }
        // Read before the log: the log then contains all changes up to this revision.
        let reached = self.store.revision();
        loop {
            match changes.poll_ready() {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => self.changes(changes.histories(), &batch),
                Err(error) => return self.fail(&error.into()),
            }
        }
        changes.advance(reached);
        if self.ended || self.has_no_form() {
            return;
        }
        let object = self.encoder().bookmark(changes.position(), false);
        self.out.event("BOOKMARK", &object);
        self.bookmarks.sent(Instant::now());
    }

    fn changes(&mut self, histories: &Histories, batch: &[Arc<Change>]) {
        for change in batch {
            let Some(event) = event_type(&self.request, change, histories.labels()) else { continue };
            if self.has_no_form() {
                return;
            }
            // An object that left the selection is shown as it was, with the revision at which it left.
            let left =
                change.previous.as_ref().filter(|_| event == DELETED && change.kind != ChangeKind::Deleted);
            let key = self.key(event, change.revision());
            let line = histories.events().line(&key, || {
                let encoder = self.encoder();
                let columns = !self.columns_sent;
                let object = match left {
                    Some(previous) => encoder.event(&previous.revised(change.revision()), columns),
                    None => encoder.event(&change.object, columns),
                };
                [LINE_TYPE, event.as_bytes(), LINE_OBJECT, &object[..], LINE_END].concat().into()
            });
            self.columns_sent = true;
            self.out.line(&line);
        }
    }

    fn key(&self, event: &'static str, revision: Revision) -> ShownKey {
        ShownKey {
            revision,
            kind: SameKind(Arc::clone(&self.request.kind)),
            form: self.request.form,
            include: self.request.include,
            event,
            columns: matches!(self.request.form, Form::Table(_)) && !self.columns_sent,
        }
    }

    /// Writes an object that existed when the watch began.
    fn existing(&mut self, stored: &Stored) {
        let object = self.encoder().event(stored, !self.columns_sent);
        self.columns_sent = true;
        self.out.event(ADDED, &object);
    }

    fn fail(&mut self, error: &ApiError) {
        self.out.event("ERROR", &error.to_json());
        self.ended = true;
    }

    /// Ends the watch before its first event when the client requests each object as a list of metadata. kube-apiserver
    /// notices that equally late.
    fn has_no_form(&mut self) -> bool {
        self.ended |= matches!(self.request.form, Form::Misfit(_));
        self.ended
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder { kind: &self.request.kind, form: self.request.form, include: self.request.include }
    }
}

/// The event type of a change under the selection; `None` when the change is not shown.
fn event_type(request: &WatchRequest, change: &Change, newest: &Newest) -> Option<&'static str> {
    let selected = |object: &Stored| request.selection.matches_shared(&request.kind, object, newest);
    let before = change.previous.as_deref().is_some_and(selected);
    if change.kind == ChangeKind::Deleted {
        return before.then_some(DELETED);
    }
    match (before, selected(&change.object)) {
        (false, true) => Some(ADDED),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some(DELETED),
        (false, false) => None,
    }
}

/// Outgoing bytes. Bounded: filled only when empty, by one batch at a time.
#[derive(Default)]
struct Out {
    /// The only event so far: most events come alone, and are sent as they are shared with other watchers.
    alone: Option<Bytes>,
    small: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Out {
    fn event(&mut self, event: &str, object: &Bytes) {
        self.join();
        if object.len() < PIECE_LEN {
            let around = LINE_TYPE.len() + event.len() + LINE_OBJECT.len() + LINE_END.len();
            self.small.reserve(around + object.len());
        }
        for part in [LINE_TYPE, event.as_bytes(), LINE_OBJECT] {
            self.small.extend_from_slice(part);
        }
        self.append(object);
        self.small.extend_from_slice(LINE_END);
    }

    /// Adds a whole event.
    fn line(&mut self, text: &Bytes) {
        if self.alone.is_none() && self.small.is_empty() && self.ready.is_empty() {
            self.alone = Some(text.clone());
        } else {
            self.join();
            self.append(text);
        }
    }

    /// Moves the single event into the buffer, because another one follows.
    fn join(&mut self) {
        if let Some(first) = self.alone.take() {
            self.append(&first);
        }
    }

    fn append(&mut self, text: &Bytes) {
        if text.len() < PIECE_LEN {
            self.small.extend_from_slice(text);
            if self.small.len() >= PIECE_LEN {
                self.flush();
            }
        } else {
            self.flush();
            self.ready.push_back(text.clone());
        }
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.ready.push_back(self.small.split().freeze());
        }
    }

    fn is_full(&self) -> bool {
        !self.ready.is_empty()
    }

    fn take(&mut self) -> Option<Bytes> {
        if let Some(line) = self.alone.take() {
            return Some(line);
        }
        if self.ready.is_empty() {
            self.flush();
        }
        let piece = self.ready.pop_front();
        if self.ready.is_empty() && self.small.is_empty() {
            // An idle watch holds no buffer.
            self.small = BytesMut::new();
        }
        piece
    }
}
