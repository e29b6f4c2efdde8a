//! Names and Services of a node: stock CoreDNS, stock kube-proxy and the agent's own DNS server, with the cloud, without
//! it, and after restarts without it.

mod ask;
mod cluster;
mod compare;
mod coredns;
mod differences;
mod elsewhere;
mod kube_proxy;
mod namespace;
mod offline;
mod resolver;

/// Leaves a test that cannot run on this machine, under its name.
fn cannot(test: &str, why: &str) {
    eprintln!("{test}: {why}");
    tombolo_testkit::record_skip(&format!("{test} ({why})"));
}
