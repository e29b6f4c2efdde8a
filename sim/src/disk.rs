//! The disk of a simulated host. It outlives the programs of the host.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_testkit::{DiskBackend, FaultyDisk};

use crate::observation::Millis;
use crate::plan::{CrashPoint, DiskFault};

/// Errors of the system: read-only file system, input/output error.
const EROFS: i32 = 30;
const EIO: i32 = 5;

/// A disk. Clones are the same one.
#[derive(Debug, Clone)]
pub struct HostDisk {
    disk: FaultyDisk,
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    /// Faults that have begun and not ended. The same fault may have begun twice.
    faults: Vec<DiskFault>,
}

impl HostDisk {
    /// An empty disk. The seed decides which writes a power cut loses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { disk: FaultyDisk::new(seed), state: Arc::default() }
    }

    /// Another disk with the content of this one.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        Self { disk: self.disk.copy(seed), state: Arc::default() }
    }

    /// The disk as a database opens it. After a crash it must be opened again.
    #[must_use]
    pub fn backend(&self) -> DiskBackend {
        self.disk.backend()
    }

    /// Replaces the content by what another disk has synced, as a rename does with a file.
    pub fn replace_by(&self, other: &Self) {
        self.disk.replace_by(&other.disk);
    }

    /// A fault begins.
    pub fn begin(&self, fault: DiskFault) {
        if fault == DiskFault::Tear {
            return self.disk.tear_last_write();
        }
        self.change(|faults| faults.push(fault));
    }

    /// A fault is over.
    pub fn end(&self, fault: DiskFault) {
        self.change(|faults| {
            if let Some(index) = faults.iter().position(|present| *present == fault) {
                faults.swap_remove(index);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Vec<DiskFault>)) {
        let mut state = self.state.lock();
        change(&mut state.faults);
        let has = |fault: DiskFault| state.faults.contains(&fault);
        self.disk.refuse_writes(has(DiskFault::ReadOnly).then_some(EROFS));
        self.disk.refuse_syncs(has(DiskFault::SyncFails).then_some(EIO));
        // What is allocated can still be written, as on a file system.
        self.disk.set_capacity(if has(DiskFault::Full) { self.disk.used() } else { u64::MAX });
    }

    /// Time that a sync takes now. A simulation has one thread, so whoever writes waits for this long before the sync
    /// instead of in it.
    #[must_use]
    pub fn sync_takes(&self) -> Duration {
        let slow = |fault: &DiskFault| match fault {
            DiskFault::Slow { millis } => *millis,
            _ => 0,
        };
        let millis: Millis = self.state.lock().faults.iter().map(slow).max().unwrap_or(0);
        Duration::from_millis(millis)
    }

    /// Makes the power go when the host's program comes to this step, and calls a function in the middle of it. The
    /// function must not use the disk. False if the step is none of a disk: then nothing is arranged.
    #[must_use]
    pub fn cut_at(&self, point: CrashPoint, then: impl FnOnce() + Send + 'static) -> bool {
        match point {
            CrashPoint::BeforeWrite => self.disk.cut_after(0),
            CrashPoint::BeforeCommit => self.disk.cut_at_sync(),
            _ => return false,
        }
        self.disk.at_cut(then);
        true
    }

    /// The program ended, and the system still has what it wrote.
    pub fn program_ended(&self) {
        self.disk.abandon();
    }

    /// The power was lost: what was not synced is kept, torn or lost. Faults of the disk go on.
    pub fn power_lost(&self) {
        self.disk.restart();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redb::{Database, ReadableDatabase as _, TableDefinition};

    use super::*;

    const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

    fn open(disk: &HostDisk) -> Database {
        Database::builder().create_with_backend(disk.backend()).unwrap()
    }

    /// Writes one row, and syncs.
    fn write(db: &Database, key: u64, bytes: usize) -> Result<(), String> {
        let transaction = db.begin_write().map_err(|error| error.to_string())?;
        let row = vec![1; bytes];
        let mut table = transaction.open_table(TABLE).map_err(|error| error.to_string())?;
        table.insert(key, &*row).map_err(|error| error.to_string())?;
        drop(table);
        transaction.commit().map_err(|error| error.to_string())
    }

    fn has(disk: &HostDisk, key: u64) -> bool {
        let db = open(disk);
        let table = db.begin_read().unwrap().open_table(TABLE).unwrap();
        table.get(key).unwrap().is_some()
    }

    #[test]
    fn what_was_synced_survives_every_crash() {
        for seed in 0..20 {
            let disk = HostDisk::new(seed);
            let db = open(&disk);
            write(&db, 1, 9_000).unwrap();
            disk.begin(DiskFault::Tear);
            let told = Arc::new(AtomicBool::new(false));
            let tell = Arc::clone(&told);
            let point = [CrashPoint::BeforeWrite, CrashPoint::BeforeCommit][usize::from(seed % 2 == 0)];
            assert!(disk.cut_at(point, move || tell.store(true, Ordering::SeqCst)));
            assert!(write(&db, 2, 9_000).is_err() && told.load(Ordering::SeqCst), "seed {seed}");
            disk.power_lost();
            drop(db);
            assert!(has(&disk, 1) && !has(&disk, 2), "seed {seed}");
        }
        assert!(!HostDisk::new(1).cut_at(CrashPoint::BeforeCall, || ()));
    }

    #[test]
    fn a_program_that_ends_loses_nothing_and_writes_no_more() {
        let disk = HostDisk::new(1);
        let db = open(&disk);
        write(&db, 1, 10).unwrap();
        let copy = disk.copy(2);
        disk.program_ended();
        assert!(write(&db, 2, 10).is_err());
        drop(db);
        assert!(has(&disk, 1) && has(&copy, 1));
    }

    #[test]
    fn faults_refuse_what_they_are_about_until_they_end() {
        for fault in [DiskFault::Full, DiskFault::ReadOnly, DiskFault::SyncFails] {
            let disk = HostDisk::new(3);
            write(&open(&disk), 1, 10).unwrap();
            disk.begin(fault);
            disk.begin(fault);
            disk.end(fault);
            let db = Database::builder().create_with_backend(disk.backend());
            let refused = db.map_err(|error| error.to_string()).and_then(|db| write(&db, 2, 4_000_000));
            assert!(refused.is_err(), "{fault:?}");
            disk.program_ended();
            disk.end(fault);
            write(&open(&disk), 3, 4_000_000).unwrap();
            assert!(has(&disk, 1), "{fault:?}");
        }
        assert_eq!(io::Error::from_raw_os_error(EROFS).kind(), io::ErrorKind::ReadOnlyFilesystem);
    }

    #[test]
    fn a_slow_disk_says_how_long_a_sync_takes() {
        let disk = HostDisk::new(1);
        let slow = [DiskFault::Slow { millis: 50 }, DiskFault::Slow { millis: 20 }];
        slow.into_iter().for_each(|fault| disk.begin(fault));
        assert_eq!(disk.sync_takes(), Duration::from_millis(50));
        disk.end(slow[0]);
        assert_eq!(disk.sync_takes(), Duration::from_millis(20));
        disk.end(slow[1]);
        assert_eq!(disk.sync_takes(), Duration::ZERO);
    }
}
