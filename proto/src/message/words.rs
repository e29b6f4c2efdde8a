//! The keywords of a route: operations, resource types, sources and groups (docs/reference/kubeedge.md#messages).

use std::fmt;
use std::sync::Arc;

/// A keyword that this version does not know, kept so that the answer can name it.
///
/// Only the `parse` functions create one, so it never holds a known keyword.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnknownKeyword(Arc<str>);

impl UnknownKeyword {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The keyword as received.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UnknownKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

macro_rules! open_words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        ///
        /// The set is open: a keyword that is not listed reads as `Other`. Case is significant.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// Any other keyword.
            Other($crate::message::UnknownKeyword),
        }

        impl $name {
            /// Every keyword that this version knows.
            pub const KNOWN: &'static [Self] = &[$(Self::$variant,)+];

            /// Reads a keyword; never fails.
            #[must_use]
            pub fn parse(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    _ => Self::Other($crate::message::UnknownKeyword::new(text)),
                }
            }

            /// The keyword on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(word) => word.as_str(),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use open_words;

open_words! {
    /// What a message does or requests (docs/reference/kubeedge.md#operations).
    Operation {
        /// No operation was given.
        Unset = "",
        /// Create; first delivery of a watched object.
        Insert = "insert",
        /// Update.
        Update = "update",
        /// Delete.
        Delete = "delete",
        /// Read.
        Query = "query",
        /// Patch of a node, a pod or an event.
        Patch = "patch",
        /// Reply to a request, or acknowledgement.
        Response = "response",
        /// Error reply.
        Error = "error",
        /// Message of group `user` from the edge.
        Upload = "upload",
        /// Inside a KubeEdge edge: release a held pod upgrade.
        UnholdUpgrade = "unhold-upgrade",
        /// Heartbeat.
        Keepalive = "keepalive",
        /// Control message of a connection; no KubeEdge component sends it.
        Config = "config",
        /// Control message of a connection; no KubeEdge component sends it.
        Ping = "ping",
        /// Control message of a connection; no KubeEdge component sends it.
        Pong = "pong",
        /// Inside a KubeEdge edge: connection state.
        Connect = "connect",
        /// Inside a KubeEdge cloud: a node connected.
        Connected = "connected",
        /// Inside a KubeEdge cloud: a node disconnected; KubeEdge clouds may also write it to the edge.
        Disconnected = "disconnected",
        /// Event bus.
        Subscribe = "subscribe",
        /// Event bus.
        Unsubscribe = "unsubscribe",
        /// Event bus.
        Publish = "publish",
        /// Event bus.
        Message = "message",
        /// Event bus.
        GetResult = "get_result",
        /// Registration of a service bus listener.
        Start = "start",
        /// End of a service bus listener.
        Stop = "stop",
        /// Service bus call.
        HttpGet = "GET",
        /// Service bus call.
        HttpHead = "HEAD",
        /// Service bus call.
        HttpPost = "POST",
        /// Service bus call.
        HttpPut = "PUT",
        /// Service bus call.
        HttpPatch = "PATCH",
        /// Service bus call.
        HttpDelete = "DELETE",
        /// Service bus call.
        HttpOptions = "OPTIONS",
        /// Service bus call.
        HttpConnect = "CONNECT",
        /// Service bus call.
        HttpTrace = "TRACE",
        /// Device twin membership request.
        Get = "get",
        /// Request of the edge's MetaServer.
        Null = "null",
        /// Reply to a request of the edge's MetaServer.
        ApplicationResponse = "applicationResponse",
        /// CSI.
        CreateVolume = "createvolume",
        /// CSI.
        DeleteVolume = "deletevolume",
        /// CSI.
        ControllerPublishVolume = "controllerpublishvolume",
        /// CSI.
        ControllerUnpublishVolume = "controllerunpublishvolume",
        /// Node task v1alpha1.
        Upgrade = "upgrade",
        /// Node task v1alpha1.
        Prepull = "prepull",
        /// Node task v1alpha1.
        Rollback = "rollback",
        /// Node task v1alpha1.
        Backup = "backup",
        /// Report of a node task v1alpha2. Downstream the name of the action is the operation.
        UpdateNodeActionStatus = "UpdateNodeActionStatus",
        /// Defined by KubeEdge, but never sent.
        List = "list",
        /// Defined by KubeEdge, but never sent.
        Detail = "detail",
        /// Defined by KubeEdge, but never sent.
        Delta = "delta",
        /// Defined by KubeEdge, but never sent.
        Document = "document",
        /// Defined by KubeEdge, but never sent.
        Updated = "updated",
        /// Defined by KubeEdge, but never sent.
        Deleted = "deleted",
    }
}

impl Operation {
    /// Whether the operation is one of the four CSI operations, which are never acknowledged
    /// (docs/reference/kubeedge.md#acknowledged-deliveries).
    #[must_use]
    pub fn is_volume_operation(&self) -> bool {
        matches!(
            self,
            Self::CreateVolume
                | Self::DeleteVolume
                | Self::ControllerPublishVolume
                | Self::ControllerUnpublishVolume
        )
    }
}

open_words! {
    /// Type segment of a resource path (docs/reference/kubeedge.md#resource-types). `k8s/ca.crt` is not a type but a
    /// whole path, see [`ResourcePath::CaCertificate`](super::ResourcePath::CaCertificate).
    ResourceType {
        /// A Pod.
        Pod = "pod",
        /// An Event.
        Event = "event",
        /// A ConfigMap.
        ConfigMap = "configmap",
        /// A TokenRequest of a ServiceAccount.
        ServiceAccountToken = "serviceaccounttoken",
        /// A Secret.
        Secret = "secret",
        /// A Node.
        Node = "node",
        /// All pods of the node.
        PodList = "podlist",
        /// Status report of pods; deprecated.
        PodStatus = "podstatus",
        /// Strategic merge patch of a pod's status.
        PodPatch = "podpatch",
        /// Status report of a node; deprecated.
        NodeStatus = "nodestatus",
        /// Strategic merge patch of a node's status.
        NodePatch = "nodepatch",
        /// A router Rule.
        Rule = "rule",
        /// A router RuleEndpoint.
        RuleEndpoint = "ruleendpoint",
        /// Counters of a router Rule.
        RuleStatus = "rulestatus",
        /// A node's Lease.
        Lease = "lease",
        /// Permissions of a ServiceAccount at the edge.
        ServiceAccountAccess = "serviceaccountaccess",
        /// A CertificateSigningRequest.
        CertificateSigningRequest = "certificatesigningrequest",
        /// A Service.
        Service = "service",
        /// Endpoints of a Service.
        Endpoints = "endpoints",
        /// A PersistentVolume.
        PersistentVolume = "persistentvolume",
        /// A PersistentVolumeClaim.
        PersistentVolumeClaim = "persistentvolumeclaim",
        /// A VolumeAttachment.
        VolumeAttachment = "volumeattachment",
        /// A CSI volume.
        Volume = "volume",
        /// A Device.
        Device = "device",
        /// A DeviceModel.
        DeviceModel = "devicemodel",
        /// Device membership of a node.
        Membership = "membership",
        /// A device twin.
        Twin = "twin",
        /// Authentication data of a device.
        AuthInfo = "auth_info",
        /// A request of the edge's MetaServer.
        Application = "Application",
    }
}

open_words! {
    /// Module that a message comes from (docs/reference/kubeedge.md#sources-and-groups).
    Source {
        /// No source was given.
        Unset = "",
        /// Cloud: CA replies and connection notices.
        CloudHub = "cloudhub",
        /// Cloud: nearly all downstream messages.
        EdgeController = "edgecontroller",
        /// Cloud; uses the name `edgecontroller` on the wire.
        SyncController = "synccontroller",
        /// Cloud: watch events and MetaServer replies.
        DynamicController = "dynamiccontroller",
        /// Cloud.
        DeviceController = "devicecontroller",
        /// Cloud.
        PolicyController = "policycontroller",
        /// Cloud and edge: node tasks.
        TaskManager = "taskmanager",
        /// Cloud: node upgrades.
        NodeUpgradeJobController = "nodeupgradejobcontroller",
        /// Cloud.
        Router = "router",
        /// Cloud: router towards the event bus.
        RouterEventBus = "router_eventbus",
        /// Cloud: router towards the service bus.
        RouterServiceBus = "router_servicebus",
        /// Cloud.
        CloudStream = "cloudStream",
        /// Edge: keepalives and task reports, over either transport.
        WebSocket = "websocket",
        /// Edge.
        MetaManager = "metamanager",
        /// Edge: the kubelet.
        Edged = "edged",
        /// Edge.
        EventBus = "eventbus",
        /// Edge.
        ServiceBus = "servicebus",
        /// Edge: MQTT uploads.
        Bus = "bus",
        /// Edge: device twins.
        Twin = "twin",
        /// Edge: MetaServer requests.
        MetaServer = "metaserver",
        /// Edge: acknowledgements of inserted or deleted devices (docs/reference/kubeedge.md#devices-and-node-tasks).
        Meta = "meta",
        /// Inside a KubeEdge edge: connection notices.
        EdgeHub = "edgehub",
        /// Legacy cloud source.
        EdgeMgr = "edgemgr",
    }
}

open_words! {
    /// Group of modules that a message is for (docs/reference/kubeedge.md#sources-and-groups).
    Group {
        /// No group was given.
        Unset = "",
        /// Objects and reports about them.
        Resource = "resource",
        /// Accepted by KubeEdge edges as a synonym of `resource`.
        Func = "func",
        /// Device twins.
        Twin = "twin",
        /// Event bus and service bus.
        User = "user",
        /// Node tasks.
        TaskManager = "taskmanager",
        /// Inside a KubeEdge edge.
        Hub = "hub",
        /// Requests of the kubelet, also on the wire.
        Meta = "meta",
        /// Inside a KubeEdge edge.
        Bus = "bus",
        /// Inside a KubeEdge edge.
        Edged = "edged",
        /// Inside a KubeEdge edge.
        EdgeStream = "edgestream",
        /// Inside a KubeEdge cloud.
        CloudHub = "cloudhub",
        /// Inside a KubeEdge cloud.
        EdgeController = "edgecontroller",
        /// Inside a KubeEdge cloud.
        DynamicController = "dynamiccontroller",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_words_read_back_as_themselves() {
        assert!(Operation::KNOWN.iter().all(|word| Operation::parse(word.as_str()) == *word));
        assert!(ResourceType::KNOWN.iter().all(|word| ResourceType::parse(word.as_str()) == *word));
        assert!(Source::KNOWN.iter().all(|word| Source::parse(word.as_str()) == *word));
        assert!(Group::KNOWN.iter().all(|word| Group::parse(word.as_str()) == *word));
    }

    #[test]
    fn unknown_words_are_kept_and_case_counts() {
        let word = Operation::parse("Insert");
        assert!(matches!(&word, Operation::Other(other) if other.as_str() == "Insert"));
        assert_eq!(word.to_string(), "Insert");
    }

    #[test]
    fn volume_operations_are_distinguished() {
        assert!(Operation::parse("deletevolume").is_volume_operation());
        assert!(!Operation::parse("delete").is_volume_operation());
    }
}
