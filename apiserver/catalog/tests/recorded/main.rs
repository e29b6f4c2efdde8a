//! Compares defaults, validation, ownership and protobuf with the answers of a real kube-apiserver
//! (`apiserver/fixtures`).

mod created;
mod protobuf;
mod refusals;
mod sequences;
mod updates;

use serde_json::Value;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::kinds::{KindInfo, Kinds};
use tombolo_apicore::status::Cause;
use tombolo_apicore::value::text;

const CREATES: &str = include_str!("../../../fixtures/creates.jsonl");

/// The lines of a fixture.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn creates() -> Vec<Value> {
    lines(CREATES)
}

fn kind_of<'a>(kinds: &'a Kinds, object: &Value) -> &'a KindInfo {
    let api_version = text(object, &["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    kinds.by_kind(group, version, text(object, &["kind"])).expect("the kind is built in")
}

/// The built-in kinds, and the kind of the recorded definition.
fn with_definition() -> Kinds {
    let recorded = creates();
    let definition = recorded.iter().find(|one| one["sent"]["kind"] == "CustomResourceDefinition").unwrap();
    tombolo_catalog::kinds().with_crd(&definition["stored"]).unwrap()
}

/// `details.causes` of a refusal with these errors.
fn causes(errors: &[FieldError]) -> Value {
    let causes: Vec<Cause> = errors.iter().map(Cause::from).collect();
    serde_json::to_value(causes).unwrap()
}
