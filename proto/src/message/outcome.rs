//! Results inside message content: the `{"Object", "Err"}` wrapper and Kubernetes status errors.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::content::{Content, ContentError};

/// Outcome of a write, in the wrapper that KubeEdge edges expect (docs/reference/kubeedge.md#outcomes).
///
/// A failure always carries a whole status and a success always carries an object: anything less crashes a KubeEdge
/// edge or is stored there as an empty object (docs/reference/kubeedge.md#safe-answers).
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The object as the API server returned it.
    Done(Content),
    /// Why the write was not done.
    Failed(StatusError),
}

/// Whether an answer with this code decides nothing, so that the same request may get another answer in a moment: the
/// server is busy or has failed (RFC 6585, 4; RFC 9110, 15.6).
#[must_use]
pub const fn is_passing(code: u16) -> bool {
    code == 429 || code >= 500
}

/// The parts of a Kubernetes `Status` of a failure that clients read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusError {
    /// Message for humans.
    #[serde(default)]
    pub message: String,
    /// Machine-readable reason, for example `NotFound` (Kubernetes `StatusReason`).
    #[serde(default)]
    pub reason: String,
    /// What the failure is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
}

/// `details` of a `Status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatusDetails {
    /// Object name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group; empty for core.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural resource name, as the API server spells it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Seconds to wait before the next try; 0 when the server does not say.
    #[serde(default, rename = "retryAfterSeconds", skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's `skip_serializing_if` passes a reference
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl StatusError {
    /// A status error without details.
    #[must_use]
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Self { message: message.to_owned(), reason: reason.to_owned(), details: None, code }
    }

    /// The same error with details of the resource it concerns.
    #[must_use]
    pub fn about(mut self, kind: &str, name: &str) -> Self {
        self.details =
            Some(StatusDetails { name: name.to_owned(), kind: kind.to_owned(), ..StatusDetails::default() });
        self
    }

    /// As Kubernetes' `Status`: the body of an HTTP answer.
    #[must_use]
    pub fn to_status(&self) -> Bytes {
        let status = KindStatus { kind: "Status", api_version: "v1", status: Status::of(self) };
        checked(&status).as_json().clone()
    }

    /// As bare content, `{"ErrStatus": ...}`: how a KubeEdge cloud answers a failed query.
    #[must_use]
    pub fn to_content(&self) -> Content {
        checked(&ErrStatus { status: Status::of(self) })
    }
}

impl Outcome {
    /// The wrapper as content.
    ///
    /// An object that is no JSON object is an error of the caller; it is written as a failure with code 500, because a
    /// KubeEdge edge dereferences whatever it receives.
    #[must_use]
    pub fn to_content(&self) -> Content {
        match self {
            Self::Done(object) if object.is_object() => {
                let mut json = Vec::with_capacity(object.as_json().len() + 24);
                json.extend_from_slice(b"{\"Object\":");
                json.extend_from_slice(object.as_json());
                json.extend_from_slice(b",\"Err\":null}");
                Content::from_checked(json.into())
            }
            Self::Done(_) => Self::failure_content(&StatusError::new(
                500,
                "InternalError",
                "the answer of the API server is not an object",
            )),
            Self::Failed(error) => Self::failure_content(error),
        }
    }

    fn failure_content(error: &StatusError) -> Content {
        checked(&FailureResponse { object: (), err: ErrStatus { status: Status::of(error) } })
    }

    /// Reads a wrapper.
    ///
    /// `Err` without a status (`{}` of a plain Go error, or a URL error) reads as a failure with code 500, and so
    /// does `"Object": null` without any `Err`.
    ///
    /// # Errors
    /// [`ContentError::NotJson`] when the content is no wrapper.
    pub fn read(content: &Content) -> Result<Self, ContentError> {
        #[derive(Deserialize)]
        struct Wrapper {
            #[serde(rename = "Object", default)]
            object: Option<Box<RawValue>>,
            #[serde(rename = "Err", default)]
            err: Option<serde_json::Value>,
        }
        let wrapper: Wrapper = content.read()?;
        let unclear = |text: String| Self::Failed(StatusError::new(500, "InternalError", &text));
        Ok(match (wrapper.object, wrapper.err) {
            (_, Some(mut err)) => {
                let status = err.get_mut("ErrStatus").map(serde_json::Value::take).unwrap_or_default();
                match serde_json::from_value(status) {
                    Ok(error) => Self::Failed(error),
                    Err(_) => unclear(format!("the cloud failed without a status: {err}")),
                }
            }
            (Some(object), None) => {
                let json: Box<str> = object.into();
                Self::Done(Content::from_checked(json.into_string().into()))
            }
            (None, None) => unclear("the cloud sent neither an object nor an error".to_owned()),
        })
    }
}

#[derive(Serialize)]
struct FailureResponse<'a> {
    #[serde(rename = "Object")]
    object: (),
    #[serde(rename = "Err")]
    err: ErrStatus<'a>,
}

#[derive(Serialize)]
struct ErrStatus<'a> {
    #[serde(rename = "ErrStatus")]
    status: Status<'a>,
}

/// Has the member order of the Go type, so that recorded traffic compares byte by byte.
#[derive(Serialize)]
struct Status<'a> {
    metadata: Metadata,
    status: &'static str,
    message: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a StatusDetails>,
    code: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KindStatus<'a> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    status: Status<'a>,
}

#[derive(Serialize)]
struct Metadata {}

impl<'a> Status<'a> {
    fn of(error: &'a StatusError) -> Self {
        Self {
            metadata: Metadata {},
            status: "Failure",
            message: &error.message,
            reason: &error.reason,
            details: error.details.as_ref(),
            code: error.code,
        }
    }
}

/// Writes a value whose type has only text keys, numbers and text: serde_json cannot refuse it.
fn checked(value: &impl Serialize) -> Content {
    Content::from_value(value).unwrap_or_else(|_| Content::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_form_of_the_reference() {
        let error = StatusError::new(404, "NotFound", "leases \"edge1\" not found").about("leases", "edge1");
        let expected = concat!(
            r#"{"Object":null,"Err":{"ErrStatus":{"metadata":{},"status":"Failure","#,
            r#""message":"leases \"edge1\" not found","reason":"NotFound","#,
            r#""details":{"name":"edge1","kind":"leases"},"code":404}}}"#
        );
        assert_eq!(Outcome::Failed(error.clone()).to_content().as_json(), expected);
        assert_eq!(
            Outcome::read(&Outcome::Failed(error.clone()).to_content()).expect("wrapper"),
            Outcome::Failed(error)
        );
    }

    #[test]
    fn a_refusal_is_a_status_for_clients_of_kubernetes() {
        let error = StatusError::new(404, "NotFound", "gone").about("pods", "a");
        let status: serde_json::Value = serde_json::from_slice(&error.to_status()).expect("JSON");
        let expected = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "gone",
            "reason": "NotFound", "details": {"name": "a", "kind": "pods"}, "code": 404});
        assert_eq!(status, expected);
    }

    #[test]
    fn a_success_keeps_the_object_as_it_is() {
        let object =
            Content::from_json(&Bytes::from_static(br#"{"b":9007199254740993,"a":{}}"#)).expect("JSON");
        let wrapped = Outcome::Done(object.clone()).to_content();
        assert_eq!(wrapped.as_json(), r#"{"Object":{"b":9007199254740993,"a":{}},"Err":null}"#);
        assert_eq!(Outcome::read(&wrapped).expect("wrapper"), Outcome::Done(object));
    }

    #[test]
    fn success_without_an_object_is_never_sent() {
        let wrapped = Outcome::Done(Content::null()).to_content();
        assert!(matches!(Outcome::read(&wrapped), Ok(Outcome::Failed(error)) if error.code == 500));
    }

    #[test]
    fn empty_errors_are_read_as_failures() {
        for text in [
            r#"{"Object":{},"Err":{}}"#,
            r#"{"Object":{},"Err":{"Op":"Get","URL":"https://x","Err":{}}}"#,
            r#"{"Object":null,"Err":null}"#,
            "{}",
        ] {
            let content = Content::from_json(&Bytes::from(text)).expect(text);
            assert!(matches!(Outcome::read(&content), Ok(Outcome::Failed(_))), "{text}");
        }
    }
}
