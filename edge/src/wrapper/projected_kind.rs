//! The kinds that the wrapper shows.

use tombolo_grid::Carrier;
use tombolo_proto::object::Resource;

/// One kind that the wrapper shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProjectedKind {
    Nodes,
    Services,
    EndpointSlices,
    Endpoints,
    ServiceCidrs,
    Namespaces,
}

impl ProjectedKind {
    /// All of them; parts that others depend on come first.
    pub(super) const ALL: [Self; 6] = [
        Self::Nodes,
        Self::Services,
        Self::EndpointSlices,
        Self::Endpoints,
        Self::ServiceCidrs,
        Self::Namespaces,
    ];

    pub(super) fn of(resource: &Resource) -> Option<Self> {
        let same = |part: &Self| part.names() == (&*resource.group, &*resource.version, &*resource.name);
        Self::ALL.into_iter().find(same)
    }

    pub(super) fn resource(self) -> Resource {
        let (group, version, name) = self.names();
        Resource::new(group, version, name)
    }

    /// Group, version and plural.
    pub(super) fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Nodes => ("", "v1", "nodes"),
            Self::Services => ("", "v1", "services"),
            Self::EndpointSlices => ("discovery.k8s.io", "v1", "endpointslices"),
            Self::Endpoints => ("", "v1", "endpoints"),
            Self::ServiceCidrs => ("networking.k8s.io", "v1", "servicecidrs"),
            Self::Namespaces => ("", "v1", "namespaces"),
        }
    }

    /// The parts that must be known before this part can be shown.
    pub(super) fn needs(self) -> &'static [Self] {
        match self {
            Self::EndpointSlices => &[Self::Nodes, Self::Services, Self::EndpointSlices],
            Self::Endpoints => &[Self::Nodes, Self::Services, Self::Endpoints],
            Self::Nodes => &[Self::Nodes],
            Self::Services => &[Self::Services],
            Self::ServiceCidrs => &[Self::ServiceCidrs],
            Self::Namespaces => &[Self::Namespaces],
        }
    }

    /// The form in which it contains the endpoints of a Service, if it does.
    pub(super) fn carrier(self) -> Option<Carrier> {
        match self {
            Self::EndpointSlices => Some(Carrier::EndpointSlice),
            Self::Endpoints => Some(Carrier::Endpoints),
            _ => None,
        }
    }

    /// Whether it is read only after a client has requested it: few programs still read Endpoints.
    pub(super) fn is_on_demand(self) -> bool {
        self == Self::Endpoints
    }

    /// Index in [`Self::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::ProjectedKind;

    #[test]
    fn every_part_is_found_by_its_resource() {
        for (index, part) in ProjectedKind::ALL.into_iter().enumerate() {
            assert_eq!((ProjectedKind::of(&part.resource()), part.index()), (Some(part), index));
            assert!(part.needs().contains(&part));
        }
    }
}
