//! Kubernetes' syntax of label values, and DNS's syntax of labels.

/// Longest name part of a label key, longest label value and longest DNS label, in bytes (Kubernetes label syntax).
pub(crate) const LABEL_LEN_MAX: usize = 63;

/// Whether a text is a legal, non-empty label value: letters, digits, `-`, `_`, `.`, with letters or digits at
/// both ends.
pub(crate) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= LABEL_LEN_MAX
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether a text is a DNS-1123 label.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    bytes.len() <= LABEL_LEN_MAX
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}
