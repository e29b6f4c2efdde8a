//! Decides which node needs which object, and what a node may do.

pub mod downstream;
pub mod index;
mod kind;
pub(crate) mod local_endpoint;
pub mod location_cache;
pub mod node_object_cache;
pub mod observed_versions;
pub mod pod_manager;
mod reads;
pub(crate) mod reference_shares;
pub mod trim;
pub mod upstream;
mod written;

pub(crate) use downstream::INPUTS_MAX;
pub use downstream::{DownstreamController, Input, Outlet, Proven};
pub use index::{Effect, Index};
pub use kind::Kind;
pub use location_cache::LocationCache;
pub use node_object_cache::NodeObjectCache;
pub use pod_manager::PodManager;
pub use trim::TRIM_VERSION;
pub use upstream::{Upstream, UpstreamSettings};
