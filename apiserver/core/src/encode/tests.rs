use serde_json::Value;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::kinds::Kinds;

/// A Pod with this many parts besides its name.
fn pod(parts: usize) -> Stored {
    let key = ObjectKey::new(Resource::new("", "v1", "pods"), "d", "p");
    let body = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"d","creationTimestamp":"2026-01-01T00:00:00Z"}},"spec":{{"x":[{}0]}},"status":{{"phase":"Running"}}}}"#,
        r#"{"":0},"#.repeat(parts)
    );
    Stored::new(key, Uid::parse("u").unwrap(), Revision(7), body.into())
}

/// The author of an object determines how much memory its tree takes, and a client that lists it as a Table would cause
/// it to be read.
#[test]
fn table_row_of_a_huge_object_shows_only_name_and_age() {
    if !alone(module_path!(), "table_row_of_a_huge_object_shows_only_name_and_age") {
        return;
    }
    let kinds = Kinds::builtin();
    let kind = kinds.by_kind("", "v1", "Pod").unwrap();
    let encoder = Encoder { kind, form: Form::Table("v1"), include: Include::Metadata };
    let cells = |stored: &Stored| {
        let table: Value = serde_json::from_slice(&encoder.object(stored)).unwrap();
        table["rows"][0]["cells"].clone()
    };
    let few = cells(&pod(ROW_TREE_MAX / 1024));
    assert_eq!((&few[0], &few[2]), (&json!("p"), &json!("Running")));
    let growth = Growth::begin();
    let many = cells(&pod(400_000));
    assert_eq!((&many[0], many.as_array().map(Vec::len)), (&json!("p"), few.as_array().map(Vec::len)));
    let grown = growth.most() / 1024 / 1024;
    assert!(grown < 64, "{grown} MiB");
}
