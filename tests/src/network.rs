//! The parts of a test of a node's network: kernel namespaces, stock kube-proxy and CoreDNS in them, and the
//! environment of a program in a pod.

use tombolo_testkit::record_skip_for;

mod connections;
mod coredns;
mod kube_proxy;
mod namespace;
mod pod;
mod switch;

pub(crate) use connections::relay;
pub use connections::serve_each;
pub use coredns::{CoreDns, CoreDnsOptions};
pub use kube_proxy::start_kube_proxy;
pub use namespace::Namespace;
pub use pod::Program;
pub use switch::Switch;

/// What kernel namespaces, and rules in them, need.
pub const NEEDS: &str = "needs root, iproute2 and iptables";

/// Skips a test that cannot run on this machine, and records its name.
pub fn cannot(test: &str, why: &str) {
    record_skip_for(test, why);
}
