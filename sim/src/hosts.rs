//! The hosts of a run: the product's programs, each in a process that can be killed, and what is around them.

mod cloud;
mod cluster;
mod edge;
mod faults;
mod local;
mod process;
mod readers;
mod world;

pub(crate) use world::World;
