//! Response bodies: whole or streamed, JSON or YAML, plain or compressed.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, LOCATION, RETRY_AFTER, VARY, WARNING,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Frame};
use serde::Deserialize;
use serde_json::Value;

use crate::accept::{Accepted, Syntax};
use crate::status::ApiError;
use crate::stored::Stored;
use crate::tree::{self, BODY_TREE_MAX};

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Answers of at least this many bytes are compressed for clients that accept gzip (as in kube-apiserver).
pub const GZIP_MIN: usize = 128 * 1024;

/// Small pieces of a streamed answer are joined up to about this many bytes.
const PIECE_LEN: usize = 64 * 1024;

/// The `Cache-Control` value of answers that set no other.
const REVALIDATE: &str = "no-cache, private";

/// Total characters of the warnings of one answer; beyond it each is cut.
const WARNINGS_LEN_MAX: usize = 4096;

/// Characters to which one warning is cut.
const WARNING_LEN_MAX: usize = 256;

/// A piece of an answer.
#[derive(Debug, Clone)]
pub enum Part {
    /// Text.
    Text(Bytes),
    /// The body of a stored object from an offset on. It is read when its turn comes: a long list is never in memory as
    /// a whole.
    Stored {
        /// The object.
        object: Arc<Stored>,
        /// The offset in bytes; at most the length of the body.
        from: usize,
    },
}

/// Bytes that an answer of unknown length keeps in memory until it is sent, without what its store keeps anyway.
#[derive(Debug, Clone, Copy)]
struct Weight(usize);

/// Bytes that an answer keeps in memory until it is sent; none for one that continues for as long as the client reads.
pub(crate) fn weight(response: &Response<Body>) -> Option<usize> {
    let whole = response.body().size_hint().exact().map(|len| usize::try_from(len).unwrap_or(usize::MAX));
    whole.or_else(|| response.extensions().get::<Weight>().map(|weight| weight.0))
}

impl From<Bytes> for Part {
    fn from(text: Bytes) -> Self {
        Self::Text(text)
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Stored { object, from } => object.body_len() - from,
        }
    }

    /// Bytes that the part keeps in memory and its store does not.
    fn weight(&self, shared: bool) -> usize {
        match self {
            Self::Stored { .. } if shared => 0,
            _ => self.len(),
        }
    }

    fn append(&self, out: &mut BytesMut) {
        match self {
            Self::Text(text) => out.extend_from_slice(text),
            Self::Stored { object, from } => object.text.append(*from, out),
        }
    }

    fn into_text(self) -> Bytes {
        match self {
            Self::Text(text) => text,
            Self::Stored { object, from } => object.body().slice(from..),
        }
    }
}

/// A body whose content is complete.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A complete document, in the requested syntax.
#[must_use]
pub fn document(status: StatusCode, json: Bytes, accepted: &Accepted) -> Response<Body> {
    pieces(status, vec![json.into()], accepted)
}

/// A document in pieces of JSON text that are shared with the store: it is never copied as a whole. It ends with a
/// newline unless it is indented (as Go's encoders write it).
#[must_use]
pub fn pieces(status: StatusCode, parts: Vec<Part>, accepted: &Accepted) -> Response<Body> {
    pieces_of(status, parts, accepted, false)
}

/// Like [`pieces`], for objects that their store keeps anyway if they are `shared`.
pub(crate) fn pieces_of(
    status: StatusCode,
    mut parts: Vec<Part>,
    accepted: &Accepted,
    shared: bool,
) -> Response<Body> {
    let length: usize = parts.iter().map(Part::len).sum();
    if accepted.syntax == Syntax::Yaml || accepted.pretty {
        let text = join(&parts, length);
        match (tree::tree_bytes(&text) <= BODY_TREE_MAX, accepted.syntax) {
            (true, _) => return rewritten(status, &text, accepted),
            (false, Syntax::Yaml) => return too_large_for_yaml(),
            // A document that is too large for it is not indented.
            (false, Syntax::Json) => {}
        }
    }
    parts.push(Bytes::from_static(b"\n").into());
    let weight = parts.iter().map(|part| part.weight(shared)).sum();
    let mut response = binary(parts, "application/json", accepted.gzip);
    *response.status_mut() = status;
    if let Some(whole) = response.extensions_mut().get_mut::<Weight>() {
        whole.0 = weight;
    }
    response
}

/// An answer of any content type in pieces. It is compressed when it is long and the client accepts gzip.
#[must_use]
pub fn binary(
    parts: impl IntoIterator<Item = impl Into<Part>>,
    content_type: &'static str,
    gzip: bool,
) -> Response<Body> {
    let parts: Vec<Part> = parts.into_iter().map(Into::into).collect();
    let length: usize = parts.iter().map(Part::len).sum();
    let compress = gzip && length >= GZIP_MIN;
    let body = match parts.len() {
        _ if compress => zipped(parts),
        1 => full(parts.into_iter().next().map(Part::into_text).unwrap_or_default()),
        _ if length <= PIECE_LEN => full(join(&parts, length)),
        _ => streamed(parts),
    };
    let mut response = typed(StatusCode::OK, body, content_type);
    if response.body().size_hint().exact().is_none() {
        response.extensions_mut().insert(Weight(length));
    }
    if compress {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        varies(&mut response, "Accept-Encoding");
    }
    response
}

/// Adds to `Vary` the name of a request header that the answer depends on.
pub(crate) fn varies(response: &mut Response<Body>, header: &'static str) {
    response.headers_mut().append(VARY, HeaderValue::from_static(header));
}

/// The answer to a refused or failed request. Always JSON or YAML of a `Status`.
#[must_use]
pub fn refusal(error: &ApiError, accepted: &Accepted) -> Response<Body> {
    let mut response = document(error.code, error.to_json(), accepted);
    if let Some(seconds) = error.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    add_warnings(&mut response, &error.warnings);
    response
}

/// Copies the retry time of a forwarded refusal to the `Retry-After` header, as API servers do: clients look nowhere
/// else.
pub(crate) fn say_when(response: &mut Response<Body>, status: &[u8]) {
    #[derive(Deserialize)]
    struct RefusalBody {
        details: Details,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Details {
        retry_after_seconds: u32,
    }
    if response.status().is_success() {
        return;
    }
    if let Ok(RefusalBody { details }) = serde_json::from_slice(status)
        && details.retry_after_seconds > 0
    {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(details.retry_after_seconds));
    }
}

/// Completes every answer: clients must revalidate it unless it says otherwise, and the answer to a HEAD has no body.
pub(crate) fn finish(response: &mut Response<Body>, method: &Method) {
    let keep = HeaderValue::from_static(REVALIDATE);
    response.headers_mut().entry(CACHE_CONTROL).or_insert(keep);
    if method == Method::HEAD {
        *response.body_mut() = full(Bytes::new());
    }
}

/// A plain text answer.
#[must_use]
pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = typed(status, full(text.into()), "text/plain; charset=utf-8");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An answer with a content type.
#[must_use]
pub fn typed(status: StatusCode, body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An aggregated discovery document, or 304 when the client already has it.
#[must_use]
pub fn discovery(etag: &str, document: Option<Bytes>) -> Response<Body> {
    let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let status = if document.is_some() { StatusCode::OK } else { StatusCode::NOT_MODIFIED };
    let mut response = typed(status, full(document.unwrap_or_default()), content_type);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(etag) = HeaderValue::from_str(etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

/// Lets clients cache an answer: under its entity tag, and without revalidation when its path determines the content.
pub fn cacheable(response: &mut Response<Body>, etag: &str, immutable: bool) {
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(ETAG, etag);
    }
    let how = if immutable { "public, max-age=31536000, immutable" } else { REVALIDATE };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(how));
}

/// A redirect to another path.
#[must_use]
pub fn moved(location: &str) -> Response<Body> {
    let mut response = typed(StatusCode::MOVED_PERMANENTLY, full(Bytes::new()), "application/json");
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Adds `Warning` headers (RFC 7234 section 5.5, code 299 as Kubernetes uses it), each text once. As in kube-apiserver,
/// texts are cut only when all of them together are too long.
pub fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    let mut seen = HashSet::new();
    let texts: Vec<&str> =
        warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let total: usize = texts.iter().map(|text| text.chars().count()).sum();
    let item_max = if total > WARNINGS_LEN_MAX { WARNING_LEN_MAX } else { WARNINGS_LEN_MAX };
    let mut written = 0;
    for text in texts {
        if written >= WARNINGS_LEN_MAX {
            break;
        }
        let kept: Vec<char> = text.chars().filter(|c| !c.is_control()).take(item_max).collect();
        written += kept.len();
        let escape = |c: &char| matches!(c, '"' | '\\').then_some('\\').into_iter().chain([*c]);
        let quoted: String = kept.iter().flat_map(escape).collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

fn rewritten(status: StatusCode, json: &[u8], accepted: &Accepted) -> Response<Body> {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    if accepted.syntax == Syntax::Yaml {
        return match serde_saphyr::to_string(&value) {
            Ok(text) => typed(status, full(text), "application/yaml"),
            Err(error) => {
                let error = ApiError::internal(format!("cannot write YAML: {error}"));
                typed(error.code, full(error.to_json()), "application/json")
            }
        };
    }
    let text = serde_json::to_vec_pretty(&value).unwrap_or_else(|_| json.to_vec());
    typed(status, full(text), "application/json")
}

/// The parsed size of an answer has the same limit as that of a request body.
fn too_large_for_yaml() -> Response<Body> {
    let text =
        "the answer has more parts than are written as YAML: ask for application/json, or for less at a time";
    let error = ApiError::not_acceptable(text);
    typed(error.code, full(error.to_json()), "application/json")
}

fn join(parts: &[Part], length: usize) -> Bytes {
    let mut whole = BytesMut::with_capacity(length);
    parts.iter().for_each(|part| part.append(&mut whole));
    whole.freeze()
}

/// Joins small parts and passes on large ones as they are.
fn streamed(parts: Vec<Part>) -> Body {
    let mut parts = parts.into_iter().peekable();
    let frames = std::iter::from_fn(move || {
        let first = parts.next()?;
        if first.len() >= PIECE_LEN {
            return Some(first.into_text());
        }
        let mut piece = BytesMut::with_capacity(PIECE_LEN);
        first.append(&mut piece);
        while let Some(next) = parts.next_if(|next| piece.len() + next.len() <= PIECE_LEN) {
            next.append(&mut piece);
        }
        Some(piece.freeze())
    });
    StreamBody::new(stream::iter(frames.map(|bytes| Ok(Frame::data(bytes))))).boxed_unsync()
}

fn zipped(parts: Vec<Part>) -> Body {
    let mut text = BytesMut::new();
    let mut state = Some((parts.into_iter(), GzEncoder::new(Vec::new(), Compression::fast())));
    let frames = std::iter::from_fn(move || {
        let (mut parts, mut encoder) = state.take()?;
        for part in parts.by_ref() {
            text.clear();
            part.append(&mut text);
            if let Err(error) = encoder.write_all(&text) {
                return Some(Err(error));
            }
            if encoder.get_ref().len() >= PIECE_LEN {
                let ready = std::mem::take(encoder.get_mut());
                state = Some((parts, encoder));
                return Some(Ok(Frame::data(ready.into())));
            }
        }
        Some(encoder.finish().map(|rest| Frame::data(rest.into())))
    });
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(warnings: &[String]) -> Vec<usize> {
        let mut response = Response::new(full(""));
        add_warnings(&mut response, warnings);
        response.headers().get_all(WARNING).iter().map(HeaderValue::len).collect()
    }

    #[test]
    fn warnings_are_truncated_only_when_too_long_in_total() {
        let around = "299 - \"\"".len();
        let long = |letter: &str| letter.repeat(1000);
        let four: Vec<String> = ["a", "b", "c", "d"].map(long).into();
        assert_eq!(shown(&four), [1000 + around; 4]);
        let mut five = four.clone();
        five.push(long("e"));
        assert_eq!(shown(&five), [WARNING_LEN_MAX + around; 5]);
        assert_eq!(shown(&[long("a"), long("a"), String::new()]), [1000 + around], "each once");
        let many: Vec<String> = (0..100).map(|number| format!("{number}{}", long("x"))).collect();
        assert_eq!(shown(&many).len(), WARNINGS_LEN_MAX / WARNING_LEN_MAX);
        assert_eq!(shown(&["a\"\n".to_owned()]), ["a\\\"".len() + around]);
    }

    /// The authors of the objects in a list determine how much memory their tree takes.
    #[tokio::test]
    async fn answer_too_large_to_parse_is_not_reformatted() {
        let list = |parts: usize| format!(r#"{{"items":[{}0]}}"#, r#"{"":0},"#.repeat(parts));
        let asked = async |text: &str, accepted: Accepted| {
            let answer = document(StatusCode::OK, text.to_owned().into(), &accepted);
            let code = answer.status().as_u16();
            (
                code,
                String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap(),
            )
        };
        let (small, large) = (list(2), list(100_000));
        assert!(tree::tree_bytes(large.as_bytes()) > BODY_TREE_MAX);
        let pretty = Accepted { pretty: true, ..Accepted::default() };
        assert_eq!(asked(&small, pretty).await.1.lines().count(), 11);
        assert_eq!(asked(&large, pretty).await, (200, format!("{large}\n")));
        let yaml = Accepted { syntax: Syntax::Yaml, ..Accepted::default() };
        assert!(asked(&small, yaml).await.1.starts_with("items:\n"));
        let (code, text) = asked(&large, yaml).await;
        assert!(code == 406 && text.contains("ask for application/json"), "{code} {text}");
    }

    #[test]
    fn forwarded_refusal_keeps_its_retry_after_header() {
        for (code, status, expected) in [
            (
                429,
                r#"{"details":{"causes":[{"reason":"DisruptionBudget"}],"retryAfterSeconds":10}}"#,
                Some("10"),
            ),
            (504, r#"{"details":{"retryAfterSeconds":0}}"#, None),
            (409, r#"{"details":{"name":"a"}}"#, None),
            (429, "too many", None),
            (200, r#"{"details":{"retryAfterSeconds":10}}"#, None),
        ] {
            let mut response = Response::new(full(status));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            say_when(&mut response, status.as_bytes());
            let said = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(said, expected, "{code} {status}");
        }
    }
}
