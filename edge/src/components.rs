//! Settings for running stock kubelet and kube-proxy on this node, printed by `edgecore kubelet-config`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, DNS_PORT};
use crate::localapi::on_this_machine;

/// A printed document. [`Document::ALL`] has them in the order of printing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Document {
    /// How kubelet reaches the local API
    Kubeconfig,
    /// KubeletConfiguration
    Kubelet,
    /// How kube-proxy reaches the wrapper
    KubeProxyKubeconfig,
    /// KubeProxyConfiguration
    KubeProxy,
}

impl Document {
    pub(crate) const ALL: [Self; 4] =
        [Self::Kubeconfig, Self::Kubelet, Self::KubeProxyKubeconfig, Self::KubeProxy];

    /// Name of its file, which other documents refer to.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::Kubelet => "kubelet.yaml",
            Self::KubeProxyKubeconfig => "kube-proxy.kubeconfig",
            Self::KubeProxy => "kube-proxy.yaml",
        }
    }
}

/// Values that depend on the machine rather than on the agent's settings.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Machine {
    /// Folder for the documents: kubeconfig, kubelet.yaml, kube-proxy.kubeconfig, kube-proxy.yaml
    #[arg(long, default_value = "/etc/tombolo/node")]
    pub(crate) folder: std::path::PathBuf,
    /// Socket of the container runtime
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock")]
    pub(crate) container_runtime: String,
    /// Address of the DNS server that pods use; may be repeated [default: that of dns.address]
    #[arg(long)]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// Pod addresses of this cluster, for kube-proxy: CIDRs, separated by commas
    #[arg(long, value_parser = cidrs)]
    pub(crate) cluster_cidr: Option<String>,
}

/// Checks one or more comma-separated ranges of addresses.
fn cidrs(text: &str) -> Result<String, String> {
    let is_range = |range: &str| {
        let (address, bits) = range.split_once('/')?;
        let most = if address.parse::<IpAddr>().ok()?.is_ipv4() { 32 } else { 128 };
        bits.parse::<u8>().ok().filter(|bits| *bits <= most)
    };
    match text.split(',').all(|range| is_range(range).is_some()) {
        true => Ok(text.to_owned()),
        false => Err("must be ADDRESS/BITS, for two families separated by a comma".to_owned()),
    }
}

/// One document. None for kube-proxy if the wrapper is off, since kube-proxy reads from the wrapper. `kubeconfig` is
/// that of the local API.
pub(crate) fn document(
    which: Document,
    config: &Config,
    machine: &Machine,
    kubeconfig: &Value,
) -> Option<Value> {
    match which {
        Document::Kubeconfig => Some(kubeconfig.clone()),
        Document::Kubelet => Some(kubelet(config, machine)),
        Document::KubeProxyKubeconfig => Some(wrapper_kubeconfig(config, config.wrapper.address?)),
        Document::KubeProxy => config.wrapper.address.map(|_| kube_proxy(config, machine)),
    }
}

fn kubelet(config: &Config, machine: &Machine) -> Value {
    let mut settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": machine.container_runtime,
        "staticPodPath": "/etc/kubernetes/manifests",
        "clusterDomain": config.dns.cluster_domain,
        "maxPods": config.node.max_pods,
        // The local API stores JSON only, and stores what the kubelet writes unchanged.
        "contentType": "application/json",
        // The kubelet is reachable from outside only if the operator changes this.
        "address": "127.0.0.1",
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        // Sent only on change or after this time: fewer messages to the cloud.
        "nodeStatusReportFrequency": "5m",
        "nodeLeaseDurationSeconds": 40,
    });
    // Pods always use port 53.
    let own = config.dns.address.filter(|address| address.port() == DNS_PORT).map(|address| address.ip());
    let named = machine.cluster_dns.iter().copied();
    let addresses: Vec<String> = named
        .chain(own.filter(|_| machine.cluster_dns.is_empty()))
        .map(|address| address.to_string())
        .collect();
    if !addresses.is_empty() {
        settings["clusterDNS"] = addresses.into();
    }
    settings
}

fn wrapper_kubeconfig(config: &Config, address: SocketAddr) -> Value {
    let name = config.node_name.as_str();
    let scheme = if config.wrapper.tls.is_some() { "https" } else { "http" };
    let server = format!("{scheme}://{}", on_this_machine(address));
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": "kube-proxy", "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "kube-proxy"}}],
        "current-context": name,
    })
}

fn kube_proxy(config: &Config, machine: &Machine) -> Value {
    let kubeconfig = path(&machine.folder, Document::KubeProxyKubeconfig);
    let mut settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "hostnameOverride": config.node_name.as_str(),
        "clientConnection": {"kubeconfig": kubeconfig, "contentType": "application/json"},
        "mode": "nftables",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    });
    if let Some(cidr) = &machine.cluster_cidr {
        settings["clusterCIDR"] = cidr.as_str().into();
    }
    settings
}

fn path(folder: &Path, document: Document) -> String {
    folder.join(document.file()).display().to_string()
}

#[cfg(test)]
mod tests {
    use tombolo_proto::ids::NodeId;

    use super::*;

    fn machine() -> Machine {
        Machine {
            folder: "/etc/here".into(),
            container_runtime: "unix:///c.sock".to_owned(),
            cluster_dns: vec!["10.0.0.10".parse().unwrap()],
            cluster_cidr: Some("10.1.0.0/16".to_owned()),
        }
    }

    #[test]
    fn component_documents_follow_the_settings() {
        let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
        config.dns.cluster_domain = "edge.local".to_owned();
        config.node.max_pods = 30;
        let made = |which| document(which, &config, &machine(), &json!({"kind": "Config"})).unwrap();
        assert_eq!(made(Document::Kubeconfig), json!({"kind": "Config"}));
        let kubelet = made(Document::Kubelet);
        assert_eq!((&kubelet["clusterDomain"], &kubelet["maxPods"]), (&json!("edge.local"), &json!(30)));
        assert_eq!(kubelet["clusterDNS"], json!(["10.0.0.10"]));
        assert_eq!(kubelet["containerRuntimeEndpoint"], "unix:///c.sock");
        let proxy = made(Document::KubeProxy);
        assert_eq!(proxy["hostnameOverride"], "edge-a");
        assert_eq!(proxy["clientConnection"]["kubeconfig"], "/etc/here/kube-proxy.kubeconfig");
        assert_eq!(proxy["clusterCIDR"], "10.1.0.0/16");
        let server = made(Document::KubeProxyKubeconfig)["clusters"][0]["cluster"]["server"].clone();
        assert_eq!(server, "http://127.0.0.1:51006");
    }
    #[test]
    fn components_are_pointed_to_what_the_agent_serves() {
        let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
        let machine = Machine { cluster_dns: Vec::new(), ..machine() };
        let made = |config: &Config, which| document(which, config, &machine, &json!({"kind": "Config"}));
        assert!(made(&config, Document::Kubelet).unwrap().get("clusterDNS").is_none());
        config.dns.address = Some("169.254.20.10:53".parse().unwrap());
        assert_eq!(made(&config, Document::Kubelet).unwrap()["clusterDNS"], json!(["169.254.20.10"]));
        config.dns.address = Some("169.254.20.10:5353".parse().unwrap());
        assert!(made(&config, Document::Kubelet).unwrap().get("clusterDNS").is_none(), "pods ask port 53");
        config.wrapper.address = Some("0.0.0.0:51006".parse().unwrap());
        let kubeconfig = made(&config, Document::KubeProxyKubeconfig).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "http://127.0.0.1:51006");
        config.wrapper.address = None;
        for which in [Document::KubeProxyKubeconfig, Document::KubeProxy] {
            assert_eq!(made(&config, which), None);
        }
    }

    #[test]
    fn ranges_of_addresses_are_checked() {
        for good in ["10.1.0.0/16", "fd00::/48", "10.1.0.0/16,fd00::/48"] {
            assert_eq!(cidrs(good).as_deref(), Ok(good));
        }
        for bad in
            ["", "foo", "10.1.0.0", "10.1.0.0/33", "fd00::/129", "10.1.0.0/16,", "10.1.0.0/16 fd00::/48"]
        {
            assert!(cidrs(bad).is_err(), "{bad}");
        }
    }
}
