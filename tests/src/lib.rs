//! Whole-system tests: what they share. Judges the product from outside: processes, sockets, `kubectl`.

pub mod containers;
pub mod e2e;
pub mod hub;
pub mod informers;
pub mod modules;
pub mod network;
pub mod node;
pub mod raw;
pub mod rights;
pub mod source;
pub mod stock;
pub mod stock_cloud;
pub mod world;
