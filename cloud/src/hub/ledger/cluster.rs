//! Ledgers in the Kubernetes API: one ConfigMap per node, in cloudcore's namespace.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_proto::ids::NAME_LEN_MAX;
use tombolo_proto::message::is_passing;
use tombolo_proto::{NodeId, Uid};

use super::{LedgerError, LedgerStore, Record, RecordError, RecordVersion, record};
use crate::kube::{Answer, ApiCall, Caller, Kube, query_value};

/// Prefix of a ledger's name. The node's name follows.
const PREFIX: &str = "tombolo-ledger.";

/// Prefix of the name of a ledger whose node name is too long for [`PREFIX`]; the SHA-256 of the node name follows. No
/// node name yields the same text with [`PREFIX`], because that one ends with a dot where this one has a hyphen.
const LONG_PREFIX: &str = "tombolo-ledger-of-long-name.";

/// Label of all ledgers. cloudcore's watch of ConfigMaps excludes them by this label.
pub const LEDGER_LABEL: &str = "tombolo/ledger";

/// Selects every ConfigMap that is not a ledger.
pub(crate) const NO_LEDGERS: &str = "!tombolo/ledger";

/// A ledger store in the ConfigMaps of one namespace.
#[derive(Clone)]
pub struct ClusterLedgers {
    kube: Kube,
    namespace: String,
}

impl ClusterLedgers {
    /// A store in this namespace.
    #[must_use]
    pub fn new(kube: Kube, namespace: &str) -> Self {
        Self { kube, namespace: namespace.to_owned() }
    }

    /// All records of the namespace.
    ///
    /// # Errors
    /// [`LedgerError`]: the API server does not answer or refuses, or a record is damaged.
    pub async fn all_records(&self) -> Result<Vec<(NodeId, Record)>, LedgerError> {
        let failed = |reason: String| LedgerError::List { reason };
        let path = format!("{}?labelSelector={}", self.all(), query_value(LEDGER_LABEL));
        let mut records = Vec::new();
        let listed = self.kube.list(Caller::Own, &path, |object| records.push(named(object.value()))).await;
        match listed.map_err(|error| failed(error.to_string()))? {
            None => records.into_iter().collect(),
            Some(answer) => Err(failed(answer.message())),
        }
    }

    async fn try_read(&self, node: &NodeId) -> Result<Option<(Record, RecordVersion)>, LedgerError> {
        let path = format!("{}/{}", self.all(), name_of(node));
        let answer = self.call(node, "read", ApiCall::get(path)).await?;
        match answer.code {
            404 => Ok(None),
            200 => {
                let damaged = |source| LedgerError::Damaged { node: node.clone(), source };
                let stored: LedgerConfigMap<'_> = serde_json::from_slice(&answer.body)
                    .map_err(|error| damaged(RecordError::Unreadable(error.to_string())))?;
                // Check the content, whatever the object's name is: one node never receives what another one holds.
                if stored.data.node != node.as_str() {
                    return Err(damaged(RecordError::OfAnother(stored.data.node.into_owned())));
                }
                let version = stored.metadata.resource_version.clone().into_owned();
                Ok(Some((stored.record().map_err(damaged)?, version)))
            }
            _ => Err(refused(node, "read", &answer)),
        }
    }

    async fn try_write(
        &self,
        node: &NodeId,
        expected: Option<&RecordVersion>,
        record: &Record,
    ) -> Result<RecordVersion, LedgerError> {
        let bytes = record::encode(&record.ledger);
        let bytes = bytes.map_err(|error| unavailable(node, "written", error.to_string(), false))?;
        let object = self.object(node, expected, record, &bytes);
        let call = match expected {
            None => ApiCall::json(Method::POST, self.all(), &object),
            Some(_) => ApiCall::json(Method::PUT, format!("{}/{}", self.all(), name_of(node)), &object),
        };
        let answer = self.call(node, "written", call).await?;
        match answer.code {
            200 | 201 => {
                let stored: LedgerConfigMap<'_> = serde_json::from_slice(&answer.body)
                    .map_err(|error| unavailable(node, "written", format!("bad answer: {error}"), false))?;
                Ok(stored.metadata.resource_version.into_owned())
            }
            409 => Err(LedgerError::Conflict),
            404 if expected.is_some() => Err(LedgerError::Conflict),
            _ => Err(refused(node, "written", &answer)),
        }
    }

    fn object(
        &self,
        node: &NodeId,
        expected: Option<&RecordVersion>,
        record: &Record,
        bytes: &[u8],
    ) -> Value {
        let mut metadata =
            json!({"name": name_of(node), "namespace": self.namespace, "labels": {LEDGER_LABEL: ""}});
        if let Some(version) = expected {
            metadata["resourceVersion"] = version.as_str().into();
        }
        if let Some(uid) = &record.owner {
            let owner =
                json!({"apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": uid.as_str()});
            metadata["ownerReferences"] = json!([owner]);
        }
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"node": node.as_str(), "holder": record.holder},
            "binaryData": {"ledger": STANDARD.encode(bytes)}
        })
    }

    fn all(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    async fn call(&self, node: &NodeId, action: &'static str, call: ApiCall) -> Result<Answer, LedgerError> {
        // A ledger is saved at the end of a session, when the node's own call slots may be in use; ledger calls have a
        // limit of their own.
        let answer = self.kube.call(Caller::Own, call).await;
        answer.map_err(|error| unavailable(node, action, error.to_string(), error.is_passing()))
    }
}

impl LedgerStore for ClusterLedgers {
    fn read<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> BoxFuture<'a, Result<Option<(Record, RecordVersion)>, LedgerError>> {
        self.try_read(node).boxed()
    }

    fn write<'a>(
        &'a self,
        node: &'a NodeId,
        expected: Option<&'a RecordVersion>,
        record: &'a Record,
    ) -> BoxFuture<'a, Result<RecordVersion, LedgerError>> {
        self.try_write(node, expected, record).boxed()
    }
}

/// Name of a node's ledger. A name that would be too long is replaced by its hash, which is collision-resistant.
fn name_of(node: &NodeId) -> String {
    let name = format!("{PREFIX}{node}");
    if name.len() <= NAME_LEN_MAX {
        return name;
    }
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, node.as_str().as_bytes());
    format!("{LONG_PREFIX}{}", hex::encode(digest))
}

/// The fields of a ledger's ConfigMap that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LedgerConfigMap<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    data: LedgerData<'a>,
    #[serde(borrow, default)]
    binary_data: Bytes<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    owner_references: Vec<LedgerOwner<'a>>,
}

#[derive(Deserialize)]
struct LedgerOwner<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LedgerData<'a> {
    #[serde(borrow)]
    node: Cow<'a, str>,
    #[serde(borrow)]
    holder: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Bytes<'a> {
    #[serde(borrow)]
    ledger: Cow<'a, str>,
}

impl LedgerConfigMap<'_> {
    fn record(&self) -> Result<Record, RecordError> {
        let bytes = STANDARD.decode(self.binary_data.ledger.as_bytes());
        let bytes = bytes.map_err(|error| RecordError::Unreadable(error.to_string()))?;
        let owner = self.metadata.owner_references.first().and_then(|owner| Uid::parse(&owner.uid).ok());
        Ok(Record { holder: self.data.holder.as_ref().into(), owner, ledger: record::decode(&bytes)? })
    }
}

/// Reads a record and the node that it names.
fn named(object: &Value) -> Result<(NodeId, Record), LedgerError> {
    let failed = |reason: String| LedgerError::List { reason };
    let stored = LedgerConfigMap::deserialize(object).map_err(|error| failed(error.to_string()))?;
    let node = NodeId::parse(&stored.data.node).map_err(|error| failed(error.to_string()))?;
    let record = stored.record().map_err(|source| LedgerError::Damaged { node: node.clone(), source })?;
    Ok((node, record))
}

fn refused(node: &NodeId, action: &'static str, answer: &Answer) -> LedgerError {
    unavailable(node, action, answer.message(), is_passing(answer.code))
}

fn unavailable(node: &NodeId, action: &'static str, reason: String, passing: bool) -> LedgerError {
    LedgerError::Unavailable { node: node.clone(), action, reason, passing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_its_own_ledger_name() {
        let name = |text: &str| name_of(&NodeId::parse(text).expect("a name"));
        assert_eq!(name("edge-1"), "tombolo-ledger.edge-1");
        let long = |end: &str| format!("{}.{end}", ["x".repeat(60).as_str(); 4].join("."));
        let (a, b) = (name(&long("aaaaaaa")), name(&long("bbbbbbb")));
        assert!(a.len() <= NAME_LEN_MAX && a != b, "{a}");
        // A node whose name is the hash of another node's name.
        let digest = a.strip_prefix(LONG_PREFIX).expect("the form of long names");
        assert_ne!(name(digest), a);
        assert_ne!(name(&format!("of-long-name.{digest}")), a);
    }
}
