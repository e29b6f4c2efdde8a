//! Ownership of the count that a Scale shows: it is kept in the object, and spoken of in the terms of the Scale.

use serde_json::Value;

use super::entries::{Entry, Identity, Managers, group};
use super::path::Element;
use super::set::Set;

/// Version of the Scale.
const SCALE: &str = "autoscaling/v1";

/// Where an object keeps the count.
pub(crate) struct Count<'a> {
    /// Version in which the object is written, for example `apps/v1`.
    pub(crate) api_version: &'a str,
    /// Path of the count, for example `.spec.replicas`.
    pub(crate) path: &'a str,
}

impl Count<'_> {
    /// Entries of the Scale: of each manager that owns the count, that alone.
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

    /// Entries of the object after the Scale was written. Whoever owns the count since then has no time (as in
    /// kube-apiserver, whose handler has none for those that the object did not know).
    pub(crate) fn to_object(&self, object: &Value, scale: &Value) -> Value {
        let before = Managers::decode(object);
        let mut scaling = Managers::decode(scale);
        let mut after = Managers::default();
        for identity in before.identities().cloned().collect::<Vec<Identity>>() {
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

    /// Entries of versions of other groups are nobody's.
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
