use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tombolo_proto::object::Resource;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "pods"), "d", name)
}

fn writer(number: usize) -> Arc<str> {
    format!("node:{number}").into()
}

#[test]
fn writer_is_charged_for_growth_it_caused_until_it_is_gone() {
    let mut account = Account::default();
    let (a, b) = (writer(0), writer(1));
    let totals = |account: &Account| (account.total(&a), account.total(&b));
    // A large object of another user, into which a node writes a status.
    account.change(&key("pod"), 0, 1000, None);
    account.change(&key("pod"), 1000, 1030, Some(&a));
    assert_eq!(totals(&account), (30 + PART_OVERHEAD, 0), "not for the whole object");
    // An administrator changes an object that a node created.
    account.change(&key("made"), 0, 100, Some(&b));
    account.change(&key("made"), 100, 120, None);
    assert_eq!(totals(&account), (30 + PART_OVERHEAD, 100 + PART_OVERHEAD), "it is still that node's");
    account.change(&key("made"), 120, 110, None);
    account.change(&key("pod"), 1030, 1010, Some(&a));
    assert_eq!(totals(&account), (10 + PART_OVERHEAD, 100 + PART_OVERHEAD));
    // The object shrinks by more than its writer was charged: first the uncharged bytes are returned, then the parts of
    // others.
    account.change(&key("made"), 110, 40, Some(&a));
    assert_eq!(totals(&account), (10 + PART_OVERHEAD, 40 + PART_OVERHEAD));
    account.change(&key("pod"), 1010, 0, None);
    account.change(&key("made"), 40, 0, Some(&a));
    assert!(account.parts.is_empty() && account.totals.is_empty(), "{account:?}");
}

#[test]
fn failed_write_leaves_the_account_unchanged() {
    let mut account = Account::default();
    let (a, b) = (writer(0), writer(1));
    account.change(&key("x"), 0, 100, Some(&a));
    let first = account.change(&key("x"), 100, 180, Some(&b));
    let second = account.change(&key("x"), 180, 20, None);
    account.put_back(&key("x"), second);
    account.put_back(&key("x"), first);
    assert_eq!((account.total(&a), account.total(&b)), (100 + PART_OVERHEAD, 0));
}

const WRITERS: usize = 3;
const OBJECTS: usize = 4;

/// One write: the object, the writer (none: without a share), and the new length of its part.
fn write() -> impl Strategy<Value = (usize, Option<usize>, u64)> {
    (0..OBJECTS, option::weighted(0.8, 0..WRITERS), prop_oneof![Just(0), 1..2000_u64])
}

proptest! {
    /// Each writer changes only its own part of an object, of any length.
    #[test]
    fn sole_writer_is_charged_exactly_for_its_objects(writes in vec(write(), 1..60)) {
        let mut account = Account::default();
        let mut stored: BTreeMap<(usize, Option<usize>), u64> = BTreeMap::new();
        for (object, author, bytes) in writes {
            let len = |stored: &BTreeMap<_, u64>| {
                stored.range((object, None)..(object + 1, None)).map(|(_, bytes)| *bytes).sum::<u64>()
            };
            let before = len(&stored);
            stored.insert((object, author), bytes);
            stored.retain(|_, bytes| *bytes > 0);
            account.change(&key(&object.to_string()), before, len(&stored), author.map(writer).as_ref());
            for author in 0..WRITERS {
                let own = stored.iter().filter(|((_, own), _)| *own == Some(author));
                let paid: u64 = own.map(|(_, bytes)| bytes + PART_OVERHEAD).sum();
                prop_assert_eq!(account.total(&writer(author)), paid);
            }
        }
    }

    /// For any writes, the parts of an object fit into it and the totals are their sums.
    #[test]
    fn sums_match_the_stored_objects(writes in vec(write(), 1..60)) {
        let mut account = Account::default();
        let mut lens = [0; OBJECTS];
        for (object, author, after) in writes {
            account.change(&key(&object.to_string()), lens[object], after, author.map(writer).as_ref());
            lens[object] = after;
            let mut totals: HashMap<Arc<str>, u64> = HashMap::new();
            for (key, parts) in &account.parts {
                let number: usize = key.name().parse().unwrap();
                prop_assert!(!parts.is_empty() && parts.iter().all(|(_, bytes)| *bytes > 0));
                prop_assert!(parts.iter().map(|(_, bytes)| bytes).sum::<u64>() <= lens[number]);
                for (writer, bytes) in parts {
                    *totals.entry(Arc::clone(writer)).or_default() += bytes + PART_OVERHEAD;
                }
            }
            prop_assert_eq!(&account.totals, &totals);
        }
    }
}
