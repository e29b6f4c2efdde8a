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
pub(super) const IGNORED: [IgnoredSetting; 19] = [
    ignored("commonConfig.tunnelPort", NO_STREAMS),
    ignored("commonConfig.monitorServer.enableProfiling", "there is no profiling endpoint"),
    ignored("kubeAPIConfig.contentType", "JSON is what edges are sent, so JSON is what is read"),
    ignored("kubeAPIConfig.qps", NO_THROTTLE),
    ignored("kubeAPIConfig.burst", NO_THROTTLE),
    ignored("modules.cloudHub.writeTimeout", "an edge that does not read ends after keepaliveInterval"),
    ignored("modules.cloudHub.quic.maxIncomingStreams", "a connection has one stream for each lane"),
    ignored("modules.cloudHub.unixsocket", "the socket of the CSI driver is not served"),
    ignored("modules.cloudHub.https.enable", "the join endpoints are always served, as by stock"),
    ignored("modules.cloudHub.authorization", "every message is authorized as its node, always"),
    ignored("modules.deviceController", "devices are not managed; what edges report of them is refused"),
    ignored("modules.taskManager", "node tasks are refused"),
    ignored("modules.syncController", "what an edge holds is compared at each connection, always"),
    ignored(
        "modules.dynamicController",
        "requests of MetaServer are served always, with the rights of the node",
    ),
    ignored("modules.cloudStream", NO_STREAMS),
    ignored("modules.router", "rules are watched, and nothing is routed yet"),
    ignored("modules.iptablesManager", NO_STREAMS),
    ignored("featureGates.requireAuthorization", "every message is authorized as its node, always"),
    ignored("featureGates", "the gates of stock's modules have no counterpart"),
];

const NO_STREAMS: &str = "logs and exec are not tunnelled to edges";
const NO_THROTTLE: &str = "the API server's own priority and fairness is what limits";

const fn ignored(key: &'static str, reason: &'static str) -> IgnoredSetting {
    IgnoredSetting { key, reason }
}

/// The ignored settings that this document contains.
pub(super) fn of(document: &Value) -> Vec<IgnoredSetting> {
    let there = |key: &str| key.split('.').try_fold(document, |value, name| value.get(name)).is_some();
    IGNORED.into_iter().filter(|setting| there(setting.key)).collect()
}
