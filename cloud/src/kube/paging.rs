//! Lists in pages: an answer has a largest size, a cluster has none.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::Deserialize;

use super::{Answer, ApiCall, CallError, Caller, Kube, RawObject};

/// Objects asked for at a time.
const PAGE_SIZE: usize = 500;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    items: Option<Vec<RawObject>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

impl Kube {
    /// Gives every object of a list to `each`. `base` is the path, with its query if there is one. An answer other than
    /// success ends the list and is given back.
    ///
    /// # Errors
    /// [`CallError`]: the API server does not answer, or with what is no list. That is not an empty one.
    pub async fn list(
        &self,
        caller: Caller<'_>,
        base: &str,
        mut each: impl FnMut(RawObject),
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
            let page: Page = serde_json::from_slice(&answer.body)
                .map_err(|error| CallError::Unreachable(format!("its list cannot be read: {error}")))?;
            page.items.into_iter().flatten().for_each(&mut each);
            if page.metadata.next.is_empty() {
                return Ok(None);
            }
            token = format!("&continue={}", query_value(&page.metadata.next));
        }
    }
}

/// What a query keeps as it is (RFC 3986, section 2.3).
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text as the value of a query parameter.
pub(crate) fn query_value(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, QUERY_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all objects of a list whose pages are these texts.
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
    async fn a_list_that_cannot_be_read_is_no_empty_one() {
        const FIRST: &str = r#"{"metadata":{"continue":"1"},"items":[{"metadata":{"name":"a"}}]}"#;
        const LAST: &str = r#"{"metadata":{},"items":[{"metadata":{"name":"b"}}]}"#;
        const BROKEN: [&[&str]; 4] =
            [&[""], &["[]"], &[r#"{"items":[7]}"#], &[FIRST, r#"{"items":[{"metadata":"#]];
        assert_eq!(listed(&[FIRST, r#"{"items":null}"#]).await.expect("a list"), [r#""a""#]);
        assert_eq!(listed(&[FIRST, LAST]).await.expect("a list"), [r#""a""#, r#""b""#]);
        for pages in BROKEN {
            assert!(matches!(listed(pages).await, Err(CallError::Unreachable(_))), "{pages:?}");
        }
    }
}
