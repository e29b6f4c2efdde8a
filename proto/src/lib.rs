//! The protocol between the cloud and the edge, without sockets, clocks or randomness.
//!
//! - [`message`] is KubeEdge's message model as types: one model for both dialects and the whole program.
//! - [`frame`] defines the frames of dialect `tombolo`; [`object`] and [`ids`] define what frames refer to.
//! - [`codec`] turns frames into protobuf, [`kubeedge`] turns messages into KubeEdge's JSON envelope, and [`package`]
//!   cuts byte streams into frames. All bounds are in [`limits`] and are checked before memory is allocated.
//! - [`documents`] names the API documents of which a hub keeps one copy for all nodes.
//! - [`session`] holds the two ends of a connection as state machines.
//!
//! # Contract
//!
//! Every function is pure or changes only its receiver. Time and random bytes are arguments. No input from a peer can
//! cause a panic or use more memory than a small multiple of the bytes received. Every refusal is a typed error that
//! says what was wrong and where.

pub mod api_path;
pub mod codec;
pub mod documents;
pub mod error;
pub mod frame;
pub mod hashing;
pub mod ids;
pub mod inventory;
pub mod kubeedge;
pub mod limits;
pub mod message;
pub mod object;
pub mod package;
pub mod references;
pub mod session;
mod shared_bytes;

pub use error::IdError;
pub use frame::Frame;
pub use hashing::set_hash_secret;
pub use ids::{
    CloudRevision, Epoch, Lane, Moment, NodeId, RequestId, Seq, StoreId, SubscriptionId, Uid,
    is_dns_subdomain,
};
pub use message::Message;
pub use object::{
    ContentHash, HeldState, InventoryEntry, ObjectKey, ObjectVersion, Resource, ResourceParts, SharedObject,
};
