//! Power cuts of the journal's disk.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use tombolo_testkit::{FaultyDisk, Seed, seeds, times};

use super::super::refused;
use super::*;

/// Power cuts in one run of the test. `TOMBOLO_POWER_CUTS` asks for more.
const CUTS: u64 = 1_000;

/// Power cuts of one disk.
const CUTS_OF_A_DISK: u64 = 20;

/// Disks whose seeds are the same in every run. As many others have new seeds.
const FIXED_DISKS: u64 = 25;

/// What a journal holds: the revision of each object, and the newest revision.
#[derive(Debug, Clone, Default, PartialEq)]
struct Content {
    objects: BTreeMap<String, u64>,
    revision: u64,
}

impl Content {
    fn of(restored: &Restored) -> Self {
        for object in &restored.objects {
            let body = format!("{{\"v\":{}}}", object.revision);
            assert_eq!(&*object.body(), body.as_bytes(), "{}", object.key);
        }
        Self { objects: names(restored).into_iter().collect(), revision: restored.revision.0 }
    }

    fn after(&self, batch: &[JournalEntry]) -> Self {
        let mut next = self.clone();
        for JournalEntry { object, deleted } in batch {
            next.revision = object.revision.0;
            match deleted {
                true => next.objects.remove(object.key.name()),
                false => next.objects.insert(object.key.name().to_owned(), next.revision),
            };
        }
        next
    }
}

/// A disk whose power is cut, and what the journal on it may hold.
struct World {
    disk: FaultyDisk,
    folder: tempfile::TempDir,
    rng: StdRng,
    possible: Vec<Content>,
}

impl World {
    fn new(seed: &Seed) -> Self {
        let (disk, folder) = (FaultyDisk::new(seed.number()), tempfile::tempdir().unwrap());
        let world = Self { disk, folder, rng: seed.rng(), possible: vec![Content::default()] };
        drop(world.try_open().unwrap());
        world
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    fn try_open(&self) -> Result<(RedbJournal, Restored), EmbeddedError> {
        let disk = self.disk.clone();
        RedbJournal::open(&self.path(), Box::new(move |_| Ok(Box::new(disk.backend()))))
    }

    /// Starts the journal. The power may be lost while it starts, and then it starts again.
    fn open(&mut self) -> (RedbJournal, Restored) {
        loop {
            if self.rng.random_bool(0.3) {
                self.disk.cut_after(self.rng.random_range(1..20));
            }
            match self.try_open() {
                Ok(opened) => return opened,
                Err(error) => assert!(self.disk.is_dark(), "{error}"),
            }
            self.disk.restart();
        }
    }

    fn batch(&mut self, newest: u64) -> Vec<JournalEntry> {
        let changes = self.rng.random_range(1..6);
        let one = |revision| {
            let name = format!("o{}", self.rng.random_range(0..6));
            entry(&name, revision, self.rng.random_bool(0.2))
        };
        (newest + 1..=newest + changes).map(one).collect()
    }

    /// Writes until the power is lost or the process is killed.
    fn run_until_the_end(&mut self, journal: &RedbJournal, mut stored: Content) {
        self.disk.cut_after(self.rng.random_range(1..60));
        loop {
            if self.rng.random_bool(0.15) {
                self.possible = vec![stored];
                return;
            }
            let fails = self.rng.random_bool(0.1);
            if fails {
                self.disk.fail_sync();
            }
            let batch = self.batch(stored.revision);
            let next = stored.after(&batch);
            let noted = refused::path(&self.path());
            let was_noted = noted.exists();
            match journal.append(&batch) {
                Ok(()) => {
                    assert!(!fails, "a batch that was not synced is not stored");
                    stored = next;
                }
                Err(_) if !self.disk.is_dark() => {
                    assert!(fails, "the disk works");
                }
                Err(_) => {
                    // The power may be lost before the note about the batch is written, or after it.
                    if !was_noted && noted.exists() && self.rng.random_bool(0.5) {
                        std::fs::remove_file(&noted).unwrap();
                    }
                    self.possible = if noted.exists() { vec![stored] } else { vec![stored, next] };
                    return;
                }
            }
        }
    }
}

#[test]
fn power_cuts_lose_nothing_journaled_and_restore_nothing_refused() {
    let disks = times("TOMBOLO_POWER_CUTS", CUTS).div_ceil(CUTS_OF_A_DISK);
    let fixed = FIXED_DISKS.min(disks / 2);
    for seed in seeds(disks - fixed).chain((0..fixed).map(Seed::fixed)) {
        let mut world = World::new(&seed);
        for _ in 0..CUTS_OF_A_DISK {
            let (journal, restored) = world.open();
            let found = Content::of(&restored);
            assert!(world.possible.contains(&found), "{found:?} is none of {:?}", world.possible);
            world.run_until_the_end(&journal, found);
            drop(journal);
            world.disk.restart();
        }
    }
}
