//! MetaServer's requests: one API call in a record, which travels to the cloud and returns with its result
//! (docs/reference/kubeedge.md#application-records).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::limits::SYNC_RECORDS_MAX;
use crate::message::{Content, ContentError, StatusError, open_words};

/// Longest option and longest body of a record that its answer repeats, in bytes.
const QUESTION_LEN_MAX: usize = 16 * 1024;

open_words! {
    /// The request of an application (docs/reference/kubeedge.md#application-records).
    Verb {
        /// Read one object, or a path of the API server.
        Get = "get",
        /// Read many objects.
        List = "list",
        /// Follow many objects.
        Watch = "watch",
        /// Create an object or a subresource.
        Create = "create",
        /// Delete an object.
        Delete = "delete",
        /// Replace an object or a subresource.
        Update = "update",
        /// Replace an object's status.
        UpdateStatus = "updatestatus",
        /// Patch an object.
        Patch = "patch",
    }
}

open_words! {
    /// Status of an application (docs/reference/kubeedge.md#application-records).
    ApplicationStatus {
        /// Created, not sent.
        PreApplying = "PreApplying",
        /// Sent.
        InApplying = "InApplying",
        /// Being processed.
        InProcessing = "InProcessing",
        /// Done; the body of the response holds the result.
        Approved = "Approved",
        /// Refused by the API server or by the cloud.
        Rejected = "Rejected",
        /// Not executed.
        Failed = "Failed",
        /// No longer needed.
        Completed = "Completed",
    }
}

/// A keyword as a JSON string; `null` reads as the empty keyword.
macro_rules! json_word {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::parse(&Option::<Cow<'de, str>>::deserialize(deserializer)?.unwrap_or_default()))
            }
        }
    };
}

json_word!(Verb);
json_word!(ApplicationStatus);

/// One request of MetaServer, with Go's member names and order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Application {
    /// Hash of the request: equal requests share it. Never empty from KubeEdge edges.
    #[serde(rename = "ID", default)]
    pub id: String,
    /// `/<group or core>/<version>/<resource>/<namespace or null>/<name or null>`, or a path of the API server.
    #[serde(default)]
    pub key: String,
    /// Requested verb.
    pub verb: Verb,
    /// The requesting node. The cloud trusts the connection, not this field.
    #[serde(default)]
    pub nodename: String,
    /// JSON of Kubernetes' options for the verb.
    #[serde(default, with = "base64_bytes")]
    pub option: Option<Vec<u8>>,
    /// JSON of the object to write.
    #[serde(default, with = "base64_bytes")]
    pub req_body: Option<Vec<u8>>,
    /// Subresource; empty without one.
    #[serde(default)]
    pub subresource: String,
    /// JSON of the result, or the raw bytes of a path.
    #[serde(default, with = "base64_bytes")]
    pub resp_body: Option<Vec<u8>>,
    /// Status of the request.
    pub status: ApplicationStatus,
    /// Text of an error that is not an answer of the API server.
    #[serde(default)]
    pub reason: String,
    /// Answer of the API server when it is not a success.
    #[serde(default)]
    pub error: ApplicationError,
    /// RFC 3339; Go's zero time when it was not set.
    #[serde(default = "zero_time")]
    pub timestamp: String,
}

fn zero_time() -> String {
    Application::ZERO_TIME.to_owned()
}

/// The `Error` member: a status, or an empty one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApplicationError {
    /// Kubernetes' status; `{"metadata":{}}` for none. Kept as text: as a tree it would take many times as much
    /// memory.
    #[serde(rename = "ErrStatus", default = "no_status")]
    status: Box<RawValue>,
}

fn no_status() -> Box<RawValue> {
    RawValue::from_string(r#"{"metadata":{}}"#.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl ApplicationError {
    /// The parsed status; none when the text is not a status.
    #[must_use]
    pub fn said(&self) -> Option<StatusError> {
        serde_json::from_str(self.status.get()).ok()
    }

    /// Length of the text, in bytes.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.status.get().len()
    }
}

impl Default for ApplicationError {
    fn default() -> Self {
        Self { status: RawValue::NULL.to_owned() }
    }
}

impl PartialEq for ApplicationError {
    fn eq(&self, other: &Self) -> bool {
        self.status.get() == other.status.get()
    }
}

/// Records by their ids, at most [`SYNC_RECORDS_MAX`]: further ones are not read.
struct Records(BTreeMap<String, Application>);

impl<'de> Deserialize<'de> for Records {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReadRecords)
    }
}

struct ReadRecords;

impl<'de> Visitor<'de> for ReadRecords {
    type Value = Records;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of records by id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Records, A::Error> {
        let mut records = BTreeMap::new();
        while let Some(id) = map.next_key()? {
            if records.len() >= SYNC_RECORDS_MAX {
                return Err(A::Error::custom(format_args!("there are more than {SYNC_RECORDS_MAX} records")));
            }
            records.insert(id, map.next_value()?);
        }
        Ok(Records(records))
    }
}

impl Application {
    /// Go's zero time: a record's timestamp when it was not set.
    pub const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

    /// Reads a record.
    ///
    /// # Errors
    /// [`ContentError::NotJson`] when the content is not a record.
    pub fn read(content: &Content) -> Result<Self, ContentError> {
        content.read()
    }

    /// Reads the records of a watch sync, by their ids (docs/reference/kubeedge.md#application-messages).
    ///
    /// # Errors
    /// [`ContentError::NotJson`] when the content is not a map of records, or has more than [`SYNC_RECORDS_MAX`].
    pub fn read_all(content: &Content) -> Result<BTreeMap<String, Self>, ContentError> {
        content.read().map(|Records(records)| records)
    }

    /// The record as content.
    #[must_use]
    pub fn to_content(&self) -> Content {
        // Texts, bytes and JSON values, none of which serde_json refuses.
        Content::from_value(self).unwrap_or_else(|_| Content::null())
    }

    /// The record without its option and body where they are long. A KubeEdge edge takes status, reason, error and
    /// result from the answer and has the rest itself (docs/reference/kubeedge.md#application-records).
    #[must_use]
    pub fn without_long_question(mut self) -> Self {
        for asked in [&mut self.option, &mut self.req_body] {
            *asked = asked.take().filter(|asked| asked.len() <= QUESTION_LEN_MAX);
        }
        self
    }

    /// Only the fields by which a KubeEdge edge identifies the record.
    #[must_use]
    pub fn name_alone(self) -> Self {
        let Self { id, key, verb, status, timestamp, .. } = self;
        let (nodename, subresource, reason) = Default::default();
        let error = ApplicationError::default();
        let (option, req_body, resp_body) = (None, None, None);
        Self {
            id,
            key,
            verb,
            nodename,
            option,
            req_body,
            subresource,
            resp_body,
            status,
            reason,
            error,
            timestamp,
        }
    }

    /// The record with a result.
    #[must_use]
    pub fn approved(mut self, body: Vec<u8>) -> Self {
        self.resp_body = Some(body);
        self.status = ApplicationStatus::Approved;
        self
    }

    /// The record with a refusal, which a KubeEdge edge passes to its client unchanged. The reason stays empty beside a
    /// status (docs/reference/kubeedge.md#applications-in-the-cloud).
    #[must_use]
    pub fn rejected(mut self, error: &StatusError) -> Self {
        self.resp_body = None;
        self.status = ApplicationStatus::Rejected;
        self.reason.clear();
        let status = error.to_content().read::<ApplicationError>();
        self.error = status.unwrap_or_default();
        self
    }
}

/// Go's encoding of a byte slice: base64 text, `null` for none.
mod base64_bytes {
    use super::{Cow, Deserialize, Deserializer, Engine as _, STANDARD, Serialize as _, Serializer};

    #[allow(clippy::ref_option)] // serde's `with` passes a reference
    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
        text.map(|text| STANDARD.decode(text.as_bytes()).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const ASKED: &str = concat!(
        r#"{"ID":"74ec","Key":"/core/v1/nodes/null/edge1","Verb":"get","Nodename":"edge1","Option":"e30=","#,
        r#""ReqBody":null,"Subresource":"","RespBody":null,"Status":"InApplying","Reason":"","#,
        r#""Error":{"ErrStatus":{"metadata":{}}},"Timestamp":"0001-01-01T00:00:00Z"}"#
    );

    #[test]
    fn answer_does_not_repeat_a_long_request() {
        let body = |len: usize| Application { req_body: Some(vec![b'x'; len]), ..asked() };
        let short = body(QUESTION_LEN_MAX);
        assert_eq!(short.clone().without_long_question(), short);
        let long = body(QUESTION_LEN_MAX + 1).without_long_question();
        assert_eq!(long, Application { req_body: None, ..asked() });
    }

    fn asked() -> Application {
        Application::read(&Content::from_json(&Bytes::from(ASKED)).expect("JSON")).expect("a record")
    }

    #[test]
    fn record_round_trips() {
        assert_eq!(asked().to_content().as_json(), ASKED);
        assert_eq!((asked().verb, asked().option.as_deref()), (Verb::Get, Some(&b"{}"[..])));
    }

    #[test]
    fn results_and_refusals_keep_the_request() {
        let done = asked().approved(b"{}".to_vec());
        assert_eq!((done.status.as_str(), done.resp_body.as_deref()), ("Approved", Some(&b"{}"[..])));
        let error = StatusError::new(404, "NotFound", "nodes \"edge1\" not found").about("nodes", "edge1");
        let refused = asked().rejected(&error);
        assert_eq!(refused.error.said(), Some(error));
        assert_eq!((refused.id.as_str(), refused.status), ("74ec", ApplicationStatus::Rejected));
        assert_eq!(refused.reason, "", "a KubeEdge cloud gives a reason where it has no status");
    }

    /// A record takes no more memory than its text, whatever it contains, and no more records are read than a sync may
    /// have.
    #[test]
    fn metaserver_records_are_bounded_and_their_errors_are_text() {
        let record = |id: usize| format!(r#""{id}":{{"ID":"{id}","Verb":null,"Status":null}}"#);
        let read = |count: usize| {
            let text = format!("{{{}}}", (0..count).map(record).collect::<Vec<_>>().join(","));
            Application::read_all(&Content::from_json(&Bytes::from(text)).expect("JSON"))
        };
        assert_eq!(read(SYNC_RECORDS_MAX).expect("as many as may").len(), SYNC_RECORDS_MAX);
        let error = read(SYNC_RECORDS_MAX + 1).expect_err("one more").to_string();
        assert!(error.contains("more than 1024 records"), "{error}");
        let many = format!("[{}0]", r#"{"":0},"#.repeat(1000));
        let text = format!(r#"{{"Verb":null,"Status":null,"Error":{{"ErrStatus":{many}}}}}"#);
        let record =
            Application::read(&Content::from_json(&Bytes::from(text)).expect("JSON")).expect("a record");
        assert_eq!((record.error.text_len(), record.error.said()), (many.len(), None));
    }

    #[test]
    fn odd_records_are_refused_or_read_with_defaults() {
        let read =
            |text: &'static str| Application::read(&Content::from_json(&Bytes::from(text)).expect(text));
        assert!(read(r#"{"Verb":"get","Status":null,"Option":"%%"}"#).is_err());
        let odd = read(r#"{"Verb":"exec","Status":null,"Option":""}"#).expect("defaults");
        assert_eq!((odd.verb, odd.option), (Verb::parse("exec"), Some(Vec::new())));
    }
}
