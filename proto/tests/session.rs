//! Cloud and edge sessions against each other, on a virtual clock, through the real codec.

#[path = "session/bounds.rs"]
mod bounds;
#[path = "session/cut.rs"]
mod cut;
#[path = "session/delivery.rs"]
mod delivery;
#[path = "session/followed.rs"]
mod followed;
#[path = "session/handshake.rs"]
mod handshake;
#[path = "session/harness.rs"]
mod harness;
#[path = "session/inventories.rs"]
mod inventories;
#[path = "session/overfull.rs"]
mod overfull;
#[path = "session/requests.rs"]
mod requests;
#[path = "session/schedules.rs"]
mod schedules;
#[path = "common/selection.rs"]
mod selection;
#[path = "session/subscriptions.rs"]
mod subscriptions;
#[path = "session/unreadable.rs"]
mod unreadable;
