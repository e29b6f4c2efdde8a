//! DefaultStorageClass, DefaultIngressClass and PersistentVolumeClaimResize: the plugins for the classes of claims and
//! Ingresses.

use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::status::ApiError;
use tombolo_proto::object::Resource;

use super::refuse;
use crate::objects::{Objects, StoredObject, member, text, v1};
use crate::quota::Amounts;

/// Annotation of the default StorageClass, and its older form.
const DEFAULT_STORAGE: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Annotation of the default IngressClass.
const DEFAULT_INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

/// Older annotations that name a class.
const STORAGE_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const INGRESS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Gives a new claim or Ingress that names no class the default one, if there is one.
pub(super) fn complete(objects: &Objects, request: &mut AdmissionRequest<'_>) {
    let asked = request.attributes;
    if request.operation != Operation::Create || !asked.subresource.is_empty() {
        return;
    }
    let (classes, marks, field, annotation) = match (asked.group.as_str(), asked.resource.as_str()) {
        ("", "persistentvolumeclaims") => {
            (storage_classes(), DEFAULT_STORAGE.as_slice(), "storageClassName", STORAGE_ANNOTATION)
        }
        ("networking.k8s.io", "ingresses") => (
            v1("networking.k8s.io", "ingressclasses"),
            DEFAULT_INGRESS.as_slice(),
            "ingressClassName",
            INGRESS_ANNOTATION,
        ),
        _ => return,
    };
    let Some(object) = request.object.as_deref_mut() else { return };
    let named = object.pointer("/spec").and_then(|spec| spec.get(field)).is_some_and(|name| !name.is_null());
    if named || has_annotation(object, annotation) {
        return;
    }
    if let Some(class) = default_of(objects.list(&classes, None), marks) {
        member(object, "spec").insert(field.to_owned(), json!(class));
    }
}

/// Refuses to expand a claim whose class does not allow expansion.
///
/// # Errors
/// 403.
pub(super) fn admit_growth(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    let is_claim = asked.group.is_empty() && asked.resource == "persistentvolumeclaims";
    if !is_claim || !asked.subresource.is_empty() || request.operation != Operation::Update {
        return Ok(());
    }
    let (Some(new), Some(old)) = (request.object.as_deref(), request.old) else { return Ok(()) };
    let size = |claim: &Value| Amounts::read(claim.pointer("/spec/resources/requests")).get("storage");
    if size(new) <= size(old) {
        return Ok(());
    }
    if text(old, "/status/phase") != "Bound" {
        return Err(refuse(asked, request.name, "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(new);
    let grows = class == class_of(old)
        && objects
            .get(storage_classes(), "", class)
            .is_some_and(|class| class.value.get("allowVolumeExpansion") == Some(&json!(true)));
    if grows {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    Err(refuse(asked, request.name, why))
}

fn storage_classes() -> Resource {
    v1("storage.k8s.io", "storageclasses")
}

fn class_of(claim: &Value) -> &str {
    let older = claim.pointer("/metadata/annotations").and_then(|all| all.get(STORAGE_ANNOTATION)?.as_str());
    older.unwrap_or_else(|| text(claim, "/spec/storageClassName"))
}

fn has_annotation(object: &Value, name: &str) -> bool {
    object.pointer("/metadata/annotations").is_some_and(|all| all.get(name).is_some())
}

/// The newest class with one of the annotations; of equally old ones, the first by name.
fn default_of(classes: impl Iterator<Item = StoredObject>, marks: &[&str]) -> Option<String> {
    let marked = |class: &StoredObject| {
        let annotations = class.value.pointer("/metadata/annotations");
        marks.iter().any(|mark| annotations.is_some_and(|all| all.get(*mark) == Some(&json!("true"))))
    };
    let mut marked: Vec<StoredObject> = classes.filter(marked).collect();
    marked.sort_by(|one, other| {
        let age = |class: &StoredObject| class.text("/metadata/creationTimestamp").to_owned();
        age(other).cmp(&age(one)).then_with(|| one.key.name().cmp(other.key.name()))
    });
    marked.first().map(|class| class.key.name().to_owned())
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    async fn stored(marks: &[(&str, &str, &str)]) -> impl Iterator<Item = StoredObject> {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        for (name, mark, created) in marks {
            let class = json!({"metadata": {"name": name, "annotations": {*mark: "true"}}});
            objects.create(storage_classes(), class).await.unwrap();
            let key = tombolo_proto::object::ObjectKey::new(storage_classes(), "", name);
            let date = |class: &mut StoredObject| {
                class.value["metadata"]["creationTimestamp"] = json!(created);
                crate::objects::Edit::Put
            };
            objects.update(&key, date).await.unwrap();
        }
        objects.list(&storage_classes(), None)
    }

    #[tokio::test]
    async fn the_newest_marked_class_is_the_default() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let classes = [
            ("a", DEFAULT_STORAGE[0], old),
            ("c", DEFAULT_STORAGE[0], new),
            ("b", DEFAULT_STORAGE[1], new),
            ("d", "other", new),
        ];
        assert_eq!(default_of(stored(&classes).await, &DEFAULT_STORAGE).as_deref(), Some("b"));
        assert_eq!(default_of(stored(&classes[..1]).await, &DEFAULT_STORAGE).as_deref(), Some("a"));
        assert_eq!(default_of(stored(&classes[3..]).await, &DEFAULT_STORAGE), None);
    }
}
