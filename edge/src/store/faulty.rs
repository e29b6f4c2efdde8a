//! The disk of the tests that can lose power, as a medium of the store.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError, StorageBackend};
use tombolo_testkit::DiskBackend;

use super::medium::{Medium, Trouble};

/// A disk in memory. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct FaultyDisk {
    disk: tombolo_testkit::FaultyDisk,
    draft: Arc<Mutex<Option<Self>>>,
    set_aside: Arc<AtomicU64>,
    trouble: Trouble,
}

impl FaultyDisk {
    /// An empty disk without faults.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        let disk = tombolo_testkit::FaultyDisk::new(seed);
        Self { disk, draft: Arc::default(), set_aside: Arc::default(), trouble: Trouble::default() }
    }

    /// How often the content was moved out of the way.
    #[must_use]
    pub(crate) fn times_set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::SeqCst)
    }
}

impl Deref for FaultyDisk {
    type Target = tombolo_testkit::FaultyDisk;

    fn deref(&self) -> &Self::Target {
        &self.disk
    }
}

impl Medium for FaultyDisk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let backend = Backend { disk: self.backend(), trouble: self.trouble.clone() };
        builder.create_with_backend(backend)
    }

    fn draft(&self) -> io::Result<Box<dyn Medium>> {
        let draft = Self::new(0);
        *self.draft.lock() = Some(draft.clone());
        Ok(Box::new(draft))
    }

    fn put_draft(&self) -> io::Result<String> {
        let draft = self.draft.lock().take().ok_or(io::ErrorKind::NotFound)?;
        self.disk.replace_by(&draft.disk);
        self.set_aside.fetch_add(1, Ordering::SeqCst);
        Ok("nowhere".to_owned())
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.take()
    }
}

/// The opened disk, whose errors are recorded.
#[derive(Debug)]
struct Backend {
    disk: DiskBackend,
    trouble: Trouble,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.trouble.note(self.disk.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.trouble.note(self.disk.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.trouble.note(self.disk.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.trouble.note(self.disk.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.trouble.note(self.disk.write(offset, data))
    }
}
