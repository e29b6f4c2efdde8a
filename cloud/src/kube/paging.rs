//! Lists in pages: an answer has a maximum size, a cluster does not. Pages are bounded in bytes, because 500 objects
//! may be gigabytes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_call::ANSWER_LEN_MAX;
use super::tree::{collection, tree_bytes_max};
use super::{Answer, ApiCall, CallError, Caller, Kube, RawObject};

/// Maximum number of objects per request.
const PAGE_SIZE: usize = 500;

/// Longest page that is read, in bytes. When a page would be longer, fewer objects are requested. A single object may
/// be longer.
pub(super) const PAGE_LEN_MAX: usize = 4 * 1024 * 1024;

impl Kube {
    /// Passes every object of a list to `each`, one after the other; at most one is in memory as a tree. `base` is the
    /// path, with its query if there is one. An answer other than success ends the list and is returned.
    ///
    /// # Errors
    /// [`CallError`]: the API server does not answer, or the answer is not a list. Such an answer does not count as an
    /// empty list.
    pub async fn list(
        &self,
        caller: Caller<'_>,
        base: &str,
        mut each: impl FnMut(RawObject),
    ) -> Result<Option<Answer>, CallError> {
        let (mut pages, most) = (Pages::new(self, caller, base), tree_bytes_max(base));
        while let Some(answer) = pages.next().await? {
            if !answer.is_success() {
                return Ok(Some(answer));
            }
            for item in pages.read(&answer)?.items.unwrap_or_default() {
                each(RawObject::read(item.get(), most).map_err(|error| not_a_list(base, &error))?);
            }
        }
        Ok(None)
    }
}

/// The pages of one list, each requested when it is needed.
pub(super) struct Pages<'a> {
    kube: &'a Kube,
    caller: Caller<'a>,
    base: &'a str,
    limit: usize,
    /// The `continue` token of the next page; none when there is no further page.
    token: Option<String>,
}

/// A page, with its objects as they were sent.
#[derive(Debug, Deserialize)]
pub(super) struct Page<'a> {
    metadata: Option<ListMeta>,
    #[serde(borrow)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

impl Page<'_> {
    /// The revision of the cloud's history at which the list was made.
    pub(super) fn revision(&self) -> Option<&str> {
        let revision = self.metadata.as_ref()?.resource_version.as_deref();
        revision.filter(|revision| !revision.is_empty())
    }
}

impl<'a> Pages<'a> {
    pub(super) fn new(kube: &'a Kube, caller: Caller<'a>, base: &'a str) -> Self {
        Self { kube, caller, base, limit: PAGE_SIZE, token: Some(String::new()) }
    }

    /// Requests the next page; none after the last. [`Self::read`] must parse the answer if it is a page.
    pub(super) async fn next(&mut self) -> Result<Option<Answer>, CallError> {
        let Some(token) = self.token.take() else { return Ok(None) };
        let separator = if self.base.contains('?') { '&' } else { '?' };
        loop {
            let mut call = ApiCall::get(format!("{}{separator}limit={}{token}", self.base, self.limit));
            call.answer_max = if self.limit > 1 { PAGE_LEN_MAX } else { ANSWER_LEN_MAX };
            match self.kube.call(self.caller, call).await {
                // The objects are large, so request fewer at a time.
                Err(CallError::TooLarge(_)) if self.limit > 1 => self.limit = (self.limit / 4).max(1),
                answer => return answer.map(Some),
            }
        }
    }

    /// Parses a page, and remembers where the next one begins.
    pub(super) fn read<'p>(&mut self, answer: &'p Answer) -> Result<Page<'p>, CallError> {
        let page: Page<'_> =
            serde_json::from_slice(&answer.body).map_err(|error| not_a_list(self.base, &error))?;
        let next = page.metadata.as_ref().and_then(|metadata| metadata.r#continue.as_deref());
        self.token =
            next.filter(|next| !next.is_empty()).map(|next| format!("&continue={}", query_value(next)));
        if answer.body.len() < PAGE_LEN_MAX / 4 {
            self.limit = self.limit.saturating_mul(2).min(PAGE_SIZE);
        }
        Ok(page)
    }
}

fn not_a_list(base: &str, error: &serde_json::Error) -> CallError {
    CallError::NotAList { resource: collection(base), problem: error.to_string() }
}

/// Characters that are not percent-encoded in a query (RFC 3986, section 2.3).
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text as the value of a query parameter.
pub(crate) fn query_value(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, QUERY_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all objects of a list with these pages.
    async fn listed(pages: &'static [&'static str]) -> Result<Vec<String>, CallError> {
        let answer = move |request: http::Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default();
            let page = query.rsplit_once("continue=").map_or(0, |(_, number)| number.parse().unwrap_or(0));
            let body = kube::client::Body::from(pages[page].as_bytes().to_vec());
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body)))
        };
        let kube = Kube::from(kube::Client::new(tower::service_fn(answer), "default"));
        let mut names = Vec::new();
        let each = |object: RawObject| names.push(object.value()["metadata"]["name"].to_string());
        assert!(kube.list(Caller::Own, "/api/v1/pods", each).await?.is_none());
        Ok(names)
    }

    #[tokio::test]
    async fn unparsable_list_is_an_error_not_an_empty_list() {
        const FIRST: &str = r#"{"metadata":{"continue":"1"},"items":[{"metadata":{"name":"a"}}]}"#;
        const LAST: &str = r#"{"metadata":{},"items":[{"metadata":{"name":"b"}}]}"#;
        const BROKEN: [&[&str]; 4] =
            [&[""], &["[]"], &[r#"{"items":[7]}"#], &[FIRST, r#"{"items":[{"metadata":"#]];
        assert_eq!(listed(&[FIRST, r#"{"items":null}"#]).await.expect("a list"), [r#""a""#]);
        assert_eq!(listed(&[FIRST, LAST]).await.expect("a list"), [r#""a""#, r#""b""#]);
        for pages in BROKEN {
            let error = listed(pages).await.expect_err("no list");
            assert!(matches!(error, CallError::NotAList { .. }), "{pages:?}: {error}");
            let text = error.to_string();
            assert!(text.starts_with("the answer of the Kubernetes API is not a list of pods: "), "{text}");
        }
    }
}
