//! What the tests of every crate share: the real Kubernetes components, a disk that fails, and conditions with
//! deadlines.
//!
//! Nothing here depends on Tombolo, so that tests judge the product from outside.

mod alone;
mod asked;
mod components;
#[cfg(feature = "cluster")]
mod control_plane;
#[cfg(feature = "disk")]
mod disk;
mod fuzz;
#[cfg(feature = "cluster")]
mod kube_controllers;
mod process;
#[cfg(feature = "cluster")]
mod ready_node;
mod seed;
mod wait;

pub use alone::{Growth, alone};
pub use asked::{asked, cases, times};
pub use components::{
    Components, MissingComponents, components, coredns, go_clients, kube_proxy, kubelet, record_skip,
    record_skip_for, skips_allowed,
};
#[cfg(feature = "cluster")]
pub use control_plane::{AuditEvent, ControlPlane, ControlPlaneOptions};
#[cfg(feature = "disk")]
pub use disk::{DiskBackend, FaultyDisk, HeldDisk};
pub use fuzz::fuzz;
#[cfg(feature = "cluster")]
pub use kube_controllers::{JSON, KubeControllers, PROTOBUF};
pub use process::{Child, bind_both, free_port};
#[cfg(feature = "cluster")]
pub use ready_node::ReadyNode;
pub use seed::{Seed, fresh, seed, seeds};
pub use wait::{wait_for, wait_for_value, wait_until};

/// Skips the test if there are no Kubernetes binaries and `cargo xtask test --without-cluster` allows that. If they are
/// missing otherwise, the test fails. The skip is recorded, so that it never counts as a pass.
#[macro_export]
macro_rules! cluster_or_skip {
    ($test:expr) => {
        if $crate::components().is_err() && $crate::skips_allowed() {
            $crate::record_skip($test);
            return;
        }
    };
}
