//! Behavior of a kind that its type does not express: the strategies of kube-apiserver as data (`data/rules.txt`).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::value::{at, object};

#[cfg(test)]
mod tests;

const TABLE: &str = include_str!("../../data/rules.txt");

/// Which changes of an object increase `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// The kind has no generation.
    #[default]
    Never,
    /// Changes outside of metadata and status.
    Spec,
    /// As [`Self::Spec`], and changes of the annotations.
    SpecAndAnnotations,
    /// As [`Self::Spec`], and changes of the labels.
    SpecAndLabels,
    /// As [`Self::Spec`], but a new object has no generation yet.
    SpecFromZero,
    /// No changes: it stays 1.
    Fixed,
}

/// Behavior of a kind beyond storing objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// A PUT of an object that does not exist creates it.
    pub creates_on_update: bool,
    /// A PUT must name the resource version that it replaces.
    pub conditional_update: bool,
    /// A completed deletion is answered with the object instead of a Status.
    pub deleted_object: bool,
    /// Dependents are orphaned when the owner is deleted, unless the request says otherwise.
    pub orphans_by_default: bool,
    /// The creator of an object also writes its status (a kubelet registers its node with it).
    pub keeps_status: bool,
    /// Which changes increase the generation.
    pub generation: Generation,
    /// Fields that selectors may name, besides name and namespace.
    pub selectable: Vec<Selectable>,
    /// The warning in every answer about the kind.
    pub deprecated: Option<Box<str>>,
    /// The message about a field that is not selectable, with `{}` for the field; none for the default message.
    pub unselectable: Option<Box<str>>,
    /// Rules of the endpoints that write objects; the object itself has the empty name.
    pub endpoints: Vec<EndpointRules>,
}

/// A field that field selectors may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selectable {
    /// Name in selectors.
    pub name: Box<str>,
    /// Path of its value.
    pub path: FieldPath,
}

/// What writes through one endpoint may change and own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointRules {
    /// Subresource; empty for the object itself.
    pub subresource: Box<str>,
    /// Fields that a writer can own through this endpoint. kube-apiserver calls the others reset fields.
    pub owned: Fields,
    /// Fields that an update takes from the request; the others keep their stored values.
    pub written: Fields,
}

/// Some fields of an object, each with everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fields {
    /// Every field.
    #[default]
    All,
    /// Every field except these.
    But(Vec<FieldPath>),
    /// Only these fields.
    Only(Vec<FieldPath>),
}

/// The path of a field, as a list of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Box<[Box<str>]>);

impl FieldPath {
    /// Parses names that are joined with dots.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.split('.').map(Box::from).collect())
    }

    /// The names, outermost first.
    #[must_use]
    pub fn names(&self) -> &[Box<str>] {
        &self.0
    }

    /// The value at the path; null when there is none.
    #[must_use]
    pub fn get<'a>(&self, object: &'a Value) -> &'a Value {
        let names: Vec<&str> = self.0.iter().map(AsRef::as_ref).collect();
        at(object, &names)
    }

    /// Copies the field from `from` to `to`, also its absence.
    pub fn copy(&self, from: &Value, to: &mut Value) {
        let Some((last, outer)) = self.0.split_last() else { return };
        let value = self.get(from);
        if value.is_null() {
            let parent = outer.iter().try_fold(to, |to, name| to.get_mut(&**name));
            if let Some(Value::Object(parent)) = parent {
                parent.remove(&**last);
            }
            return;
        }
        let parent = outer
            .iter()
            .fold(to, |to, name| object(to).entry(&**name).or_insert_with(|| Value::Object(Map::new())));
        object(parent).insert(last.to_string(), value.clone());
    }
}

impl Rules {
    /// Default rules of a kind.
    ///
    /// A status has its own endpoint: the endpoint of the object does not write the status, and that of the status does
    /// not write the spec.
    fn usual(subresources: &[&str]) -> Self {
        let status = || vec![FieldPath::parse("status")];
        let mut endpoints = vec![EndpointRules::default()];
        if subresources.contains(&"status") {
            endpoints[0].owned = Fields::But(status());
            endpoints[0].written = Fields::But(status());
            let fields = Fields::But(vec![FieldPath::parse("spec")]);
            endpoints.push(EndpointRules {
                subresource: "status".into(),
                owned: fields.clone(),
                written: fields,
            });
        }
        Self { endpoints, ..Self::default() }
    }

    /// Rules of custom resources. Their selectable fields come from the definition.
    #[must_use]
    pub fn custom(subresources: &[&str]) -> Self {
        let mut rules = Self {
            conditional_update: true,
            generation: Generation::Spec,
            unselectable: Some("field label not supported: {}".into()),
            ..Self::usual(subresources)
        };
        if let Some(status) = rules.endpoints.iter_mut().find(|endpoint| &*endpoint.subresource == "status") {
            status.owned = Fields::Only(vec![FieldPath::parse("status")]);
            status.written = status.owned.clone();
        }
        rules
    }

    /// Rules of writes through an endpoint; unknown endpoints allow everything.
    #[must_use]
    pub fn endpoint(&self, subresource: &str) -> Option<&EndpointRules> {
        self.endpoints.iter().find(|endpoint| &*endpoint.subresource == subresource)
    }

    fn endpoint_mut(&mut self, subresource: &str) -> &mut EndpointRules {
        let known = self.endpoints.iter().position(|endpoint| &*endpoint.subresource == subresource);
        let index = known.unwrap_or_else(|| {
            self.endpoints
                .push(EndpointRules { subresource: subresource.into(), ..EndpointRules::default() });
            self.endpoints.len() - 1
        });
        &mut self.endpoints[index]
    }

    /// Reads one fact. `None` when it is invalid, which the test of the table finds.
    fn read(&mut self, subresource: &str, fact: &str) -> Option<()> {
        let (name, value) = fact.split_once(' ').unwrap_or((fact, ""));
        match name {
            "creates_on_update" => self.creates_on_update = true,
            "conditional_update" => self.conditional_update = true,
            "deleted_object" => self.deleted_object = true,
            "orphans_by_default" => self.orphans_by_default = true,
            "keeps_status" => self.keeps_status = true,
            "generation" => {
                self.generation = match value {
                    "spec" => Generation::Spec,
                    "spec+annotations" => Generation::SpecAndAnnotations,
                    "spec+labels" => Generation::SpecAndLabels,
                    "spec-from-0" => Generation::SpecFromZero,
                    "fixed" => Generation::Fixed,
                    _ => return None,
                }
            }
            "selectable" => {
                let (name, path) = value.split_once('=').unwrap_or((value, value));
                self.selectable.push(Selectable { name: name.into(), path: FieldPath::parse(path) });
            }
            "deprecated" => self.deprecated = Some(value.into()),
            "unselectable" => self.unselectable = Some(value.into()),
            "owned" => self.endpoint_mut(subresource).owned = Fields::read(value)?,
            "written" => self.endpoint_mut(subresource).written = Fields::read(value)?,
            _ => return None,
        }
        Some(())
    }
}

impl Fields {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (which, paths) = (words.next()?, words.map(FieldPath::parse).collect());
        match which {
            "all" => Some(Self::All),
            "but" => Some(Self::But(paths)),
            "only" => Some(Self::Only(paths)),
            _ => None,
        }
    }
}

/// The table, by group and version (as in `apiVersion`) and plural.
pub(crate) struct Table(HashMap<(&'static str, &'static str), Vec<SubresourceRule>>);

/// Subresource and fact.
type SubresourceRule = (&'static str, &'static str);

impl Table {
    /// Parses the table. A server does this once.
    pub(crate) fn load() -> Self {
        let mut by_kind: HashMap<_, Vec<SubresourceRule>> = HashMap::new();
        for line in TABLE.lines() {
            let mut words = line.splitn(4, ' ');
            let (Some("rule"), Some(version), Some(path), Some(fact)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let (plural, subresource) = path.split_once('/').unwrap_or((path, ""));
            by_kind.entry((version, plural)).or_default().push((subresource, fact));
        }
        Self(by_kind)
    }

    /// The rules of one built-in kind.
    pub(crate) fn rules(&self, api_version: &str, plural: &str, subresources: &[&str]) -> Arc<Rules> {
        let mut rules = Rules::usual(subresources);
        for (subresource, fact) in self.0.get(&(api_version, plural)).into_iter().flatten() {
            rules.read(subresource, fact);
        }
        Arc::new(rules)
    }
}
