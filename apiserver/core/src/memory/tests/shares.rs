//! How much users with a share can store, by any sequence of writes of theirs and of others.

use proptest::collection::vec;

use super::*;
use crate::store::Expect;

const SHARE: u64 = 20_000;

/// The share, and the reserve beyond it for deletions.
const MOST: u64 = SHARE + SHARE / 16;

const USERS: [&str; 3] = ["node:a", "node:b", "admin"];

#[derive(Debug, Clone)]
enum Write {
    Put { len: usize, deleting: bool },
    Delete,
}

#[derive(Debug, Clone)]
struct Step {
    user: &'static str,
    object: usize,
    write: Write,
}

impl Step {
    fn key(&self) -> ObjectKey {
        key("default", &self.object.to_string())
    }

    fn mutation(&self) -> Mutation {
        let Write::Put { len, deleting } = self.write else { return delete(&self.key()) };
        let mark = if deleting { r#""deletionTimestamp":"2026-01-01T00:00:00Z""# } else { "" };
        let body = format!(r#"{{"metadata":{{{mark}}},"data":{{"text":"{}"}}}}"#, "x".repeat(len));
        let uid = Uid::parse("u").unwrap();
        let write = crate::store::Write::Put { uid, body: body.into() };
        Mutation { key: self.key(), expected: Expect::Any, write }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..6_000_usize, any::<bool>()).prop_map(|(len, deleting)| Write::Put { len, deleting });
    let write = prop_oneof![6 => put, 1 => Just(Write::Delete)];
    (proptest::sample::select(&USERS), 0..8_usize, write).prop_map(|(user, object, write)| Step {
        user,
        object,
        write,
    })
}

/// Steps that the disk writes together, or refuses.
fn batches() -> impl Strategy<Value = Vec<(bool, Vec<Step>)>> {
    vec((proptest::bool::weighted(0.2), vec(step(), 1..6)), 1..20)
}

fn cost(object: &Stored) -> u64 {
    let digits = u64::from(object.revision.0.checked_ilog10().unwrap_or(0));
    let named = object.key.namespace().len() + object.key.name().len();
    object.body().len() as u64 - digits + named as u64 + OBJECT_OVERHEAD
}

proptest! {
    #[test]
    fn no_sequence_of_writes_gives_a_node_more_than_its_store_share(batches in batches()) {
        let notebook = Arc::new(Notebook::default());
        let writers = WriterShares { prefix: "node:", share: SHARE, all: u64::MAX };
        let rules = Rules { writers: Some(writers), ..Rules::default() };
        let journal: Box<dyn Journal> = Box::new(Arc::clone(&notebook));
        let store = MemoryStore::restore(Revision(7), Vec::new(), Some(journal), small(), rules);
        // The writers of each existing object.
        let mut authors: BTreeMap<ObjectKey, Vec<&str>> = BTreeMap::new();
        for (full, steps) in batches {
            notebook.full.store(full, Ordering::SeqCst);
            let wanted = |step: &Step| (step.mutation(), store.shared.rules.writer(step.user));
            let answers = store.shared.make(steps.iter().map(wanted).collect());
            for (step, _) in steps.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
                match step.write {
                    Write::Put { .. } => authors.entry(step.key()).or_default().push(step.user),
                    Write::Delete => drop(authors.remove(&step.key())),
                }
            }
            let stored = store.list(&configmaps(), None).unwrap().items;
            let turn = store.shared.turn.lock();
            prop_assert_eq!(turn.ledger.len(), stored.iter().map(|object| cost(object)).sum::<u64>());
            let paid: u64 = ["node:a", "node:b"].map(|user| turn.ledger.total(user)).iter().sum();
            let parts = u64::try_from(2 * stored.len()).unwrap() * account::PART_OVERHEAD;
            prop_assert!(paid <= turn.ledger.len() + parts, "more than there is");
            for user in ["node:a", "node:b"] {
                let own = stored.iter().filter(|object| authors[&object.key].iter().all(|own| *own == user));
                let (own, paid) = (own.map(|object| cost(object)).sum::<u64>(), turn.ledger.total(user));
                prop_assert!(own <= paid && paid <= MOST, "{user} has {own} bytes alone and pays for {paid}");
            }
        }
    }
}

#[test]
fn unfinished_deletions_do_not_evade_the_store_share() {
    let writers = WriterShares { prefix: "node:", share: SHARE, all: 50_000 };
    let rules = Rules { len_max: 100_000, writers: Some(writers), ..Rules::default() };
    let store = MemoryStore::restore(Revision(7), Vec::new(), None, small(), rules);
    let write = |len: usize, deleting: bool, user: &str| {
        let step = Step { user: "node:a", object: 0, write: Write::Put { len, deleting } };
        futures::executor::block_on(store.commit_for(step.mutation(), user, None))
    };
    write(19_000, false, "node:a").unwrap();
    write(20_000, false, "node:a").unwrap_err();
    write(20_000, true, "node:a").expect("a write that completes a deletion announces it first");
    let refused = (21..90).find_map(|kibi| write(kibi * 1000, true, "node:a").err()).expect("an end");
    assert!(matches!(refused, StoreError::OverShare { max: MOST, .. }), "{refused}");
    write(30_000, true, "admin").expect("others are not concerned");
}
