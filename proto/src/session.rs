//! The two ends of a connection in dialect `tombolo`, as state machines without IO, clocks or randomness.
//!
//! One session is one connection: a new connection gets new sessions, and their inventories, not their memories,
//! determine what is missing. `docs/consistency.md` states their guarantees.
//!
//! # How to drive a session
//!
//! One owner holds the session and calls four kinds of method:
//!
//! 1. `handle_frame` and `handle_timeout`: input, with the present [`Moment`]. Time never goes back.
//! 2. `offer`, `request`, `committed` and similar: what the application wants or has done.
//! 3. `poll_transmit(now, lane)`: the next frame for a lane. Call it for the lanes that the link can accept, lowest
//!    lane first and control once more at the end, in rounds until a whole round gives `None`: a later lane can make
//!    work for an earlier one even when it has nothing to send itself.
//! 4. `poll_event`: what the application must know; call it until it returns `None`.
//!
//! After each call of kind 1 or 2 the owner runs 3 and 4, then sleeps until `next_timeout`. An error of kind 1 ends
//! the session: send the remaining output of `poll_transmit` (a goodbye), then close the link. When the link fails
//! first, drop the session; it has no state to save.
//!
//! # Lanes
//!
//! | lane | cloud to edge | edge to cloud |
//! |---|---|---|
//! | control | welcome, answers, `CaughtUp`, pings, goodbye | hello, acknowledgements, refusals, leases, requests, pings, goodbye |
//! | delivery | objects below [`BULK_OBJECT_MIN`], deletions | `Subscribe`, `Unsubscribe` |
//! | bulk | larger objects, large answers | inventories, large requests |
//!
//! A lane keeps its order, but lanes do not wait for each other: a delivery may arrive before the welcome, and an
//! `Unsubscribe` before the inventory of its subscription. Both ends handle this.
//!
//! [`Moment`]: crate::ids::Moment
//! [`BULK_OBJECT_MIN`]: crate::limits::BULK_OBJECT_MIN

mod cloud;
mod edge;
mod error;
mod inventory;
pub mod kubeedge;
mod liveness;
mod parking;
mod patience;
mod room;
mod version;
mod words;

pub use cloud::{Certainty, CloudConfig, CloudEvent, CloudSession, CloudStats, Lookup, Loss, NodeView};
pub use edge::{EdgeConfig, EdgeEvent, EdgeSession, EdgeView, RequestError, SubscribeError};
pub use error::SessionError;
pub use inventory::summarise;
pub use patience::{PATIENCE, PATIENCE_WINDOW};
pub use version::ProtocolVersion;

/// Most unacknowledged deliveries of one lane that an edge holds. More end the session, because the cloud does not
/// respect any window.
pub const UNACKED_MAX: usize = 4096;

/// Most bytes of deliveries that an edge keeps while the welcome is still on its way in another lane.
pub const EARLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest time without an acknowledgement while a delivery is in flight; then the cloud ends the session. An edge
/// that answers pings and stores nothing is better off with a new connection.
pub const ACK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(600);
