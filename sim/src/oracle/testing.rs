//! A small API, connections and observations for the tests of the rules.

use std::sync::Arc;

use serde_json::{Value, json};

use super::content;
use super::history::History;
use super::{Context, Judge, OracleLimits, Violation};
use crate::observation::{
    ApiWrite, ContentDigest, HistoryPosition, Millis, Observation, Seen, SeenChange, SeenDelivery, SeenFrame,
    SeenVersion,
};
pub(super) use crate::observation::{ObjectId, PUSHED};

pub(super) fn id(text: &str) -> ObjectId {
    text.parse().expect("an object")
}

/// Writes into a history, one position after the other.
#[derive(Debug, Default)]
pub(super) struct Api {
    pub(super) history: History,
    position: HistoryPosition,
    uids: u32,
    /// All writes, for a rule to judge.
    pub(super) writes: Vec<Seen>,
}

impl Api {
    pub(super) fn now(&self) -> HistoryPosition {
        self.position
    }

    /// Grants a group to read a kind of the core group.
    pub(super) fn grant(&mut self, group: &str, resource: &str) {
        let rule = json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": [resource]});
        self.put("clusterroles.rbac.authorization.k8s.io//r", "admin", json!({"rules": [rule]}));
        let reference = json!({"kind": "ClusterRole", "name": "r"});
        let body = json!({"roleRef": reference, "subjects": [{"kind": "Group", "name": group}]});
        self.put("clusterrolebindings.rbac.authorization.k8s.io//b", "admin", body);
    }

    /// Writes an object. A new one gets a new UID; its text is the UID of the old one otherwise.
    pub(super) fn put(&mut self, object: &str, caller: &str, mut body: Value) -> HistoryPosition {
        let object = id(object);
        self.position.revision += 1;
        let uid = match self.history.present(&object) {
            Some(present) => present.facts.version.uid.clone(),
            None => {
                self.uids += 1;
                format!("uid-{}", self.uids)
            }
        };
        body["metadata"]["name"] = object.name.clone().into();
        body["metadata"]["uid"] = uid.into();
        body["metadata"]["resourceVersion"] = self.position.revision.to_string().into();
        self.wrote(object, caller, Some(Arc::new(body)));
        self.position
    }

    fn wrote(&mut self, object: ObjectId, caller: &str, body: Option<Arc<Value>>) {
        let write = ApiWrite { object, caller: caller.to_owned(), position: self.position, body };
        self.history.write(self.position.revision, &write);
        self.writes.push(Seen::Wrote(write));
    }

    pub(super) fn config(&mut self, name: &str, text: &str) -> HistoryPosition {
        self.put(&format!("configmaps/d/{name}"), "user", json!({"data": {"text": text}}))
    }

    pub(super) fn pod(&mut self, name: &str, node: &str, references: &[&str]) -> HistoryPosition {
        let volume = |reference: &&str| match id(reference) {
            reference if reference.resource == "secrets" => json!({"secret": {"secretName": reference.name}}),
            reference => json!({"configMap": {"name": reference.name}}),
        };
        let volumes: Vec<Value> = references.iter().map(volume).collect();
        let spec = json!({"nodeName": node, "volumes": volumes});
        self.put(&format!("pods/d/{name}"), "user", json!({"spec": spec}))
    }

    pub(super) fn delete(&mut self, object: &str) -> HistoryPosition {
        self.position.revision += 1;
        self.wrote(id(object), "user", None);
        self.position
    }

    pub(super) fn restore(&mut self, revision: u64) {
        self.position = HistoryPosition { history: self.position.history + 1, revision };
        self.history.restore(self.position.revision, self.position);
        self.writes.push(Seen::Restored { position: self.position });
    }

    /// The present version of an object.
    pub(super) fn version(&self, object: &str) -> SeenVersion {
        self.history.present(&id(object)).expect("exists").facts.version.clone()
    }
}

/// One rule over observations. Everything that an [`Api`] wrote is told as soon as it is told anything.
pub(super) struct Bench<J> {
    pub(super) api: Api,
    context: Context,
    judge: J,
    told: usize,
    pub(super) now: Millis,
}

impl<J: Judge + Default> Bench<J> {
    /// Without delays: what a replica knows is what it acts on.
    pub(super) fn new() -> Self {
        let limits = OracleLimits {
            sending: 0,
            flight: 0,
            converge: 1000,
            review: 100,
            late: 20_000,
            late_of_watches: 20_000,
            late_after_contest: 60_000,
            ..OracleLimits::default()
        };
        let nodes = vec!["n".to_owned()];
        let context = Context::new(nodes, limits);
        let mut bench = Self { api: Api::default(), context, judge: J::default(), told: 0, now: 1000 };
        bench.see(Seen::Connected {
            connection: 1,
            node: "n".to_owned(),
            machine: "n".to_owned(),
            replica: 0,
        });
        bench
    }

    /// The violations of one observation; those of the API's writes before it come first.
    pub(super) fn see(&mut self, seen: Seen) -> Vec<Violation> {
        let mut found = Vec::new();
        let writes = self.api.writes[self.told..].to_vec();
        self.told = self.api.writes.len();
        for seen in writes.into_iter().chain([seen]) {
            self.now += 1;
            let observation = Observation { at: self.now, seen };
            self.context.observe(&observation);
            self.judge.observe(&self.context, &observation, &mut found);
        }
        found
    }

    /// Whether nothing is missing.
    pub(super) fn is_satisfied(&self) -> bool {
        self.judge.is_satisfied(&self.context)
    }

    /// Observes what has to be lawful.
    pub(super) fn fine(&mut self, seen: Seen) {
        let what = format!("{seen:?}");
        let found = self.see(seen);
        assert!(found.is_empty(), "{what}: {found:#?}");
    }

    /// Observes what has to be found, once.
    pub(super) fn wrong(&mut self, seen: Seen) -> Violation {
        let what = format!("{seen:?}");
        let mut found = self.see(seen);
        assert_eq!(found.len(), 1, "{what}: {found:#?}");
        found.remove(0)
    }

    /// Replica 0 has seen everything of these kinds up to a position.
    pub(super) fn views(&mut self, resources: &[&str], position: HistoryPosition) {
        for resource in resources {
            self.fine(Seen::ViewMoved { replica: 0, resource: (*resource).to_owned(), position });
        }
    }

    /// Time passes.
    pub(super) fn pass(&mut self, millis: Millis) {
        self.now += millis;
    }

    /// The present version in the API is shown at the node.
    pub(super) fn shown(&self, object: &str) -> Seen {
        shown(object, Some(self.api.version(object)))
    }

    /// A delivery of the present version.
    pub(super) fn upsert(&self, seq: u64, object: &str) -> Seen {
        down(1, deliver(seq, &id(object), SeenChange::Upsert(self.api.version(object))))
    }
}

/// What a reader of the pushed set sees.
pub(super) fn shown(object: &str, version: Option<SeenVersion>) -> Seen {
    // The node's local API has revisions of its own.
    let version = version.map(|version| SeenVersion { revision: 0, ..version });
    Seen::Shown { node: "n".to_owned(), reader: PUSHED.to_owned(), object: id(object), version }
}

pub(super) fn down(connection: u64, frame: SeenFrame) -> Seen {
    Seen::Sent { connection, up: false, lane: 1, bytes: 100, frame }
}

pub(super) fn up(connection: u64, frame: SeenFrame) -> Seen {
    Seen::Sent { connection, up: true, lane: 0, bytes: 100, frame }
}

pub(super) fn ack(up_to: u64) -> Seen {
    up(1, SeenFrame::Ack { lanes: vec![(1, up_to)] })
}

pub(super) fn deliver(seq: u64, object: &ObjectId, change: SeenChange) -> SeenFrame {
    SeenFrame::Deliver(SeenDelivery {
        subscription: 0,
        seq,
        object: object.clone(),
        change,
        dependencies: Vec::new(),
    })
}

pub(super) fn gone() -> SeenChange {
    SeenChange::Delete
}

/// A version that nobody wrote.
pub(super) fn invented() -> SeenVersion {
    let content = content::digest(b"invented");
    SeenVersion { uid: "uid-1".to_owned(), revision: 0, content, significant: ContentDigest(1) }
}
