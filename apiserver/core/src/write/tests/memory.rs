//! Memory use of writes: the author of an object determines how many times its text its tree takes.

use tombolo_proto::Resource;
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::memory::Rules;

/// Number of annotations of an object whose tree takes 3 MiB, and its field ownership as much again. The sets of owned
/// fields take as much as the tree.
const PARTS: usize = 20_000;

/// The text of an object with such names. It is built as text: a freed tree would leave room for the next one.
fn names(first: &str, part: &str) -> String {
    let names: Vec<String> = (0..PARTS).map(|number| format!(r#""{first}{number:011}":{part}"#)).collect();
    format!("{{{}}}", names.join(","))
}

/// A store with such an object.
fn stored() -> MemoryStore {
    let owned = format!(r#"{{"f:metadata":{{"f:annotations":{}}}}}"#, names("f:n", "{}"));
    let owner = format!(
        r#"{{"manager":"t","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{owned}}}"#
    );
    let object = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"m","namespace":"shop","uid":"u","resourceVersion":"7","annotations":{},"managedFields":[{owner}]}}}}"#,
        names("n", r#""""#)
    );
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "shop", "m");
    let uid = Uid::parse("u").expect("an identity");
    let object = Stored::new(key, uid, Revision(7), object.into());
    MemoryStore::restore(Revision(7), vec![object], None, LogLimits::default(), Rules::default())
}

/// MiB by which the process grows during a write to a store.
fn growth(store: MemoryStore, verb: WriteVerb, body: String) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let writes = LocalWrites::new(Arc::new(store));
    let request = WriteRequest { body: body.into(), ..request(verb, &Payer::default(), &Value::Null) };
    let growth = Growth::begin();
    let reply = runtime.block_on(writes.execute(request)).expect("written");
    assert!(reply.status.is_success(), "{verb:?}");
    growth.most() / 1024 / 1024
}

#[test]
fn creation_holds_few_parsed_copies() {
    if alone(module_path!(), "creation_holds_few_parsed_copies") {
        let object = format!(r#"{{"metadata":{{"name":"m","annotations":{}}}}}"#, names("n", r#""""#));
        let empty = MemoryStore::new(MemoryStore::START, LogLimits::default());
        let grown = growth(empty, WriteVerb::Create, object);
        assert!(grown < 14, "{grown} MiB");
    }
}

#[test]
fn patch_holds_few_parsed_copies() {
    if alone(module_path!(), "patch_holds_few_parsed_copies") {
        let patch = r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned();
        let grown = growth(stored(), WriteVerb::Patch(PatchType::Merge), patch);
        assert!(grown < 18, "{grown} MiB");
    }
}

#[test]
fn update_holds_few_parsed_copies() {
    if alone(module_path!(), "update_holds_few_parsed_copies") {
        let object = format!(r#"{{"metadata":{{"name":"m","annotations":{}}}}}"#, names("n", r#""b""#));
        let grown = growth(stored(), WriteVerb::Update, object);
        assert!(grown < 18, "{grown} MiB");
    }
}

#[test]
fn deletion_holds_few_parsed_copies() {
    if alone(module_path!(), "deletion_holds_few_parsed_copies") {
        let grown = growth(stored(), WriteVerb::Delete, "{}".to_owned());
        assert!(grown < 11, "{grown} MiB");
    }
}
