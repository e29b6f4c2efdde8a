use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use serde_json::json;
use tombolo_apiserve::store::{Store as _, StoreError};

use super::objects::core;
use super::*;

/// A disk that can be full.
#[derive(Debug, Clone)]
struct Disk {
    content: Arc<InMemoryBackend>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.content.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.content.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.content.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.room()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.content.write(offset, data)
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_serves_reads() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk { content: Arc::new(InMemoryBackend::new()), full: Arc::default() };
    let backend = disk.clone();
    let storage: Box<OpenStorage> = Box::new(move |_| Ok(Box::new(backend.clone())));
    let bound = Embedded::start_on(Options::new(dir.path()), storage).await.unwrap();
    let objects = &bound.context.objects;
    let map = |name: &str| json!({"metadata": {"namespace": "default", "name": name}});
    disk.full.store(true, Ordering::SeqCst);
    let before = objects.store().revision();
    for _ in 0..2 {
        let refused = objects.create(core("configmaps"), map("m")).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    }
    assert!(objects.exists(core("namespaces"), "", "default"), "reads go on");
    assert_eq!(objects.store().revision(), before);
    disk.full.store(false, Ordering::SeqCst);
    objects.create(core("configmaps"), map("m")).await.unwrap();
}

#[tokio::test]
async fn ten_thousand_objects_are_back_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    let objects = &bound.context.objects;
    let pad = "x".repeat(1024);
    let map = |i: usize| json!({"metadata": {"namespace": "default", "name": format!("m{i}")}, "data": {"pad": pad}});
    let writes = (0..10_000).map(|i| objects.create(core("configmaps"), map(i)));
    futures::future::try_join_all(writes).await.unwrap();
    drop(bound);
    let start = std::time::Instant::now();
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    tracing::info!(elapsed = ?start.elapsed(), "started again");
    assert_eq!(
        bound.context.objects.list_raw(&core("configmaps"), None).len(),
        10_001,
        "and the server's own one"
    );
}
