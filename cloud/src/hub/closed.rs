//! Why an edge follows nothing.

/// The reason why a subscription ended or was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl Closed {
    pub(super) fn new(code: u16, reason: &str) -> Self {
        Self { code, reason: reason.to_owned() }
    }
}
