//! Content negotiation: which form of answer the client wants.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};

use crate::query::params::Params;
use crate::status::{ApiError, Details};

#[cfg(test)]
mod tests;

/// Maximum number of media ranges read from one header.
const RANGES_MAX: usize = 32;

/// The media types that a 406 lists.
const OFFERED: &str = "application/json, application/yaml";

/// The media types that a 406 lists for watches.
const OFFERED_EVENTS: &str = "application/json;stream=watch";

/// User agent prefixes of interactive clients. They get indented JSON.
const PEOPLE: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// The syntax of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Syntax {
    /// JSON.
    #[default]
    Json,
    /// YAML.
    Yaml,
}

/// How an answer represents its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// The objects themselves.
    #[default]
    Object,
    /// `meta.k8s.io` Table, of version `v1` or `v1beta1`.
    Table(&'static str),
    /// `PartialObjectMetadata` or its list, of version `v1` or `v1beta1`.
    Metadata(&'static str),
    /// `PartialObjectMetadata` requested of a list, or its list type requested of one object. It is refused, but only
    /// once there is something to show.
    Misfit(&'static str),
    /// Aggregated discovery, of version `v2`.
    Discovery,
}

/// The kind of answer, which determines the forms it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One object.
    Object,
    /// A list.
    Collection,
    /// A watch.
    Watch,
    /// Objects that do not come from the store. They have no table columns.
    Virtual,
    /// `/api` and `/apis`.
    DiscoveryRoot,
    /// Other documents.
    Document,
}

/// The outcome of content negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accepted {
    /// The syntax of the answer.
    pub syntax: Syntax,
    /// The representation of the objects.
    pub form: Form,
    /// Whether to indent JSON.
    pub pretty: bool,
    /// Whether the client accepts gzip.
    pub gzip: bool,
}

impl Accepted {
    /// Chooses the first form in the client's order of preference that can be written.
    ///
    /// # Errors
    /// 406 when the client accepts no form that can be written.
    pub fn negotiate(headers: &HeaderMap, params: &Params, kind: Kind) -> Result<Self, ApiError> {
        let accept = header(headers, &ACCEPT);
        // kube-apiserver's router checks first. The only wildcard it knows is `*/*`.
        if !accept.trim().is_empty() && !ranges(&accept).iter().any(Range::is_named) {
            return Err(match kind {
                Kind::Collection | Kind::Watch => unrouted(&format!("{OFFERED}, {OFFERED_EVENTS}")),
                _ => unrouted(OFFERED),
            });
        }
        Self::choose(headers, params, kind).ok_or_else(|| {
            let offered = if kind == Kind::Watch { OFFERED_EVENTS } else { OFFERED };
            ApiError::not_acceptable(format!("only the following media types are accepted: {offered}"))
        })
    }

    /// The form of a refusal, whatever the form of the answer would have been. It is indented when the client accepts
    /// no plain document.
    #[must_use]
    pub fn of_refusal(headers: &HeaderMap, params: &Params) -> Self {
        let unasked = Self { pretty: true, ..Self::default() };
        Self::choose(headers, params, Kind::Document).unwrap_or(unasked)
    }

    fn choose(headers: &HeaderMap, params: &Params, kind: Kind) -> Option<Self> {
        let (pretty, gzip) = (for_people(headers, params), takes_gzip(headers));
        let accept = header(headers, &ACCEPT);
        if accept.trim().is_empty() {
            return Some(Self { pretty, gzip, ..Self::default() });
        }
        ranges(&accept).iter().find_map(|range| {
            let (syntax, form) = range.form(kind)?;
            Some(Self { syntax, form, pretty: pretty || range.parameter("pretty") == "1", gzip })
        })
    }
}

/// Refuses clients that do not accept the one media type of a document, as kube-apiserver's router does. The only
/// wildcard it knows is `*/*`.
///
/// # Errors
/// 406 when the client accepts only other media types.
pub fn check_routed(headers: &HeaderMap, media: &str) -> Result<(), ApiError> {
    let accept = header(headers, &ACCEPT);
    let taken = ranges(&accept).iter().any(|range| range.media == media || range.media == "*/*");
    if accept.trim().is_empty() || taken { Ok(()) } else { Err(unrouted(media)) }
}

fn unrouted(offered: &str) -> ApiError {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {offered}");
    ApiError::not_acceptable(text).with_details(Details::default())
}

/// Whether the client asks for indented JSON, or is an interactive one.
fn for_people(headers: &HeaderMap, params: &Params) -> bool {
    if let Some(wanted) = params.text("pretty") {
        return matches!(wanted, "1" | "t" | "T" | "true" | "True" | "TRUE");
    }
    let agent = headers.get(USER_AGENT).map(http::HeaderValue::as_bytes).unwrap_or_default();
    PEOPLE.iter().any(|name| agent.starts_with(name.as_bytes()))
}

/// Whether the client accepts gzip.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    header(headers, &ACCEPT_ENCODING).split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

/// Which of the offered media types the client prefers: the first one when it has no preference, `None` when it accepts
/// none of them.
pub(crate) fn preferred(
    headers: &HeaderMap,
    offered: &(impl Iterator<Item = &'static str> + Clone),
) -> Option<usize> {
    let accept = header(headers, &ACCEPT);
    if accept.trim().is_empty() {
        return Some(0);
    }
    ranges(&accept).iter().find_map(|range| offered.clone().position(|media| range.covers(media)))
}

/// The media ranges of an Accept header, most preferred first.
fn ranges(accept: &str) -> Vec<Range<'_>> {
    let mut ranges: Vec<Range<'_>> = accept.split(',').take(RANGES_MAX).map(Range::parse).collect();
    ranges.retain(|range| range.weight > 0);
    // The sort is stable: among equal weights the first one named wins.
    ranges.sort_by_key(|range| std::cmp::Reverse(range.weight));
    ranges
}

fn header(headers: &HeaderMap, name: &http::HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

/// One media range of an Accept header.
struct Range<'a> {
    media: String,
    parameters: Vec<(&'a str, &'a str)>,
    /// In thousandths.
    weight: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let quality =
            parameters.iter().find(|(name, _)| *name == "q").and_then(|(_, q)| q.parse::<f32>().ok());
        let weight = (quality.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u16;
        Self { media, parameters, weight }
    }

    fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(own, _)| *own == name).map_or("", |(_, value)| *value)
    }

    /// Whether it is a media type that is served, or `*/*`.
    fn is_named(&self) -> bool {
        matches!(self.media.as_str(), "application/json" | "application/yaml" | "*/*")
    }

    fn covers(&self, media: &str) -> bool {
        let all_of = |prefix: &str| media.starts_with(prefix);
        self.media == "*/*" || self.media == media || self.media.strip_suffix('*').is_some_and(all_of)
    }

    fn form(&self, kind: Kind) -> Option<(Syntax, Form)> {
        let syntax = match self.media.as_str() {
            "application/json" | "*/*" | "application/*" => Syntax::Json,
            // Events are separated by line, and YAML spans several lines.
            "application/yaml" if kind != Kind::Watch => Syntax::Yaml,
            _ => return None,
        };
        let version = self.parameter("v");
        let meta = || match (self.parameter("g"), version) {
            ("meta.k8s.io", "v1") => Some("v1"),
            ("meta.k8s.io", "v1beta1") => Some("v1beta1"),
            _ => None,
        };
        let form = match (self.parameter("as"), kind) {
            ("", _) if self.parameter("g").is_empty() && version.is_empty() => Form::Object,
            ("Table", Kind::Object | Kind::Collection | Kind::Watch) => Form::Table(meta()?),
            ("PartialObjectMetadata", Kind::Object | Kind::Watch)
            | ("PartialObjectMetadataList", Kind::Collection) => Form::Metadata(meta()?),
            ("PartialObjectMetadata", Kind::Collection) => {
                meta().map(|_| Form::Misfit("PartialObjectMetadata"))?
            }
            ("PartialObjectMetadataList", Kind::Object | Kind::Watch) => {
                meta().map(|_| Form::Misfit("PartialObjectMetadataList"))?
            }
            ("APIGroupDiscoveryList", Kind::DiscoveryRoot)
                if (self.parameter("g"), version) == ("apidiscovery.k8s.io", "v2") =>
            {
                Form::Discovery
            }
            _ => return None,
        };
        Some((syntax, form))
    }
}
