//! Detects whether a kubelet reports for this node. If so, the agent sends no reports of its own, because two reporters
//! of one lease and one status would contradict each other (`docs/edge-node.md`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

/// A kubelet counts as gone when it has written neither the node's lease nor its status for this long. This is several
/// lease durations (of 40 s), so that the agent does not take over during a restart or an upgrade of the kubelet.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(300);

/// Suffix of the kubelet version that an agent reports for itself. A real kubelet's version does not have it.
pub(crate) const AGENT_SUFFIX: &str = "-tombolo";

/// Time of the kubelet's last write through the local API. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubelet(Arc<watch::Sender<Option<Instant>>>);

impl Kubelet {
    /// Records that a kubelet wrote the node's lease or its status.
    pub(crate) fn wrote(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Receives the time of every write.
    pub(crate) fn writes(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }

    /// When the kubelet counts as gone unless it writes again; `None` if it is gone already.
    pub(crate) fn gone_at(&self) -> Option<Instant> {
        self.0.borrow().map(|last| last + GONE_AFTER).filter(|end| *end > Instant::now())
    }
}

/// Whether a Node object was registered by a kubelet or has a kubelet's status.
pub(crate) fn is_kubelets(node: &Value) -> bool {
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
    !version.is_empty() && !version.ends_with(AGENT_SUFFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kubelet_version_distinguishes_agents_from_kubelets() {
        let node = |version: &str| json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        assert!(is_kubelets(&node("v1.36.3")));
        assert!(!is_kubelets(&node("v0.1.0-tombolo")));
        assert!(!is_kubelets(&node("")) && !is_kubelets(&json!({})));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_kubelet_counts_as_gone() {
        let kubelet = Kubelet::default();
        assert_eq!(kubelet.gone_at(), None);
        kubelet.wrote();
        assert_eq!(kubelet.gone_at(), Some(Instant::now() + GONE_AFTER));
        tokio::time::advance(GONE_AFTER).await;
        assert_eq!(kubelet.gone_at(), None);
    }
}
