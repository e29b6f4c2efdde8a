//! Lists in pages: an answer has a largest size, a cluster has none.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::{Answer, ApiCall, CallError, Caller, Kube};

/// Objects asked for at a time.
const PAGE_SIZE: usize = 500;

impl Kube {
    /// Gives every object of a list to `each`. `base` is the path, with its query if there is one. An answer other than
    /// success ends the list and is given back.
    ///
    /// # Errors
    /// [`CallError`]: the API server does not answer.
    pub async fn list(
        &self,
        caller: Caller<'_>,
        base: &str,
        mut each: impl FnMut(Value),
    ) -> Result<Option<Answer>, CallError> {
        let separator = if base.contains('?') { '&' } else { '?' };
        let (mut limit, mut token) = (PAGE_SIZE, String::new());
        loop {
            let path = format!("{base}{separator}limit={limit}{token}");
            let answer = match self.call(caller, ApiCall::get(path)).await {
                // Large objects: fewer at a time.
                Err(CallError::TooLarge(_)) if limit > 1 => {
                    limit = (limit / 4).max(1);
                    continue;
                }
                answer => answer?,
            };
            if !answer.is_success() {
                return Ok(Some(answer));
            }
            let mut page = answer.json();
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                items.into_iter().for_each(&mut each);
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                None | Some("") => return Ok(None),
                Some(next) => token = format!("&continue={}", query_value(next)),
            }
        }
    }
}

/// What a query keeps as it is (RFC 3986, section 2.3).
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text as the value of a query parameter.
pub(crate) fn query_value(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, QUERY_VALUE)
}
