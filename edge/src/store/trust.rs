//! Adds the CA of the local API to that of the cluster, in the ConfigMaps from which pods take their CA bundle. Only
//! this node's clients see it (docs/edge-node.md#pods-at-the-local-api). The cloud's versions and content hashes stay
//! unchanged, and the CA is removed again from what a client writes ([`plain`]).

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_proto::object::{ObjectKey, Resource};

use super::error::WriteError;
use super::row::State;
use super::{Store, batch::Batch, is_core, keys, view, writer};

/// Name of the ConfigMap of each namespace that every pod mounts (Kubernetes convention).
const CONFIG_MAP: &str = "kube-root-ca.crt";

/// JSON pointer to its certificates.
const POINTER: &str = "/data/ca.crt";

/// Starts the added part. Readers of PEM files skip text between certificates.
const MARK: &str = "# local API of this edge node\n";

impl Store {
    /// Shows this CA (PEM) to clients in addition to that of the cluster; `None` shows only the cluster's.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn trust_locally(&self, ca: Option<String>) -> Result<(), WriteError> {
        self.run(writer::Command::TrustLocally(ca)).await.map(drop)
    }
}

/// Whether clients see an object with the added CA.
pub(crate) fn is_root_ca(key: &ObjectKey) -> bool {
    is_core(key.resource()) && &*key.resource().name == "configmaps" && key.name() == CONFIG_MAP
}

/// The object without the added CA. An object without one is returned unchanged.
pub(crate) fn plain(body: &Bytes) -> Bytes {
    changed(body, None)
}

/// The object with this CA added; `None` removes it.
fn changed(body: &Bytes, ca: Option<&str>) -> Bytes {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else { return body.clone() };
    let Some(held) = object.pointer(POINTER).and_then(Value::as_str) else { return body.clone() };
    let own = held.split(MARK).next().unwrap_or_default();
    let newline = if own.is_empty() || own.ends_with('\n') { "" } else { "\n" };
    let shown = match ca {
        Some(ca) => format!("{own}{newline}{MARK}{ca}"),
        None => own.to_owned(),
    };
    if shown == held {
        return body.clone();
    }
    object["data"]["ca.crt"] = json!(shown);
    object.to_string().into()
}

impl Batch<'_> {
    /// The body of an object as shown to clients.
    pub(super) fn as_shown(&self, key: &ObjectKey, body: &Bytes) -> Bytes {
        if is_root_ca(key) {
            changed(body, self.trusted.as_ref().map(|ca| ca.as_str()))
        } else {
            body.clone()
        }
    }

    /// Publishes the stored ConfigMaps again if the CA has changed.
    pub(super) fn show_again(&mut self) -> Result<(), WriteError> {
        for row_key in self.row_keys(&Resource::new("", "v1", "configmaps"), None)? {
            let Some(key) = keys::decode(&row_key).filter(is_root_ca) else { continue };
            let Some(row) = self.row(&row_key)?.filter(|row| row.state == State::Visible) else { continue };
            let body = view::plain(self.sealer, &key, &row)?;
            if self.as_shown(&key, &body) != body {
                self.replace(&row_key, &key, Some(row.clone()), row)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::store::Store as _;
    use tombolo_proto::frame::Change;
    use tombolo_proto::ids::{CloudRevision, SubscriptionId, Uid};
    use tombolo_proto::object::{ContentHash, HeldState, ObjectVersion, SharedObject};

    use super::super::tests::{body, key, open, synced};
    use super::super::{Delivery, FaultyDisk};
    use super::*;

    fn delivered(name: &str, revision: u64, ca: &str) -> Delivery {
        let key = key("configmaps", name);
        let text = body(&key, "u1", &json!({"ca.crt": ca})).to_string();
        let (uid, hash) = (Uid::parse("u1").unwrap(), ContentHash(7));
        let version = ObjectVersion { uid, revision: CloudRevision(revision), hash };
        let object = SharedObject::new(key, version, text.into(), Vec::new());
        Delivery { subscription: SubscriptionId::NODE, change: Change::Upsert(object.into()) }
    }

    fn shown(store: &Store, name: &str) -> String {
        let object = store.get(&key("configmaps", name)).unwrap().unwrap();
        let object: Value = serde_json::from_slice(&object.body()).unwrap();
        object["data"]["ca.crt"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn clients_see_both_cas_and_the_cloud_only_its_own() {
        let disk = FaultyDisk::new(1);
        let store = synced(&disk).await;
        store.apply(vec![delivered(CONFIG_MAP, 10, "cluster\n")]).await.unwrap();
        let before = store.local_revision();
        store.trust_locally(Some("local\n".to_owned())).await.unwrap();
        let both = format!("cluster\n{MARK}local\n");
        assert_eq!(shown(&store, CONFIG_MAP), both);
        assert!(store.local_revision() > before, "watchers are notified");
        store.apply(vec![delivered(CONFIG_MAP, 11, "renewed"), delivered("other", 12, "x")]).await.unwrap();
        assert_eq!(shown(&store, CONFIG_MAP), format!("renewed\n{MARK}local\n"));
        assert_eq!(shown(&store, "other"), "x");
        let held = store.inventory(SubscriptionId::NODE).unwrap();
        let hashes = held.iter().map(|entry| match &entry.held {
            HeldState::Present(version) => version.hash,
            HeldState::Absent | HeldState::Unreadable => ContentHash(0),
        });
        assert!(
            hashes.into_iter().all(|hash| hash == ContentHash(7)),
            "the comparison with the cloud is untouched"
        );
        store.close().await;

        let store = open(&disk);
        let after = store.local_revision();
        store.trust_locally(Some("local\n".to_owned())).await.unwrap();
        assert_eq!(store.local_revision(), after, "nothing has changed");
        store.trust_locally(None).await.unwrap();
        assert_eq!(shown(&store, CONFIG_MAP), "renewed\n");
    }

    #[test]
    fn added_ca_is_removed_from_client_writes() {
        let body = Bytes::from(json!({"data": {"ca.crt": "cluster\n"}}).to_string());
        let both = changed(&body, Some("local"));
        assert_ne!(both, body);
        assert_eq!(plain(&both), body);
        for other in ["", "{}", "[]", r#"{"data":{"a":"b"}}"#] {
            assert_eq!(changed(&Bytes::from(other), Some("local")), other);
        }
    }
}
