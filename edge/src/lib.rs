//! edgecore: the agent of one edge node.
//!
//! The agent joins with a token ([`join`]), keeps the node's objects in a durable [`store`], follows the cloud over one
//! outbound connection, reports through a durable outbox, and serves a local Kubernetes API. There is no global state:
//! several agents can run in one process, each with its own data folder.

mod address;
mod app;
pub mod cli;
mod components;
pub mod config;
mod dns;
mod fair;
mod fault;
mod follow;
mod hosts;
pub mod hub;
pub mod identity;
mod kubelet;
mod localapi;
mod metrics;
mod own_pods;
mod paths;
mod shares;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
pub mod store;
mod subscriptions;
mod upstream;
pub mod wrapper;

pub use app::{App, AppError, Bound};
pub use config::Config;
pub use identity::{JoinError, JoinOptions, join};
pub use localapi::LocalApiError;
pub use status::{EdgeStatus, StatusHandle};
