//! The two kinds that carry the endpoints of a Service, and the objects that they refer to.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::body::{BodyError, ObjectMetadata, or_default, present, view};

/// Label of an EndpointSlice: its Service. The slice's name does not determine it.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A kind that carries endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// `discovery.k8s.io/v1`: what kube-proxy reads.
    EndpointSlice,
    /// `v1`: what older programs read.
    Endpoints,
}

/// Namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ServiceName {
    /// Creates a Service name.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The references of an object with endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its Service; none for slices without the label, which no client uses.
    pub service: Option<ServiceName>,
    /// Names of the nodes that its endpoints are on, sorted.
    pub nodes: Box<[Box<str>]>,
}

impl Link {
    /// Reads an object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object.
    pub fn of(carrier: Carrier, body: &[u8]) -> Result<Self, BodyError> {
        let metadata = ObjectMetadata::of(body)?;
        let mut nodes = Vec::new();
        for list in lists(carrier, body)? {
            for endpoint in items(list)? {
                nodes.extend(node_of(endpoint)?.map(|node| Box::from(&*node)));
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Self { service: service_of(carrier, &metadata), nodes: nodes.into() })
    }

    /// Whether an endpoint is on a node.
    #[must_use]
    pub fn mentions(&self, node: &str) -> bool {
        self.nodes.binary_search_by(|own| (**own).cmp(node)).is_ok()
    }
}

/// The Service of an object: from the label of a slice, or the name of Endpoints.
#[must_use]
pub fn service_of(carrier: Carrier, metadata: &ObjectMetadata) -> Option<ServiceName> {
    let name = match carrier {
        Carrier::EndpointSlice => metadata.labels.get(SERVICE_NAME)?,
        Carrier::Endpoints => &metadata.name,
    };
    Some(ServiceName::new(&metadata.namespace, name))
}

/// The lists of endpoints in an object, as parts of its text.
pub(crate) fn lists(carrier: Carrier, body: &[u8]) -> Result<Vec<&RawValue>, BodyError> {
    #[derive(Deserialize)]
    struct EndpointsView<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        endpoints: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow, default, deserialize_with = "or_default")]
        subsets: Vec<Subset<'a>>,
    }
    #[derive(Deserialize)]
    struct Subset<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        addresses: Option<&'a RawValue>,
        #[serde(borrow, default, rename = "notReadyAddresses", deserialize_with = "present")]
        not_ready_addresses: Option<&'a RawValue>,
    }
    Ok(match carrier {
        Carrier::EndpointSlice => view::<EndpointsView<'_>>(body)?.endpoints.into_iter().collect(),
        Carrier::Endpoints => {
            let subsets = view::<Whole<'_>>(body)?.subsets;
            subsets
                .into_iter()
                .flat_map(|subset| [subset.addresses, subset.not_ready_addresses])
                .flatten()
                .collect()
        }
    })
}

/// The endpoints of one list, as parts of its text; null is an empty list.
pub(crate) fn items(list: &RawValue) -> Result<Vec<&RawValue>, BodyError> {
    let items: Option<Vec<&RawValue>> = serde_json::from_str(list.get())?;
    Ok(items.unwrap_or_default())
}

/// The node that an endpoint is on.
pub(crate) fn node_of(endpoint: &RawValue) -> Result<Option<Cow<'_, str>>, BodyError> {
    #[derive(Deserialize)]
    struct Placed<'a> {
        #[serde(borrow, default, rename = "nodeName", deserialize_with = "or_default")]
        node_name: Text<'a>,
    }
    #[derive(Deserialize, Default)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let placed: Placed<'_> = view(endpoint.get().as_bytes())?;
    Ok(Some(placed.node_name.0).filter(|name| !name.is_empty()))
}
