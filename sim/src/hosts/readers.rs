//! Those who watch the local API of a node: a kubelet that sees the pushed set, and clients that follow selections. They
//! go on when the agent starts again, and tell the oracle what they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Store as _, Stored};
use tombolo_edge::simulation::SimulatedEdge;
use tombolo_edge::store::Store;
use tombolo_proto::Resource;
use tombolo_runtime::TaskHost;

use super::cluster::collection;
use super::edge::id_of;
use super::local::{get, request};
use crate::journal::Journal;
use crate::observation::{ObjectId, PUSHED, Seen, Selection};
use crate::oracle::content;

/// Kinds of the pushed set.
const PUSHED_KINDS: [&str; 4] = ["pods", "nodes", "configmaps", "secrets"];

/// A client whose list or watch was refused tries again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// The readers of one node. Clones are the same ones.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    node: String,
    journal: Journal,
    is_observed: bool,
    state: Arc<Mutex<ReadersState>>,
}

#[derive(Debug, Default)]
struct ReadersState {
    /// What each reader was shown last: objects with their incarnations.
    shown: BTreeMap<(String, ObjectId), String>,
    /// What clients follow, with their tokens.
    followed: BTreeMap<String, (Selection, String)>,
}

impl Readers {
    pub(super) fn new(node: &str, journal: &Journal) -> Self {
        let (node, journal) = (node.to_owned(), journal.clone());
        Self { node, journal, is_observed: true, state: Arc::default() }
    }

    /// Readers that do not exist, of a copy of a machine.
    pub(super) fn unobserved(journal: &Journal) -> Self {
        Self { is_observed: false, ..Self::new("", journal) }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn are_observed(&self) -> bool {
        self.is_observed
    }

    /// Starts all readers at an agent that has started.
    pub(super) fn start(&self, host: &TaskHost, agent: &Arc<SimulatedEdge>) {
        if !self.is_observed {
            return;
        }
        for kind in PUSHED_KINDS {
            host.spawn(self.clone().read_pushed(kind, agent.store.clone()));
        }
        let clients: Vec<String> = self.state.lock().followed.keys().cloned().collect();
        for client in clients {
            host.spawn(self.clone().follow(client, Arc::clone(agent)));
        }
    }

    /// A client follows a selection from now on; at the agent, if one runs.
    pub(super) fn begin(
        &self,
        (client, token): (&str, &str),
        (selection, account): (&Selection, &str),
        agent: Option<(&TaskHost, &Arc<SimulatedEdge>)>,
    ) {
        self.end(client);
        let entry = (selection.clone(), token.to_owned());
        self.state.lock().followed.insert(client.to_owned(), entry);
        let (node, reader, selection) = (self.node.clone(), client.to_owned(), selection.clone());
        let account = account.split_once('/').map(|(of, name)| format!("system:serviceaccount:{of}:{name}"));
        self.journal.see(Seen::Following { node, reader: reader.clone(), selection, account });
        if let Some((host, agent)) = agent {
            host.spawn(self.clone().follow(reader, Arc::clone(agent)));
        }
    }

    /// A client follows nothing any more.
    pub(super) fn end(&self, client: &str) {
        let mut state = self.state.lock();
        if state.followed.remove(client).is_some() {
            state.shown.retain(|(reader, _), _| reader != client);
            drop(state);
            self.journal.see(Seen::Unfollowed { node: self.node.clone(), reader: client.to_owned() });
        }
    }

    /// The machine has begun anew: no pod runs on it, and nobody remembers what was shown.
    pub(super) fn forget(&self) {
        let shown = std::mem::take(&mut self.state.lock().shown);
        for (reader, object) in shown.into_keys() {
            let node = self.node.clone();
            self.journal.see(Seen::Shown { node, reader, object, version: None });
        }
    }

    /// Watches one kind of the pushed set for ever.
    async fn read_pushed(self, kind: &'static str, store: Store) {
        let resource = Resource::new("", "v1", kind);
        let mut commits = store.commits();
        loop {
            commits.borrow_and_update();
            // Until the first synchronisation there is no list.
            if let Ok(list) = store.list(&resource, None) {
                self.listed(PUSHED, kind, list.items.iter().map(|stored| body(stored)));
                if let Ok(mut changes) = store.watch(&resource, list.revision) {
                    while let Ok(Some(batch)) = changes.next().await {
                        for change in batch {
                            let object = (change.kind != ChangeKind::Deleted).then(|| body(&change.object));
                            self.show(PUSHED, &id_of(&change.object.key), object.as_ref());
                        }
                    }
                    continue;
                }
            }
            if commits.changed().await.is_err() {
                return;
            }
        }
    }

    /// Lists and watches what a client follows, as client-go does, until it follows something else.
    async fn follow(self, client: String, agent: Arc<SimulatedEdge>) {
        let Some(entry) = self.followed(&client) else { return };
        while self.followed(&client).as_ref() == Some(&entry) {
            let (selection, token) = &entry;
            let _ = self.list_and_watch(&client, selection, token, &agent).await;
            tokio::time::sleep(RETRY).await;
        }
    }

    fn followed(&self, client: &str) -> Option<(Selection, String)> {
        self.state.lock().followed.get(client).cloned()
    }

    /// One list, and a watch from there. `None` when either was refused or has ended.
    async fn list_and_watch(
        &self,
        client: &str,
        selection: &Selection,
        token: &str,
        agent: &SimulatedEdge,
    ) -> Option<()> {
        let path = collection(&selection.resource, &selection.namespace);
        let selector = format!("labelSelector={}&fieldSelector={}", selection.labels, selection.fields);
        let (code, list) = get(agent, &format!("{path}?{selector}"), token).await;
        if code != 200 {
            self.journal.note(&format!("{}     refuses {client}: {code} {}", self.node, list["message"]));
        }
        let items = list["items"].as_array().filter(|_| code == 200)?;
        let is_same = || self.followed(client).is_some_and(|(now, _)| now == *selection);
        if !is_same() {
            return None;
        }
        self.listed(client, &selection.resource, items.iter().cloned());
        let version = list.pointer("/metadata/resourceVersion")?.as_str()?;
        let watch = format!("{path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&{selector}");
        let answer = agent.api.handle(request("GET", &watch, token, ("", "")), &<_>::default()).await;
        let (head, mut stream) = answer.into_parts();
        let mut unread = Vec::new();
        while let Some(Ok(frame)) = stream.frame().await
            && head.status == 200
        {
            unread.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let event: Value = serde_json::from_slice(&unread[..end]).ok()?;
                unread.drain(..=end);
                if !is_same() {
                    return None;
                }
                self.told(client, &selection.resource, &event)?;
            }
        }
        None
    }

    /// An event of a watch. `None` when the watch must begin anew.
    fn told(&self, client: &str, resource: &str, event: &Value) -> Option<()> {
        let object = &event["object"];
        let id = id_in(resource, object);
        match event["type"].as_str()? {
            "ADDED" | "MODIFIED" => self.show(client, &id, Some(object)),
            "DELETED" => self.show(client, &id, None),
            "BOOKMARK" => {}
            _ => return None,
        }
        Some(())
    }

    /// A reader was shown a list: what it does not contain is gone.
    fn listed(&self, reader: &str, resource: &str, items: impl Iterator<Item = Value>) {
        let mut present = BTreeSet::new();
        for item in items {
            let id = id_in(resource, &item);
            self.show(reader, &id, Some(&item));
            present.insert(id);
        }
        let before: Vec<ObjectId> = {
            let state = self.state.lock();
            let of_reader =
                state.shown.keys().filter(|(owner, id)| owner == reader && id.resource == resource);
            of_reader.map(|(_, id)| id.clone()).collect()
        };
        for id in before.iter().filter(|id| !present.contains(id)) {
            self.show(reader, id, None);
        }
    }

    /// A reader is shown an object, or that it is gone.
    fn show(&self, reader: &str, object: &ObjectId, body: Option<&Value>) {
        let version = body.map(|body| content::version(&object.resource, body));
        if std::env::var("DUMP").is_ok_and(|d| d == object.to_string()) {
            eprintln!(
                "SHOWN {} {:?} {}",
                self.journal.now(),
                version,
                body.map(|b| b.to_string().replace(&"QUJDREVG".repeat(100), "")).unwrap_or_default()
            );
        }
        let key = (reader.to_owned(), object.clone());
        let before = match &version {
            Some(version) => self.state.lock().shown.insert(key, version.uid.clone()),
            None => self.state.lock().shown.remove(&key),
        };
        // A kubelet stops a pod that it is not shown any more, or whose place another one has taken.
        let stops = before.filter(|before| version.as_ref().is_none_or(|version| version.uid != *before));
        let (node, object, reader) = (self.node.clone(), object.clone(), reader.to_owned());
        let is_pod = reader == PUSHED && object.resource == "pods";
        self.journal.see(Seen::Shown { node: node.clone(), reader, object: object.clone(), version });
        if let Some(uid) = stops.filter(|_| is_pod) {
            self.journal.see(Seen::PodStopped { node, object, uid });
        }
    }
}

fn body(stored: &Stored) -> Value {
    serde_json::from_slice(&stored.body()).unwrap_or_default()
}

fn id_in(resource: &str, object: &Value) -> ObjectId {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    ObjectId::new(resource, text("/metadata/namespace"), text("/metadata/name"))
}
