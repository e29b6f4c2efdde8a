//! Power cuts over pods and what they wait for, subscriptions, adopted versions and changes of the epoch. After each
//! cut, the store holds what a model says: the state before the command that was running, or the state after it.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tombolo_testkit::{Seed, seeds, times};

use super::*;

/// Power cuts in one run of the test. `TOMBOLO_POWER_CUTS` asks for more.
const CUTS: u64 = 1_000;

/// Power cuts of one disk.
const CUTS_OF_A_DISK: u64 = 20;

/// Disks whose seeds are the same in every run. As many others have new seeds.
const FIXED_DISKS: u64 = 25;

/// Resources that subscriptions follow. The pushed set has none of their objects.
const FOLLOWED: [&str; 2] = ["services", "endpoints"];

/// One command of a session.
#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<Delivery>),
    Welcome(Welcome),
    CaughtUp(u32),
    Open(&'static str),
    Clear(u32),
    Drop(u32),
}

impl Step {
    async fn execute(self, store: &Store, generation: u64) -> Result<(), WriteError> {
        let all = |resource: &str| Selection::all(Resource::new("", "v1", resource));
        match self {
            Self::Apply(deliveries) => store.apply(deliveries).await.map(drop),
            Self::Welcome(welcome) => store.welcome(welcome).await,
            Self::CaughtUp(part) => {
                store.caught_up(SubscriptionId(part), epoch(generation), CloudRevision(1)).await
            }
            Self::Open(resource) => store.open_subscription(all(resource)).await.map(drop),
            Self::Clear(part) => store.clear_subscription(SubscriptionId(part)).await,
            Self::Drop(part) => store.drop_subscription(SubscriptionId(part)).await,
        }
    }
}

#[derive(Debug, Clone)]
struct ModelObject {
    version: ObjectVersion,
    /// The epoch of the version.
    generation: u64,
    /// The revision under which the content was delivered.
    content: u64,
    needs: Vec<ObjectKey>,
    visible: bool,
}

/// The pushed set, or a subscription.
#[derive(Debug, Clone, Default)]
struct ModelPart {
    /// What a subscription follows.
    resource: &'static str,
    synced: bool,
    generation: Option<u64>,
    /// Without an object where it is known not to exist.
    objects: BTreeMap<ObjectKey, Option<ModelObject>>,
}

/// What the store must hold.
#[derive(Debug, Clone)]
struct Model {
    generation: u64,
    parts: BTreeMap<u32, ModelPart>,
}

impl Model {
    /// That of [`synced`].
    fn new() -> Self {
        let pushed = ModelPart { synced: true, generation: Some(1), ..ModelPart::default() };
        Self { generation: 1, parts: [(SubscriptionId::NODE.0, pushed)].into() }
    }

    fn after(mut self, step: &Step) -> Self {
        match step {
            Step::Apply(deliveries) => deliveries.iter().for_each(|delivery| self.deliver(delivery)),
            Step::Welcome(welcome) if welcome.resumed => {}
            Step::Welcome(welcome) => {
                self.generation = welcome.epoch.generation;
                for part in self.parts.values_mut() {
                    // What is held belongs to no epoch until it is compared.
                    part.generation = part.objects.is_empty().then_some(self.generation);
                }
            }
            Step::CaughtUp(part) => {
                let part = self.parts.get_mut(part).unwrap();
                (part.synced, part.generation) = (true, Some(self.generation));
            }
            Step::Open(resource) => {
                if self.parts.values().all(|part| part.resource != *resource) {
                    let number = self.parts.keys().max().unwrap() + 1;
                    self.parts.insert(number, ModelPart { resource, ..ModelPart::default() });
                }
            }
            Step::Clear(part) => {
                let part = self.parts.get_mut(part).unwrap();
                *part = ModelPart { resource: part.resource, ..ModelPart::default() };
            }
            Step::Drop(part) => drop(self.parts.remove(part)),
        }
        self
    }

    fn deliver(&mut self, delivery: &Delivery) {
        let part = delivery.subscription.0;
        match &delivery.change {
            Change::Upsert(object) => self.upsert(part, object),
            Change::Adopt { key, version } => self.adopt(part, key, version),
            Change::Absent { key } => _ = self.objects(part).insert(key.clone(), None),
            Change::Delete { key, .. } => _ = self.objects(part).remove(key),
            Change::Unreadable { .. } => unreachable!("no test delivers it"),
        }
        self.reveal();
    }

    fn objects(&mut self, part: u32) -> &mut BTreeMap<ObjectKey, Option<ModelObject>> {
        &mut self.parts.get_mut(&part).unwrap().objects
    }

    fn upsert(&mut self, part: u32, object: &SharedObject) {
        let generation = self.generation;
        let SharedObject { key, version, dependencies, .. } = object;
        let held = self.objects(part).get(key).cloned().flatten();
        let says_all = |held: &ModelObject| {
            let is_older = version.revision < held.version.revision;
            held.generation == generation && (is_older || held.version == *version)
        };
        if held.as_ref().is_some_and(says_all) {
            return;
        }
        let visible = held.is_some_and(|held| held.visible && held.version.uid == version.uid);
        let (version, content, needs) = (version.clone(), version.revision.0, dependencies.clone());
        let object = ModelObject { version, generation, content, needs, visible };
        self.objects(part).insert(key.clone(), Some(object));
    }

    /// The content stays, under another revision.
    fn adopt(&mut self, part: u32, key: &ObjectKey, version: &ObjectVersion) {
        let generation = self.generation;
        if let Some(Some(held)) = self.objects(part).get_mut(key)
            && (&held.version.uid, held.version.hash) == (&version.uid, version.hash)
        {
            (held.version.revision, held.generation) = (version.revision, generation);
        }
    }

    /// An object is shown once all that it refers to is known, and stays so.
    fn reveal(&mut self) {
        let known: Vec<ObjectKey> = self.objects(SubscriptionId::NODE.0).keys().cloned().collect();
        for object in self.parts.values_mut().flat_map(|part| part.objects.values_mut()).flatten() {
            object.visible |= object.needs.iter().all(|key| known.contains(key));
        }
    }

    fn seen(&self) -> Seen {
        let part = |part: &ModelPart| SeenPart {
            synced: part.synced,
            generation: part.generation,
            objects: part
                .objects
                .iter()
                .map(|(key, object)| (key.clone(), part.seen(object.as_ref())))
                .collect(),
        };
        let parts = self.parts.iter().map(|(number, of)| (*number, part(of))).collect();
        let mut counts = Counts::default();
        for object in self.parts.values().flat_map(|part| part.objects.values()) {
            match object {
                None => counts.absent += 1,
                Some(object) if object.visible => counts.visible += 1,
                Some(_) => counts.hidden += 1,
            }
        }
        Seen { generation: self.generation, parts, counts }
    }
}

impl ModelPart {
    fn seen(&self, object: Option<&ModelObject>) -> (HeldState, Option<u64>) {
        let Some(object) = object else { return (HeldState::Absent, None) };
        let is_shown = object.visible && self.synced;
        (HeldState::Present(object.version.clone()), is_shown.then_some(object.content))
    }
}

/// What cloud and clients can see of a store.
#[derive(Debug, PartialEq)]
struct Seen {
    generation: u64,
    parts: BTreeMap<u32, SeenPart>,
    counts: Counts,
}

#[derive(Debug, PartialEq)]
struct SeenPart {
    synced: bool,
    generation: Option<u64>,
    /// With the content that clients read.
    objects: BTreeMap<ObjectKey, (HeldState, Option<u64>)>,
}

impl Seen {
    fn of(store: &Store) -> Self {
        let newest =
            |view: &view::CommittedView| Ok(view.state.epoch.as_ref().and_then(schema::EpochRow::epoch));
        let generation = store.read(newest).unwrap().unwrap().generation;
        let kept = store.subscriptions().unwrap();
        let followed = kept.iter().map(|kept| (kept.subscription, kept.synced));
        let all = [(SubscriptionId::NODE, store.standing().unwrap().synced)].into_iter().chain(followed);
        let parts = all.map(|(number, synced)| (number.0, SeenPart::of(store, number, synced))).collect();
        Self { generation, parts, counts: store.counts().unwrap() }
    }
}

impl SeenPart {
    fn of(store: &Store, number: SubscriptionId, synced: bool) -> Self {
        let copy = store.subscribed(number);
        let shown = |key: &ObjectKey| {
            let object = copy.get(key).ok().flatten()?;
            value(&object)["data"]["at"].as_str().unwrap().parse().ok()
        };
        let held = store.held(number).unwrap();
        let entries = held.inventory.into_iter().map(|entry| {
            let shown = shown(&entry.key);
            (entry.key, (entry.held, shown))
        });
        let generation = held.epoch.map(|epoch| epoch.generation);
        Self { synced, generation, objects: entries.collect() }
    }
}

/// A disk whose power is cut, and the states that the store on it may have.
struct World {
    disk: FaultyDisk,
    rng: StdRng,
    revision: u64,
    possible: Vec<Model>,
}

impl World {
    async fn new(seed: &Seed) -> Self {
        let disk = FaultyDisk::new(seed.number());
        synced(&disk).await.close().await;
        Self { disk, rng: seed.rng(), revision: 10, possible: vec![Model::new()] }
    }

    /// Starts, works until the power is lost, and stops.
    async fn cut(&mut self) {
        let store = open(&self.disk);
        let found = Seen::of(&store);
        let Some(at) = self.possible.iter().position(|model| model.seen() == found) else {
            let possible: Vec<_> = self.possible.iter().map(Model::seen).collect();
            panic!("the store holds {found:#?}, which is none of {possible:#?}");
        };
        let mut model = self.possible.swap_remove(at);
        self.disk.cut_after(self.rng.random_range(1..60));
        loop {
            let step = self.step(&model);
            let next = model.clone().after(&step);
            if step.execute(&store, model.generation).await.is_err() {
                self.possible = vec![model, next];
                break;
            }
            assert_eq!(Seen::of(&store), next.seen());
            model = next;
        }
        store.close().await;
        self.disk.restart();
    }

    fn step(&mut self, model: &Model) -> Step {
        let parts: Vec<u32> = model.parts.keys().copied().collect();
        let part = *parts.choose(&mut self.rng).unwrap();
        match self.rng.random_range(0..24) {
            0 => {
                // In a restored cluster, revisions are counted anew.
                self.revision = self.rng.random_range(1..50);
                Step::Welcome(welcome(model.generation + 1))
            }
            1 => Step::Welcome(Welcome { resumed: true, ..welcome(model.generation) }),
            2..5 => Step::CaughtUp(part),
            5..7 => Step::Open(FOLLOWED.choose(&mut self.rng).unwrap()),
            7 if part != SubscriptionId::NODE.0 => Step::Clear(part),
            8 if part != SubscriptionId::NODE.0 => Step::Drop(part),
            _ => {
                let changes = self.rng.random_range(1..5);
                Step::Apply((0..changes).map(|_| self.delivery(model, part)).collect())
            }
        }
    }

    fn delivery(&mut self, model: &Model, part: u32) -> Delivery {
        let followed = model.parts[&part].resource;
        let resource = match followed {
            "" => *["pods", "configmaps", "secrets"].choose(&mut self.rng).unwrap(),
            followed => followed,
        };
        let key = key(resource, &format!("o{}", self.rng.random_range(0..3)));
        let held = model.parts[&part].objects.get(&key).cloned().flatten();
        self.revision += 1;
        let delivery = match (self.rng.random_range(0..10), held) {
            (0, _) => delete(&key),
            (1, _) if resource != "pods" => absent(&key),
            (2..5, Some(held)) => {
                let version = ObjectVersion { revision: CloudRevision(self.revision), ..held.version };
                let change = Change::Adopt { key, version };
                Delivery { subscription: SubscriptionId::NODE, change }
            }
            // Older than the stored version, if that is of this epoch.
            (5, Some(held)) => upsert(&key, "u1", held.version.revision.0.saturating_sub(1), &[]),
            _ => {
                let uid = *["u1", "u1", "u2"].choose(&mut self.rng).unwrap();
                let needs = if resource == "pods" { self.needs() } else { Vec::new() };
                upsert(&key, uid, self.revision, &needs)
            }
        };
        Delivery { subscription: SubscriptionId(part), ..delivery }
    }

    fn needs(&mut self) -> Vec<ObjectKey> {
        let all = ["configmaps", "secrets"]
            .map(|resource| (0..3).map(move |name| key(resource, &format!("o{name}"))));
        let all: Vec<ObjectKey> = all.into_iter().flatten().collect();
        let count = self.rng.random_range(0..3);
        all.choose_multiple(&mut self.rng, count).cloned().collect()
    }
}

#[tokio::test]
async fn power_cuts_lose_no_pods_subscriptions_adopted_versions_or_epochs() {
    let disks = times("TOMBOLO_POWER_CUTS", CUTS).div_ceil(CUTS_OF_A_DISK);
    let fixed = FIXED_DISKS.min(disks / 2);
    for seed in seeds(disks - fixed).chain((0..fixed).map(Seed::fixed)) {
        let mut world = World::new(&seed).await;
        for _ in 0..CUTS_OF_A_DISK {
            world.cut().await;
        }
        assert_eq!(world.disk.times_set_aside(), 0, "a power cut must not cost the store");
    }
}
