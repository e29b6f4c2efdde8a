//! What the whole-system tests share. They judge the product from outside: by processes, sockets and `kubectl`.

pub mod containers;
pub mod e2e;
pub mod hub;
pub mod informers;
pub mod kubeedge;
pub mod kubeedge_cloud;
pub mod median;
pub mod modules;
pub mod network;
pub mod node;
pub mod pki;
pub mod raw;
pub mod rights;
mod scenarios;
pub mod source;
pub mod world;
