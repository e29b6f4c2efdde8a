//! Paths of the Kubernetes API.

use percent_encoding::percent_decode_str;

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Objects of a resource.
    Resource(ResourcePath),
    /// A path that ends after a verb, such as `/api/v1/watch`, without a target.
    Incomplete,
    /// Something else: discovery, health, version.
    Other,
}

/// Verbs that a path may begin with, for any method. Nothing is served below `proxy` any more.
pub const PATH_VERBS: [&str; 2] = ["watch", "proxy"];

/// A path below a group version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourcePath {
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, if the path has one. It may be empty, which means all namespaces.
    pub namespace: Option<String>,
    /// Plural resource name.
    pub resource: String,
    /// Object name, if the path has one. It may be empty, which matches no object.
    pub name: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
    /// Whether there are parts after the subresource, which no resource here has.
    pub excess: bool,
    /// The verb in the path, in an old form like `/api/v1/watch/...`: one of [`PATH_VERBS`].
    pub verb: Option<&'static str>,
}

impl ResourcePath {
    /// The single namespace of the path; none when it means all of them.
    #[must_use]
    pub fn one_namespace(&self) -> Option<&str> {
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }
}

/// Percent-decodes a path. Invalid UTF-8 becomes replacement characters, which no name contains.
#[must_use]
pub fn decode(path: &str) -> String {
    percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// The target of a decoded path. Trailing slashes are ignored; slashes within it separate parts that may be empty.
#[must_use]
pub fn target(path: &str) -> Target {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).trim_end_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Target::Other,
    };
    let verb = PATH_VERBS.into_iter().find(|verb| rest.first() == Some(verb));
    let rest = rest.get(usize::from(verb.is_some())..).unwrap_or_default();
    if rest.is_empty() {
        return Target::Incomplete;
    }
    let (namespace, rest) = match rest {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize", ..] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let part = |index: usize| rest.get(index).map(|part| (*part).to_owned());
    // The path after a name is interpreted by the proxied server.
    let subresource = part(2).filter(|_| verb != Some("proxy"));
    Target::Resource(ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        resource: part(0).unwrap_or_default(),
        name: part(1),
        subresource,
        excess: rest.len() > 3,
        verb,
    })
}
