//! What a test of a node's network is made of: namespaces of the kernel, stock kube-proxy and CoreDNS in them, and what a
//! program in a pod finds around it.

use tombolo_testkit::record_skip_for;

mod coredns;
mod kube_proxy;
mod namespace;
mod pod;
mod switch;

pub use coredns::{CoreDns, CoreDnsOptions};
pub use kube_proxy::start_kube_proxy;
pub use namespace::Namespace;
pub use pod::Program;
pub use switch::Switch;

/// What namespaces of the kernel and rules in them take.
pub const NEEDS: &str = "needs root, iproute2 and iptables";

/// Leaves a test that cannot run on this machine, under its name. It counts as skipped.
pub fn cannot(test: &str, why: &str) {
    record_skip_for(test, why);
}
