//! What a Service says about its endpoints.

use serde::Deserialize;

use crate::body::{BodyError, or_default, view};
use crate::reach::Reach;

/// What of a Service decides which of its endpoints a node may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Where they may be.
    pub reach: Reach,
    /// Whether those that are not ready are shown as if they were (`publishNotReadyAddresses`).
    pub publishes_unready: bool,
}

impl Terms {
    /// Reads a Service object.
    ///
    /// # Errors
    /// [`BodyError`] for text that is no object with metadata.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Service {
            #[serde(default, deserialize_with = "or_default")]
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        struct Spec {
            #[serde(default, rename = "publishNotReadyAddresses", deserialize_with = "or_default")]
            publishes_unready: bool,
        }
        let reach = Reach::of(body)?;
        Ok(Self { reach, publishes_unready: view::<Service>(body)?.spec.publishes_unready })
    }
}

#[cfg(test)]
impl From<Reach> for Terms {
    fn from(reach: Reach) -> Self {
        Self { reach, publishes_unready: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_may_publish_what_is_not_ready() {
        let read = |spec: &str| Terms::of(format!(r#"{{"metadata":{{"name":"s"}}{spec}}}"#).as_bytes());
        for (spec, expected) in [
            ("", false),
            (r#","spec":null"#, false),
            (r#","spec":{"publishNotReadyAddresses":null}"#, false),
            (r#","spec":{"publishNotReadyAddresses":true,"type":"ClusterIP"}"#, true),
        ] {
            let expected = Terms { reach: Reach::Everywhere, publishes_unready: expected };
            assert_eq!(read(spec).unwrap(), expected, "{spec}");
        }
        assert!(read(r#","spec":{"publishNotReadyAddresses":"yes"}"#).is_err());
        assert!(Terms::of(b"[]").is_err());
    }
}
