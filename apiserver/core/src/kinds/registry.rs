//! The set of kinds that a server serves at one moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;
use tombolo_proto::object::Resource;

use super::foreign::ForeignDocuments;
use super::part::LazyPart;
use super::rules::Table;
use super::strategy::{NoStrategy, Strategy};
use super::{DeclaredColumns, KindInfo, ScalePaths, SubresourceInfo, columns, custom};
use crate::field_error::FieldError;
use crate::schema::Schema;
use crate::schema::facts::{self, KindFact};
use crate::schema::rules::{NoRules, RuleEngine};
use crate::schema::types::Types;

/// Kinds by resource. The value is immutable: publishing a custom kind creates a new one that shares the rest.
#[derive(Clone)]
pub struct Kinds(Arc<Inner>);

struct Inner {
    builtin: Arc<Types>,
    by_resource: BTreeMap<Resource, Arc<KindInfo>>,
    /// Hashes of the OpenAPI documents, computed on first use; versions that did not change share them.
    hashes: BTreeMap<GroupVersion, Arc<OnceLock<String>>>,
    /// The part of the OpenAPI 2.0 document for the built-in kinds.
    swagger: Arc<LazyPart>,
    /// OpenAPI descriptions of the built-in types, compressed; empty when none were given.
    descriptions: &'static [u8],
    /// Provides the OpenAPI documents of kinds that another server defines.
    foreign: Option<Arc<dyn ForeignDocuments>>,
}

type GroupVersion = (Arc<str>, Arc<str>);

impl Inner {
    fn new(builtin: Arc<Types>, by_resource: BTreeMap<Resource, Arc<KindInfo>>) -> Self {
        let key = |resource: &Resource| (resource.group.clone(), resource.version.clone());
        let hashes = by_resource.keys().map(|resource| (key(resource), Arc::default())).collect();
        Self { builtin, by_resource, hashes, swagger: Arc::default(), descriptions: &[], foreign: None }
    }

    /// Keeps what was derived from groups that did not change.
    fn keep_documents(&mut self, old: &Self, changed_group: &str) {
        self.descriptions = old.descriptions;
        self.foreign.clone_from(&old.foreign);
        self.swagger = Arc::clone(&old.swagger);
        for (key, slot) in &mut self.hashes {
            if let Some(known) = old.hashes.get(key).filter(|_| &*key.0 != changed_group) {
                slot.clone_from(known);
            }
        }
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.by_resource.keys()).finish()
    }
}

impl Kinds {
    /// The built-in kinds for copies of objects that an API server already validated: without defaults and validation.
    /// The table of facts is parsed once per process.
    #[must_use]
    pub fn builtin() -> Self {
        static BUILTIN: LazyLock<Kinds> =
            LazyLock::new(|| Kinds::builtin_with(&NoStrategy, Arc::new(NoRules)));
        BUILTIN.clone()
    }

    /// The built-in kinds with their strategies, and a rule engine for custom kinds that are added later.
    #[must_use]
    pub fn builtin_with(strategy: &'static dyn Strategy, engine: Arc<dyn RuleEngine>) -> Self {
        let facts = facts::load();
        let types = Arc::new(facts.types.with_engine(engine));
        let rules = Table::load();
        let kinds = facts.kinds.iter().map(|fact| builtin(fact, &types, &rules, strategy));
        let by_resource = kinds.map(|kind| (kind.resource.clone(), Arc::new(kind))).collect();
        Self(Arc::new(Inner::new(types, by_resource)))
    }

    /// The same kinds with OpenAPI descriptions of their types, as recorded by `cargo xtask facts`. They are
    /// decompressed for each document: few clients request documents, and those cache them.
    #[must_use]
    pub fn described_by(&self, descriptions: &'static [u8]) -> Self {
        let inner = Inner::new(self.0.builtin.clone(), self.0.by_resource.clone());
        Self(Arc::new(Inner { descriptions, ..inner }))
    }

    pub(crate) fn descriptions(&self) -> &'static [u8] {
        self.0.descriptions
    }

    /// The kind of a group, version and plural.
    #[must_use]
    pub fn get(&self, resource: &Resource) -> Option<&Arc<KindInfo>> {
        self.0.by_resource.get(resource)
    }

    /// The kind of a group, version and kind name.
    #[must_use]
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<KindInfo>> {
        self.iter().find(|info| {
            &*info.resource.group == group && &*info.resource.version == version && &*info.kind == kind
        })
    }

    /// The kind of the body of a subresource request, where that is neither the object itself nor a view of it: an
    /// Eviction for `pods/eviction`.
    #[must_use]
    pub fn carried(&self, kind: &KindInfo, subresource: &str) -> Option<Arc<KindInfo>> {
        let below = kind.subresources.iter().find(|known| &*known.name == subresource)?;
        let (group, version, name) = (&*below.group, &*below.version, &*below.kind);
        if (group, version, name) == (&*kind.resource.group, &*kind.resource.version, &*kind.kind)
            || name == "Scale"
        {
            return None;
        }
        if let Some(known) = self.by_kind(group, version, name) {
            return Some(Arc::clone(known));
        }
        let schema = self.builtin_type(&type_name(group, version, name))?;
        Some(Arc::new(without_resource(group, version, name, schema)))
    }

    /// All kinds, ordered by group, version and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<KindInfo>> {
        self.0.by_resource.values()
    }

    /// Publishes every served version of a CustomResourceDefinition, in place of what it published before. Kinds whose
    /// definition did not change are kept.
    ///
    /// # Errors
    /// The errors of the definition; they are the same ones that refuse its creation.
    pub fn with_crd(&self, definition: &Value) -> Result<Self, Vec<FieldError>> {
        self.with_crd_stored_as(definition, None)
    }

    /// Like [`Self::with_crd`], when objects may already exist: `stored` is the version in their keys. A change of the
    /// storage version moves no objects, because versions differ only in their name.
    ///
    /// # Errors
    /// The errors of the definition.
    pub fn with_crd_stored_as(
        &self,
        definition: &Value,
        stored: Option<&str>,
    ) -> Result<Self, Vec<FieldError>> {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let published = self.published(group, plural);
        let fingerprint = custom::Fingerprint::of(definition);
        if published.is_some_and(|kind| kind.definition().is_some_and(|own| own.fingerprint == fingerprint)) {
            return Ok(self.clone());
        }
        let stored = published.map(|kind| &*kind.storage.version).or(stored);
        let kinds = custom::compile(definition, fingerprint, stored, &self.0.builtin)?;
        let mut by_resource = self.0.by_resource.clone();
        by_resource.retain(|resource, _| !(&*resource.group == group && &*resource.name == plural));
        by_resource.extend(kinds.into_iter().map(|kind| (kind.resource.clone(), Arc::new(kind))));
        Ok(self.replaced(by_resource, group))
    }

    /// Adds the kinds of another server to the built-in ones and replaces those that were added so before: the groups
    /// of its aggregated discovery (`apidiscovery.k8s.io/v2`, `APIGroupDiscoveryList`) that have no built-in kinds.
    /// Their Tables have the columns in `declared`, or name and age; their OpenAPI comes from `documents`.
    #[must_use]
    pub fn with_discovered(
        &self,
        discovery: &Value,
        declared: &DeclaredColumns,
        documents: Arc<dyn ForeignDocuments>,
    ) -> Self {
        let is_builtin = |group: &str| self.iter().any(|kind| !kind.custom && &*kind.resource.group == group);
        let mut by_resource = self.0.by_resource.clone();
        by_resource.retain(|_, kind| !kind.custom);
        for found in custom::discovered::resources(discovery, declared, &*documents, is_builtin) {
            let known = |kind: &&Arc<KindInfo>| {
                (&*kind.resource.group, &*kind.resource.name) == (&*found.group, &*found.plural)
                    && kind.definition().is_some_and(|own| own.fingerprint == found.fingerprint)
            };
            // Watches of a kind that did not change continue.
            let mut same: Vec<Arc<KindInfo>> = self.iter().filter(known).cloned().collect();
            if same.is_empty() {
                same = found.kinds(&self.0.builtin).into_iter().map(Arc::new).collect();
            }
            by_resource.extend(same.into_iter().map(|kind| (kind.resource.clone(), kind)));
        }
        let mut inner = Inner::new(self.0.builtin.clone(), by_resource);
        inner.keep_documents(&self.0, "");
        for (key, slot) in &mut inner.hashes {
            if !is_builtin(&key.0) {
                *slot = Arc::default();
            }
        }
        inner.foreign = Some(documents);
        Self(Arc::new(inner))
    }

    /// The OpenAPI document of a group and version of another server.
    pub(crate) fn foreign_document(&self, group: &str, version: &str) -> Option<Arc<[u8]>> {
        self.0.foreign.as_ref()?.document(group, version)
    }

    /// A kind that a definition published. Its versions are always published together.
    fn published(&self, group: &str, plural: &str) -> Option<&Arc<KindInfo>> {
        self.iter()
            .find(|kind| kind.custom && &*kind.resource.group == group && &*kind.resource.name == plural)
    }

    /// Whether both are the same instance.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Withdraws every version of a group's plural.
    #[must_use]
    pub fn without_group_resource(&self, group: &str, plural: &str) -> Self {
        let mut by_resource = self.0.by_resource.clone();
        by_resource.retain(|resource, _| !(&*resource.group == group && &*resource.name == plural));
        self.replaced(by_resource, group)
    }

    /// A built-in type by its name in the table of facts, for example `autoscaling.v1.Scale`.
    #[must_use]
    pub fn builtin_type(&self, name: &str) -> Option<Schema> {
        Some(Schema::new(self.0.builtin.clone(), self.0.builtin.named(name)?))
    }

    fn replaced(&self, by_resource: BTreeMap<Resource, Arc<KindInfo>>, group: &str) -> Self {
        let mut inner = Inner::new(self.0.builtin.clone(), by_resource);
        inner.keep_documents(&self.0, group);
        Self(Arc::new(inner))
    }

    /// The hash of a document, computed by `make` at most once; `None` when the group and version are not served.
    pub(crate) fn document_hash(
        &self,
        group: &str,
        version: &str,
        make: impl FnOnce() -> String,
    ) -> Option<String> {
        let slot = self.0.hashes.get(&(group.into(), version.into()))?;
        Some(slot.get_or_init(make).clone())
    }

    /// The part of the OpenAPI 2.0 document for the built-in kinds.
    pub(crate) fn swagger(&self) -> &LazyPart {
        &self.0.swagger
    }

    pub(crate) fn builtin_types(&self) -> &Arc<Types> {
        &self.0.builtin
    }
}

/// The kind of the `scale` subresource, whatever object it is a view of.
pub(crate) fn scale() -> &'static KindInfo {
    static SCALE: LazyLock<KindInfo> = LazyLock::new(|| {
        let types = Arc::new(facts::load().types);
        let node = types.named("autoscaling.v1.Scale").expect("the table of facts has the Scale");
        without_resource("autoscaling", "v1", "Scale", Schema::new(types, node))
    });
    &SCALE
}

/// A kind whose objects are not stored.
fn without_resource(group: &str, version: &str, kind: &str, schema: Schema) -> KindInfo {
    let singular = kind.to_lowercase();
    let resource = Resource::new(group, version, &format!("{singular}s"));
    KindInfo {
        storage: resource.clone(),
        kind: kind.into(),
        list_kind: format!("{kind}List").into(),
        singular: singular.into(),
        namespaced: true,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: Vec::new(),
        subresources: Vec::new(),
        scale: None,
        custom: false,
        rules: Arc::default(),
        schema,
        columns: columns::columns(group, kind),
        strategy: &NoStrategy,
        definition: None,
        resource,
    }
}

fn builtin(fact: &KindFact, types: &Arc<Types>, rules: &Table, strategy: &'static dyn Strategy) -> KindInfo {
    let resource = Resource::new(fact.group, fact.version, fact.plural);
    let storage = match (fact.group, fact.plural) {
        ("events.k8s.io", "events") => Resource::new("", "v1", "events"),
        ("autoscaling", plural) => Resource::new("autoscaling", "v2", plural),
        _ => resource.clone(),
    };
    let texts = |list: &[&'static str]| list.iter().map(|text| Arc::from(*text)).collect();
    let subresources = fact.subresources.iter().map(|sub| SubresourceInfo {
        name: sub.name.into(),
        group: sub.group.into(),
        version: sub.version.into(),
        kind: sub.kind.into(),
        verbs: texts(&sub.verbs),
    });
    let group_version = match fact.group {
        "" => fact.version.to_owned(),
        group => format!("{group}/{}", fact.version),
    };
    let names: Vec<&str> = fact.subresources.iter().map(|sub| sub.name).collect();
    let scales = fact.subresources.iter().any(|sub| sub.name == "scale");
    KindInfo {
        storage,
        kind: fact.kind.into(),
        list_kind: format!("{}List", fact.kind).into(),
        singular: fact.singular.into(),
        namespaced: fact.namespaced,
        short_names: texts(&fact.short_names),
        categories: texts(&fact.categories),
        verbs: texts(&fact.verbs),
        subresources: subresources.collect(),
        scale: scales.then(|| ScalePaths {
            spec_replicas: "spec.replicas".into(),
            status_replicas: "status.replicas".into(),
            label_selector: None,
        }),
        custom: false,
        rules: rules.rules(&group_version, fact.plural, &names),
        schema: Schema::new(types.clone(), fact.node),
        columns: columns::columns(fact.group, fact.kind),
        strategy,
        definition: None,
        resource,
    }
}

/// The name in the table of facts of a type without its own resource, for example `policy.v1.Eviction`.
pub(crate) fn type_name(group: &str, version: &str, kind: &str) -> String {
    let package = match group.split('.').next().unwrap_or_default() {
        "" => "core",
        package => package,
    };
    format!("{package}.{version}.{kind}")
}
