//! URLs (`kubernetes.URL`).

use std::collections::{BTreeMap, HashMap};

use cel::common::types::{CelBool, CelList, CelMap, CelMapKey, CelString};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use http::Uri;

use crate::opaque::opaque;

#[derive(Debug, Clone, PartialEq)]
struct Url(Uri);

opaque!(Url, "kubernetes.URL");

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn parse: (CelString<'_>) -> Result<Url>, name = "url")?;
    cel::add_overload!(env, fn is_url: (CelString<'_>) -> CelBool, name = "isURL")?;
    cel::add_member_overload!(env, fn get_scheme: (Url) -> CelString<'static>)?;
    cel::add_member_overload!(env, fn get_host: (Url) -> CelString<'static>)?;
    cel::add_member_overload!(env, fn get_hostname: (Url) -> CelString<'static>)?;
    cel::add_member_overload!(env, fn get_port: (Url) -> CelString<'static>)?;
    cel::add_member_overload!(env, fn get_escaped_path: (Url) -> CelString<'static>)?;
    env.add_member_overload("getQuery", "url_get_query", Url::cel_type().to_owned(), vec![], get_query)
}

/// Parses an absolute URL or an absolute path, as Go's `url.ParseRequestURI` does. Neither may have a fragment.
fn read(text: &str) -> Option<Url> {
    let absolute = text.starts_with('/') || text.contains("://");
    if !absolute || text.contains('#') {
        return None;
    }
    text.parse().ok().map(Url)
}

fn parse(text: &CelString<'_>) -> Result<Url, ExecutionError> {
    let found = read(text.inner());
    found
        .ok_or_else(|| ExecutionError::function_error("url", "URL parse error during conversion from string"))
}

/// Whether a text is a URL.
pub(super) fn is_valid(text: &str) -> bool {
    read(text).is_some()
}

fn is_url(text: &CelString<'_>) -> CelBool {
    read(text.inner()).is_some().into()
}

fn get_scheme(url: &Url) -> CelString<'static> {
    url.0.scheme_str().unwrap_or_default().to_owned().into()
}

fn get_host(url: &Url) -> CelString<'static> {
    let authority = url.0.authority().map_or("", |authority| authority.as_str());
    authority.rsplit('@').next().unwrap_or_default().to_owned().into()
}

fn get_hostname(url: &Url) -> CelString<'static> {
    url.0.host().unwrap_or_default().trim_matches(['[', ']']).to_owned().into()
}

fn get_port(url: &Url) -> CelString<'static> {
    url.0.port().map_or_else(String::new, |port| port.as_str().to_owned()).into()
}

fn get_escaped_path(url: &Url) -> CelString<'static> {
    // A URL that ends with its host has no path, but the parser adds one.
    let text = url.0.to_string();
    let bare = url.0.path() == "/" && url.0.authority().is_some_and(|host| text.ends_with(host.as_str()));
    if bare { String::new().into() } else { url.0.path().to_owned().into() }
}

fn get_query<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let url = arguments.first().and_then(|url| url.downcast_ref::<Url>());
    let url = url.ok_or_else(|| crate::arguments::no_overload("getQuery"))?;
    let mut values: BTreeMap<String, Vec<Box<dyn Val + 'v>>> = BTreeMap::new();
    for (key, value) in form_urlencoded::parse(url.0.query().unwrap_or_default().as_bytes()) {
        values.entry(key.into_owned()).or_default().push(Box::new(CelString::from(value.into_owned())));
    }
    let map: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = values
        .into_iter()
        .map(|(key, list)| (CelMapKey::from(key), Box::new(CelList::from(list)) as Box<dyn Val + 'v>))
        .collect();
    Ok(CowVal::owned(CelMap::from(map)))
}
