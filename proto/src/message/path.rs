//! Resource paths: what a message is about (docs/reference/kubeedge.md#resource-paths).

use std::fmt;

use super::words::ResourceType;
use crate::error::IdError;
use crate::ids::NodeId;
use crate::limits;

/// Segment before the name of a node.
const NODE: &str = "node";

/// Namespace segment of cluster-scoped objects.
const CLUSTER: &str = "null";

/// The type of which KubeEdge edges create objects without a name.
const UNNAMED: &str = "certificatesigningrequest";

/// Group and version segments of node tasks v1alpha2.
const TASK_GROUP: [&str; 2] = ["operations.kubeedge.io", "v1alpha2"];

/// `route.resource` as on the wire. A path always prints the text that it was read from. KubeEdge's cloudcore puts
/// `node/<node>/` before it inside the cloud; here a connection belongs to one node, and no path names it.
///
/// The set is open: a path of no known shape reads as `Other`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ResourcePath {
    /// No resource was given.
    Unset,
    /// `<namespace>/<type>[/<name>]`.
    Object(ObjectPath),
    /// `k8s/ca.crt`: the cluster's CA bundle.
    CaCertificate,
    /// `node`: resource of a keepalive.
    Keepalive,
    /// `null`: resource of a MetaServer request.
    Null,
    /// `ignore/Application/ignore`: answer to a MetaServer request.
    ApplicationReply,
    /// `watchapp/sync`: MetaServer subscriptions after a reconnect.
    WatchSync,
    /// `membership`: devices of the node, from the cloud.
    Membership,
    /// `membership/detail`: devices of the node, requested by the edge.
    MembershipDetail,
    /// `twin`: device twins of the node.
    Twin,
    /// `twin/cloud_updated`: a device twin changed in the cloud.
    TwinCloudUpdated,
    /// `operations.kubeedge.io/v1alpha2/<job type>/<job>/node/<node>`: a node task; never trimmed.
    NodeTask {
        /// Kind of job.
        job_type: Box<str>,
        /// Name of the job.
        job: Box<str>,
        /// The node that the task runs on.
        node: NodeId,
    },
    /// `task/<task>/node/<node>`: a node task v1alpha1.
    LegacyTask {
        /// Identity of the task.
        task: Box<str>,
        /// The node that the task runs on.
        node: NodeId,
    },
    /// Anything else, for example a topic or `port:path` of the router.
    Other(Box<str>),
}

/// `<namespace>/<type>[/<name>]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectPath {
    /// Namespace; `None` for cluster-scoped objects, whose segment is `null`.
    pub namespace: Option<Box<str>>,
    /// Type of the object.
    pub resource_type: ResourceType,
    /// Name; `None` for a whole set, for example `podlist`; empty when the API server is to choose one.
    pub name: Option<Box<str>>,
}

impl ObjectPath {
    /// Path of one object; an empty `namespace` is a cluster-scoped one.
    #[must_use]
    pub fn new(namespace: &str, resource_type: ResourceType, name: &str) -> Self {
        let namespace = (!namespace.is_empty()).then(|| namespace.into());
        Self { namespace, resource_type, name: Some(name.into()) }
    }

    /// The namespace; empty for cluster-scoped objects, as in [`crate::object::ObjectKey::namespace`].
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

impl From<ObjectPath> for ResourcePath {
    fn from(object: ObjectPath) -> Self {
        Self::Object(object)
    }
}

impl ResourcePath {
    /// Parses the wire spelling, in either direction.
    ///
    /// # Errors
    /// [`IdError`] when the path is longer than [`limits::RESOURCE_LEN_MAX`] or has control characters.
    pub fn parse_wire(text: &str) -> Result<Self, IdError> {
        check_text(text)?;
        Ok(Self::parse(text))
    }

    /// The wire spelling.
    #[must_use]
    pub fn to_wire(&self) -> String {
        self.to_string()
    }

    /// The object that the path names, when it has that shape.
    #[must_use]
    pub fn as_object(&self) -> Option<&ObjectPath> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    fn parse(text: &str) -> Self {
        let other = || Self::Other(text.into());
        let mut parts = [""; 7];
        let mut count = 0;
        for part in text.split('/') {
            let Some(slot) = parts.get_mut(count) else { return other() };
            *slot = part;
            count += 1;
        }
        match parts.get(..count).unwrap_or_default() {
            [""] => Self::Unset,
            [NODE] => Self::Keepalive,
            [CLUSTER] => Self::Null,
            ["membership"] => Self::Membership,
            ["twin"] => Self::Twin,
            ["k8s", "ca.crt"] => Self::CaCertificate,
            ["watchapp", "sync"] => Self::WatchSync,
            ["membership", "detail"] => Self::MembershipDetail,
            ["twin", "cloud_updated"] => Self::TwinCloudUpdated,
            ["ignore", "Application", "ignore"] => Self::ApplicationReply,
            // Two segments after `node` are a prefix without a path or a notice inside the edge, not an object.
            [NODE, _] => other(),
            ["task", task, NODE, node] => NodeId::parse(node)
                .map_or_else(|_| other(), |node| Self::LegacyTask { task: (*task).into(), node }),
            [group, version, job_type, job, NODE, node] if [*group, *version] == TASK_GROUP => {
                NodeId::parse(node).map_or_else(
                    |_| other(),
                    |node| Self::NodeTask { job_type: (*job_type).into(), job: (*job).into(), node },
                )
            }
            [namespace, kind] if all_present(&[namespace, kind]) => {
                Self::Object(object_path(namespace, kind, None))
            }
            // A KubeEdge edge lets the API server name its signing requests, and leaves the name segment empty.
            [namespace, UNNAMED, ""] if all_present(&[namespace]) => {
                Self::Object(object_path(namespace, UNNAMED, Some("")))
            }
            [namespace, kind, name] if all_present(&[namespace, kind, name]) => {
                Self::Object(object_path(namespace, kind, Some(name)))
            }
            _ => other(),
        }
    }
}

fn check_text(text: &str) -> Result<(), IdError> {
    if text.len() > limits::RESOURCE_LEN_MAX || text.chars().any(char::is_control) {
        return Err(IdError::new("resource path", text, "must be at most 2048 printable bytes"));
    }
    Ok(())
}

fn all_present(parts: &[&str]) -> bool {
    parts.iter().all(|part| !part.is_empty())
}

fn object_path(namespace: &str, kind: &str, name: Option<&str>) -> ObjectPath {
    ObjectPath {
        namespace: (namespace != CLUSTER).then(|| namespace.into()),
        resource_type: ResourceType::parse(kind),
        name: name.map(Into::into),
    }
}

impl fmt::Display for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Object(object) => object.fmt(f),
            Self::CaCertificate => f.write_str("k8s/ca.crt"),
            Self::Keepalive => f.write_str(NODE),
            Self::Null => f.write_str(CLUSTER),
            Self::ApplicationReply => f.write_str("ignore/Application/ignore"),
            Self::WatchSync => f.write_str("watchapp/sync"),
            Self::Membership => f.write_str("membership"),
            Self::MembershipDetail => f.write_str("membership/detail"),
            Self::Twin => f.write_str("twin"),
            Self::TwinCloudUpdated => f.write_str("twin/cloud_updated"),
            Self::NodeTask { job_type, job, node } => {
                let [group, version] = TASK_GROUP;
                write!(f, "{group}/{version}/{job_type}/{job}/{NODE}/{node}")
            }
            Self::LegacyTask { task, node } => write!(f, "task/{task}/{NODE}/{node}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_deref().unwrap_or(CLUSTER);
        write!(f, "{namespace}/{}", self.resource_type)?;
        match &self.name {
            Some(name) => write!(f, "/{name}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
