//! Message identities.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::IdError;
use crate::limits;

/// Identity of a message. Every KubeEdge sender uses a UUID v4; any other text is kept as received, because the peer
/// finds the reply by comparing text (docs/reference/kubeedge.md#replies).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Uuid(Uuid),
    Text(Arc<str>),
}

impl MessageId {
    /// A UUID v4 made of 16 random bytes that the caller provides.
    #[must_use]
    pub fn from_random_bytes(bytes: [u8; 16]) -> Self {
        Self(Repr::Uuid(uuid::Builder::from_random_bytes(bytes).into_uuid()))
    }

    /// Parses an identity.
    ///
    /// # Errors
    /// [`IdError`] when the text is empty, longer than [`limits::MESSAGE_ID_LEN_MAX`] or has control characters.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if let Ok(uuid) = Uuid::try_parse(text) {
            let mut buffer = Uuid::encode_buffer();
            // Only the canonical form may become a UUID: any other spelling must be echoed character by character.
            if uuid.hyphenated().encode_lower(&mut buffer) == text {
                return Ok(Self(Repr::Uuid(uuid)));
            }
        }
        if text.is_empty() || text.len() > limits::MESSAGE_ID_LEN_MAX || text.chars().any(char::is_control) {
            return Err(IdError::new("message id", text, "must be 1 to 128 printable bytes"));
        }
        Ok(Self(Repr::Text(text.into())))
    }

    /// Calls `use_text` with the identity as text, without allocating.
    pub fn with_text<T>(&self, use_text: impl FnOnce(&str) -> T) -> T {
        match &self.0 {
            Repr::Uuid(uuid) => use_text(uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer())),
            Repr::Text(text) => use_text(text),
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_make_a_version_4_uuid() {
        let id = MessageId::from_random_bytes([0xff; 16]);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(MessageId::parse(&id.to_string()), Ok(id));
    }

    #[test]
    fn other_id_spellings_are_echoed_exactly() {
        for text in ["A", "3F0C0000-0000-4000-8000-000000000000", "3f0c00000000400080000000000000ab"] {
            assert_eq!(MessageId::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn empty_long_and_unprintable_identities_are_refused() {
        for text in ["", "a\nb", &"x".repeat(129)] {
            assert!(MessageId::parse(text).is_err(), "{text:?}");
        }
    }
}
