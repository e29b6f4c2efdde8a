//! The embedded API server over real sockets: stock kubectl, kube-rs, and the same table of requests against the
//! real kube-apiserver.

#[path = "embedded/admission.rs"]
mod admission;
#[path = "embedded/cluster.rs"]
mod cluster;
#[path = "embedded/codes.rs"]
mod codes;
#[path = "embedded/durable.rs"]
mod durable;
#[path = "embedded/escalation.rs"]
mod escalation;
#[path = "embedded/evictions.rs"]
mod evictions;
#[path = "embedded/flows.rs"]
mod flows;
#[path = "embedded/harness.rs"]
mod harness;
#[path = "embedded/identity.rs"]
mod identity;
#[path = "embedded/kubectl.rs"]
mod kubectl;
#[path = "embedded/nodes.rs"]
mod nodes;
#[path = "embedded/shares.rs"]
mod shares;
#[path = "embedded/typed.rs"]
mod typed;
