//! The two demonstrations of the application grid as whole systems, with the manifests of `examples/`, and pods at the API of
//! their node.
//!
//! A real API server or the embedded one; stock kube-controller-manager and kube-scheduler make pods and bind them; every node
//! is a network of its own with edgecore, stock kube-proxy and, where names are asked for, stock CoreDNS. Pods are simulated;
//! the program of their container is played by the test, at the address of the pod in the network of its node.

mod containers;
mod in_cluster;
mod node;
mod site;
mod topology;
mod uniform_names;

use tokio::sync::Mutex;

/// One whole system at a time: each has some twenty processes.
static TURN: Mutex<()> = Mutex::const_new(());
