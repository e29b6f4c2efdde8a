//! A machine of a node: its disk, its agent, and the programs beside the agent.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError};
use tombolo_edge::Config;
use tombolo_edge::simulation::{CloudLink, Connect, SimulatedEdge, open_store, pushed_set};
use tombolo_edge::store::{Medium, Store};
use tombolo_proto::NodeId;
use tombolo_proto::object::HeldState;

use super::cloud::RESTART_PAUSE;
use super::process::{Process, Processes, WallClock};
use super::readers::Readers;
use crate::disk::HostDisk;
use crate::network::Network;
use crate::observation::{ContentDigest, ObjectId, Seen, SeenRow, SeenVersion};
use crate::plan::PlannedNode;

/// A machine of a node. Clones are the same one.
#[derive(Clone)]
pub(super) struct EdgeHost {
    pub(super) node: NodeId,
    /// Name of the machine on the network: that of the node, or another for a copy.
    pub(super) machine: String,
    pub(super) clock: WallClock,
    pub(super) readers: Readers,
    processes: Processes,
    network: Network,
    zone: String,
    is_kubeedge: bool,
    state: Arc<Mutex<EdgeState>>,
}

/// What changes in the life of a machine.
struct EdgeState {
    disk: HostDisk,
    running: Option<Process>,
    /// The agent, once it has started.
    agent: Option<Arc<SimulatedEdge>>,
    /// Seed of the next process.
    seed: u64,
    /// Whether the oracle is told what is on the disk at the next start.
    has_crashed: bool,
}

impl EdgeHost {
    pub(super) fn new(planned: &PlannedNode, seed: u64, processes: &Processes, network: &Network) -> Self {
        let node = NodeId::parse(&planned.name).expect("plans have valid names");
        let state =
            EdgeState { disk: HostDisk::new(seed), running: None, agent: None, seed, has_crashed: false };
        Self {
            machine: planned.name.clone(),
            clock: WallClock::default(),
            readers: Readers::new(&planned.name, &processes.journal),
            processes: processes.clone(),
            network: network.clone(),
            zone: planned.zone.clone(),
            is_kubeedge: planned.kubeedge,
            state: Arc::new(Mutex::new(state)),
            node,
        }
    }

    /// Another machine with a copy of this one's disk. What it shows is not observed.
    pub(super) fn copy(&self, seed: u64) -> Self {
        let disk = self.disk().copy(seed);
        let state = EdgeState { disk, running: None, agent: None, seed, has_crashed: false };
        Self {
            machine: format!("{}-copy", self.machine),
            clock: WallClock::default(),
            readers: Readers::unobserved(&self.processes.journal),
            state: Arc::new(Mutex::new(state)),
            ..self.clone()
        }
    }

    pub(super) fn disk(&self) -> HostDisk {
        self.state.lock().disk.clone()
    }

    /// The running agent.
    pub(super) fn agent(&self) -> Option<(Process, Arc<SimulatedEdge>)> {
        let state = self.state.lock();
        Some((state.running.clone()?, state.agent.clone()?))
    }

    /// The running process.
    pub(super) fn process(&self) -> Option<Process> {
        self.state.lock().running.clone()
    }

    /// Puts an empty disk into the machine, which must be off.
    pub(super) fn replace_disk(&self) {
        let mut state = self.state.lock();
        state.seed += 1;
        state.disk = HostDisk::new(state.seed);
        state.has_crashed = false;
        drop(state);
        self.processes.journal.see(Seen::DiskReplaced { node: self.node.to_string() });
        self.readers.forget();
    }

    /// Starts the agent. It is started again when it ends by itself.
    pub(super) fn start(&self) {
        let process = self.processes.start(&self.clock);
        self.state.lock().running = Some(process.clone());
        let own = self.clone();
        process.host.spawn({
            let process = process.clone();
            async move { own.run(&process).await }
        });
    }

    async fn run(&self, process: &Process) {
        let store = self.open().await;
        let (is_restart, seed) = {
            let mut state = self.state.lock();
            state.seed += 1;
            (std::mem::take(&mut state.has_crashed), state.seed)
        };
        if is_restart && self.readers.are_observed() {
            let rows = pushed_set(&store).map(|rows| rows.into_iter().map(row).collect());
            if let Ok(rows) = rows {
                self.processes.journal.see(Seen::OnDisk { node: self.node.to_string(), rows });
            }
        }
        let started = SimulatedEdge::start(self.config(), store.clone(), self.connect(), seed).await;
        let agent = match started {
            Ok(agent) => Arc::new(agent),
            Err(why) => return self.end_by_itself(process, &why),
        };
        self.state.lock().agent = Some(Arc::clone(&agent));
        self.readers.start(&process.host, &agent);
        match agent.ended().await {
            Ok(why) => self.end_by_itself(process, &why),
            Err(error) => self.processes.journal.defect(&format!("{}: {error}", self.machine)),
        }
    }

    /// Opens the store. The supervisor of the agent tries again.
    async fn open(&self) -> Store {
        loop {
            let medium = DiskMedium { disk: self.disk(), draft: Arc::default(), trouble: Arc::default() };
            match open_store(Box::new(medium)) {
                Ok(store) => return store,
                Err(error) => {
                    self.processes
                        .journal
                        .note(&format!("{}     cannot open its store: {error}", self.machine));
                }
            }
            self.disk().program_ended();
            tokio::time::sleep(RESTART_PAUSE).await;
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::new(self.node.clone(), "/nowhere");
        config.node.labels.insert("zone".to_owned(), self.zone.clone());
        config.node.address = "10.1.0.1".parse().ok();
        config
    }

    fn connect(&self) -> Connect {
        let own = self.clone();
        Box::new(move || {
            let own = own.clone();
            Box::pin(async move {
                if own.is_kubeedge {
                    let link = own.network.dial_documents(&own.machine, &own.node).await;
                    return link.ok().map(|link| CloudLink::KubeEdge(Box::new(link)));
                }
                let link = own.network.dial(&own.machine, &own.node).await;
                link.ok().map(|link| CloudLink::Tombolo(Box::new(link)))
            })
        })
    }

    /// The agent ends, and its supervisor starts it again.
    fn end_by_itself(&self, process: &Process, why: &str) {
        self.processes.journal.note(&format!("{}     ends by itself: {why}", self.machine));
        let (own, ended) = (self.clone(), process.clone());
        self.kill();
        tokio::spawn(async move {
            ended.host.gone().await;
            tokio::time::sleep(RESTART_PAUSE).await;
            if own.process().is_none() {
                own.start();
            }
        });
    }

    /// Kills the agent, if it runs. What it wrote stays.
    pub(super) fn kill(&self) -> Option<Process> {
        let process = self.take()?;
        process.host.kill();
        self.disk().program_ended();
        Some(process)
    }

    /// Cuts the power. What was not synced may be lost, and nobody on the network is told.
    pub(super) fn cut_power(&self) {
        self.network.power_lost(&self.machine);
        if let Some(process) = self.take() {
            process.host.kill();
        }
        self.disk().power_lost();
    }

    fn take(&self) -> Option<Process> {
        let mut state = self.state.lock();
        state.agent = None;
        state.has_crashed = true;
        state.running.take()
    }
}

fn row(entry: tombolo_proto::object::InventoryEntry) -> (ObjectId, SeenRow) {
    let held = match entry.held {
        HeldState::Absent => SeenRow::Absent,
        HeldState::Unreadable => SeenRow::Unreadable,
        HeldState::Present(version) => SeenRow::Present(SeenVersion {
            uid: version.uid.to_string(),
            revision: version.revision.0,
            content: ContentDigest::default(),
            significant: ContentDigest::default(),
        }),
    };
    (id_of(&entry.key), held)
}

/// The object of a key.
pub(super) fn id_of(key: &tombolo_proto::ObjectKey) -> ObjectId {
    let resource = key.resource();
    let name = match &*resource.group {
        "" => resource.name.to_string(),
        group => format!("{}.{group}", resource.name),
    };
    ObjectId::new(&name, key.namespace(), key.name())
}

/// The disk as the store's medium.
struct DiskMedium {
    disk: HostDisk,
    draft: Arc<Mutex<Option<HostDisk>>>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Medium for DiskMedium {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let backend = WatchedBackend { disk: self.disk.backend(), trouble: Arc::clone(&self.trouble) };
        builder.create_with_backend(backend)
    }

    fn draft(&self) -> io::Result<Box<dyn Medium>> {
        let draft = HostDisk::new(0);
        *self.draft.lock() = Some(draft.clone());
        Ok(Box::new(Self { disk: draft, draft: Arc::default(), trouble: Arc::default() }))
    }

    fn put_draft(&self) -> io::Result<String> {
        let draft = self.draft.lock().take().ok_or(io::ErrorKind::NotFound)?;
        self.disk.replace_by(&draft);
        Ok("another file".to_owned())
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().take()
    }

    fn delay(&self) -> std::time::Duration {
        self.disk.sync_takes()
    }
}

/// Remembers the last error of the disk.
#[derive(Debug)]
struct WatchedBackend {
    disk: tombolo_testkit::DiskBackend,
    trouble: Arc<Mutex<Option<String>>>,
}

impl WatchedBackend {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::InvalidInput
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            *self.trouble.lock() = Some(error.to_string());
        }
        result
    }
}

impl redb::StorageBackend for WatchedBackend {
    fn len(&self) -> io::Result<u64> {
        self.note(self.disk.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.note(self.disk.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note(self.disk.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(self.disk.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(self.disk.write(offset, data))
    }
}
