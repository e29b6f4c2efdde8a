//! A simulation of the whole system in one thread. Parts of it: a model of the Kubernetes API, plans of operations and
//! faults, and an oracle that judges what was observed, none of which uses code of the product; and the machine, the
//! network and the disks on which the product runs.

pub mod api;
pub mod campaign;
pub mod disk;
mod hosts;
mod journal;
pub mod machine;
pub mod network;
pub mod observation;
pub mod oracle;
pub mod plan;
mod run;
pub mod worker;

pub use run::{Outcome, RunOptions, run};
