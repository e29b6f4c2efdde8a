//! The official end-to-end suite of Kubernetes: which of its tests are run, against what, and what their outcomes mean.

pub mod judge;
pub mod lists;
pub mod suite;
pub mod target;
