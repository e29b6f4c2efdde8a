use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use super::*;
use crate::history::LogLimits;
use crate::memory::MemoryStore;
use crate::store::{Expect, Mutation, Revision, Store, Write, WriteStore};

fn object(name: &str, body: impl Into<Bytes>) -> Arc<Stored> {
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name);
    Arc::new(Stored::new(key, Uid::parse("u").unwrap(), Revision(1), body.into()))
}

fn config_map(number: usize) -> String {
    let manager = r#""managedFields":[{"manager":"m","operation":"Update","fieldsType":"FieldsV1"}]"#;
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{number}",{manager}}},"data":{{"a":"{number}"}}}}"#
    )
}

fn is_packed(object: &Stored) -> bool {
    matches!(&*object.text.held.lock(), BodyRepresentation::Compressed { .. })
}

#[test]
fn objects_of_a_resource_share_common_content() {
    let mut compressor = Compressor::default();
    let objects: Vec<_> = (0..3000).map(|number| object("c", config_map(number))).collect();
    for stored in &objects {
        compressor.compress(stored);
    }
    for (number, stored) in objects.iter().enumerate() {
        assert_eq!(stored.body(), config_map(number));
        assert!(stored.text.held() * 3 < stored.body_len(), "{number} takes {}", stored.text.held());
    }
    let samples: std::collections::HashSet<_> = objects
        .iter()
        .filter_map(|stored| match &*stored.text.held.lock() {
            BodyRepresentation::Compressed { sample, .. } => Some(Arc::as_ptr(sample)),
            BodyRepresentation::Plain(_) => None,
        })
        .collect();
    assert_eq!(samples.len(), 3, "a sample has its uses");
}

#[test]
fn newest_objects_stay_uncompressed_up_to_a_bound() {
    let mut compressor = Compressor::default();
    let objects: Vec<_> = (0..FRESH_COUNT_MAX + 10).map(|number| object("c", config_map(number))).collect();
    for stored in &objects {
        compressor.add(stored);
    }
    assert!(!objects.iter().any(|stored| is_packed(stored)), "not before it is requested");
    compressor.settle();
    assert_eq!(objects.iter().filter(|stored| is_packed(stored)).count(), 10);
    assert!(is_packed(&objects[9]) && !is_packed(&objects[10]));

    let large = object("large", vec![b'x'; FRESH_BYTES_MAX + 1]);
    compressor.add(&large);
    compressor.settle();
    assert!(is_packed(&large) && objects.iter().all(|stored| is_packed(stored)));
    assert_eq!((compressor.fresh.len(), compressor.fresh_len), (0, 0));
    assert_eq!(large.body(), vec![b'x'; FRESH_BYTES_MAX + 1]);
}

#[test]
fn incompressible_bodies_stay_uncompressed() {
    let mut noise = vec![0; 2048];
    StdRng::seed_from_u64(1).fill_bytes(&mut noise);
    let stored = object("noise", noise.clone());
    let mut compressor = Compressor::default();
    compressor.compress(&object("sample", config_map(0)));
    compressor.compress(&stored);
    assert!(!is_packed(&stored));
    assert_eq!(stored.body(), noise);
}

proptest! {
    #[test]
    fn any_body_reads_back_from_any_position(
        sample in prop::collection::vec(any::<u8>(), 0..300),
        repeated in 0_usize..40,
        tail in prop::collection::vec(any::<u8>(), 0..300),
        from in any::<prop::sample::Index>(),
    ) {
        let mut body = sample.repeat(repeated);
        body.extend(&tail);
        let stored = object("any", body.clone());
        let mut compressor = Compressor::default();
        compressor.compress(&object("sample", sample));
        compressor.compress(&stored);
        prop_assert_eq!(stored.body(), body.clone());
        let from = from.index(body.len() + 1);
        let mut out = BytesMut::from(&b"before"[..]);
        stored.text.append(from, &mut out);
        prop_assert_eq!(&out[..6], b"before");
        prop_assert_eq!(&out[6..], &body[from..]);
    }
}

#[test]
fn uncompressed_store_compresses_replaced_bodies() {
    let store = MemoryStore::uncompressed(MemoryStore::START, LogLimits::default());
    let count = FRESH_COUNT_MAX + 10;
    for number in (0..count).chain(0..count) {
        let key = object(&format!("object-{number}"), config_map(number)).key.clone();
        let write = Write::Put { uid: Uid::parse("u").unwrap(), body: config_map(number).into() };
        let mutation = Mutation { key, expected: Expect::Any, write };
        futures::executor::block_on(store.commit(mutation)).unwrap();
    }
    let resource = object("any", config_map(0)).key.resource().clone();
    let items = store.list(&resource, None).unwrap().items;
    assert_eq!(items.iter().filter(|stored| is_packed(stored)).count(), 0);
    let changes = store.watch(&resource, MemoryStore::START).unwrap().poll_ready().unwrap();
    let replaced: Vec<_> = changes.iter().filter_map(|change| change.previous.as_ref()).collect();
    assert_eq!(replaced.len(), count);
    assert_eq!(replaced.iter().filter(|stored| is_packed(stored)).count(), 10);
}
