//! Kinds that another server serves, as far as its discovery describes them: names, scope, verbs, subresources. Their
//! types are unknown, so objects of that server are shown unchanged; Tables have the columns of their definitions where
//! these are known. Selectable fields come from the OpenAPI documents of the server.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::jsonpath::JsonPath;
use super::{Fingerprint, KindInfo, SubresourceInfo, compile};
use crate::kinds::foreign::ForeignDocuments;
use crate::schema::types::Types;
use crate::value::{items, text};

/// Maximum number of resources taken from one document.
const RESOURCES_MAX: usize = 1024;

/// Table columns that CustomResourceDefinitions declare, which discovery does not contain. It keeps the columns of
/// every definition that was declared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredColumns(BTreeMap<String, ByVersion>);

/// The `additionalPrinterColumns` of each version.
type ByVersion = BTreeMap<String, Value>;

impl DeclaredColumns {
    /// Replaces the columns of a definition. Returns whether they changed.
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
    /// Version, and the discovery entry of the resource.
    versions: Vec<(String, Value)>,
    columns: ByVersion,
    /// Fields that selectors may name besides name and namespace, by version, from its OpenAPI document.
    selectable: BTreeMap<String, Vec<String>>,
}

/// The resources of an `APIGroupDiscoveryList`, without those of groups that are already known.
pub(crate) fn resources(
    document: &Value,
    declared: &DeclaredColumns,
    documents: &dyn ForeignDocuments,
    is_known: impl Fn(&str) -> bool,
) -> Vec<Discovered> {
    let mut found: Vec<Discovered> = Vec::new();
    for group in items(document, &["items"]) {
        let name = text(group, &["metadata", "name"]);
        if name.is_empty() || is_known(name) {
            continue;
        }
        for version in items(group, &["versions"]) {
            let number = text(version, &["version"]);
            let mut fields = documents.selectable(name, number);
            for resource in items(version, &["resources"]) {
                let plural = text(resource, &["resource"]);
                let known = found.iter().position(|known| known.group == name && known.plural == plural);
                let at = match known {
                    Some(at) => at,
                    None if found.len() < RESOURCES_MAX => {
                        found.push(Discovered::new(name, plural, declared));
                        found.len() - 1
                    }
                    None => continue,
                };
                found[at].versions.push((number.to_owned(), resource.clone()));
                if let Some(fields) = fields.remove(text(resource, &["responseKind", "kind"])) {
                    found[at].selectable.insert(number.to_owned(), fields);
                }
            }
        }
    }
    for resource in &mut found {
        let content = json!([resource.versions, resource.columns, resource.selectable]);
        resource.fingerprint.content = Sha256::digest(content.to_string()).into();
    }
    found
}

impl Discovered {
    fn new(group: &str, plural: &str, declared: &DeclaredColumns) -> Self {
        Self {
            group: group.to_owned(),
            plural: plural.to_owned(),
            fingerprint: Fingerprint { content: [0; 32], terminating: false },
            versions: Vec::new(),
            columns: declared.of(group, plural),
            selectable: BTreeMap::new(),
        }
    }

    /// The kinds of all versions; none when the names are invalid.
    pub(crate) fn kinds(&self, builtin: &Types) -> Vec<KindInfo> {
        let make = |columns: &ByVersion| compile(&self.definition(columns), self.fingerprint, None, builtin);
        // Unusable columns must not hide the kind.
        let kinds = make(&self.columns).or_else(|_| make(&ByVersion::new())).unwrap_or_default();
        let served = |mut kind: KindInfo| {
            let (_, entry) = self.versions.iter().find(|(version, _)| **version == *kind.resource.version)?;
            let verbs = |entry: &Value| {
                items(entry, &["verbs"]).iter().filter_map(|verb| Some(verb.as_str()?.into())).collect()
            };
            kind.verbs = verbs(entry);
            if let (Some(custom), Some(fields)) =
                (&mut kind.definition, self.selectable.get(&*kind.resource.version))
            {
                let path =
                    |field: &String| Some((field.clone(), JsonPath::parse(&format!(".{field}")).ok()?));
                custom.selectable = fields.iter().filter_map(path).collect();
            }
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

    /// A definition that would produce such kinds.
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
    fn discovered_kinds_are_served_beside_built_in_ones() {
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

    /// Documents with one selectable field of version v1.
    struct Selectable;

    impl ForeignDocuments for Selectable {
        fn document(&self, _: &str, version: &str) -> Option<Arc<[u8]>> {
            let fields = match version {
                "v1" => json!([{"fieldPath": "spec.size"}]),
                _ => json!([]),
            };
            let schema = |kind: &str| {
                json!({"type": "object", "x-kubernetes-selectable-fields": fields,
                    "x-kubernetes-group-version-kind": [{"group": "a.example", "version": version, "kind": kind}]})
            };
            let document = json!({"openapi": "3.0.0", "components": {"schemas": {
                "example.a.Thing": schema("Thing"), "example.a.Other": schema("Other"), "example.a.Plain": {},
            }}});
            Some(document.to_string().into_bytes().into())
        }
    }

    #[test]
    fn field_selectors_match_those_of_kube_apiserver() {
        let none = DeclaredColumns::default();
        let discovered = discovery(&["get", "list"]);
        let kinds = Kinds::builtin().with_discovered(&discovered, &none, Arc::new(Selectable));
        let kind = |kinds: &Kinds, version: &str| {
            Arc::clone(kinds.get(&Resource::new("a.example", version, "things")).unwrap())
        };
        let thing = kind(&kinds, "v1");
        let object = json!({"spec": {"size": 3, "other": "x"}});
        assert_eq!(thing.field_value(&object, "spec.size").as_deref(), Some("3"));
        assert!(!thing.is_selectable("spec.other"));
        assert!(!kind(&kinds, "v1beta1").is_selectable("spec.size"), "each version has its own");
        let again = kinds.with_discovered(&discovered, &none, Arc::new(Selectable));
        assert!(Arc::ptr_eq(&thing, &kind(&again, "v1")), "what has not changed stays");
        let without = again.with_discovered(&discovered, &none, Arc::new(One));
        assert!(!kind(&without, "v1").is_selectable("spec.size"), "One is no document");
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
