//! Keys of KubeEdge's configuration that have no effect here, and why.

use serde_json::Value;

/// A setting that is read but not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IgnoredSetting {
    /// Its path in the file, or the path of the section that contains it.
    pub key: &'static str,
    /// Why it has no effect.
    pub reason: &'static str,
}

/// All ignored settings. `docs/operations.md` shows this table.
pub(super) const IGNORED: [IgnoredSetting; 21] = [
    ignored("commonConfig.tunnelPort", NO_STREAMS),
    ignored("commonConfig.monitorServer.enableProfiling", "there is no profiling endpoint"),
    ignored("kubeAPIConfig.contentType", "edges receive JSON, so cloudcore reads JSON"),
    ignored("kubeAPIConfig.qps", NO_THROTTLE),
    ignored("kubeAPIConfig.burst", NO_THROTTLE),
    ignored(
        "modules.cloudHub.writeTimeout",
        "the session of an edge that does not read ends after keepaliveInterval",
    ),
    ignored("modules.cloudHub.quic.maxIncomingStreams", "a connection has one stream for each lane"),
    ignored("modules.cloudHub.unixsocket", "the socket of the CSI driver is not served"),
    ignored("modules.cloudHub.https.enable", "the join endpoints are always served, as in KubeEdge"),
    ignored("modules.cloudHub.authorization", "every message is always authorized as its node"),
    ignored("modules.edgeController.buffer.rulesEvent", NO_RULES),
    ignored("modules.edgeController.buffer.ruleEndpointsEvent", NO_RULES),
    ignored("modules.deviceController", "devices are not managed; reports about them are refused"),
    ignored("modules.taskManager", "node tasks are refused"),
    ignored("modules.syncController", "the objects that an edge holds are always compared when it connects"),
    ignored(
        "modules.dynamicController",
        "requests of MetaServer are always served, with the permissions of the node",
    ),
    ignored("modules.cloudStream", NO_STREAMS),
    ignored("modules.router", "no message is routed between cloud and edges"),
    ignored("modules.iptablesManager", NO_STREAMS),
    ignored("featureGates.requireAuthorization", "every message is always authorized as its node"),
    ignored("featureGates", "the feature gates of KubeEdge's modules have no counterpart here"),
];

const NO_STREAMS: &str = "logs and exec are not tunnelled to edges";
const NO_RULES: &str = "Rules and RuleEndpoints are not watched";
const NO_THROTTLE: &str = "the API server's priority and fairness limits requests instead";

const fn ignored(key: &'static str, reason: &'static str) -> IgnoredSetting {
    IgnoredSetting { key, reason }
}

/// The ignored settings that this document contains.
pub(super) fn of(document: &Value) -> Vec<IgnoredSetting> {
    let there = |key: &str| key.split('.').try_fold(document, |value, name| value.get(name)).is_some();
    IGNORED.into_iter().filter(|setting| there(setting.key)).collect()
}
