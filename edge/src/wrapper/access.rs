//! Authorization and the log of requests.

use futures::future::BoxFuture;
use tombolo_apicore::auth::{Attributes, Authorizer, Decision, Observation, Observer};
use tombolo_proto::object::Resource;
use tracing::debug;

use super::projected_kind::ProjectedKind;

/// Every client of the wrapper may read what it shows, and report events.
pub(super) struct WrapperAuthorizer;

/// Whether a resource is that of events, in either group.
pub(super) fn is_events(resource: &Resource) -> bool {
    &*resource.name == "events" && matches!(&*resource.group, "" | "events.k8s.io")
}

impl Authorizer for WrapperAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision> {
        Box::pin(std::future::ready(decide(attributes)))
    }
}

fn decide(attributes: &Attributes) -> Decision {
    let verb = attributes.verb.as_str();
    let reads = matches!(verb, "get" | "list" | "watch" | "head" | "options");
    if !attributes.is_resource {
        return if reads { Decision::Allow } else { refused() };
    }
    let resource = Resource::new(&attributes.group, &attributes.version, &attributes.resource);
    let allowed = match ProjectedKind::of(&resource) {
        Some(_) => reads,
        None => is_events(&resource) && matches!(verb, "create" | "patch"),
    };
    if allowed { Decision::Allow } else { refused() }
}

fn refused() -> Decision {
    let why = "the wrapper serves Services, endpoints and nodes, and accepts events: use the local API of this node";
    Decision::Deny(why.to_owned())
}

/// Writes requests into the log.
pub(super) struct Logger;

impl Observer for Logger {
    fn observe(&self, observation: &Observation<'_>) {
        let Observation { attributes, code, duration } = observation;
        let Attributes { verb, path, field_selector, label_selector, .. } = attributes;
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        debug!(verb, path, field_selector, label_selector, code, micros, "answered by the wrapper");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_are_accepted_as_writes() {
        for (group, version, resource, verb, allowed) in [
            ("", "v1", "services", "list", true),
            ("discovery.k8s.io", "v1", "endpointslices", "watch", true),
            ("networking.k8s.io", "v1", "servicecidrs", "list", true),
            ("", "v1", "nodes", "get", true),
            ("", "v1", "nodes", "patch", false),
            ("", "v1", "services", "delete", false),
            ("", "v1", "events", "create", true),
            ("events.k8s.io", "v1", "events", "create", true),
            ("events.k8s.io", "v1", "events", "patch", true),
            ("", "v1", "events", "list", false),
            ("", "v1", "events", "deletecollection", false),
            ("", "v1", "secrets", "get", false),
            ("", "v1", "pods", "list", false),
        ] {
            let attributes = Attributes {
                verb: verb.to_owned(),
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                is_resource: true,
                ..Attributes::default()
            };
            assert_eq!(decide(&attributes) == Decision::Allow, allowed, "{verb} {resource}");
        }
        let path = |verb: &str| Attributes { verb: verb.to_owned(), ..Attributes::default() };
        assert_eq!(decide(&path("get")), Decision::Allow);
        assert_ne!(decide(&path("post")), Decision::Allow);
    }
}
