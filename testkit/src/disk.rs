//! A disk for databases under test that can lose power. At a power loss, writes that were not synced are kept, torn or
//! lost at random. Space can run out, writes and syncs can be refused, and a sync can take as long as a test wants. The
//! generator is seeded, so that a failure can be reproduced.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::StorageBackend;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// A disk in memory. Clones share it.
#[derive(Debug, Clone)]
pub struct FaultyDisk {
    disk: Arc<Mutex<Disk>>,
    gate: Arc<Gate>,
}

/// Blocks the syncs of a [`FaultyDisk`] until it is dropped.
#[derive(Debug)]
pub struct HeldDisk(Arc<Gate>);

impl Drop for HeldDisk {
    fn drop(&mut self) {
        self.0.queue.lock().held = false;
        self.0.free.notify_all();
    }
}

/// The gate that syncs must pass.
#[derive(Debug, Default)]
struct Gate {
    queue: Mutex<Queue>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    held: bool,
    waiting: usize,
}

impl Gate {
    fn pass(&self) {
        let mut queue = self.queue.lock();
        queue.waiting += 1;
        self.free.wait_while(&mut queue, |queue| queue.held);
        queue.waiting -= 1;
    }
}

/// What a test does when the power is lost.
struct CutHook(Box<dyn FnOnce() + Send>);

impl fmt::Debug for CutHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutHook")
    }
}

/// The content and the faults of a disk. It has many fields because each fault is set and ends on its own.
#[derive(Debug)]
struct Disk {
    /// The content that readers see.
    current: Vec<u8>,
    /// The content at the last sync.
    durable: Vec<u8>,
    /// Operations since the last sync.
    pending: Vec<Pending>,
    /// Operations until the power is lost.
    countdown: Option<u64>,
    /// The power is lost at the next sync.
    cut_at_sync: bool,
    /// Called when the power is lost.
    at_cut: Option<CutHook>,
    /// Error of the system for each write and change of size.
    refused_writes: Option<i32>,
    /// Error of the system for each sync.
    refused_syncs: Option<i32>,
    /// The next power loss tears the last write.
    tearing: bool,
    /// The next sync fails, and it is unknown which writes it made durable.
    failing: bool,
    broken: Option<Breakage>,
    /// The next write panics, as the database's code may.
    panicking: bool,
    /// Grows with each power loss. Backends that were opened before no longer work.
    boots: u64,
    capacity: u64,
    rng: StdRng,
}

/// A coming failure of operations, including reads.
#[derive(Debug)]
struct Breakage {
    /// Operations that succeed before it.
    left: u64,
    /// The error of the system.
    errno: i32,
    /// Whether only one operation fails.
    heals: bool,
}

#[derive(Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl FaultyDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_content(seed, Vec::new())
    }

    /// A disk without faults that holds what readers of this one see.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        Self::with_content(seed, self.disk.lock().current.clone())
    }

    fn with_content(seed: u64, content: Vec<u8>) -> Self {
        let disk = Disk {
            current: content.clone(),
            durable: content,
            pending: Vec::new(),
            countdown: None,
            cut_at_sync: false,
            at_cut: None,
            refused_writes: None,
            refused_syncs: None,
            tearing: false,
            failing: false,
            broken: None,
            panicking: false,
            boots: 0,
            capacity: u64::MAX,
            rng: StdRng::seed_from_u64(seed),
        };
        Self { disk: Arc::new(Mutex::new(disk)), gate: Arc::default() }
    }

    /// The disk as a database opens it. After a power loss it must be opened again.
    #[must_use]
    pub fn backend(&self) -> DiskBackend {
        let boot = self.disk.lock().boots;
        DiskBackend { disk: Arc::clone(&self.disk), gate: Arc::clone(&self.gate), boot }
    }

    /// Replaces the content by what another disk has synced, as a rename does with a file. Databases must open the disk
    /// again.
    pub fn replace_by(&self, other: &Self) {
        let content = other.disk.lock().durable.clone();
        let mut disk = self.disk.lock();
        disk.current.clone_from(&content);
        disk.durable = content;
        disk.pending.clear();
        disk.boots += 1;
    }

    /// Makes every operation after this many more fail with the system error `errno`, until [`FaultyDisk::mend`].
    pub fn break_after(&self, operations: u64, errno: i32) {
        self.disk.lock().broken = Some(Breakage { left: operations, errno, heals: false });
    }

    /// As [`FaultyDisk::break_after`] for a single operation.
    pub fn fail_once_after(&self, operations: u64, errno: i32) {
        self.disk.lock().broken = Some(Breakage { left: operations, errno, heals: true });
    }

    /// Lets operations succeed again.
    pub fn mend(&self) {
        self.disk.lock().broken = None;
    }

    /// Makes the next write panic.
    pub fn panic_at_next_write(&self) {
        self.disk.lock().panicking = true;
    }

    /// Makes syncs wait until the result is dropped. Reads and writes continue, as in a system that caches them.
    #[must_use]
    pub fn hold(&self) -> HeldDisk {
        self.gate.queue.lock().held = true;
        HeldDisk(Arc::clone(&self.gate))
    }

    /// Whether a sync waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.gate.queue.lock().waiting > 0
    }

    /// Cuts the power after this many more writes, resizes and syncs.
    pub fn cut_after(&self, operations: u64) {
        self.disk.lock().countdown = Some(operations);
    }

    /// Cuts the power at the next sync, before it has any effect.
    pub fn cut_at_sync(&self) {
        self.disk.lock().cut_at_sync = true;
    }

    /// Sets what is called once when the power is lost, in the middle of the operation. It must not use the disk.
    pub fn at_cut(&self, then: impl FnOnce() + Send + 'static) {
        self.disk.lock().at_cut = Some(CutHook(Box::new(then)));
    }

    /// Refuses all writes with a system error (`EROFS`, `ENOSPC`), or none any more. Reads go on.
    pub fn refuse_writes(&self, errno: Option<i32>) {
        self.disk.lock().refused_writes = errno;
    }

    /// Refuses all syncs with a system error (`EIO`), or none any more. Reads and writes go on.
    pub fn refuse_syncs(&self, errno: Option<i32>) {
        self.disk.lock().refused_syncs = errno;
    }

    /// Makes the next power loss leave a part of the last write that was not synced, if that is longer than a sector.
    pub fn tear_last_write(&self) {
        self.disk.lock().tearing = true;
    }

    /// Ends the program that uses the disk, as a signal does: the system still has what was written, and databases must
    /// open the disk again.
    pub fn abandon(&self) {
        let mut disk = self.disk.lock();
        disk.countdown = None;
        disk.cut_at_sync = false;
        disk.at_cut = None;
        disk.boots += 1;
    }

    /// Whether the power is gone.
    #[must_use]
    pub fn is_dark(&self) -> bool {
        self.disk.lock().countdown == Some(0)
    }

    /// Makes the next sync fail, while readers see what was written.
    pub fn fail_sync(&self) {
        self.disk.lock().failing = true;
    }

    /// Restores the power. Writes that were not synced are kept, torn or lost.
    pub fn restart(&self) {
        let mut disk = self.disk.lock();
        let disk = &mut *disk;
        let mut content = std::mem::take(&mut disk.durable);
        let is_long = |pending: &Pending| matches!(pending, Pending::Write(_, data) if data.len() > SECTOR);
        let last =
            std::mem::take(&mut disk.tearing).then(|| disk.pending.iter().rposition(is_long)).flatten();
        for (index, pending) in disk.pending.drain(..).enumerate() {
            match pending {
                Pending::Resize(len) if disk.rng.random_bool(0.5) => content.resize(len, 0),
                Pending::Resize(_) => {}
                Pending::Write(offset, data) if last == Some(index) => {
                    put(&mut content, offset, &data[..SECTOR]);
                }
                Pending::Write(offset, data) => survive(&mut disk.rng, &mut content, offset, &data),
            }
        }
        disk.current.clone_from(&content);
        disk.durable = content;
        disk.countdown = None;
        disk.cut_at_sync = false;
        disk.at_cut = None;
        disk.failing = false;
        disk.boots += 1;
    }

    /// Sets the largest size of the file, in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().capacity = bytes;
    }

    /// Size of the file now, in bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.disk.lock().current.len() as u64
    }

    /// Changes bytes at random positions.
    pub fn damage(&self, places: usize) {
        let mut guard = self.disk.lock();
        let disk = &mut *guard;
        for _ in 0..places {
            let len = disk.current.len();
            if len == 0 {
                return;
            }
            let at = disk.rng.random_range(0..len);
            disk.current[at] ^= 0x55;
            disk.durable.clone_from(&disk.current);
        }
    }
}

/// Applies all of a write, some of its sectors, or nothing.
fn survive(rng: &mut StdRng, content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let whole = rng.random_range(0..4);
    let mut at = offset;
    for sector in data.chunks(SECTOR) {
        let kept = match whole {
            0 | 1 => true,
            2 => rng.random_bool(0.5),
            _ => false,
        };
        if kept {
            put(content, at, sector);
        }
        at += sector.len();
    }
}

fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    if content.len() < at + data.len() {
        content.resize(at + data.len(), 0);
    }
    content[at..at + data.len()].copy_from_slice(data);
}

/// A [`FaultyDisk`] that a database has opened.
#[derive(Debug)]
pub struct DiskBackend {
    disk: Arc<Mutex<Disk>>,
    gate: Arc<Gate>,
    boot: u64,
}

impl DiskBackend {
    /// Runs an operation unless the power is gone.
    fn powered<T>(&self, costs: u64, operation: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.disk.lock();
        match &mut disk.broken {
            Some(Breakage { left: 0, errno, heals }) => {
                let error = io::Error::from_raw_os_error(*errno);
                if *heals {
                    disk.broken = None;
                }
                return Err(error);
            }
            Some(Breakage { left, .. }) => *left -= 1,
            None => {}
        }
        if disk.boots != self.boot {
            return Err(io::Error::other("opened before the power was cut"));
        }
        if let Some(left) = disk.countdown {
            disk.countdown = Some(left.saturating_sub(costs));
            if left < costs.max(1) {
                return Err(disk.without_power());
            }
        }
        operation(&mut disk)
    }
}

impl Disk {
    /// The error of an operation that finds no power.
    fn without_power(&mut self) -> io::Error {
        if let Some(CutHook(then)) = self.at_cut.take() {
            then();
        }
        io::Error::other("the power is gone")
    }

    /// The error of a system that refuses something.
    fn refused(errno: Option<i32>) -> io::Result<()> {
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl StorageBackend for DiskBackend {
    fn len(&self) -> io::Result<u64> {
        self.powered(0, |disk| Ok(disk.current.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.powered(0, |disk| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let end = start.checked_add(out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(disk.current.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.powered(1, |disk| {
            Disk::refused(disk.refused_writes)?;
            if len > disk.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let len = usize::try_from(len).map_err(io::Error::other)?;
            disk.current.resize(len, 0);
            disk.pending.push(Pending::Resize(len));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.powered(1, |disk| {
            if std::mem::take(&mut disk.cut_at_sync) {
                disk.countdown = Some(0);
                return Err(disk.without_power());
            }
            Disk::refused(disk.refused_syncs)?;
            if std::mem::take(&mut disk.failing) {
                return Err(io::Error::other("the disk does not answer"));
            }
            for pending in disk.pending.drain(..) {
                match pending {
                    Pending::Resize(len) => disk.durable.resize(len, 0),
                    Pending::Write(at, data) => disk.durable[at..at + data.len()].copy_from_slice(&data),
                }
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.powered(1, |disk| {
            Disk::refused(disk.refused_writes)?;
            assert!(!std::mem::take(&mut disk.panicking), "a test wants this write to panic");
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let end = start.checked_add(data.len()).ok_or(io::ErrorKind::StorageFull)?;
            disk.current.get_mut(start..end).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
            disk.pending.push(Pending::Write(start, data.to_vec()));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const EROFS: i32 = 30;
    const EIO: i32 = 5;

    /// A disk with `synced` on it, and `written` over it without a sync.
    fn disk(seed: u64, synced: u8, written: u8, len: usize) -> (FaultyDisk, DiskBackend) {
        let disk = FaultyDisk::new(seed);
        let backend = disk.backend();
        backend.set_len(len as u64).unwrap();
        backend.write(0, &vec![synced; len]).unwrap();
        backend.sync_data().unwrap();
        backend.write(0, &vec![written; len]).unwrap();
        (disk, backend)
    }

    fn content(disk: &FaultyDisk) -> Vec<u8> {
        let mut content = vec![0; usize::try_from(disk.used()).unwrap()];
        disk.backend().read(0, &mut content).unwrap();
        content
    }

    #[test]
    fn a_disk_refuses_writes_or_syncs_and_still_reads() {
        let (disk, backend) = disk(1, 1, 2, 600);
        disk.refuse_writes(Some(EROFS));
        assert_eq!(backend.write(0, &[9]).unwrap_err().raw_os_error(), Some(EROFS));
        assert_eq!(backend.set_len(1).unwrap_err().raw_os_error(), Some(EROFS));
        assert_eq!(content(&disk), vec![2; 600]);
        disk.refuse_writes(None);
        disk.refuse_syncs(Some(EIO));
        for _ in 0..2 {
            assert_eq!(backend.sync_data().unwrap_err().raw_os_error(), Some(EIO));
        }
        disk.refuse_syncs(None);
        backend.sync_data().unwrap();
    }

    #[test]
    fn a_torn_write_is_neither_old_nor_new() {
        for seed in 0..20 {
            let (disk, _) = disk(seed, 1, 2, 3 * SECTOR);
            disk.tear_last_write();
            disk.restart();
            let left = content(&disk);
            assert_eq!((left[0], left[SECTOR], left.len()), (2, 1, 3 * SECTOR), "seed {seed}");
        }
    }

    #[test]
    fn an_abandoned_disk_keeps_what_was_written_and_its_users_are_gone() {
        let (disk, backend) = disk(1, 1, 2, 10);
        disk.abandon();
        assert!(backend.read(0, &mut [0]).is_err() && backend.write(0, &[3]).is_err());
        assert_eq!(content(&disk), vec![2; 10]);
        let copy = disk.copy(1);
        disk.restart();
        assert_eq!(content(&copy), vec![2; 10], "what a copy holds is its own");
    }

    #[test]
    fn the_power_goes_at_a_sync_and_somebody_is_told_once() {
        let (disk, backend) = disk(4, 1, 2, 10);
        let told = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&told);
        disk.at_cut(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        disk.cut_at_sync();
        backend.write(0, &[7; 10]).unwrap();
        assert!(!disk.is_dark());
        assert!(backend.sync_data().is_err() && disk.is_dark());
        assert!(backend.write(0, &[8]).is_err());
        assert_eq!(told.load(Ordering::SeqCst), 1);
        disk.restart();
        disk.backend().sync_data().unwrap();
    }
}
