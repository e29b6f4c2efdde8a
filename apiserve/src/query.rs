//! From a method, a path and parameters to a typed request.

pub mod params;
pub mod path;

use http::Method;

use crate::auth::{Attributes, Identity};
use crate::selector::field::FieldSelector;

use params::Params;
use path::{ResourcePath, Target};

#[cfg(test)]
mod tests;

/// A request as far as it can be understood without its body.
#[derive(Debug, Clone)]
pub struct Query {
    /// What the path names.
    pub target: Target,
    /// Kubernetes verb of the request.
    pub verb: &'static str,
    /// Parameters.
    pub params: Params,
    /// Path, percent-decoded.
    pub path: String,
}

impl Query {
    /// Reads method, path and parameters. Never fails: what is not a resource is some other path.
    #[must_use]
    pub fn parse(method: &Method, path: &str, query: &str) -> Self {
        let params = Params::parse(query);
        let path = path::decode(path);
        let target = path::target(&path);
        let verb = match &target {
            Target::Resource(resource) => resource_verb(method, resource, &params),
            Target::Other => plain_verb(method),
        };
        Self { target, verb, params, path }
    }

    /// The request as authorizers see it.
    #[must_use]
    pub fn attributes(&self, identity: Identity) -> Attributes {
        let field_selector = self.params.first("fieldSelector").unwrap_or_default().to_owned();
        let mut attributes = Attributes {
            identity,
            verb: self.verb.to_owned(),
            path: self.path.clone(),
            label_selector: self.params.first("labelSelector").unwrap_or_default().to_owned(),
            ..Attributes::default()
        };
        if let Target::Resource(path) = &self.target {
            attributes.is_resource = true;
            attributes.group.clone_from(&path.group);
            attributes.version.clone_from(&path.version);
            attributes.resource.clone_from(&path.resource);
            attributes.subresource = path.subresource.clone().unwrap_or_default();
            attributes.namespace = path.namespace.clone().unwrap_or_default();
            attributes.name = path.name.clone().or_else(|| fixed_name(&field_selector)).unwrap_or_default();
            if path.resource == "namespaces" && path.group.is_empty() {
                // As the real server has it: roles inside a namespace may speak about the namespace itself.
                attributes.namespace.clone_from(&attributes.name);
            }
        }
        attributes.field_selector = field_selector;
        attributes
    }
}

fn fixed_name(field_selector: &str) -> Option<String> {
    let selector = FieldSelector::parse(field_selector).ok()?;
    selector.fixed("metadata.name").filter(|name| !name.is_empty()).map(str::to_owned)
}

fn resource_verb(method: &Method, path: &ResourcePath, params: &Params) -> &'static str {
    let named = path.name.as_deref().is_some_and(|name| !name.is_empty());
    match *method {
        Method::GET | Method::HEAD if path.watch || (!named && params.flag("watch")) => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => plain_verb(method),
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
