//! Matches deliveries of the run with recorded ones, and finds the rule if one is missing or additional.

use serde_json::Value;

use super::{Difference, LineState, Matcher, Progress, at, unexpected, version};
use crate::cluster_objects::{is_clusters_own, is_machinery};
use crate::compare::{Comparison, Mismatch};
use crate::frame::{Frame, Key};
use crate::identifiers::Sort;
use crate::rules::Rule;
use crate::transcript::Event;
use crate::value::{agree, same_but_status, same_content, strip, without_empty};

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
            // A deletion is not compared with what was delivered before it.
            let ends = |frame: &Frame| frame.operation() == "delete";
            if ends(recorded) != ends(&self.pushes[candidate].frame) {
                continue;
            }
            if self.is_same_version(wanted.as_ref(), candidate)
                || wanted.is_none() && self.is_unknown(recorded, candidate)
            {
                let Err(mismatch) = self.try_push(index, recorded, candidate) else { continue };
                if self.try_without_status(index, recorded, candidate) {
                    return Ok(Progress::Done);
                }
                // A joining node may be delivered first without all its labels, and then as it was recorded.
                if wanted.is_none() && recorded.key().is_some_and(|key| key.kind == "node") {
                    continue;
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

    /// Deliveries of the same path that are not matched yet.
    pub(super) fn candidates(&self, conn: Option<u64>, recorded: &Frame) -> Vec<usize> {
        let fits = |push: &super::Push| {
            let same = push.frame.group() == recorded.group()
                && push.frame.is_push() == recorded.is_push()
                && (recorded.is_push() || push.frame.operation() == recorded.operation());
            !push.used && same
        };
        let about = self.about(conn, recorded);
        about.filter(|(_, push)| fits(push)).map(|(index, _)| index).collect()
    }

    pub(super) fn try_push(
        &mut self,
        index: usize,
        recorded: &Frame,
        candidate: usize,
    ) -> Result<(), Mismatch> {
        let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
        let live = &self.pushes[candidate].frame;
        if recorded.is_notice() {
            comparison.notice(recorded, live)?;
        } else {
            comparison.push(recorded, live)?;
        }
        comparison.learned().keep(&mut self.identifiers, &mut self.rules);
        self.pushes[candidate].used = true;
        self.states[index] = LineState::Met;
        Ok(())
    }

    /// Matches a pod whose status, and with it the version, changed without being pushed.
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
        comparison.learned().keep(&mut self.identifiers, &mut self.rules);
        self.rules.count(Rule::StatusEcho);
        self.pushes[candidate].used = true;
        self.states[index] = LineState::Met;
        true
    }

    /// Uid and version of a recorded delivery, translated to those of the run.
    fn live_version(&self, recorded: &Frame) -> Option<(String, String)> {
        let (uid, revision) = version(recorded.objects().first()?);
        let live_uid = self.identifiers.live(Sort::Uid, "", &uid)?;
        let live = self.identifiers.live(Sort::Version, &uid, &revision)?;
        Some((live_uid.to_owned(), live.to_owned()))
    }

    /// Whether the delivered version is unknown: it stands for no recorded version yet, and does not belong to another
    /// incarnation.
    fn is_unknown(&self, recorded: &Frame, candidate: usize) -> bool {
        let Some((live_uid, live_version)) = self.pushes[candidate].frame.objects().first().map(version)
        else {
            return true;
        };
        let uid = self.identifiers.recorded(Sort::Uid, "", &live_uid);
        let wanted = recorded.objects().first().map(|object| version(object).0);
        if uid.zip(wanted.as_deref()).is_some_and(|(uid, wanted)| uid != wanted) {
            return false;
        }
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
        self.about(conn, recorded).any(|(_, push)| {
            let came = push.frame.objects().first().map(version);
            let gone = push.frame.operation() == "delete";
            match (wanted, came) {
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

    /// The rule that excuses a missing recorded delivery.
    fn needless(&self, index: usize, recorded: &Frame) -> Option<Rule> {
        let key = recorded.key()?;
        if self.unserved.contains(&key.kind) {
            return Some(Rule::NotServed);
        }
        if matches!(recorded.operation(), "absent" | "unreadable") {
            return self.came_anyhow(recorded).then_some(Rule::Coalesced);
        }
        if recorded.operation() == "adopt" {
            // The edge of the run may already hold exactly this version.
            let conn = self.transcript.lines[index].conn;
            return self.candidates(conn, recorded).is_empty().then_some(Rule::HeldAlready);
        }
        let object = recorded.objects().into_iter().next();
        if recorded.operation() == "delete" && self.is_first_news(index, &key, object.as_ref()) {
            return Some(Rule::HeldBefore);
        }
        let object = object?;
        if is_machinery(&object) {
            return Some(Rule::ClusterObjects);
        }
        let before = self.recorded.shown_before(index, &version(&object).0);
        match key.kind.as_str() {
            "node" if self.recorded.is_answered(&version(&object)) => Some(Rule::NodeEcho),
            "node" if self.is_part_of_labelled(&version(&object).0, &object, agree) => Some(Rule::NodeOnJoin),
            "node" if before.is_some_and(|before| same_node(before, &object)) => Some(Rule::NodeEcho),
            "pod" if before.is_some_and(|before| same_but_status(before, &object)) => Some(Rule::StatusEcho),
            _ if before.is_some_and(|before| same_content(before, &object)) => Some(Rule::HeldAlready),
            "configmap" | "secret" if self.is_released(recorded) => Some(Rule::Released),
            _ => None,
        }
    }

    /// Whether the object was delivered where the recorded cloud first said that it does not exist.
    fn came_anyhow(&self, recorded: &Frame) -> bool {
        let known = self.by_resource.get(&recorded.usual_resource()).into_iter().flatten();
        known
            .map(|index| &self.pushes[*index].frame)
            .any(|frame| frame.group() == recorded.group() && frame.operation() == "update")
    }

    /// Whether nothing before this deletion shows the object.
    fn is_first_news(&self, index: usize, key: &Key, object: Option<&Value>) -> bool {
        let uid = object.map(|object| version(object).0).unwrap_or_default();
        let shown = self.recorded.shown_before(index, &uid).is_some();
        // An API line that shows only the deletion was derived from this delivery, or has no more information.
        !shown && !self.recorded.in_api.contains(key) && !self.is_shown_by_name(index, key)
    }

    /// Whether a frame before this line was about an object of this name.
    fn is_shown_by_name(&self, index: usize, key: &Key) -> bool {
        self.transcript.lines[..index].iter().any(|line| match &line.event {
            Event::Down(frame) => frame.key().as_ref() == Some(key) && !frame.objects().is_empty(),
            _ => false,
        })
    }

    /// Finds the rule for a delivery that matched no recorded one in its turn.
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
        let transcript = self.transcript;
        let known = self.recorded.pushes.get(&frame.usual_resource()).cloned().unwrap_or_default();
        known.into_iter().any(|index| {
            let Event::Down(recorded) = &transcript.lines[index].event else { return false };
            matches!(self.states[index], LineState::Excused(_))
                && self.try_push(index, recorded, candidate).is_ok()
        })
    }

    fn reason_of(&self, frame: &Frame) -> Option<Rule> {
        if frame.is_notice() {
            return super::notices::reason_of(frame);
        }
        if frame.operation() == "absent" {
            let later = frame.key().is_some_and(|key| self.recorded.in_api.contains(&key));
            return later.then_some(Rule::Between);
        }
        if frame.operation() == "adopt" {
            let uid = frame.content()["metadata"]["uid"].as_str().unwrap_or_default();
            let held = self.identifiers.recorded(Sort::Uid, "", uid).is_some() || self.own.uids.contains(uid);
            return held.then_some(Rule::HeldAlready);
        }
        let object = frame.objects().into_iter().next();
        if object.as_ref().is_some_and(|object| is_clusters_own(object) || is_machinery(object)) {
            return Some(Rule::ClusterObjects);
        }
        if frame.operation() == "delete" {
            return self.reason_of_deletion(frame, object.as_ref());
        }
        let object = object?;
        let (live_uid, live_revision) = version(&object);
        if self.own.uids.contains(&live_uid) {
            return Some(Rule::ClusterObjects);
        }
        let between = self.between.contains(&(live_uid.clone(), live_revision.clone()));
        let Some(uid) = self.identifiers.recorded(Sort::Uid, "", &live_uid).map(str::to_owned) else {
            // The transcript proves that an object exists, but does not show it.
            return between.then_some(Rule::Between);
        };
        let ends = object["metadata"]["deletionGracePeriodSeconds"] == 0;
        if ends && frame.key().is_some_and(|key| self.recorded.deleted.contains(&key)) {
            // A pod is marked before it is deleted, even if there is nothing to wait for.
            return Some(Rule::Between);
        }
        let known = self.identifiers.recorded(Sort::Version, &uid, &live_revision);
        let Some(recorded) =
            known.and_then(|revision| self.recorded.versions.get(&(uid.clone(), revision.to_owned())))
        else {
            if self.is_joining(&uid, &object) || self.is_part_of_node(&uid, &object) {
                return Some(Rule::NodeOnJoin);
            }
            return between.then_some(Rule::Between);
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
        } else if self.recorded.pushed.contains(&version(&recorded)) {
            Rule::HeldAlready
        } else if self.recorded.answered.contains(&version(&recorded)) {
            Rule::Needed
        } else {
            Rule::Between
        })
    }

    fn reason_of_deletion(&self, frame: &Frame, object: Option<&Value>) -> Option<Rule> {
        let counted = frame.key().is_some_and(|key| matches!(key.kind.as_str(), "configmap" | "secret"));
        let known = object.and_then(|object| {
            Some(self.identifiers.recorded(Sort::Uid, "", &version(object).0)?.to_owned())
        });
        let deleted = frame.key().is_some_and(|key| self.recorded.deleted.contains(&key));
        let about = self.by_resource.get(&frame.usual_resource()).into_iter().flatten();
        let watched = about.map(|index| &self.pushes[*index].frame).any(|push| {
            push.source() == "dynamiccontroller" || push.group() != "subscription/0" && push.is_tombolo()
        });
        match (deleted, counted, known.is_some()) {
            (true, ..) => Some(Rule::Between),
            (false, true, true) => Some(Rule::Released),
            (false, true, false) if frame.stands_in_for().is_some() => Some(Rule::Released),
            (false, false, true) if watched => Some(Rule::Unwatched),
            _ => None,
        }
    }

    /// Whether this is a recorded node, between its creation and the moment when it has all its labels.
    fn is_joining(&self, uid: &str, node: &Value) -> bool {
        self.is_part_of_labelled(uid, node, |recorded, bare| {
            let mut comparison = Comparison::new(&self.identifiers, &self.additions, &self.own);
            comparison.value("", "", recorded, bare).is_ok()
        })
    }

    /// Whether a recorded version of this node contains everything that this version has, apart from what controllers
    /// of the run's cluster set. The recorded cluster, or an API line, has added to the node since it was created.
    fn is_part_of_node(&self, uid: &str, node: &Value) -> bool {
        let bare = |node: &Value| {
            let mut node = node.clone();
            let own = ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"];
            strip(&mut node, &own);
            // Controllers of every cluster set these.
            if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                annotations.remove("node.alpha.kubernetes.io/ttl");
            }
            if let Some(spec) = node["spec"].as_object_mut() {
                ["taints", "podCIDR", "podCIDRs"].iter().for_each(|name| drop(spec.remove(*name)));
            }
            without_empty(node)
        };
        let recorded = self.recorded.by_uid.get(uid).into_iter().flatten();
        let mut recorded = recorded.filter_map(|version| self.recorded.versions.get(version));
        node["kind"] == "Node" && recorded.any(|recorded| is_within(&bare(node), &bare(recorded)))
    }

    /// Whether a recorded version of this node differs only in having more labels.
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
        let recorded = self.recorded.by_uid.get(uid).into_iter().flatten();
        recorded.filter_map(|version| self.recorded.versions.get(version)).any(|recorded| {
            let all = labels(recorded);
            let fewer =
                came.len() <= all.len() && came.iter().all(|(name, value)| all.get(name) == Some(value));
            fewer && version(recorded) != version(node) && same(&bare(recorded), &bare(node))
        })
    }

    /// Whether the last message of the run's cloud about an object says that the node does not need it.
    fn is_released(&self, recorded: &Frame) -> bool {
        let last = self.by_resource.get(&recorded.usual_resource()).and_then(|known| known.last());
        recorded.operation() != "delete"
            && last.is_some_and(|last| self.pushes[*last].frame.operation() == "delete")
    }
}

/// Whether every member of a value is in the other one.
fn is_within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|whole| is_within(value, whole)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_within(part, whole))
        }
        (part, whole) => part == whole,
    }
}

/// Whether an edge would not notice the difference between two nodes: the times of conditions are heartbeats.
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
