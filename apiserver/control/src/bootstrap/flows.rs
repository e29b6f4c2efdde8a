//! The flow schemas and priority levels that every cluster has, as `cargo xtask facts` recorded them from
//! kube-apiserver.

use tombolo_proto::object::ObjectKey;

use super::{failed, table};
use crate::error::EmbeddedError;
use crate::objects::{Edit, Objects, text};

/// Annotation of objects whose specification is restored after a change.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Names of the mandatory schemas and levels. Their specifications are always restored, whatever the annotation says.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

const TABLE: &str = include_str!("../../data/bootstrap-flows.jsonl");

/// Creates missing objects, and restores the specifications that users must not change.
///
/// # Errors
/// [`EmbeddedError::Bootstrap`] when the store refuses.
pub(crate) async fn ensure(objects: &Objects) -> Result<(), EmbeddedError> {
    for (resource, wanted) in table(TABLE) {
        let name = text(&wanted, "/metadata/name").to_owned();
        let report = |error| failed(&format!("{resource} {name}"), &error);
        let key = ObjectKey::new(resource.clone(), "", &name);
        let restore = objects.update(&key, |object| {
            let automatic = object.value["metadata"]["annotations"][AUTO_UPDATE] == "true";
            let ours = automatic || MANDATORY.contains(&name.as_str());
            if !ours || object.value["spec"] == wanted["spec"] {
                return Edit::Keep;
            }
            object.value["spec"] = wanted["spec"].clone();
            Edit::Put
        });
        if restore.await.map_err(report)?.is_none() {
            objects.ensure(resource.clone(), wanted.clone()).await.map_err(report)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;
    use tombolo_apicore::store::Store as _;

    use super::*;
    use crate::flows::{LEVELS, SCHEMAS, resource};

    #[test]
    fn bootstrap_flows_are_valid_objects() {
        let kinds = tombolo_catalog::kinds();
        for (resource, object) in table(TABLE) {
            let kind = kinds.get(&resource).unwrap();
            let mut completed = object.clone();
            kind.default(&mut completed);
            assert_eq!(
                completed, object,
                "nothing is left to a default, so that a comparison finds no change"
            );
            assert_eq!(kind.validate_create(&completed), [], "{object}");
        }
    }

    #[tokio::test]
    async fn changed_or_deleted_flows_are_restored_unless_opted_out() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        ensure(&objects).await.unwrap();
        let first = objects.store().revision();
        ensure(&objects).await.unwrap();
        assert_eq!(objects.store().revision(), first, "a second start makes no changes");
        for (name, annotation) in [("system", "false"), ("node-high", "true"), ("catch-all", "false")] {
            let key = ObjectKey::new(resource(LEVELS), "", name);
            let spoil = objects.update(&key, |object| {
                object.value["metadata"]["annotations"][AUTO_UPDATE] = json!(annotation);
                object.value["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
                Edit::Put
            });
            spoil.await.unwrap();
        }
        let gone = ObjectKey::new(resource(SCHEMAS), "", "probes");
        objects.update(&gone, |_| Edit::Remove).await.unwrap();
        ensure(&objects).await.unwrap();
        let shares = |name: &str| {
            let level = objects.get(resource(LEVELS), "", name).unwrap();
            level.value["spec"]["limited"]["nominalConcurrencyShares"].as_i64().unwrap()
        };
        assert_eq!((shares("system"), shares("node-high"), shares("catch-all")), (7, 40, 5));
        assert!(objects.get_key(&gone).is_some());
    }
}
