//! The parts of Services and EndpointSlices that decide about names.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use core::net::IpAddr;

use serde::Deserialize;

use crate::body::{BodyError, ObjectMetadata, at_most, or_default, view};
use crate::labels::GRID_KEY;

/// Most endpoints of a slice, ports of a slice, and addresses of an endpoint: the Kubernetes API accepts no larger
/// ones.
const ENDPOINTS_MAX: usize = 1_000;
const SLICE_PORTS_MAX: usize = 100;
const ADDRESSES_MAX: usize = 100;

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The target of its name.
    pub target: Target,
    /// Its ports; a Service without ports has one without a number.
    pub ports: Box<[Port]>,
    /// Whether a grid governs it, so that its pods may have uniform names.
    pub of_grid: bool,
}

/// Target of a Service's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Its own addresses.
    Cluster(Box<[IpAddr]>),
    /// Its ready endpoints.
    Headless,
    /// Another name, in lower case and without a trailing dot.
    External(Box<str>),
    /// None: the external name is not valid.
    Nowhere,
}

/// A port of a Service or a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name; may be empty.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Number; none when no port is declared.
    pub number: Option<u16>,
}

/// A protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// None, on the placeholder of a Service or slice without ports, or a protocol that Kubernetes does not have.
    None,
}

impl Protocol {
    /// The protocol as it appears in names; empty for none.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::None => "",
        }
    }

    fn of(text: &str) -> Self {
        let named = |protocol: &Self| protocol.name().eq_ignore_ascii_case(text);
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(named).unwrap_or(Self::None)
    }
}

/// The ready endpoints of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Its ports; a slice without ports has one without a number.
    pub ports: Box<[Port]>,
    /// Ready endpoints, in order.
    pub endpoints: Box<[Endpoint]>,
}

/// One address of a ready endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address.
    pub address: IpAddr,
    /// Hostname in the object, in lower case.
    pub hostname: Option<Arc<str>>,
}

impl Endpoint {
    /// The label below the Service's name: the hostname, or the label of the address.
    #[must_use]
    pub fn label(&self) -> String {
        self.hostname.as_deref().map_or_else(|| host_label(self.address), str::to_owned)
    }

    /// Whether it has this label.
    pub(super) fn is_labelled(&self, label: &str) -> bool {
        match self.hostname.as_deref() {
            Some(hostname) => hostname == label,
            None => is_host_label(self.address, label),
        }
    }
}

/// The label of an address: `10-0-0-1`, `fd00--1`; one that would end with `-` gets a `0`, as in CoreDNS.
fn host_label(address: IpAddr) -> String {
    let mut label = address.to_string().replace(['.', ':'], "-");
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

/// Whether a label is that of an address, without allocating: all endpoints of a Service are checked.
fn is_host_label(address: IpAddr, label: &str) -> bool {
    /// The rest of the label, as long as everything written so far is its beginning.
    struct UnwrittenRest<'l>(&'l str, bool);
    impl fmt::Write for UnwrittenRest<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for written in text.chars() {
                let expected = if matches!(written, '.' | ':') { '-' } else { written };
                self.0 = self.0.strip_prefix(expected).ok_or(fmt::Error)?;
                self.1 = expected == '-';
            }
            Ok(())
        }
    }
    let mut rest = UnwrittenRest(label, false);
    write!(rest, "{address}").is_ok() && rest.0 == if rest.1 { "0" } else { "" }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortView {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    protocol: String,
    #[serde(default, deserialize_with = "or_default")]
    port: Option<i64>,
}

fn ports(views: Vec<PortView>) -> Box<[Port]> {
    if views.is_empty() {
        return [Port { name: "".into(), protocol: Protocol::None, number: None }].into();
    }
    let port = |view: PortView| Port {
        name: view.name.to_ascii_lowercase().into(),
        protocol: Protocol::of(&view.protocol),
        number: view.port.and_then(|port| u16::try_from(port).ok()),
    };
    views.into_iter().map(port).collect()
}

impl Service {
    /// Reads a Service.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: ObjectMetadata,
            #[serde(default, deserialize_with = "or_default")]
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default, rename = "type", deserialize_with = "or_default")]
            kind: String,
            #[serde(default, rename = "clusterIP", deserialize_with = "or_default")]
            cluster_ip: String,
            #[serde(default, rename = "clusterIPs", deserialize_with = "or_default")]
            cluster_ips: Vec<String>,
            #[serde(default, deserialize_with = "or_default")]
            external_name: String,
            #[serde(default, deserialize_with = "or_default")]
            ports: Vec<PortView>,
        }
        let Object { metadata, spec } = view(body)?;
        let first = spec.cluster_ips.first().map_or(spec.cluster_ip.as_str(), String::as_str);
        let target = if spec.kind == "ExternalName" {
            external(&spec.external_name)
        } else if first == "None" {
            Target::Headless
        } else {
            let all = if spec.cluster_ips.is_empty() { vec![spec.cluster_ip] } else { spec.cluster_ips };
            Target::Cluster(all.iter().filter_map(|address| address.parse().ok()).collect())
        };
        let of_grid = metadata.labels.contains_key(GRID_KEY);
        Ok(Self { target, ports: ports(spec.ports), of_grid })
    }
}

fn external(name: &str) -> Target {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    // An alias cannot lead to an address.
    if name.is_empty() || name.parse::<IpAddr>().is_ok() {
        return Target::Nowhere;
    }
    Target::External(name.into())
}

impl Slice {
    /// Reads an EndpointSlice. Endpoints that are not ready are left out: slices mark them as ready when they are to
    /// be published anyway (`publishNotReadyAddresses`). Addresses that are not IP addresses are left out as well.
    ///
    /// # Errors
    /// [`BodyError`] for text that is not such an object, or has more items than Kubernetes allows.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default, deserialize_with = "at_most::<_, _, ENDPOINTS_MAX>")]
            endpoints: Vec<EndpointView>,
            #[serde(default, deserialize_with = "at_most::<_, _, SLICE_PORTS_MAX>")]
            ports: Vec<PortView>,
        }
        #[derive(Deserialize)]
        struct EndpointView {
            #[serde(default, deserialize_with = "at_most::<_, _, ADDRESSES_MAX>")]
            addresses: Vec<String>,
            #[serde(default, deserialize_with = "or_default")]
            hostname: String,
            #[serde(default, deserialize_with = "or_default")]
            conditions: Conditions,
        }
        #[derive(Deserialize, Default)]
        struct Conditions {
            #[serde(default)]
            ready: Option<bool>,
        }
        let Object { endpoints, ports: views } = view(body)?;
        let ready = endpoints.into_iter().filter(|one| one.conditions.ready != Some(false));
        let endpoints = ready.flat_map(|one| {
            let hostname = Some(one.hostname.to_ascii_lowercase()).filter(|name| !name.is_empty());
            let hostname: Option<Arc<str>> = hostname.map(Into::into);
            let addresses = one.addresses.into_iter().filter_map(|address| address.parse().ok());
            addresses.map(move |address| Endpoint { address, hostname: hostname.clone() })
        });
        Ok(Self { endpoints: endpoints.collect(), ports: ports(views) })
    }
}
