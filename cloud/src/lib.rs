//! cloudcore: the cloud side of Tombolo.
//!
//! Downstream: [`kube`] watches the Kubernetes API. [`edgecontroller`] decides which node needs which object and
//! keeps each object encoded once. The hub tells each node's session task which keys are dirty, and the task looks the
//! objects up when its session has room for them. Upstream: a session task hands requests to the upstream part of
//! [`edgecontroller`], which runs them as the node.

pub mod app;
mod attestation;
pub mod bootstrap;
pub mod cli;
pub mod config;
pub mod edgecontroller;
pub mod epoch;
pub mod grids;
mod history_progress;
pub mod hub;
mod hub_admission;
pub mod kube;
pub mod metrics;
pub mod objectsync;
pub mod record;
#[cfg(feature = "simulation")]
pub mod simulation;
mod startup_retry;
pub mod status;
mod turns;
mod watches;

pub use app::{App, AppError, Bound};
pub use config::{Config, ConfigError, Listeners};
pub use edgecontroller::upstream::CONTESTED_REASON;
pub use kube::Kube;
pub use status::{CloudStatus, NodeStatus, StatusHandle};
