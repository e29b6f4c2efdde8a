//! Keeps the IPAddress objects in sync with the Services that own the addresses.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tombolo_proto::object::Resource;

use super::Context;
use super::feed::Feed;
use crate::objects::{Edit, Objects, StoredObject, core, text, v1};

/// Label of addresses that the API server's allocator manages.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

fn resource() -> Resource {
    v1("networking.k8s.io", "ipaddresses")
}

/// Creates and removes IPAddress objects until the server stops.
pub(super) async fn run(context: &Context) {
    let mut services = Feed::new(&context.objects, core("services"));
    remove_unowned(&context.objects).await;
    while let Some(key) = services.next().await {
        let Some(service) = context.objects.get_key(&key) else {
            remove_unowned(&context.objects).await;
            continue;
        };
        if let Ok(address) = service.text("/spec/clusterIP").parse::<Ipv4Addr>() {
            claim(&context.objects, address, &service).await;
        }
        remove_unowned(&context.objects).await;
    }
}

async fn claim(objects: &Objects, address: Ipv4Addr, service: &StoredObject) {
    let value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address,
            "labels": {"ipaddress.kubernetes.io/ip-family": "IPv4", MANAGED_BY: ALLOCATOR},
        },
        "spec": {"parentRef": {"resource": "services", "namespace": service.key.namespace(), "name": service.key.name()}},
    });
    if let Err(error) = objects.ensure(resource(), value).await {
        tracing::warn!(%address, %error, "an address object was not created");
    }
}

/// Removes managed IPAddress objects whose Service is gone or has another address.
async fn remove_unowned(objects: &Objects) {
    for address in objects.list(&resource(), None) {
        if address.value["metadata"]["labels"][MANAGED_BY] != ALLOCATOR || is_owned(objects, &address.value) {
            continue;
        }
        if let Err(error) = objects.update(&address.key, |_| Edit::Remove).await {
            tracing::warn!(key = %address.key, %error, "an address object was not removed");
        }
    }
}

fn is_owned(objects: &Objects, address: &Value) -> bool {
    let parent = |field: &str| text(address, &format!("/spec/parentRef/{field}")).to_owned();
    let service = objects.get(core("services"), &parent("namespace"), &parent("name"));
    service.is_some_and(|service| service.text("/spec/clusterIP") == text(address, "/metadata/name"))
}
