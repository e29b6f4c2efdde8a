//! Ownership of the replica count that a Scale shows: it is stored in the object and translated for the Scale.

use serde_json::Value;

use super::entries::{Entry, ManagerIdentity, Managers, group};
use super::path::Element;
use super::set::Set;

/// Version of the Scale.
const SCALE: &str = "autoscaling/v1";

/// The replica count in an object.
pub(crate) struct Count<'a> {
    /// Version of the object, for example `apps/v1`.
    pub(crate) api_version: &'a str,
    /// Path of the count, for example `.spec.replicas`.
    pub(crate) path: &'a str,
}

impl Count<'_> {
    /// Entries of the Scale: each manager that owns the count, with only that field.
    pub(crate) fn to_scale(&self, object: &Value) -> Value {
        let mut shown = Managers::default();
        let managers = Managers::decode(object);
        for identity in managers.identities() {
            let owns = managers.get(identity).is_some_and(|e| self.knows(e) && has(&e.set, self.path));
            let time = managers.get(identity).and_then(|entry| entry.time);
            if owns {
                let entry = Entry { set: single("spec.replicas"), time, api_version: SCALE.to_owned() };
                shown.put(identity.clone(), entry);
            }
        }
        shown.encode()
    }

    /// Entries of the object after the Scale was written. New owners of the count have no time (as in kube-apiserver,
    /// whose handler has none for managers that the object did not have).
    pub(crate) fn to_object(&self, object: &Value, scale: &Value) -> Value {
        let before = Managers::decode(object);
        let mut scaling = Managers::decode(scale);
        let mut after = Managers::default();
        for identity in before.identities().cloned().collect::<Vec<ManagerIdentity>>() {
            let Some(entry) = before.get(&identity).filter(|entry| self.knows(entry)) else { continue };
            let mut entry = entry.clone();
            if has(&entry.set, self.path) && scaling.remove(&identity).is_none() {
                entry.set = std::mem::take(&mut entry.set).difference(&single(self.path));
            }
            if !entry.set.is_empty() {
                after.put(identity, entry);
            }
        }
        for identity in scaling.identities() {
            if scaling.get(identity).is_some_and(|entry| has(&entry.set, "spec.replicas")) {
                let api_version = self.api_version.to_owned();
                let time = before.get(identity).and_then(|entry| entry.time);
                after.put(identity.clone(), Entry { set: single(self.path), time, api_version });
            }
        }
        after.encode()
    }

    /// Entries of versions of other groups are ignored.
    fn knows(&self, entry: &Entry) -> bool {
        group(&entry.api_version) == group(self.api_version)
    }
}

fn elements(path: &str) -> Vec<Element> {
    path.trim_start_matches('.').split('.').map(Element::field).collect()
}

fn single(path: &str) -> Set {
    let mut set = Set::default();
    set.insert(&elements(path));
    set
}

fn has(set: &Set, path: &str) -> bool {
    set.clone().difference(&single(path)) != *set
}
