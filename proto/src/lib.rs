//! The protocol between the cloud and the edge, without sockets, clocks or randomness.
//!
//! - [`message`] is KubeEdge's message model as types: one model for both dialects and the whole program.
//! - [`frame`] is what travels in dialect `tombolo`; [`object`] and [`ids`] are what frames talk about.
//! - [`codec`] turns frames into protobuf, [`kubeedge`] turns messages into KubeEdge's JSON envelope, and
//!   [`package`] cuts byte streams into frames. All bounds are in [`limits`] and hold before memory is taken.
//! - [`documents`] are what a hub has one copy of for all nodes.
//! - [`session`] holds the two ends of a connection as state machines.
//!
//! # Contract
//!
//! Every function is pure or works on the state it is called on. Time and random bytes are arguments. Nothing a
//! peer sends makes anything here panic or take more memory than a small multiple of the bytes received; every
//! refusal is a typed error that says what was wrong and where.

pub mod api_path;
pub mod codec;
pub mod documents;
pub mod error;
pub mod frame;
pub mod ids;
pub mod inventory;
pub mod kubeedge;
pub mod limits;
pub mod message;
pub mod object;
pub mod package;
pub mod references;
pub mod session;

pub use error::IdError;
pub use frame::Frame;
pub use ids::{
    CloudRevision, Epoch, Lane, Moment, NodeId, RequestId, ScopeId, Seq, StoreId, Uid, is_dns_subdomain,
};
pub use message::Message;
pub use object::{
    ContentHash, Held, InventoryEntry, ObjectKey, ObjectVersion, Resource, ResourceParts, SharedObject,
};
