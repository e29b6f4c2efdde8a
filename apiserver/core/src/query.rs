//! Parses a method, a path and parameters to a typed request.

pub mod options;
pub mod params;
pub mod path;

use http::Method;

use crate::auth::{Attributes, Identity};
use crate::names::path_segment;
use crate::selector::field::FieldSelector;
use crate::selector::label::LabelSelector;

use params::Params;
use path::{ResourcePath, Target};

#[cfg(test)]
mod tests;

/// Verbs that select objects: field and label selectors apply to these and no others.
const SELECTING_VERBS: [&str; 3] = ["list", "watch", "deletecollection"];

/// A request, as far as it can be interpreted without its body.
#[derive(Debug, Clone)]
pub struct Query {
    /// The target of the path.
    pub target: Target,
    /// Kubernetes verb of the request.
    pub verb: &'static str,
    /// Parameters.
    pub params: Params,
    /// Path, percent-decoded.
    pub path: String,
}

impl Query {
    /// Parses method, path and parameters. Never fails: a path that is not a resource is another target.
    #[must_use]
    pub fn parse(method: &Method, path: &str, query: &str) -> Self {
        let params = Params::parse(query);
        let path = path::decode(path);
        let target = path::target(&path);
        let verb = match &target {
            Target::Resource(resource) => resource_verb(method, resource, &params),
            Target::Other | Target::Incomplete => plain_verb(method),
        };
        Self { target, verb, params, path }
    }

    /// The request attributes for authorizers.
    #[must_use]
    pub fn attributes(&self, identity: Identity) -> Attributes {
        let verb = self.verb.to_owned();
        let mut attributes = Attributes { identity, verb, path: self.path.clone(), ..Attributes::default() };
        if let Target::Resource(path) = &self.target {
            attributes.is_resource = true;
            attributes.group.clone_from(&path.group);
            attributes.version.clone_from(&path.version);
            attributes.resource.clone_from(&path.resource);
            attributes.subresource = path.subresource.clone().unwrap_or_default();
            // As in kube-apiserver: roles inside a namespace may grant access to the namespace itself.
            let itself = || path.name.clone().filter(|_| path.resource == "namespaces");
            attributes.namespace = path.namespace.clone().or_else(itself).unwrap_or_default();
            attributes.name = path.name.clone().unwrap_or_default();
            self.select(path, &mut attributes);
        }
        attributes
    }

    /// Adds the selectors of requests that select objects. Other requests have none: a selector without effect must not
    /// change who may make the request. A watch with the verb in its path is authorized without selectors.
    fn select(&self, path: &ResourcePath, attributes: &mut Attributes) {
        if path.verb.is_some() || !SELECTING_VERBS.contains(&self.verb) {
            return;
        }
        attributes.field_selector = self.params.first("fieldSelector").unwrap_or_default().to_owned();
        attributes.label_selector = self.params.first("labelSelector").unwrap_or_default().to_owned();
        if attributes.name.is_empty() && self.verb != "deletecollection" {
            attributes.name = self.selected_name().unwrap_or_default();
        }
    }

    /// The only name that a list or watch can match, if all its parameters are valid.
    fn selected_name(&self) -> Option<String> {
        for number in ["limit", "timeoutSeconds"] {
            self.params.number(number).ok()?;
        }
        LabelSelector::parse(self.params.first("labelSelector").unwrap_or_default()).ok()?;
        let fields = FieldSelector::parse(self.params.first("fieldSelector").unwrap_or_default()).ok()?;
        let name = fields.fixed("metadata.name")?;
        path_segment(name).is_none().then(|| name.to_owned())
    }
}

fn resource_verb(method: &Method, path: &ResourcePath, params: &Params) -> &'static str {
    // For any method: a path with a verb cannot be used to write.
    if let Some(verb) = path.verb {
        return verb;
    }
    let named = path.name.as_deref().is_some_and(|name| !name.is_empty());
    match *method {
        Method::GET | Method::HEAD if !named && params.flag("watch") => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        // Other methods are allowed only by rules for all verbs.
        _ => "",
    }
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}
