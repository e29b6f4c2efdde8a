use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use serde_json::json;
use tombolo_apicore::store::{Store as _, StoreError};

use super::*;

/// A disk that can be made full.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    content: Arc<InMemoryBackend>,
    /// Number of write steps that it still refuses.
    refuses: Arc<AtomicUsize>,
}

impl Disk {
    pub(super) fn new() -> Self {
        Self { content: Arc::new(InMemoryBackend::new()), refuses: Arc::default() }
    }

    /// Refuses this number of write steps from now on.
    pub(super) fn refuse(&self, steps: usize) {
        self.refuses.store(steps, Ordering::SeqCst);
    }

    /// Starts a server that writes to this disk.
    pub(super) async fn server(&self, dir: &tempfile::TempDir) -> Bound {
        let backend = self.clone();
        let storage: Box<OpenStorage> = Box::new(move |_| Ok(Box::new(backend.clone())));
        Embedded::start_on(Options::new(dir.path()), storage).await.unwrap()
    }

    fn room(&self) -> io::Result<()> {
        let less = |steps: usize| steps.checked_sub(1);
        match self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Err(io::ErrorKind::StorageFull.into()),
            Err(_) => Ok(()),
        }
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
async fn full_disk_refuses_writes_and_serves_reads() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new();
    let bound = disk.server(&dir).await;
    let objects = &bound.context.objects;
    let map = |name: &str| json!({"metadata": {"namespace": "default", "name": name}});
    disk.refuse(usize::MAX);
    let before = objects.store().revision();
    for _ in 0..2 {
        let refused = objects.create(core("configmaps"), map("m")).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    }
    assert!(objects.exists(core("namespaces"), "", "default"), "reads continue");
    assert_eq!(objects.store().revision(), before);
    disk.refuse(0);
    objects.create(core("configmaps"), map("m")).await.unwrap();
}

#[tokio::test]
async fn ten_thousand_objects_load_quickly() {
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

#[tokio::test]
async fn the_certificate_is_renewed_while_the_server_runs() {
    use std::time::Duration;

    let dir = tempfile::tempdir().unwrap();
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    let (before, kubeconfig) = (bound.pki.serving(), std::fs::read(&bound.kubeconfig).unwrap());
    assert!(!bound.renewal.renew(SystemTime::now()).unwrap(), "it is new");
    let later = SystemTime::now() + Duration::from_secs(200 * 86_400);
    assert!(bound.renewal.renew(later).unwrap());
    assert_ne!(bound.pki.serving(), before);
    assert_ne!(
        std::fs::read(&bound.kubeconfig).unwrap(),
        kubeconfig,
        "the administrator's is another one, too"
    );
    let served = bound.renewal.serving.certificate();
    let text = pem_of(&bound.pki.serving().certificate);
    assert_eq!(served, text, "new connections see it");
}

fn pem_of(text: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;

    rustls_pki_types::CertificateDer::from_pem_slice(text.as_bytes()).unwrap().to_vec()
}

#[tokio::test]
async fn full_store_refuses_growth_and_allows_deletion() {
    use tombolo_apicore::status::ApiError;

    const LEN_MAX: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path());
    options.store_len_max = LEN_MAX;
    let bound = Embedded::start(options).await.unwrap();
    let objects = &bound.context.objects;
    let pad = "x".repeat(256 * 1024);
    let padded =
        |name: &str| json!({"metadata": {"namespace": "default", "name": name}, "data": {"pad": pad}});
    let mut events = 0;
    let refused = loop {
        match objects.create(core("events"), padded(&format!("e{events}"))).await {
            Ok(_) => events += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(events, 3, "a quarter is for events: {refused}");
    let (mut maps, mut refused) = (0, None);
    // In the end there is less room than the smallest object needs.
    for pad in [256 * 1024, 16 * 1024, 512] {
        let map = |name: String| json!({"metadata": {"namespace": "default", "name": name}, "data": {"pad": "x".repeat(pad)}});
        refused = loop {
            match objects.create(core("configmaps"), map(format!("m{maps}"))).await {
                Ok(_) => maps += 1,
                Err(error) => break Some(error),
            }
        };
    }
    let refused = refused.unwrap();
    let (len, max) = objects.store().size();
    assert!(len <= max && max == LEN_MAX && maps > 8, "{len} of {max}, {maps}");
    let status = ApiError::from(refused);
    assert_eq!((status.code.as_u16(), status.reason), (507, "InsufficientStorage"), "{status}");
    assert!(status.message.contains("delete objects"), "{status}");
    let first = objects.get(core("configmaps"), "default", "m0").unwrap();
    // Updates that do not grow an object succeed, and so does the deletion mark.
    for _ in 0..3 {
        objects.update(&first.key, |_| objects::Edit::Put).await.unwrap();
    }
    let grow = |object: &mut objects::StoredObject| {
        object.value["data"]["more"] = json!("x".repeat(64 * 1024));
        objects::Edit::Put
    };
    objects.update(&first.key, grow).await.unwrap_err();
    let mark = |object: &mut objects::StoredObject| {
        object.value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object.value["metadata"]["note"] = json!("x".repeat(1024));
        objects::Edit::Put
    };
    objects.update(&first.key, mark).await.unwrap();
    objects.update(&first.key, |_| objects::Edit::Remove).await.unwrap();
    objects.create(core("configmaps"), padded("again")).await.unwrap();
    drop(bound);
    let bound = Embedded::start(Options::new(dir.path())).await.unwrap();
    assert!(bound.context.objects.store().size().0 > LEN_MAX / 2, "counted again after a restart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_and_ports_are_never_allocated_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path());
    options.service_cidr = "10.0.0.0/27".into();
    let bound = Embedded::start(options).await.unwrap();
    let objects = bound.context.objects.clone();
    // Bypasses admission, as if a reservation had expired.
    let service = |name: &str, address: &str, port: u16| {
        json!({"metadata": {"namespace": "default", "name": name},
               "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80, "nodePort": port}]}})
    };
    let same =
        (0..8).map(|i| objects.create(core("services"), service(&format!("a{i}"), "10.0.0.9", 30_100 + i)));
    let created = futures::future::join_all(same).await;
    assert_eq!(created.iter().filter(|created| created.is_ok()).count(), 1, "one address");
    assert!(created.iter().flatten().count() == 1);
    let taken = created.iter().find_map(|created| created.as_ref().err()).unwrap();
    assert!(
        matches!(taken, StoreError::Taken { claim, .. } if claim == "cluster address 10.0.0.9"),
        "{taken}"
    );
    let same = (0..8).map(|i| {
        objects.create(core("services"), service(&format!("p{i}"), &format!("10.0.0.{}", 10 + i), 31_000))
    });
    let created = futures::future::join_all(same).await;
    assert_eq!(created.iter().filter(|created| created.is_ok()).count(), 1, "one port");
    // An update keeps its own address and cannot take that of another Service. The address of a deleted Service is
    // free.
    let mine = created.into_iter().flatten().next().unwrap();
    objects.update(&mine.key, |_| objects::Edit::Put).await.unwrap();
    let steal = |object: &mut objects::StoredObject| {
        object.value["spec"]["clusterIPs"] = json!(["10.0.0.9"]);
        objects::Edit::Put
    };
    objects.update(&mine.key, steal).await.unwrap_err();
    let first =
        objects.list(&core("services"), None).find(|found| found.text("/spec/clusterIP") == "10.0.0.9");
    let first = first.unwrap();
    objects.update(&first.key, |_| objects::Edit::Remove).await.unwrap();
    objects.update(&mine.key, steal).await.unwrap();
}
