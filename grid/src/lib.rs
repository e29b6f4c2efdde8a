//! The application grid as pure functions.
//!
//! A grid runs one copy of a workload in each unit. Nodes belong to the same unit when a label, the grid's key, has
//! the same value on them. This crate says which units there are, what the child of each unit is called, and which
//! name every unit uses for its own copy of a StatefulSet's pod. It reads nothing and keeps nothing.

pub mod name;
pub mod unit;

pub use name::{ChildKind, NameError, child_name, key_label_value, uniform_name};
pub use unit::{KeyError, units};
