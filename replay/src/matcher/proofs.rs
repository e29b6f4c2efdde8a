//! What holds for every message of a run's cloud, whatever was recorded: it shows only what the API of the run has, the
//! versions of an object arrive in their order, and nothing is sent again and again.

use serde_json::{Value, json};
use tombolo_proto::message::ResourceType;
use tombolo_proto::session::kubeedge::Kinds;

use super::index::Version;
use super::observed::{is_older, number};
use super::{Difference, Matcher, unexpected, version};
use crate::frame::{Ask, Frame, Key};
use crate::rules::Rule;
use crate::transcript::Event;

/// Maximum number of objects of one message that are looked up in the API.
const LOOKED_UP_MAX: usize = 128;

/// The kind of a token.
const TOKEN: &str = "TokenRequest";

/// How often a message may arrive: the second copy may have been sent before the acknowledgement of the first arrived.
const COPIES_MAX: usize = 2;

impl Matcher<'_> {
    /// The API of the run has this state.
    pub(super) fn see(&mut self, state: &Value) {
        self.own.seen.insert(version(state));
        self.observed.state(state);
    }

    /// Objects that a message shows in a version that the API of the run has not shown yet. A run looks them up before
    /// it passes the message on.
    #[must_use]
    pub fn unproven(&self, frame: &Frame) -> Vec<Value> {
        let mut shown = match frame.operation() {
            "delete" => return Vec::new(),
            "adopt" => frame.key().and_then(|key| named(&key)).into_iter().collect(),
            _ => frame.objects(),
        };
        if let ("adopt", [object]) = (frame.operation(), &mut shown[..]) {
            object["metadata"] = frame.content()["metadata"].clone();
        }
        let is_unseen = |object: &Value| {
            let version = version(object);
            // A token is made when it is requested, and is not kept.
            object["kind"] != TOKEN && !version.1.is_empty() && !self.own.seen.contains(&version)
        };
        shown.into_iter().filter(is_unseen).take(LOOKED_UP_MAX).collect()
    }

    /// The newest state of an object that the API of the run has shown.
    #[must_use]
    pub fn newest(&self, object: &Value) -> Option<&Value> {
        self.observed.newest(&Key::of_object(object))
    }

    /// Takes what the API has of an object that a message shows.
    ///
    /// # Errors
    /// [`Difference`] if the API never had the version that the message shows.
    pub fn read(&mut self, claimed: &Value, present: Option<&Value>) -> Result<(), Difference> {
        let (uid, revision) = version(claimed);
        let problem = match present {
            Some(present) => {
                self.see(present);
                let newer = number(claimed) > number(present);
                newer.then(|| format!("the API has only version {}", version(present).1))
            }
            // Nobody can tell which versions an object had that is gone.
            None if self.is_gone(&Key::of_object(claimed), 0) || self.observed.had(&uid) => None,
            None => Some("the API has no such object".to_owned()),
        };
        if let Some(problem) = problem {
            let live = Some(claimed.clone());
            let problem = format!("the cloud shows version {revision}, and {problem}");
            return Err(Difference { line: 0, recorded: None, live, problem });
        }
        self.own.seen.insert((uid, revision));
        Ok(())
    }

    /// The object that a write was about, if this message says that the write was made. A run looks it up before it
    /// passes the message on.
    #[must_use]
    pub fn written(&self, frame: &Frame) -> Option<Value> {
        let request = self.request_of(frame)?;
        let refused = frame.is_refusal() || frame.status().is_some();
        if request.ask() != Ask::Write || refused || frame.content()["kind"] == TOKEN {
            return None;
        }
        if let Some(object) = frame.objects().into_iter().next() {
            return (object["kind"] != TOKEN).then_some(object);
        }
        // A subresource is not the object that its path names.
        let key = request.key().filter(|_| request.is_frame("api", "DELETE") || !request.is_tombolo())?;
        named(&key)
    }

    /// Takes what the API has of an object after the cloud answered a write of it.
    ///
    /// # Errors
    /// [`Difference`] if the write is not there.
    pub fn stored(&mut self, frame: &Frame, present: Option<&Value>) -> Result<(), Difference> {
        let Some(request) = self.request_of(frame) else { return Ok(()) };
        let problem = if is_deletion(request) {
            let body = if request.is_tombolo() { &request.content()["body"] } else { request.content() };
            let wanted = body.pointer("/preconditions/uid").and_then(Value::as_str);
            let wanted = wanted.map(|uid| self.identifiers.translate(uid));
            let is_same =
                |present: &&Value| wanted.as_ref().is_none_or(|uid| present["metadata"]["uid"] == **uid);
            let kept = present.filter(is_same).filter(|one| one["metadata"]["deletionTimestamp"].is_null());
            kept.map(|_| "the cloud says that this is deleted, and the API still has it".to_owned())
        } else {
            self.unwritten(frame, present)
        };
        if let Some(present) = present {
            self.see(present);
        }
        problem.map_or(Ok(()), |problem| Err(unexpected(frame, &problem)))
    }

    /// How the API contradicts an answer that shows a version.
    fn unwritten(&self, frame: &Frame, present: Option<&Value>) -> Option<String> {
        let object = frame.objects().into_iter().next();
        let revision =
            object.as_ref().map_or(frame.resource_version().to_owned(), |object| version(object).1);
        let revision: u64 = revision.parse().ok()?;
        let Some(present) = present else {
            let asked = self.sent.get(frame.parent()).copied().unwrap_or_default();
            let is_gone = object.as_ref().is_none_or(|object| {
                self.is_gone(&Key::of_object(object), asked) || self.observed.had(&version(object).0)
            });
            return (!is_gone)
                .then(|| "the cloud says that this is stored, and the API does not have it".to_owned());
        };
        let newest = number(present)?;
        (newest < revision).then(|| {
            format!("the cloud says that version {revision} is stored, and the API has only {newest}")
        })
    }

    /// What the request wanted that a message answers.
    #[must_use]
    pub fn asked(&self, answer: &Frame) -> Option<Ask> {
        self.request_of(answer).map(Frame::ask)
    }

    /// The request that a message answers.
    fn request_of(&self, frame: &Frame) -> Option<&Frame> {
        let asked = self.sent.get(frame.parent()).copied()?;
        match &self.transcript.lines.get(asked)?.event {
            Event::Up(request) => Some(request),
            _ => None,
        }
    }

    /// Whether the run has come to a line from `since` on that deletes this object.
    fn is_gone(&self, key: &Key, since: usize) -> bool {
        let mut lines = self.recorded.deleted.get(key).into_iter().flatten();
        lines.any(|line| (since..=self.reached).contains(line))
    }

    /// Whether a message has arrived before.
    ///
    /// # Errors
    /// [`Difference`] if it arrives again and again.
    pub(super) fn is_copy(&mut self, frame: &Frame) -> Result<bool, Difference> {
        if frame.id().is_empty() {
            return Ok(false);
        }
        let copies = self.observed.count(frame.id());
        // Frames about no object have no number of their own.
        if copies > COPIES_MAX && !frame.is_notice() {
            return Err(unexpected(
                frame,
                "the cloud sends this again although the edge has acknowledged it",
            ));
        }
        if copies == COPIES_MAX && !frame.is_notice() {
            self.rules.count(Rule::Repeated);
        }
        Ok(copies > 1)
    }

    /// Takes the objects of a message.
    ///
    /// # Errors
    /// [`Difference`] if their content or their order is wrong.
    pub(super) fn observe(&mut self, conn: u64, frame: &Frame) -> Result<(), Difference> {
        if frame.is_push()
            && let Some(problem) = self.observed.order(conn, frame)
        {
            return Err(unexpected(frame, &problem));
        }
        if frame.operation() == "delete" {
            return Ok(());
        }
        let node = self.transcript.node_of(conn);
        for object in frame.objects() {
            if self.observed.contradicts(&object) {
                let problem = "the API of the run has other content at this version";
                return Err(unexpected(frame, problem));
            }
            self.observed.show(node, Key::of_object(&object), version(&object));
        }
        if frame.operation() == "adopt"
            && let Some(key) = frame.key()
        {
            self.observed.show(node, key, version(frame.content()));
        }
        Ok(())
    }

    /// Whether the answer to a read was right before the latest changes of the API.
    pub(super) fn was_right(&self, request: &Frame, answer: &Frame) -> bool {
        if answer.says_not_found() {
            return request.key().is_none_or(|key| self.observed.is_latest(|changed| *changed == key));
        }
        if answer.is_refusal() || answer.status().is_some() {
            // What a node may read follows from its pods and its roles.
            let gives_rights = |changed: &Key| changed.kind == "pod" || changed.kind.contains("role");
            return self.observed.is_latest(gives_rights);
        }
        let is_true = |object: &Value| {
            let version = version(object);
            // The scale of an object has other content than the object: only one of an older version may differ.
            let may_differ = object["kind"] != "Scale" || self.observed.is_overtaken(&version);
            self.own.seen.contains(&version) && !self.observed.contradicts(object) && may_differ
        };
        answer.carried().iter().all(is_true)
    }

    /// Whether the cloud of the run has shown this version of an object, or a newer one, to the node of a connection.
    /// `wanted` is a version of the run; `None` is one that the run never had.
    pub(super) fn has_shown(&self, conn: Option<u64>, key: &Key, wanted: Option<&Version>) -> bool {
        let node = conn.map(|conn| self.transcript.node_of(conn));
        let shown = node.and_then(|node| self.observed.shown(node, key));
        shown.zip(wanted).is_some_and(|(shown, wanted)| shown.0 == wanted.0 && !is_older(shown, wanted))
    }
}

/// An object with nothing but its name, if its kind is known.
fn named(key: &Key) -> Option<Value> {
    let known = Kinds::default();
    let (kind, api_version) = known.named(&ResourceType::parse(&key.kind))?;
    let mut metadata = json!({"name": key.name});
    if !key.namespace.is_empty() {
        metadata["namespace"] = key.namespace.as_str().into();
    }
    Some(json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
}

fn is_deletion(request: &Frame) -> bool {
    request.operation() == "delete"
        || request.is_frame("api", "DELETE")
        || request.application("Verb") == "delete"
}
