//! Names and Services of a node: stock CoreDNS, stock kube-proxy and the agent's own DNS server, with the cloud,
//! without it, and after restarts without it.

mod ask;
mod cluster;
mod compare;
mod differences;
mod elsewhere;
mod hosts_file;
mod kube_proxy;
mod offline;
