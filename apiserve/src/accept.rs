//! What form of answer the client wants.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING};

use crate::query::params::Params;
use crate::status::ApiError;

#[cfg(test)]
mod tests;

/// Media ranges that are read from one header, at most.
const RANGES_MAX: usize = 32;

/// What a 406 offers.
const OFFERED: &str = "application/json, application/yaml";

/// The same of watches.
const OFFERED_EVENTS: &str = "application/json;stream=watch";

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Syntax {
    /// JSON.
    #[default]
    Json,
    /// YAML.
    Yaml,
}

/// What an answer shows of its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// The objects themselves.
    #[default]
    Object,
    /// `meta.k8s.io` Table, of version `v1` or `v1beta1`.
    Table(&'static str),
    /// `PartialObjectMetadata` or its list, of version `v1` or `v1beta1`.
    Metadata(&'static str),
    /// Aggregated discovery, of version `v2` or `v2beta1`.
    Discovery(&'static str),
}

/// Which forms a request can be answered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One object.
    Object,
    /// A list.
    Collection,
    /// A watch.
    Watch,
    /// What is answered by somebody else than the store: there are no columns for it.
    Virtual,
    /// `/api` and `/apis`.
    DiscoveryRoot,
    /// Other documents.
    Document,
}

/// The outcome of content negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accepted {
    /// How to write it.
    pub syntax: Syntax,
    /// What to show.
    pub form: Form,
    /// Whether to write JSON for people.
    pub pretty: bool,
    /// Whether the client reads gzip.
    pub gzip: bool,
}

impl Accepted {
    /// Chooses the first form among those the client prefers that can be written.
    ///
    /// # Errors
    /// 406 when the client takes nothing that can be written.
    pub fn negotiate(headers: &HeaderMap, params: &Params, kind: Kind) -> Result<Self, ApiError> {
        let pretty = params.first("pretty").is_some() && params.flag("pretty");
        let gzip = takes_gzip(headers);
        let accept = header(headers, &ACCEPT);
        if accept.trim().is_empty() {
            return Ok(Self { pretty, gzip, ..Self::default() });
        }
        let wanted = ranges(&accept).iter().find_map(|range| range.form(kind));
        let (syntax, form) = wanted.ok_or_else(|| {
            ApiError::not_acceptable(if kind == Kind::Watch { OFFERED_EVENTS } else { OFFERED })
        })?;
        Ok(Self { syntax, form, pretty, gzip })
    }
}

/// Whether the client reads compressed answers.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    header(headers, &ACCEPT_ENCODING).split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

/// Which of the offered media types the client prefers: the first offered one, when it does not say. `None` when it
/// takes none of them.
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

/// The media ranges of an Accept header, the most wanted first.
fn ranges(accept: &str) -> Vec<Range<'_>> {
    let mut ranges: Vec<Range<'_>> = accept.split(',').take(RANGES_MAX).map(Range::parse).collect();
    ranges.retain(|range| range.weight > 0);
    // Stable: of equal weights the first one named wins.
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
    /// Thousandths.
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

    fn covers(&self, media: &str) -> bool {
        let all_of = |prefix: &str| media.starts_with(prefix);
        self.media == "*/*" || self.media == media || self.media.strip_suffix('*').is_some_and(all_of)
    }

    fn form(&self, kind: Kind) -> Option<(Syntax, Form)> {
        let syntax = match self.media.as_str() {
            "application/json" | "*/*" | "application/*" => Syntax::Json,
            // Events are separated by line, which YAML is not.
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
            ("", _) => Form::Object,
            ("Table", Kind::Object | Kind::Collection | Kind::Watch) => Form::Table(meta()?),
            ("PartialObjectMetadata", Kind::Object | Kind::Watch) => Form::Metadata(meta()?),
            ("PartialObjectMetadataList", Kind::Collection) => Form::Metadata(meta()?),
            ("APIGroupDiscoveryList", Kind::DiscoveryRoot) => match (self.parameter("g"), version) {
                ("apidiscovery.k8s.io", "v2") => Form::Discovery("v2"),
                ("apidiscovery.k8s.io", "v2beta1") => Form::Discovery("v2beta1"),
                _ => return None,
            },
            _ => return None,
        };
        Some((syntax, form))
    }
}
