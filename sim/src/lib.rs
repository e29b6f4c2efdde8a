//! Parts of a simulation of the whole system: a model of the Kubernetes API, plans of operations and faults, and an
//! oracle that judges what was observed. None of them uses code of the product.

pub mod api;
pub mod disk;
mod hosts;
mod journal;
pub mod machine;
pub mod network;
pub mod observation;
pub mod oracle;
pub mod plan;
mod run;

pub use run::{Outcome, RunOptions, run};
