//! Objects of a plan that is being made.

use std::collections::BTreeMap;

use super::PlanGenerator;
use crate::observation::{Millis, ObjectId};
use crate::plan::names::{object_name, reference_name};
use crate::plan::{ObjectContent, PlanOperation, PlannedReference};

impl PlanGenerator<'_> {
    /// Content that no other object has.
    pub(super) fn content(&mut self) -> ObjectContent {
        self.contents += 1;
        let bytes = match self.random.below(if self.size.large { 40 } else { 400 }) {
            0 => 1_000_000,
            1 => 70_000,
            _ => 0,
        };
        ObjectContent { text: format!("v{}", self.contents), bytes, ..ObjectContent::default() }
    }

    /// Content of an object that others keep in an annotation.
    pub(super) fn small_content(&mut self) -> ObjectContent {
        let content = self.content();
        ObjectContent { bytes: content.bytes.min(100_000), ..content }
    }

    pub(super) fn labelled(&mut self, app: &str) -> ObjectContent {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        ObjectContent { labels, ..self.small_content() }
    }

    pub(super) fn pod_content(&mut self, node: &str, references: Vec<PlannedReference>) -> ObjectContent {
        ObjectContent { node: node.to_owned(), references, ..self.labelled("web") }
    }

    /// A reference to a ConfigMap or Secret of some name, in any of the ways there are.
    pub(super) fn reference(&mut self, name: String) -> PlannedReference {
        type Make = fn(String) -> PlannedReference;
        let all: [(u64, Make); 13] = [
            (4, PlannedReference::ConfigVolume),
            (1, PlannedReference::OptionalConfigVolume),
            (1, PlannedReference::ProjectedConfig),
            (1, PlannedReference::ConfigVariable),
            (1, PlannedReference::ConfigVariables),
            (4, PlannedReference::SecretVolume),
            (1, PlannedReference::OptionalSecretVolume),
            (1, PlannedReference::ProjectedSecret),
            (1, PlannedReference::SecretVariable),
            (1, PlannedReference::SecretVariables),
            (1, PlannedReference::PullSecret),
            (1, PlannedReference::CsiSecret),
            (1, PlannedReference::Claim),
        ];
        self.random.weighted(&all)(name)
    }

    /// The object to which a reference leads in a namespace.
    pub(super) fn referred(namespace: &str, reference: &PlannedReference) -> ObjectId {
        let (resource, name) = match reference {
            PlannedReference::ConfigVolume(name)
            | PlannedReference::OptionalConfigVolume(name)
            | PlannedReference::ProjectedConfig(name)
            | PlannedReference::ConfigVariable(name)
            | PlannedReference::ConfigVariables(name) => ("configmaps", name),
            PlannedReference::Claim(name) => ("persistentvolumeclaims", name),
            PlannedReference::SecretVolume(name)
            | PlannedReference::OptionalSecretVolume(name)
            | PlannedReference::ProjectedSecret(name)
            | PlannedReference::SecretVariable(name)
            | PlannedReference::SecretVariables(name)
            | PlannedReference::PullSecret(name)
            | PlannedReference::CsiSecret(name) => ("secrets", name),
        };
        ObjectId::new(resource, namespace, name)
    }

    /// Some references; their objects are created if their names can exist, most of the time.
    pub(super) fn references(&mut self, namespace: &str, after: Millis) -> Vec<PlannedReference> {
        let count = self.random.between(1, 3);
        let mut references = Vec::new();
        for _ in 0..count {
            let name = reference_name(&mut self.random);
            let reference = self.reference(name);
            let object = Self::referred(namespace, &reference);
            if crate::oracle::content::is_name(&object.name) && self.random.percent(80) {
                let content = self.content();
                let moment = after + self.random.below(300);
                self.do_at(moment, PlanOperation::Put { object, content });
            }
            references.push(reference);
        }
        references
    }

    /// A new pod of the node with some references.
    pub(super) fn pod_with_references(
        &mut self,
        node: &str,
        after: Millis,
    ) -> (ObjectId, Vec<PlannedReference>) {
        let namespace = self.any_namespace();
        let references = self.references(&namespace, after);
        let object = ObjectId::new("pods", &namespace, &object_name(&mut self.random));
        self.put_pod(after + 150, object.clone(), node, references.clone());
        (object, references)
    }

    /// A pod of this name on a node; one that was elsewhere is created anew, because a pod never moves.
    pub(super) fn put_pod(
        &mut self,
        after: Millis,
        object: ObjectId,
        node: &str,
        references: Vec<PlannedReference>,
    ) {
        let content = self.pod_content(node, references);
        let is_known = self.pods.iter().any(|(known, _)| *known == object);
        self.pods.retain(|(known, _)| *known != object);
        self.pods.push((object.clone(), node.to_owned()));
        // What a pod refers to never changes either.
        let operation = match is_known {
            true => PlanOperation::Recreate { object, content },
            false => PlanOperation::Put { object, content },
        };
        self.do_at(after, operation);
    }

    /// A pod of the node that was created before, or a new one.
    pub(super) fn pod_of(&mut self, node: &str) -> ObjectId {
        let own: Vec<ObjectId> =
            self.pods.iter().filter(|(_, owner)| owner == node).map(|(id, _)| id.clone()).collect();
        if own.is_empty() { self.pod_with_references(node, 0).0 } else { self.random.pick(&own).clone() }
    }
}
