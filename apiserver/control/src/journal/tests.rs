use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use redb::backends::InMemoryBackend;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

use super::*;

mod power;

fn entry(name: &str, revision: u64, deleted: bool) -> JournalEntry {
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name);
    let body = Bytes::from(format!("{{\"v\":{revision}}}"));
    let object = Stored::new(key, Uid::parse("u").unwrap(), Revision(revision), body);
    JournalEntry { object: Arc::new(object), deleted }
}

fn names(restored: &Restored) -> Vec<(String, u64)> {
    restored.objects.iter().map(|o| (o.key.name().to_owned(), o.revision.0)).collect()
}

#[test]
fn restart_restores_the_state_and_the_revision_of_a_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (journal, restored) = RedbJournal::open(&path, Box::new(file_storage)).unwrap();
    assert!(restored.objects.is_empty() && restored.revision == Revision(0));
    journal.append(&[entry("a", 1, false), entry("b", 2, false), entry("a", 3, false)]).unwrap();
    journal.append(&[entry("b", 4, true)]).unwrap();
    drop(journal);
    let (_, restored) = RedbJournal::open(&path, Box::new(file_storage)).unwrap();
    assert_eq!(names(&restored), [("a".to_owned(), 3)]);
    assert_eq!(restored.revision, Revision(4));
}

/// Writes succeed until `full` is set. Then every write fails, as on a full disk. With `late`, only the last sync
/// fails: the batch is on disk although it was refused.
#[derive(Debug, Clone)]
struct Disk {
    content: Arc<InMemoryBackend>,
    full: Arc<AtomicBool>,
    late: Arc<AtomicBool>,
    /// The folder in the journal's path.
    folder: Arc<tempfile::TempDir>,
}

impl Disk {
    fn new() -> Self {
        Self {
            content: Arc::new(InMemoryBackend::new()),
            full: Arc::default(),
            late: Arc::default(),
            folder: Arc::new(tempfile::tempdir().unwrap()),
        }
    }

    fn refuse(&self, flag: &AtomicBool) -> io::Result<()> {
        if flag.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
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
        self.refuse(&self.full)?;
        self.content.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.refuse(&self.full)?;
        self.refuse(&self.late)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.refuse(&self.full)?;
        self.content.write(offset, data)
    }
}

fn on(disk: &Disk) -> (RedbJournal, Restored) {
    let opened = disk.clone();
    let path = disk.folder.path().join("journal");
    RedbJournal::open(&path, Box::new(move |_| Ok(Box::new(opened.clone())))).unwrap()
}

fn refuses_late(disk: &Disk) -> StoreError {
    let (journal, _) = on(disk);
    journal.append(&[entry("a", 1, false), entry("b", 2, false)]).unwrap();
    disk.late.store(true, Ordering::SeqCst);
    let refused =
        journal.append(&[entry("a", 3, false), entry("b", 4, true), entry("c", 5, false)]).unwrap_err();
    // As after a kill: the disk works again when the next process starts.
    drop(journal);
    disk.late.store(false, Ordering::SeqCst);
    refused
}

#[test]
fn refused_batch_is_absent_after_a_restart() {
    let disk = Disk::new();
    let refused = refuses_late(&disk);
    assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    let (journal, restored) = on(&disk);
    assert_eq!(
        (names(&restored), restored.revision),
        (vec![("a".to_owned(), 1), ("b".to_owned(), 2)], Revision(2))
    );
    // Other changes get the same revisions now, and must stay.
    journal.append(&[entry("d", 3, false), entry("d", 4, false), entry("e", 5, false)]).unwrap();
    drop(journal);
    let (_, restored) = on(&disk);
    let expected = [("a", 1), ("b", 2), ("d", 4), ("e", 5)].map(|(name, at)| (name.to_owned(), at));
    assert_eq!(names(&restored), expected);
}

#[test]
fn write_that_can_neither_be_undone_nor_noted_is_reported_as_unknown() {
    let disk = Disk::new();
    // Blocks the file to which the old rows are written.
    std::fs::create_dir(disk.folder.path().join("journal.refused.new")).unwrap();
    let refused = refuses_late(&disk);
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("not known until the disk works again"), "{refused}");
}

/// Another batch gets the same revisions, by which the next start would take it for the refused one.
#[test]
fn note_about_a_refused_batch_is_removed_before_the_next_write() {
    let disk = Disk::new();
    let noted = refused::path(&disk.folder.path().join("journal"));
    let (journal, _) = on(&disk);
    journal.append(&[entry("a", 1, false)]).unwrap();
    disk.late.store(true, Ordering::SeqCst);
    journal.append(&[entry("b", 2, false)]).unwrap_err();
    assert!(noted.exists());
    disk.late.store(false, Ordering::SeqCst);
    // A note that cannot be removed lets no other batch in.
    let kept = std::fs::read(&noted).unwrap();
    std::fs::remove_file(&noted).unwrap();
    std::fs::create_dir(&noted).unwrap();
    let refused = journal.append(&[entry("b", 2, false)]).unwrap_err();
    assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    std::fs::remove_dir(&noted).unwrap();
    std::fs::write(&noted, kept).unwrap();
    journal.append(&[entry("b", 2, false)]).unwrap();
    assert!(!noted.exists());
    drop(journal);
    let (_, restored) = on(&disk);
    assert_eq!(names(&restored), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(restored.revision, Revision(2));
}

#[test]
fn a_full_disk_refuses_and_recovers_without_a_restart() {
    let disk = Disk::new();
    let (journal, _) = on(&disk);
    journal.append(&[entry("a", 1, false)]).unwrap();
    disk.full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let refused = journal.append(&[entry("b", 2, false)]).unwrap_err();
        assert!(matches!(refused, StoreError::NotStored { .. }), "{refused}");
    }
    disk.full.store(false, Ordering::SeqCst);
    journal.append(&[entry("c", 2, false)]).unwrap();
    drop(journal);
    let (_, restored) = on(&disk);
    assert_eq!(names(&restored), [("a".to_owned(), 1), ("c".to_owned(), 2)]);
}

#[test]
fn refused_batch_that_reached_the_disk_is_undone() {
    let disk = Disk::new();
    let (journal, _) = on(&disk);
    journal.append(&[entry("a", 1, false), entry("b", 2, false)]).unwrap();
    disk.late.store(true, Ordering::SeqCst);
    journal
        .append(&[entry("a", 3, false), entry("b", 4, true), entry("c", 5, false), entry("c", 6, false)])
        .unwrap_err();
    disk.late.store(false, Ordering::SeqCst);
    journal.append(&[entry("d", 3, false)]).unwrap();
    drop(journal);
    let (_, restored) = on(&disk);
    let expected = [("a".to_owned(), 1), ("b".to_owned(), 2), ("d".to_owned(), 3)];
    assert_eq!(names(&restored), expected);
    assert_eq!(restored.revision, Revision(3));
}

#[test]
fn a_damaged_file_is_reported_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    std::fs::write(&path, vec![7_u8; 8192]).unwrap();
    let error = RedbJournal::open(&path, Box::new(file_storage)).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}

#[test]
fn closed_journal_releases_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (first, _) = RedbJournal::open(&path, Box::new(file_storage)).unwrap();
    first.append(&[entry("a", 1, false)]).unwrap();
    let lingering = first.clone();
    first.close();
    let (second, restored) = RedbJournal::open(&path, Box::new(file_storage)).unwrap();
    assert_eq!(names(&restored), [("a".to_owned(), 1)]);
    lingering.append(&[entry("b", 2, false)]).unwrap_err();
    second.append(&[entry("c", 2, false)]).unwrap();
    second.close();
    let (_, restored) = RedbJournal::open(&path, Box::new(file_storage)).unwrap();
    assert_eq!(names(&restored), [("a".to_owned(), 1), ("c".to_owned(), 2)]);
}
