//! The Service `default/kubernetes` on a node with an API of its own.

use core::net::IpAddr;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::body::{BodyError, Edits, Metadata, present, view};
use crate::endpoints::{Carrier, service_of};

/// Annotations that name the local API where no setting does (SuperEdge's).
pub const LOCAL_ENDPOINT: &str = "superedge.io/local-endpoint";
/// See [`LOCAL_ENDPOINT`].
pub const LOCAL_PORT: &str = "superedge.io/local-port";

/// Where pods reach the node's own API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalApi {
    /// Address; not a loopback one, which no pod could reach.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

impl LocalApi {
    /// What the annotations of an object say; none unless both can be read.
    fn said_by(metadata: &Metadata) -> Option<Self> {
        let address = metadata.annotations.get(LOCAL_ENDPOINT)?.parse().ok()?;
        let port = metadata.annotations.get(LOCAL_PORT)?.parse().ok().filter(|port| *port > 0)?;
        Some(Self { address, port })
    }
}

/// The endpoints of the Service `default/kubernetes`, leading to the local API alone: `configured`, or without it where
/// the annotations of the object say. None for all other objects, where nobody says a usable address, and for slices of
/// the other address family.
///
/// # Errors
/// [`BodyError`] for text that is no such object.
pub fn lead_to_local_api(
    carrier: Carrier,
    body: &[u8],
    configured: Option<LocalApi>,
) -> Result<Option<Vec<u8>>, BodyError> {
    let metadata = Metadata::of(body)?;
    let service = service_of(carrier, &metadata);
    if service.is_none_or(|service| (&*service.namespace, &*service.name) != ("default", "kubernetes")) {
        return Ok(None);
    }
    let Some(local) = configured.or_else(|| LocalApi::said_by(&metadata)) else { return Ok(None) };
    match carrier {
        Carrier::EndpointSlice => slice(body, local),
        Carrier::Endpoints => endpoints(body, local).map(Some),
    }
}

fn slice(body: &[u8], LocalApi { address, port }: LocalApi) -> Result<Option<Vec<u8>>, BodyError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slice<'a> {
        #[serde(default)]
        address_type: String,
        #[serde(borrow, default, deserialize_with = "present")]
        endpoints: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        ports: Option<&'a RawValue>,
    }
    let slice: Slice<'_> = view(body)?;
    if slice.address_type != if address.is_ipv4() { "IPv4" } else { "IPv6" } {
        return Ok(None);
    }
    let mut edits = Edits::new(body);
    let endpoint = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    edits.put("endpoints", slice.endpoints, endpoint.to_string());
    edits.put("ports", slice.ports, json!([{"name": "https", "protocol": "TCP", "port": port}]).to_string());
    Ok(Some(edits.apply()))
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
        let led = lead_to_local_api(carrier, object.to_string().as_bytes(), configured).unwrap();
        led.map(|body| serde_json::from_slice(&body).unwrap())
    }

    /// Rows P24 to P27 of app-grid reference 8.1.
    #[test]
    fn the_slice_leads_to_the_local_api() {
        let slice = |object: &Value, configured| led(Carrier::EndpointSlice, object, configured);
        let object = slice_of("default", "IPv4", &Value::Null);
        let mut expected = object.clone();
        expected["endpoints"] = json!([{"addresses": ["169.254.20.11"], "conditions": {"ready": true}}]);
        expected["ports"] = json!([{"name": "https", "protocol": "TCP", "port": 51003}]);
        assert_eq!(slice(&object, Some(LOCAL)), Some(expected.clone()));
        let said = json!({LOCAL_ENDPOINT: "169.254.20.11", LOCAL_PORT: "51003"});
        expected["metadata"]["annotations"] = said.clone();
        assert_eq!(slice(&slice_of("default", "IPv4", &said), None), Some(expected));

        assert_eq!(slice(&object, None), None, "nobody says an address");
        assert_eq!(slice(&slice_of("default", "IPv6", &Value::Null), Some(LOCAL)), None);
        assert_eq!(slice(&slice_of("kube-system", "IPv4", &Value::Null), Some(LOCAL)), None);
        for (address, port) in [("1.2.3", "1"), ("1.2.3.4", "abc"), ("1.2.3.4", "0"), ("1.2.3.4", "70000")] {
            let said = json!({LOCAL_ENDPOINT: address, LOCAL_PORT: port});
            assert_eq!(slice(&slice_of("default", "IPv4", &said), None), None, "{address} {port}");
        }
    }

    #[test]
    fn members_that_are_missing_or_null_are_put_in() {
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
    fn endpoints_lead_there_too() {
        let address = json!({"ip": "10.0.0.1"});
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "subsets": [{"addresses": [address]}, {}]});
        let led_to = led(Carrier::Endpoints, &object("kubernetes"), Some(LOCAL)).unwrap();
        let ports = json!([{"name": "https", "port": 51003, "protocol": "TCP"}]);
        assert_eq!(led_to["subsets"], json!([{"addresses": [{"ip": "169.254.20.11"}], "ports": ports}]));
        assert_eq!(led(Carrier::Endpoints, &object("other"), Some(LOCAL)), None);
    }
}
