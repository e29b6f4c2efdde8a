//! Maps the keys of `edgeController.buffer` and `edgeController.load` (docs/reference/kubeedge.md#workers-and-buffers)
//! to Tombolo's bounds.

use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer};

use super::super::WatchEvents;
use super::section::section;
use crate::edgecontroller::upstream::{RequestBound, RequestBounds, RequestKind};

/// A number of workers.
type Workers = NonZeroU32;

/// Default of `nodeLimit`.
const DEFAULT_NODES: u32 = 500;

/// At least one worker: with none, no request would ever run.
const fn workers(count: u32) -> Workers {
    match Workers::new(count) {
        Some(workers) => workers,
        None => Workers::MIN,
    }
}

section! {
    /// How many requests or events may wait.
    Buffer {
        process_event: u32 = 1024,
        update_pod_status: u32 = 1024,
        update_node_status: u32 = 1024,
        query_config_map: u32 = 1024,
        query_secret: u32 = 1024,
        pod_event: u32 = 1,
        config_map_event: u32 = 1,
        secret_event: u32 = 1,
        rules_event: u32 = 1,
        rule_endpoints_event: u32 = 1,
        query_persistent_volume: u32 = 1024,
        query_persistent_volume_claim: u32 = 1024,
        query_volume_attachment: u32 = 1024,
        create_node: u32 = 1024,
        patch_node: u32 = 1024 + DEFAULT_NODES / 2,
        query_node: u32 = 1024 + DEFAULT_NODES,
        update_node: u32 = 1024,
        patch_pod: u32 = 1024,
        delete_pod: u32 = 1024,
        create_lease: u32 = 1024 + DEFAULT_NODES,
        query_lease: u32 = 1024,
        service_account_token: u32 = 1024,
        create_pod: u32 = 1024,
        certificate_signing_request: u32 = 1024,
    }
}

section! {
    /// How many requests may run. Three keys begin with a capital letter, and one lacks its last syllable, as KubeEdge
    /// prints them.
    Load {
        process_event_workers: Workers = workers(4),
        update_pod_status_workers: Workers = workers(1),
        update_node_status_workers: Workers = workers(1),
        query_config_map_workers: Workers = workers(100),
        query_secret_workers: Workers = workers(100),
        query_persistent_volume_workers: Workers = workers(4),
        query_persistent_volume_claim_workers: Workers = workers(4),
        query_volume_attachment_workers: Workers = workers(4),
        create_node_workers: Workers = workers(100),
        patch_node_workers: Workers = workers(100 + DEFAULT_NODES / 50),
        query_node_workers: Workers = workers(DEFAULT_NODES),
        update_node_workers: Workers = workers(4),
        patch_pod_workers: Workers = workers(100),
        delete_pod_workers: Workers = workers(100),
        create_lease_workers: Workers = workers(DEFAULT_NODES),
        query_lease_workers: Workers = workers(100),
        #[serde(rename = "UpdateRuleStatusWorkers")]
        update_rule_status_workers: Workers = workers(4),
        #[serde(rename = "ServiceAccountTokenWorkers")]
        service_account_token_workers: Workers = workers(100),
        #[serde(rename = "CreatePodWorks")]
        create_pod_works: Workers = workers(4),
        certificate_signing_request_workers: Workers = workers(4),
    }
}

/// Bounds on requests. Those that KubeEdge derives from `nodeLimit` are raised, as KubeEdge raises them at its start,
/// and never lowered.
pub(super) fn requests(buffer: &Buffer, load: &Load, nodes: u32) -> RequestBounds {
    use RequestKind as Request;
    let bound = |running: Workers, waiting: u32| RequestBound { running, waiting };
    let derived = |running: Workers, least_running: u32, waiting: u32, least_waiting: u32| RequestBound {
        running: running.max(workers(least_running)),
        waiting: waiting.max(least_waiting),
    };
    [
        (Request::Event, bound(load.process_event_workers, buffer.process_event)),
        (Request::PodStatus, bound(load.update_pod_status_workers, buffer.update_pod_status)),
        (Request::NodeStatus, bound(load.update_node_status_workers, buffer.update_node_status)),
        (Request::RuleStatus, bound(load.update_rule_status_workers, buffer.update_node_status)),
        (Request::QueryConfigMap, bound(load.query_config_map_workers, buffer.query_config_map)),
        (Request::QuerySecret, bound(load.query_secret_workers, buffer.query_secret)),
        (
            Request::QueryPersistentVolume,
            bound(load.query_persistent_volume_workers, buffer.query_persistent_volume),
        ),
        (
            Request::QueryPersistentVolumeClaim,
            bound(load.query_persistent_volume_claim_workers, buffer.query_persistent_volume_claim),
        ),
        (
            Request::QueryVolumeAttachment,
            bound(load.query_volume_attachment_workers, buffer.query_volume_attachment),
        ),
        (Request::CreateNode, bound(load.create_node_workers, buffer.create_node)),
        (
            Request::PatchNode,
            derived(load.patch_node_workers, 100 + nodes / 50, buffer.patch_node, 1024 + nodes / 2),
        ),
        (Request::QueryNode, derived(load.query_node_workers, nodes, buffer.query_node, 1024 + nodes)),
        (Request::UpdateNode, bound(load.update_node_workers, buffer.update_node)),
        (Request::PatchPod, bound(load.patch_pod_workers, buffer.patch_pod)),
        (Request::DeletePod, bound(load.delete_pod_workers, buffer.delete_pod)),
        (Request::CreatePod, bound(load.create_pod_works, buffer.create_pod)),
        (Request::WriteLease, derived(load.create_lease_workers, nodes, buffer.create_lease, 1024 + nodes)),
        (Request::QueryLease, bound(load.query_lease_workers, buffer.query_lease)),
        (
            Request::ServiceAccountToken,
            bound(load.service_account_token_workers, buffer.service_account_token),
        ),
        (
            Request::CertificateSigningRequest,
            bound(load.certificate_signing_request_workers, buffer.certificate_signing_request),
        ),
    ]
    .into()
}

/// Bounds on pending events of each watch. With 0 KubeEdge lets no event wait; here one may wait.
pub(super) fn watch_events(buffer: &Buffer) -> WatchEvents {
    let bound = |events: u32| Some(workers(events));
    WatchEvents {
        pod: bound(buffer.pod_event),
        config_map: bound(buffer.config_map_event),
        secret: bound(buffer.secret_event),
    }
}
