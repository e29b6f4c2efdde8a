//! The Lease that identifies this API server in its cluster, as each kube-apiserver has one.

use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tombolo_apicore::store::StoreError;
use tombolo_proto::object::ObjectKey;

use super::Context;
use crate::objects::{Edit, Objects, member, v1};

/// Namespace of the Leases of API servers.
const NAMESPACE: &str = "kube-system";

/// Label of the Leases of API servers, and its value (Kubernetes convention).
const LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");

/// Duration of the Lease in seconds, and how often it is renewed (kube-apiserver's values).
const LEASE_SECONDS: u64 = 3600;
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Number of characters in the name after `apiserver-`.
const NAME_LETTERS: usize = 26;

/// Renews the Lease until the server stops.
pub(super) async fn run(context: &Context) {
    let host = host_name();
    let name = name(&host, context.pki.ca_certificate());
    let holder = format!("{name}_{}", uuid::Uuid::new_v4());
    let mut round = tokio::time::interval(RENEW_INTERVAL);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        if let Err(error) = renew(&context.objects, &name, &host, &holder).await {
            tracing::warn!(%error, "cannot renew the lease of this API server; retrying");
        }
    }
}

async fn renew(objects: &Objects, name: &str, host: &str, holder: &str) -> Result<(), StoreError> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let (label, value) = LABEL;
    let leases = v1("coordination.k8s.io", "leases");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "namespace": NAMESPACE, "name": name,
            "labels": {label: value, "kubernetes.io/hostname": host},
        },
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
    });
    let (spec, labels) = (lease["spec"].clone(), lease["metadata"]["labels"].clone());
    let key = ObjectKey::new(leases.clone(), NAMESPACE, name);
    let renewed = objects.update(&key, |lease| {
        lease.value["spec"] = spec.clone();
        let own = member(&mut lease.value["metadata"], "labels");
        own.extend(
            labels.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
        Edit::Put
    });
    match renewed.await? {
        Some(_) => Ok(()),
        None => objects.ensure(leases, lease).await,
    }
}

/// A name that stays the same for a data directory, because it depends on the certificate authority.
fn name(host: &str, authority: &str) -> String {
    let mut hash = Sha256::new();
    for part in [host, authority] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let hex = hex::encode(hash.finalize());
    format!("apiserver-{}", &hex[..NAME_LETTERS])
}

/// The host name, changed to a valid label value.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    fit_for_label(name.trim())
}

fn fit_for_label(name: &str) -> String {
    let allowed = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let kept: String = name.chars().filter(allowed).take(63).collect();
    let trimmed = kept.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
    if trimmed.is_empty() { "localhost".to_owned() } else { trimmed.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn the_lease_is_made_and_renewed() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let name = name("laptop", "authority");
        renew(&objects, &name, "laptop", "one").await.unwrap();
        renew(&objects, &name, "laptop", "two").await.unwrap();
        let lease = objects.get(v1("coordination.k8s.io", "leases"), NAMESPACE, &name).unwrap();
        assert_eq!(lease.text("/spec/holderIdentity"), "two");
        assert_eq!(lease.value["metadata"]["labels"]["kubernetes.io/hostname"], "laptop");
        let time: jiff::Timestamp = lease.text("/spec/renewTime").parse().unwrap();
        assert!(time <= jiff::Timestamp::now());
    }

    #[test]
    fn any_host_name_fits_a_label() {
        for (name, wanted) in [("Laptop.local", "laptop.local"), ("-\u{e4}-", "localhost"), ("", "localhost")]
        {
            assert_eq!(fit_for_label(name), wanted);
        }
        assert_eq!(fit_for_label(&format!("{}-x", "a".repeat(62))), "a".repeat(62));
    }
}
