//! Watches: the initial events, then every change, bookmarks while nothing happens, and a clean end.

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
use crate::history::{Change, ChangeKind, ChangeStream, Histories};
use crate::kinds::KindInfo;
use crate::list;
use crate::load::Slot;
use crate::query::params::ListParams;
use crate::registry::Registry;
use crate::selector::Selection;
use crate::shown::{SameKind, ShownKey};
use crate::status::ApiError;
use crate::store::{Revision, Store, StoreError, Stored};
use crate::stored::Newest;

#[cfg(test)]
mod tests;

/// Shortest and longest watch when the client names no timeout (as kube-apiserver does).
pub const TIMEOUT_SECONDS: std::ops::RangeInclusive<u64> = 1800..=3600;

/// Longest watch whatever the client asks for.
pub const TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;

/// How often a bookmark is sent.
pub const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// A bookmark is also sent this long before the timeout, so that the client resumes from a fresh revision.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Events are joined up to about this many bytes before they are sent; larger ones travel alone, uncopied.
const PIECE_LEN: usize = 32 * 1024;

/// What stands around the type and the object of an event.
const LINE_TYPE: &[u8] = b"{\"type\":\"";
const LINE_OBJECT: &[u8] = b"\",\"object\":";
const LINE_END: &[u8] = b"}\n";

const ADDED: &str = "ADDED";
const DELETED: &str = "DELETED";

/// How often a snapshot is taken again when the history overtakes it.
const HANDOVER_ATTEMPTS: usize = 3;

/// One watch request.
pub struct WatchRequest {
    /// The kind.
    pub kind: Arc<KindInfo>,
    /// Which objects.
    pub selection: Selection,
    /// Revision, initial events, bookmarks, timeout.
    pub params: ListParams,
    /// What to show.
    pub form: Form,
    /// What Table rows carry.
    pub include: Include,
}

/// What a watch needs from its server.
pub(crate) struct Surroundings<'a, R> {
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) registry: &'a Registry,
    pub(crate) rng: &'a mut R,
    pub(crate) stop: CancellationToken,
    /// Held while the watch goes on.
    pub(crate) slot: Option<Slot>,
}

/// Answers a watch request. One whose revision was not reached says so in its only event, as kube-apiserver does.
///
/// # Errors
/// 503 when the store cannot know yet.
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
    let last_bookmark = deadline.checked_sub(LAST_BOOKMARK_BEFORE_END).unwrap_or(deadline);
    let feed = Box::new(Feed {
        store: Arc::clone(around.store),
        registry: around.registry.clone(),
        bookmarks: request.params.bookmarks,
        request,
        stop: Box::pin(around.stop.cancelled_owned()),
        timer: Box::pin(sleep_until(deadline)),
        _slot: around.slot,
        start: Some(start),
        deadline,
        bookmark_at: last_bookmark.min(Instant::now() + BOOKMARK_INTERVAL),
        last_bookmark,
        columns_sent: false,
        ended: false,
        out: Out::default(),
    });
    // The stream holds what it goes on with twice.
    let frames = stream::unfold(feed, |mut feed| async move {
        let bytes = feed.next_piece().await?;
        Some((Ok(Frame::data(bytes)), feed))
    });
    Ok(body::typed(StatusCode::OK, StreamBody::new(frames).boxed_unsync(), "application/json"))
}

/// Waits, before a watch with initial events, until the store is as new as the client's last list.
///
/// # Errors
/// 504 when it does not become so in time.
pub async fn ready(store: &dyn Store, params: &ListParams) -> Result<(), ApiError> {
    match params.revision {
        Some(revision) if params.initial_events == Some(true) => list::reach(store, revision).await,
        _ => Ok(()),
    }
}

/// What a watch begins with.
enum Start {
    /// These objects as ADDED, possibly a bookmark at their end, then the changes.
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
            // From now on, whenever that is.
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
            // The snapshot's revision is where the changes go on: nothing is lost or repeated between the two.
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

/// The state of one running watch.
struct Feed {
    store: Arc<dyn Store>,
    registry: Registry,
    request: WatchRequest,
    /// Registered once, not anew for every event; so is the timer, which is set when the next time changes.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: Pin<Box<Sleep>>,
    _slot: Option<Slot>,
    /// What comes next; none while it is being looked at, and after the end.
    start: Option<Start>,
    deadline: Instant,
    bookmarks: bool,
    bookmark_at: Instant,
    last_bookmark: Instant,
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
            if (!items.is_empty() || (mark_at.is_some() && self.bookmarks)) && self.has_no_form() {
                return;
            }
            let Some(item) = items.pop_front() else {
                if let (Some(revision), true) = (mark_at, self.bookmarks) {
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

    /// Waits for changes, the time of a bookmark, or the end.
    async fn advance(&mut self, changes: &mut ChangeStream) {
        let wake = if self.bookmarks { self.bookmark_at.min(self.deadline) } else { self.deadline };
        if self.timer.deadline() != wake {
            self.timer.as_mut().reset(wake);
        }
        tokio::select! {
            // What wakes a watch is a change nearly always: the rest is looked at when there is none.
            biased;
            batch = changes.next() => match batch {
                Ok(Some(_)) if Instant::now() >= self.deadline => self.ended = true,
                // The client watches again from here on, under the definition that is current then.
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
        // Read before the log: all changes up to here are then in what the log gives.
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
        let now = Instant::now();
        self.bookmark_at = now + BOOKMARK_INTERVAL;
        if now < self.last_bookmark {
            self.bookmark_at = self.bookmark_at.min(self.last_bookmark);
        }
    }

    fn changes(&mut self, histories: &Histories, batch: &[Arc<Change>]) {
        for change in batch {
            let Some(event) = event_type(&self.request, change, histories.labels()) else { continue };
            if self.has_no_form() {
                return;
            }
            // An object that left the selection is shown as it was, under the revision at which it left.
            let left =
                change.previous.as_ref().filter(|_| event == DELETED && change.kind != ChangeKind::Deleted);
            let key = self.key(event, change.revision());
            let line = histories.shown().line(&key, || {
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

    /// An object that was there when the watch began.
    fn existing(&mut self, stored: &Stored) {
        let object = self.encoder().event(stored, !self.columns_sent);
        self.columns_sent = true;
        self.out.event(ADDED, &object);
    }

    fn fail(&mut self, error: &ApiError) {
        self.out.event("ERROR", &error.to_json());
        self.ended = true;
    }

    /// Ends the watch before its first event when the client wants each object as a list of metadata. The real server
    /// finds that out as late.
    fn has_no_form(&mut self) -> bool {
        self.ended |= matches!(self.request.form, Form::Misfit(_));
        self.ended
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder { kind: &self.request.kind, form: self.request.form, include: self.request.include }
    }
}

/// How a change looks through the selection; `None` when it does not show.
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

/// Bytes on their way out. Bounded: filled only when empty, by one batch at a time.
#[derive(Default)]
struct Out {
    /// The only line so far: most events come alone, and leave as they are shared with other watchers.
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

    /// A whole line.
    fn line(&mut self, text: &Bytes) {
        if self.alone.is_none() && self.small.is_empty() && self.ready.is_empty() {
            self.alone = Some(text.clone());
        } else {
            self.join();
            self.append(text);
        }
    }

    /// The line that was alone is no longer.
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
