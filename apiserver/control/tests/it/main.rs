//! The embedded API server over real sockets: stock kubectl, kube-rs, and the same table of requests against
//! kube-apiserver.

mod admission;
mod cluster;
mod codes;
mod durable;
mod escalation;
mod evictions;
mod flows;
mod harness;
mod identity;
mod kubectl;
mod nodes;
mod shares;
mod typed;
