//! `tombolo`: the whole system on one machine, and tools for those who operate it.

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
