//! The official end-to-end suite of Kubernetes: which tests run, against which server, and what their outcomes mean.

pub mod judge;
pub mod lists;
pub mod suite;
pub mod target;
