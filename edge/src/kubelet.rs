//! Whether a kubelet speaks for this node. Two that renew one lease and report one status would contradict each other, so the
//! agent's own reports stand back for it (`docs/edge-node.md`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

/// A kubelet that has written neither lease nor status of the node for this long is gone. Several leases long (of 40 s): its
/// restart or upgrade is no reason to speak in its place.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(300);

/// What versions of agents end with that report for themselves; a kubelet has a plain one.
pub(crate) const AGENT_SUFFIX: &str = "-tombolo";

/// When a kubelet wrote last, through the local API. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubelet(Arc<watch::Sender<Option<Instant>>>);

impl Kubelet {
    /// A kubelet has written the node's lease or its status.
    pub(crate) fn wrote(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Tells of every write.
    pub(crate) fn writes(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }

    /// When it is gone, if it does not write again; none when that is so already.
    pub(crate) fn gone_at(&self) -> Option<Instant> {
        self.0.borrow().map(|last| last + GONE_AFTER).filter(|end| *end > Instant::now())
    }
}

/// Whether a Node object says that a kubelet has registered it or reports its status.
pub(crate) fn is_kubelets(node: &Value) -> bool {
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
    !version.is_empty() && !version.ends_with(AGENT_SUFFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_tell_agents_from_kubelets() {
        let node = |version: &str| json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        assert!(is_kubelets(&node("v1.36.3")));
        assert!(!is_kubelets(&node("v0.1.0-tombolo")));
        assert!(!is_kubelets(&node("")) && !is_kubelets(&json!({})));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_makes_it_gone() {
        let kubelet = Kubelet::default();
        assert_eq!(kubelet.gone_at(), None);
        kubelet.wrote();
        assert_eq!(kubelet.gone_at(), Some(Instant::now() + GONE_AFTER));
        tokio::time::advance(GONE_AFTER).await;
        assert_eq!(kubelet.gone_at(), None);
    }
}
