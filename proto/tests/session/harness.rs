//! Two real sessions, the bytes between them, minimal cloud and edge stores, and an oracle.
//!
//! A virtual clock and the operations of [`ops`] drive everything. Nothing here draws random numbers, so that the same
//! list of operations, from a seed or from a fuzzer, always runs the same way.

#![allow(dead_code, unreachable_pub)] // shared by several test binaries and a fuzz target, none of which uses all of it

pub mod cloud;
pub mod edge;
pub mod events;
pub mod hostile;
pub mod ops;
pub mod oracle;
pub mod solo;
pub mod wire;
pub mod world;
