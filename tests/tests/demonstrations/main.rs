//! The two demonstrations of the application grid as whole systems, with the manifests of `examples/`, and pods that
//! use the API of their node.
//!
//! With a real API server or the embedded one, stock kube-controller-manager and kube-scheduler create and bind pods.
//! Every node is a network of its own with edgecore, stock kube-proxy and, where names are tested, stock CoreDNS. Pods
//! are simulated: the test runs the program of each container, at the pod's address in the network of its node.

mod containers;
mod in_cluster;
mod node;
mod site;
mod topology;
mod uniform_names;

use tokio::sync::Mutex;

/// One whole system at a time: each has about twenty processes.
static TURN: Mutex<()> = Mutex::const_new(());
