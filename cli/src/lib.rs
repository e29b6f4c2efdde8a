//! `tombolo`: the whole system on one machine, and tools for operators.

pub mod apiserver;
mod cluster;
pub mod component;
pub mod doctor;
pub mod manifest;
pub mod operate;
pub mod process;
pub mod replay;
pub mod swarm;
pub mod synced;
pub mod token;
pub mod transport;
pub mod up;
