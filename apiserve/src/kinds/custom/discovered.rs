//! Kinds that another server serves, as far as its discovery tells: names, scope, verbs, subresources. Their types are not
//! known, so whatever that server sends is shown as it is; in tables with the columns of their
//! definitions where these are known.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::value::{items, text};
use super::{Fingerprint, KindInfo, SubresourceInfo, compile};
use crate::schema::types::Types;

/// Resources that are taken from one document, at most.
const RESOURCES_MAX: usize = 1024;

/// The columns of tables that CustomResourceDefinitions declare, which discovery does not tell. It holds as many as were put
/// into it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredColumns(BTreeMap<String, ByVersion>);

/// The `additionalPrinterColumns` of each version.
type ByVersion = BTreeMap<String, Value>;

impl DeclaredColumns {
    /// Takes the columns of a definition, in place of those that it had before; whether they are others.
    pub fn declare(&mut self, definition: &Value) -> bool {
        let columns = |version: &Value| {
            let columns = version.get("additionalPrinterColumns")?.clone();
            Some((text(version, &["name"]).to_owned(), columns))
        };
        let declared: ByVersion =
            items(definition, &["spec", "versions"]).iter().filter_map(columns).collect();
        let name = text(definition, &["metadata", "name"]);
        if self.0.get(name).unwrap_or(&ByVersion::new()) == &declared {
            return false;
        }
        self.0.insert(name.to_owned(), declared);
        true
    }

    fn of(&self, group: &str, plural: &str) -> ByVersion {
        self.0.get(&format!("{plural}.{group}")).cloned().unwrap_or_default()
    }
}

/// One resource with its versions, the preferred one first.
pub(crate) struct Discovered {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) fingerprint: Fingerprint,
    /// Version, and the entry of the resource.
    versions: Vec<(String, Value)>,
    columns: ByVersion,
}

/// The resources of an `APIGroupDiscoveryList` that are in none of the groups that are known already.
pub(crate) fn resources(
    document: &Value,
    declared: &DeclaredColumns,
    is_known: impl Fn(&str) -> bool,
) -> Vec<Discovered> {
    let mut found: Vec<Discovered> = Vec::new();
    for group in items(document, &["items"]) {
        let name = text(group, &["metadata", "name"]);
        if name.is_empty() || is_known(name) {
            continue;
        }
        for version in items(group, &["versions"]) {
            for resource in items(version, &["resources"]) {
                let plural = text(resource, &["resource"]);
                let entry = (text(version, &["version"]).to_owned(), resource.clone());
                match found.iter().position(|known| known.group == name && known.plural == plural) {
                    Some(known) => found[known].versions.push(entry),
                    None if found.len() < RESOURCES_MAX => found.push(Discovered {
                        group: name.to_owned(),
                        plural: plural.to_owned(),
                        fingerprint: Fingerprint { content: [0; 32], terminating: false },
                        versions: vec![entry],
                        columns: declared.of(name, plural),
                    }),
                    None => {}
                }
            }
        }
    }
    for resource in &mut found {
        let content = json!([resource.versions, resource.columns]);
        resource.fingerprint.content = Sha256::digest(content.to_string()).into();
    }
    found
}

impl Discovered {
    /// The kinds of all versions; none when the names are none.
    pub(crate) fn kinds(&self, builtin: &Types) -> Vec<KindInfo> {
        let make = |columns: &ByVersion| compile(&self.definition(columns), self.fingerprint, None, builtin);
        // Columns that cannot be used must not hide the kind.
        let kinds = make(&self.columns).or_else(|_| make(&ByVersion::new())).unwrap_or_default();
        let served = |mut kind: KindInfo| {
            let (_, entry) = self.versions.iter().find(|(version, _)| **version == *kind.resource.version)?;
            let verbs = |entry: &Value| {
                items(entry, &["verbs"]).iter().filter_map(|verb| Some(verb.as_str()?.into())).collect()
            };
            kind.verbs = verbs(entry);
            let own = |entry: &Value, key: &str, otherwise: &str| match text(entry, &["responseKind", key]) {
                "" => otherwise.into(),
                named => named.into(),
            };
            kind.subresources = items(entry, &["subresources"])
                .iter()
                .map(|sub| SubresourceInfo {
                    name: text(sub, &["subresource"]).into(),
                    group: own(sub, "group", &kind.resource.group),
                    version: own(sub, "version", &kind.resource.version),
                    kind: own(sub, "kind", &kind.kind),
                    verbs: verbs(sub),
                })
                .collect();
            Some(kind)
        };
        kinds.into_iter().filter_map(served).collect()
    }

    /// A definition that would make such kinds.
    fn definition(&self, columns: &ByVersion) -> Value {
        let open =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let version = |(index, (name, entry)): (usize, &(String, Value))| {
            let has = |name: &str| {
                items(entry, &["subresources"]).iter().any(|sub| text(sub, &["subresource"]) == name)
            };
            let subresources = if has("status") { json!({"status": {}}) } else { json!({}) };
            json!({
                "name": name, "served": true, "storage": index == 0, "schema": open, "subresources": subresources,
                "additionalPrinterColumns": columns.get(name).unwrap_or(&Value::Null),
            })
        };
        let first = self.versions.first().map(|(_, entry)| entry).unwrap_or(&Value::Null);
        let kind = text(first, &["responseKind", "kind"]);
        let singular = match text(first, &["singularResource"]) {
            "" => kind.to_lowercase(),
            singular => singular.to_owned(),
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{}.{}", self.plural, self.group),
                "annotations": {"api-approved.kubernetes.io": "unapproved, served by another server"},
            },
            "spec": {
                "group": self.group,
                "scope": if text(first, &["scope"]) == "Namespaced" { "Namespaced" } else { "Cluster" },
                "names": {
                    "plural": self.plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List"),
                    "shortNames": items(first, &["shortNames"]), "categories": items(first, &["categories"]),
                },
                "versions": self.versions.iter().enumerate().map(version).collect::<Vec<_>>(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tombolo_proto::object::Resource;

    use super::*;
    use crate::kinds::Kinds;
    use crate::openapi::{self, ForeignDocuments};

    struct One;

    impl ForeignDocuments for One {
        fn document(&self, group: &str, version: &str) -> Option<Arc<[u8]>> {
            Some(format!("{group} {version}").into_bytes().into())
        }
    }

    fn discovery(verbs: &[&str]) -> Value {
        let entry = |name: &str| {
            json!({"resource": name, "scope": "Cluster", "singularResource": "", "verbs": verbs,
                "responseKind": {"group": "a.example", "version": "v1", "kind": "Thing"}})
        };
        let version = |name: &str, resource: &str| json!({"version": name, "resources": [entry(resource)]});
        json!({"items": [
            {"metadata": {"name": "a.example"}, "versions": [version("v1", "things"), version("v1beta1", "things")]},
            {"metadata": {"name": "apps"}, "versions": [version("v1", "others")]},
            {"metadata": {"name": "b.example"}, "versions": [version("v1", "not a name")]},
        ]})
    }

    #[test]
    fn kinds_of_others_are_served_beside_the_built_in_ones() {
        let (builtin, none) = (Kinds::builtin(), DeclaredColumns::default());
        let kinds = builtin.with_discovered(&discovery(&["get", "list"]), &none, Arc::new(One));
        let thing = kinds.get(&Resource::new("a.example", "v1beta1", "things")).unwrap();
        assert_eq!((&*thing.kind, &*thing.singular, thing.namespaced), ("Thing", "thing", false));
        assert_eq!(thing.verbs.iter().map(|verb| &**verb).collect::<Vec<_>>(), ["get", "list"]);
        assert_eq!(&*thing.storage.version, "v1", "the preferred version is the one that is followed");
        assert!(kinds.get(&Resource::new("apps", "v1", "others")).is_none(), "the group is built in");
        assert!(kinds.get(&Resource::new("b.example", "v1", "not a name")).is_none());
        assert_eq!(openapi::document(&kinds, "a.example", "v1").as_deref(), Some(b"a.example v1".as_slice()));
        assert_ne!(openapi::document(&kinds, "apps", "v1").as_deref(), Some(b"apps v1".as_slice()));

        let again = kinds.with_discovered(&discovery(&["get", "list"]), &none, Arc::new(One));
        let same = again.get(&Resource::new("a.example", "v1beta1", "things")).unwrap();
        assert!(Arc::ptr_eq(thing, same), "what has not changed stays, and so do its watches");
        let other = again.with_discovered(&discovery(&["get"]), &none, Arc::new(One));
        assert_eq!(other.get(&thing.resource).unwrap().verbs.len(), 1);
        let empty = other.with_discovered(&json!({"items": []}), &none, Arc::new(One));
        assert!(empty.get(&thing.resource).is_none());
    }

    #[test]
    fn declared_columns_are_those_of_tables() {
        let definition = |columns: Value| {
            json!({"metadata": {"name": "things.a.example"}, "spec": {"versions": [
                {"name": "v1", "additionalPrinterColumns": columns}, {"name": "v1beta1"},
            ]}})
        };
        let size = json!([{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]);
        let mut declared = DeclaredColumns::default();
        assert!(!declared.declare(&json!({"metadata": {"name": "things.a.example"}})), "none are no news");
        assert!(declared.declare(&definition(size.clone())));
        assert!(!declared.declare(&definition(size)));
        let serve = |kinds: &Kinds, declared: &DeclaredColumns| {
            kinds.with_discovered(&discovery(&["get", "list"]), declared, Arc::new(One))
        };
        let names = |kinds: &Kinds, version: &str| {
            let kind = kinds.get(&Resource::new("a.example", version, "things")).unwrap();
            kind.columns().iter().map(|column| column.name.clone()).collect::<Vec<_>>()
        };
        let plain = serve(&Kinds::builtin(), &DeclaredColumns::default());
        assert_eq!(names(&plain, "v1"), ["Name", "Age"]);
        let kinds = serve(&plain, &declared);
        assert_eq!(names(&kinds, "v1"), ["Name", "Size"]);
        assert_eq!(names(&kinds, "v1beta1"), ["Name", "Age"]);
        assert!(
            declared.declare(&definition(json!([{"name": "Size", "type": "nonsense", "jsonPath": "size"}])))
        );
        assert_eq!(names(&serve(&kinds, &declared), "v1"), ["Name", "Age"]);
    }
}
