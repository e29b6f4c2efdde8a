//! Deliveries: which recorded one a delivery of the run is, and why one may be missing or come besides.

use serde_json::Value;

use super::{Difference, Matcher, Progress, State, at, unexpected, version};
use crate::compare::{Comparison, Mismatch};
use crate::frame::{Frame, Key};
use crate::identifiers::Sort;
use crate::rules::Rule;
use crate::transcript::{Event, Line, Verb};
use crate::value::{agree, same_but_status, same_content, strip};

impl Matcher<'_> {
    pub(super) fn settle_push(&mut self, index: usize, recorded: &Frame) -> Result<Progress, Difference> {
        let line = &self.transcript.lines[index];
        let candidates = self.candidates(line.conn, recorded);
        for &candidate in &candidates {
            if self.try_push(index, recorded, candidate).is_ok() {
                return Ok(Progress::Done);
            }
        }
        let wanted = self.live_version(recorded);
        for &candidate in &candidates {
            // The end of an object is not compared with what came before it.
            let ends = |frame: &Frame| frame.operation() == "delete";
            if ends(recorded) != ends(&self.pushes[candidate].frame) {
                continue;
            }
            if self.is_same_version(wanted.as_ref(), candidate)
                || wanted.is_none() && self.is_unknown(candidate)
            {
                let mismatch = self.try_push(index, recorded, candidate).expect_err("compared above");
                if self.try_without_status(index, recorded, candidate) {
                    return Ok(Progress::Done);
                }
                let problem = format!("the delivery differs at {mismatch}");
                return Err(at(line, Some(&self.pushes[candidate].frame), problem));
            }
        }
        for &candidate in &candidates {
            if self.try_without_status(index, recorded, candidate) {
                return Ok(Progress::Done);
            }
        }
        if self.newer_came(line.conn, recorded, wanted.as_ref()) {
            return Ok(self.excuse(index, Rule::Coalesced));
        }
        match self.needless(index, recorded) {
            Some(rule) => Ok(self.excuse(index, rule)),
            None => Ok(Progress::Waiting),
        }
    }

    /// Deliveries of the same path that have matched nothing yet.
    fn candidates(&self, conn: Option<u64>, recorded: &Frame) -> Vec<usize> {
        let fits = |push: &super::Push| {
            !push.used && Some(push.conn) == conn && push.frame.resource() == recorded.resource()
        };
        self.pushes.iter().enumerate().filter(|(_, push)| fits(push)).map(|(index, _)| index).collect()
    }

    fn try_push(&mut self, index: usize, recorded: &Frame, candidate: usize) -> Result<(), Mismatch> {
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        comparison.push(recorded, &self.pushes[candidate].frame)?;
        comparison.commit(&mut self.identifiers, &mut self.rules);
        self.pushes[candidate].used = true;
        self.states[index] = State::Met;
        Ok(())
    }

    /// A pod whose status, and with it the version, moved on without being pushed.
    fn try_without_status(&mut self, index: usize, recorded: &Frame, candidate: usize) -> bool {
        if recorded.key().is_none_or(|key| key.kind != "pod") {
            return false;
        }
        let bare = |frame: &Frame| {
            let mut json = frame.as_json().clone();
            if let Some(header) = json["header"].as_object_mut() {
                header.remove("resourceversion");
            }
            strip(&mut json["content"], &["resourceVersion"]);
            if let Some(content) = json["content"].as_object_mut() {
                content.remove("status");
            }
            Frame::new(json)
        };
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        if comparison.push(&bare(recorded), &bare(&self.pushes[candidate].frame)).is_err() {
            return false;
        }
        comparison.commit(&mut self.identifiers, &mut self.rules);
        self.rules.count(Rule::StatusEcho);
        self.pushes[candidate].used = true;
        self.states[index] = State::Met;
        true
    }

    /// Uid and version of a recorded delivery in the words of the run.
    fn live_version(&self, recorded: &Frame) -> Option<(String, String)> {
        let (uid, revision) = version(recorded.objects().first()?);
        let live_uid = self.identifiers.live(Sort::Uid, "", &uid)?;
        let live = self.identifiers.live(Sort::Version, &uid, &revision)?;
        Some((live_uid.to_owned(), live.to_owned()))
    }

    /// Whether nothing is known of the version that came: it stands for no recorded one yet.
    fn is_unknown(&self, candidate: usize) -> bool {
        let Some((live_uid, live_version)) = self.pushes[candidate].frame.objects().first().map(version)
        else {
            return true;
        };
        let uid = self.identifiers.recorded(Sort::Uid, "", &live_uid);
        let known = uid.and_then(|uid| self.identifiers.recorded(Sort::Version, uid, &live_version));
        known.is_none() && !self.between.contains(&(live_uid, live_version))
    }

    fn is_same_version(&self, wanted: Option<&(String, String)>, candidate: usize) -> bool {
        let came = self.pushes[candidate].frame.objects();
        wanted.is_some() && came.first().map(version).as_ref() == wanted
    }

    /// Whether a later version of the object, or its deletion, was delivered.
    fn newer_came(&self, conn: Option<u64>, recorded: &Frame, wanted: Option<&(String, String)>) -> bool {
        if recorded.operation() == "delete" {
            return false;
        }
        let number = |text: &str| text.parse::<u64>().ok();
        self.pushes.iter().filter(|push| Some(push.conn) == conn).any(|push| {
            let same = push.frame.resource() == recorded.resource();
            let came = push.frame.objects().first().map(version);
            let gone = push.frame.operation() == "delete";
            same && match (wanted, came) {
                (Some((uid, wanted)), Some((came_uid, came))) => {
                    came_uid == *uid && (number(&came) > number(wanted) || gone && came == *wanted)
                }
                (None, Some((came_uid, _))) => {
                    let uid = recorded.objects().first().map(|object| version(object).0).unwrap_or_default();
                    gone && self.identifiers.live(Sort::Uid, "", &uid) == Some(&came_uid)
                }
                (_, None) => gone,
            }
        })
    }

    /// The rule under which this recorded delivery need not come.
    fn needless(&self, index: usize, recorded: &Frame) -> Option<Rule> {
        let object = recorded.objects().into_iter().next()?;
        let key = recorded.key()?;
        let carried = |line: &Line, answers_only: bool| match &line.event {
            Event::Down(frame) if !answers_only || !frame.parent().is_empty() => {
                frame.objects().into_iter().find(|other| version(other).0 == version(&object).0)
            }
            _ => None,
        };
        let lines = &self.transcript.lines;
        let before = lines[..index].iter().rev().find_map(|line| carried(line, false));
        let answered = || {
            let same =
                |line: &Line| carried(line, true).is_some_and(|other| version(&other) == version(&object));
            lines.iter().any(same)
        };
        match key.kind.as_str() {
            "node" if answered() => Some(Rule::NodeEcho),
            "node" if self.is_part_of_labelled(&version(&object).0, &object, agree) => Some(Rule::NodeOnJoin),
            "node" if before.as_ref().is_some_and(|before| same_node(before, &object)) => {
                Some(Rule::NodeEcho)
            }
            "pod" if before.as_ref().is_some_and(|before| same_but_status(before, &object)) => {
                Some(Rule::StatusEcho)
            }
            _ if before.as_ref().is_some_and(|before| same_content(before, &object)) => {
                Some(Rule::HeldAlready)
            }
            "configmap" | "secret" if self.is_released(recorded) => Some(Rule::Released),
            _ => None,
        }
    }

    /// Why a delivery came that matches no recorded one in its turn.
    pub(super) fn explain(&mut self, candidate: usize) -> Result<(), Difference> {
        let frame = self.pushes[candidate].frame.clone();
        if self.matches_excused(candidate, &frame) {
            return Ok(());
        }
        let rule = self.reason_of(&frame).ok_or_else(|| {
            unexpected(&frame, "the cloud delivers what the recorded one did not, and no rule allows it")
        })?;
        self.rules.count(rule);
        self.besides += 1;
        Ok(())
    }

    fn matches_excused(&mut self, candidate: usize, frame: &Frame) -> bool {
        for index in 0..self.transcript.lines.len() {
            let Event::Down(recorded) = &self.transcript.lines[index].event else { continue };
            if matches!(self.states[index], State::Excused(_))
                && recorded.is_push()
                && recorded.resource() == frame.resource()
                && self.try_push(index, recorded, candidate).is_ok()
            {
                return true;
            }
        }
        false
    }

    fn reason_of(&self, frame: &Frame) -> Option<Rule> {
        let object = frame.objects().into_iter().next();
        if frame.operation() == "delete" {
            let counted = frame.key().is_some_and(|key| matches!(key.kind.as_str(), "configmap" | "secret"));
            let known = object.and_then(|object| {
                Some(self.identifiers.recorded(Sort::Uid, "", &version(&object).0)?.to_owned())
            });
            return match self.was_deleted(frame) {
                true => Some(Rule::Between),
                false => (counted && known.is_some()).then_some(Rule::Released),
            };
        }
        let object = object?;
        let (live_uid, live_revision) = version(&object);
        if self.own.contains(&live_uid) {
            return Some(Rule::ClusterObjects);
        }
        let uid = self.identifiers.recorded(Sort::Uid, "", &live_uid)?.to_owned();
        let known = self.identifiers.recorded(Sort::Version, &uid, &live_revision);
        let Some(recorded) =
            known.and_then(|revision| self.versions.get(&(uid.clone(), revision.to_owned())))
        else {
            if self.is_joining(&uid, &object) {
                return Some(Rule::NodeOnJoin);
            }
            return self.between.contains(&(live_uid, live_revision)).then_some(Rule::Between);
        };
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        let (mut recorded, mut object) = (recorded.clone(), object);
        for side in [&mut recorded, &mut object] {
            if let Some(members) = side.as_object_mut() {
                members.remove("kind");
                members.remove("apiVersion");
            }
        }
        comparison.value("", "", &recorded, &object).ok()?;
        let key = frame.key()?;
        Some(if key.kind == "node" {
            Rule::NodeOnJoin
        } else if self.was_given(&version(&recorded), true) {
            Rule::HeldAlready
        } else if self.was_given(&version(&recorded), false) {
            Rule::Needed
        } else {
            Rule::Between
        })
    }

    /// Whether this is a node that was recorded, between its creation and the moment when it has all its labels.
    fn is_joining(&self, uid: &str, node: &Value) -> bool {
        self.is_part_of_labelled(uid, node, |recorded, bare| {
            let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
            comparison.value("", "", recorded, bare).is_ok()
        })
    }

    /// Whether a version of this node was recorded that differs in having more labels alone.
    fn is_part_of_labelled(&self, uid: &str, node: &Value, same: impl Fn(&Value, &Value) -> bool) -> bool {
        if node["kind"] != "Node" {
            return false;
        }
        let labels = |node: &Value| node["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        let bare = |node: &Value| {
            let mut node = node.clone();
            strip(&mut node, &["resourceVersion", "labels"]);
            node
        };
        let came = labels(node);
        self.versions.iter().filter(|((recorded, _), _)| recorded == uid).any(|(_, recorded)| {
            let all = labels(recorded);
            let fewer =
                came.len() <= all.len() && came.iter().all(|(name, value)| all.get(name) == Some(value));
            fewer && version(recorded) != version(node) && same(&bare(recorded), &bare(node))
        })
    }

    /// Whether the last that the run's cloud said of an object is that the node does not need it.
    fn is_released(&self, recorded: &Frame) -> bool {
        let last = self.pushes.iter().rev().find(|push| push.frame.resource() == recorded.resource());
        recorded.operation() != "delete" && last.is_some_and(|push| push.frame.operation() == "delete")
    }

    /// Whether the recorded cloud gave this version, in a delivery or in an answer.
    fn was_given(&self, wanted: &(String, String), pushed: bool) -> bool {
        self.transcript.lines.iter().any(|line| match &line.event {
            Event::Down(frame) if frame.is_push() == pushed => {
                frame.objects().iter().any(|object| version(object) == *wanted)
            }
            _ => false,
        })
    }

    fn was_deleted(&self, frame: &Frame) -> bool {
        let Some(key) = frame.key() else { return false };
        self.transcript.lines.iter().any(|line| match &line.event {
            Event::Api(Verb::Delete, object) => Key::of_object(object) == key,
            Event::Up(request) => request.operation() == "delete" && request.key().as_ref() == Some(&key),
            _ => false,
        })
    }
}

/// Whether an edge would not notice the difference of two nodes: times of conditions are heartbeats.
fn same_node(one: &Value, other: &Value) -> bool {
    let quiet = |node: &Value| {
        let mut node = node.clone();
        if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
            for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
                condition.remove("lastHeartbeatTime");
            }
        }
        node
    };
    same_content(&quiet(one), &quiet(other))
}
