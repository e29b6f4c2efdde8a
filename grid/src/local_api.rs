//! The Service `default/kubernetes` on a node with an API of its own.

use core::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;

use crate::body::{BodyError, Edits, ObjectMetadata, or_default, present, view};
use crate::endpoints::{Carrier, service_of};

/// Annotation with the address of the local API, used when there is no setting (SuperEdge's).
pub const LOCAL_ENDPOINT: &str = "superedge.io/local-endpoint";
/// Annotation with the port, as for [`LOCAL_ENDPOINT`].
pub const LOCAL_PORT: &str = "superedge.io/local-port";

/// Address at which pods reach the node's own API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalApi {
    /// Address; not a loopback one, which pods cannot reach.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

impl LocalApi {
    /// The address in the annotations of an object, if pods can reach it: a loopback address in a pod is the pod
    /// itself.
    fn said_by(metadata: &ObjectMetadata) -> Result<Self, NotRedirected> {
        let said = |name: &str| metadata.annotations.get(name);
        let (endpoint, port) = match (said(LOCAL_ENDPOINT), said(LOCAL_PORT)) {
            (None, None) => return Err(NotRedirected::NobodySays),
            (endpoint, port) => (endpoint.cloned().unwrap_or_default(), port.cloned().unwrap_or_default()),
        };
        let usable =
            |address: &IpAddr| !address.is_loopback() && !address.is_unspecified() && !address.is_multicast();
        let address = endpoint.parse().ok().filter(usable);
        let number = port.parse().ok().filter(|port| *port > 0);
        match (address, number) {
            (Some(address), Some(port)) => Ok(Self { address, port }),
            _ => Err(NotRedirected::Unreachable(format!("{endpoint}:{port}"))),
        }
    }
}

/// Result of redirecting an object with endpoints on a node with an API of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lead {
    /// It belongs to another Service.
    Other,
    /// It leads to the local API; contains its text.
    Here(Vec<u8>),
    /// It still leads to the API servers of the cluster.
    There(NotRedirected),
}

/// Why the Service `default/kubernetes` leads to the API servers of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotRedirected {
    /// Neither a setting nor an annotation gives the address of the local API.
    NobodySays,
    /// Pods cannot reach the address in the annotations.
    Unreachable(String),
    /// The local API has an address of the other family. Contains the object's family, `IPv4` or `IPv6`.
    OtherFamily(String),
    /// The Service has endpoints of both families, but the local API has an address of only one.
    TwoFamilies,
}

impl core::fmt::Display for NotRedirected {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NobodySays => f.write_str("the local API has no address that pods can reach"),
            Self::Unreachable(said) => write!(
                f,
                "the annotations {LOCAL_ENDPOINT} and {LOCAL_PORT} say {said}, which no pod can reach"
            ),
            Self::TwoFamilies => f.write_str(
                "the Service has endpoints of both IP families, but the local API has an address of only one, so that \
                 pods would reach either of them by chance",
            ),
            Self::OtherFamily(family) => {
                write!(f, "the local API has no address of family {family}, which this object needs")
            }
        }
    }
}

/// The address family of a slice of the Service `default/kubernetes` that has endpoints; none for any other object.
///
/// # Errors
/// [`BodyError`] for text that is not such an object.
pub fn family_of_kubernetes(carrier: Carrier, body: &[u8]) -> Result<Option<String>, BodyError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SliceAddresses {
        #[serde(default)]
        address_type: String,
        #[serde(default, deserialize_with = "or_default")]
        endpoints: Vec<IgnoredAny>,
    }
    if carrier != Carrier::EndpointSlice || !is_of_kubernetes(carrier, &ObjectMetadata::of(body)?) {
        return Ok(None);
    }
    let slice: SliceAddresses = view(body)?;
    Ok(Some(slice.address_type).filter(|_| !slice.endpoints.is_empty()))
}

/// Whether an object has endpoints of the Service `default/kubernetes`.
fn is_of_kubernetes(carrier: Carrier, metadata: &ObjectMetadata) -> bool {
    let service = service_of(carrier, metadata);
    service.is_some_and(|service| (&*service.namespace, &*service.name) == ("default", "kubernetes"))
}

/// The endpoints of the Service `default/kubernetes`, leading to the local API only: to `configured`, or otherwise to
/// the address in the object's annotations. They are unchanged when there is no usable address, in a slice of the
/// other address family, and when the Service has endpoints of `two_families`: either all of them lead to the local
/// API, or none.
///
/// # Errors
/// [`BodyError`] for text that is not such an object.
pub fn lead_to_local_api(
    carrier: Carrier,
    body: &[u8],
    configured: Option<LocalApi>,
    two_families: bool,
) -> Result<Lead, BodyError> {
    let metadata = ObjectMetadata::of(body)?;
    if !is_of_kubernetes(carrier, &metadata) {
        return Ok(Lead::Other);
    }
    if two_families {
        return Ok(Lead::There(NotRedirected::TwoFamilies));
    }
    let local = match configured.map_or_else(|| LocalApi::said_by(&metadata), Ok) {
        Ok(local) => local,
        Err(why) => return Ok(Lead::There(why)),
    };
    match carrier {
        Carrier::EndpointSlice => slice(body, local),
        Carrier::Endpoints => endpoints(body, local).map(Lead::Here),
    }
}

fn slice(body: &[u8], LocalApi { address, port }: LocalApi) -> Result<Lead, BodyError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SlicePorts<'a> {
        #[serde(default)]
        address_type: String,
        #[serde(borrow, default, deserialize_with = "present")]
        endpoints: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        ports: Option<&'a RawValue>,
    }
    let slice: SlicePorts<'_> = view(body)?;
    if slice.address_type != if address.is_ipv4() { "IPv4" } else { "IPv6" } {
        return Ok(Lead::There(NotRedirected::OtherFamily(slice.address_type)));
    }
    let mut edits = Edits::new(body);
    let endpoint = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    edits.put("endpoints", slice.endpoints, endpoint.to_string());
    edits.put("ports", slice.ports, json!([{"name": "https", "protocol": "TCP", "port": port}]).to_string());
    Ok(Lead::Here(edits.apply()))
}

fn endpoints(body: &[u8], LocalApi { address, port }: LocalApi) -> Result<Vec<u8>, BodyError> {
    #[derive(Deserialize)]
    struct Endpoints<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        subsets: Option<&'a RawValue>,
    }
    let mut edits = Edits::new(body);
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let subsets = json!([{"addresses": [{"ip": address}], "ports": ports}]);
    edits.put("subsets", view::<Endpoints<'_>>(body)?.subsets, subsets.to_string());
    Ok(edits.apply())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const LOCAL: LocalApi =
        LocalApi { address: IpAddr::V4(core::net::Ipv4Addr::new(169, 254, 20, 11)), port: 51003 };

    fn slice_of(namespace: &str, family: &str, annotations: &Value) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "kubernetes", "namespace": namespace, "annotations": annotations,
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": family,
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        })
    }

    fn led(carrier: Carrier, object: &Value, configured: Option<LocalApi>) -> Option<Value> {
        match lead_to_local_api(carrier, object.to_string().as_bytes(), configured, false).unwrap() {
            Lead::Here(body) => Some(serde_json::from_slice(&body).unwrap()),
            Lead::Other | Lead::There(_) => None,
        }
    }

    #[test]
    fn reason_is_given_when_pods_are_not_directed_to_the_local_api() {
        let why = |family: &str, annotations: Value, configured| {
            let object = slice_of("default", family, &annotations).to_string();
            match lead_to_local_api(Carrier::EndpointSlice, object.as_bytes(), configured, false).unwrap() {
                Lead::There(why) => why.to_string(),
                other => panic!("{other:?}"),
            }
        };
        // SuperEdge's documented value is the loopback address of the machine, which in a pod is the pod itself.
        for endpoint in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "224.0.0.1", "here"] {
            let said = why("IPv4", json!({LOCAL_ENDPOINT: endpoint, LOCAL_PORT: "51003"}), None);
            assert!(said.contains(endpoint) && said.contains("no pod can reach"), "{said}");
        }
        assert!(why("IPv4", json!({LOCAL_ENDPOINT: "10.0.0.9"}), None).contains("no pod can reach"));
        assert!(why("IPv4", Value::Null, None).contains("no address that pods can reach"));
        assert!(why("IPv6", Value::Null, Some(LOCAL)).contains("family IPv6"));
        // A setting takes precedence over an annotation.
        let said = json!({LOCAL_ENDPOINT: "127.0.0.1", LOCAL_PORT: "51003"});
        assert!(led(Carrier::EndpointSlice, &slice_of("default", "IPv4", &said), Some(LOCAL)).is_some());
    }

    /// Rows P24 to P27 of docs/reference/superedge.md#pruning-rows.
    #[test]
    fn slice_points_to_the_local_api() {
        let slice = |object: &Value, configured| led(Carrier::EndpointSlice, object, configured);
        let object = slice_of("default", "IPv4", &Value::Null);
        let mut expected = object.clone();
        expected["endpoints"] = json!([{"addresses": ["169.254.20.11"], "conditions": {"ready": true}}]);
        expected["ports"] = json!([{"name": "https", "protocol": "TCP", "port": 51003}]);
        assert_eq!(slice(&object, Some(LOCAL)), Some(expected.clone()));
        let said = json!({LOCAL_ENDPOINT: "169.254.20.11", LOCAL_PORT: "51003"});
        expected["metadata"]["annotations"] = said.clone();
        assert_eq!(slice(&slice_of("default", "IPv4", &said), None), Some(expected));

        assert_eq!(slice(&object, None), None, "no address is given");
        assert_eq!(slice(&slice_of("default", "IPv6", &Value::Null), Some(LOCAL)), None);
        assert_eq!(slice(&slice_of("kube-system", "IPv4", &Value::Null), Some(LOCAL)), None);
        for (address, port) in [("1.2.3", "1"), ("1.2.3.4", "abc"), ("1.2.3.4", "0"), ("1.2.3.4", "70000")] {
            let said = json!({LOCAL_ENDPOINT: address, LOCAL_PORT: port});
            assert_eq!(slice(&slice_of("default", "IPv4", &said), None), None, "{address} {port}");
        }
    }

    #[test]
    fn dual_stack_service_points_only_to_the_local_api() {
        for family in ["IPv4", "IPv6"] {
            let object = slice_of("default", family, &Value::Null).to_string();
            let carrier = Carrier::EndpointSlice;
            let lead = lead_to_local_api(carrier, object.as_bytes(), Some(LOCAL), true).unwrap();
            assert_eq!(lead, Lead::There(NotRedirected::TwoFamilies));
            assert_eq!(family_of_kubernetes(carrier, object.as_bytes()).unwrap().as_deref(), Some(family));
        }
        let other = slice_of("kube-system", "IPv4", &Value::Null).to_string();
        let lead = lead_to_local_api(Carrier::EndpointSlice, other.as_bytes(), Some(LOCAL), true).unwrap();
        assert_eq!(lead, Lead::Other);
        assert_eq!(family_of_kubernetes(Carrier::EndpointSlice, other.as_bytes()).unwrap(), None);
        for endpoints in [json!([]), Value::Null] {
            let mut empty = slice_of("default", "IPv6", &Value::Null);
            empty["endpoints"] = endpoints;
            let empty = empty.to_string();
            let family = family_of_kubernetes(Carrier::EndpointSlice, empty.as_bytes()).unwrap();
            assert_eq!(family, None, "a Service without endpoints has no target");
        }
    }

    #[test]
    fn missing_or_null_members_are_inserted() {
        for ports in [json!(null), json!([])] {
            let mut object = slice_of("default", "IPv4", &Value::Null);
            object["ports"] = ports;
            object.as_object_mut().unwrap().remove("endpoints");
            let led = led(Carrier::EndpointSlice, &object, Some(LOCAL)).unwrap();
            assert_eq!(led["endpoints"][0]["addresses"], json!(["169.254.20.11"]));
            assert_eq!(led["ports"][0]["port"], 51003);
        }
    }

    #[test]
    fn endpoints_point_to_the_local_api() {
        let address = json!({"ip": "10.0.0.1"});
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "subsets": [{"addresses": [address]}, {}]});
        let led_to = led(Carrier::Endpoints, &object("kubernetes"), Some(LOCAL)).unwrap();
        let ports = json!([{"name": "https", "port": 51003, "protocol": "TCP"}]);
        assert_eq!(led_to["subsets"], json!([{"addresses": [{"ip": "169.254.20.11"}], "ports": ports}]));
        assert_eq!(led(Carrier::Endpoints, &object("other"), Some(LOCAL)), None);
    }
}
