//! Reads objects and lists.

use std::sync::Arc;

use serde_json::{Value, json};

use super::convert;
use super::kinds::KindInfo;
use super::object::{self, in_list};
use super::parse::{PathTarget, QueryParams};
use super::selectors::ObjectFilter;
use super::state::{ModelEvent, ModelState};
use super::status::{ApiStatus, FieldProblem};

/// Reads one object. `seen` is the revision that the caller's watch cache has.
///
/// # Errors
/// 404, or 504 for a version that the server has not reached.
pub(super) fn get(
    state: &ModelState,
    (kind, target): (&KindInfo, &PathTarget),
    params: &QueryParams,
    seen: u64,
) -> Result<Value, ApiStatus> {
    let missing = || ApiStatus::not_found(&kind.key, &target.name);
    let wanted = revision_of(params.text("resourceVersion"))?;
    let current = state.storage.revision();
    let found = match wanted {
        Some(0) => {
            let state = state.storage.state_at(&convert::stored_key(kind), seen);
            state.get(&kind.place(&target.namespace, &target.name)).cloned()
        }
        Some(wanted) if wanted > current => return Err(ApiStatus::too_new(wanted, current)),
        _ => state.object(kind, &target.namespace, &target.name).cloned(),
    };
    Ok(convert::to_served(kind, (*found.ok_or_else(missing)?).clone()))
}

/// Reads a `resourceVersion`; none when it is empty.
///
/// # Errors
/// 400 for anything but a number.
pub(super) fn revision_of(text: &str) -> Result<Option<u64>, ApiStatus> {
    if text.is_empty() {
        return Ok(None);
    }
    let invalid =
        |_| ApiStatus::bad_request(&format!("Invalid value: {text:?}: strconv.ParseUint: invalid syntax"));
    text.parse().map(Some).map_err(invalid)
}

/// Where a page begins: the revision of the list, and the first place that is not in the pages before.
struct PageStart {
    revision: u64,
    place: String,
}

impl PageStart {
    fn token(&self) -> String {
        format!("{}:{}", self.revision, self.place)
    }

    fn parse(token: &str) -> Result<Self, ApiStatus> {
        let invalid = || ApiStatus::bad_request("continue key is not valid");
        let (revision, place) = token.split_once(':').ok_or_else(invalid)?;
        Ok(Self { revision: revision.parse().map_err(|_| invalid())?, place: place.to_owned() })
    }
}

/// The objects that a list chooses, and the revision of the list.
pub(super) struct ChosenList {
    objects: Vec<Arc<Value>>,
    revision: u64,
    next: Option<String>,
    remaining: usize,
}

/// Lists a collection. `seen` is the revision that the caller's watch cache has.
///
/// # Errors
/// 400, 410 for history that is gone, 504 for a version that the server has not reached.
pub(super) fn list(
    state: &ModelState,
    (kind, target): (&KindInfo, &PathTarget),
    params: &QueryParams,
    seen: u64,
) -> Result<ChosenList, ApiStatus> {
    let filter = ObjectFilter::parse(&kind.key, params.text("labelSelector"), params.text("fieldSelector"))?;
    let limit = usize::try_from(params.number("limit").unwrap_or(0)).unwrap_or(0);
    let start = match params.text("continue") {
        "" => PageStart { revision: list_revision(state, params, limit, seen)?, place: String::new() },
        _ if !params.text("resourceVersion").is_empty() => {
            let message = "specifying resource version is not allowed when using continue";
            return Err(ApiStatus::bad_request(message));
        }
        token => continued(state, token)?,
    };
    let all = state.storage.state_at(&convert::stored_key(kind), start.revision);
    let of_namespace =
        |object: &Value| target.namespace.is_empty() || object::namespace(object) == target.namespace;
    let mut chosen =
        all.range(start.place.clone()..).filter(|(_, object)| of_namespace(object) && filter.matches(object));
    let count = if limit == 0 { usize::MAX } else { limit };
    let objects = chosen.by_ref().take(count).map(|(_, object)| Arc::clone(object)).collect();
    let mut rest = chosen.map(|(place, _)| place.clone());
    let next = rest.next().map(|place| PageStart { revision: start.revision, place }.token());
    let remaining = if filter.is_empty() { rest.count() + usize::from(next.is_some()) } else { 0 };
    Ok(ChosenList { objects, revision: start.revision, next, remaining })
}

fn continued(state: &ModelState, token: &str) -> Result<PageStart, ApiStatus> {
    let start = PageStart::parse(token)?;
    if start.revision < state.storage.oldest_state(state.clock.elapsed()) {
        let message = "The provided continue parameter is too old to display a consistent list result. You must \
                       start a new list without the continue parameter.";
        return Err(ApiStatus::expired(message));
    }
    let current = state.storage.revision();
    if start.revision > current {
        return Err(ApiStatus::too_new(start.revision, current));
    }
    Ok(start)
}

/// The revision at which a list is made, by `resourceVersion` and `resourceVersionMatch`.
fn list_revision(
    state: &ModelState,
    params: &QueryParams,
    limit: usize,
    seen: u64,
) -> Result<u64, ApiStatus> {
    let current = state.storage.revision();
    let wanted = revision_of(params.text("resourceVersion"))?;
    let matching = params.text("resourceVersionMatch");
    let refused = |why: &str| {
        let problem = FieldProblem::forbidden("resourceVersionMatch", why);
        Err(ApiStatus::invalid_request("meta.k8s.io", "ListOptions", &problem))
    };
    match (wanted, matching) {
        (None, "") => Ok(current),
        (None, _) => refused("resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (Some(0), "Exact") => {
            refused("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        (Some(0), _) => Ok(seen),
        (Some(wanted), _) if wanted > current => Err(ApiStatus::too_new(wanted, current)),
        (Some(wanted), "Exact") => exact(state, wanted),
        (Some(wanted), "") if limit > 0 => exact(state, wanted),
        (Some(wanted), "" | "NotOlderThan") => Ok(seen.max(wanted)),
        (Some(_), other) => refused(&format!("Unsupported value: {other:?}")),
    }
}

fn exact(state: &ModelState, wanted: u64) -> Result<u64, ApiStatus> {
    if wanted < state.storage.oldest_state(state.clock.elapsed()) {
        return Err(ApiStatus::expired("The resourceVersion for the provided list is too old."));
    }
    Ok(wanted)
}

impl ChosenList {
    /// What a client has been shown by the last page of a list.
    pub(super) fn moved(
        &self,
        client: &str,
        (kind, target): (&KindInfo, &PathTarget),
        (params, era): (&QueryParams, u64),
    ) -> Option<ModelEvent> {
        if self.next.is_some() {
            return None;
        }
        let selector = format!("{};{}", params.text("labelSelector"), params.text("fieldSelector"));
        Some(ModelEvent::ViewMoved {
            client: client.to_owned(),
            kind: convert::stored_key(kind),
            selector: target.namespace.is_empty().then_some(selector),
            era,
            revision: self.revision,
        })
    }

    /// The body of the answer. Objects are converted one by one.
    pub(super) fn body(&self, kind: &KindInfo) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(next) = &self.next {
            metadata["continue"] = next.clone().into();
            if self.remaining > 0 {
                metadata["remainingItemCount"] = self.remaining.into();
            }
        }
        let list_kind = format!("{}List", kind.kind);
        let head = json!({"kind": list_kind, "apiVersion": kind.api_version(), "metadata": metadata});
        let mut body = head.to_string();
        body.pop();
        body.push_str(r#","items":["#);
        for (at, object) in self.objects.iter().enumerate() {
            if at > 0 {
                body.push(',');
            }
            let served = convert::to_served(kind, (**object).clone());
            body.push_str(&in_list(&served, kind.built_in).to_string());
        }
        body.push_str("]}");
        body.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::kinds::built_in;
    use super::super::rights::RightsTable;
    use super::*;

    fn kind(name: &str) -> KindInfo {
        built_in().find(|kind| kind.kind == name).expect("a kind")
    }

    fn state() -> ModelState {
        let mut state = ModelState::new(1, 0, RightsTable::default());
        for name in ["a", "b", "c", "d", "e"] {
            let labels = json!({"odd": if matches!(name, "a" | "c" | "e") { "yes" } else { "no" }});
            let object = json!({"metadata": {"name": name, "namespace": "x", "labels": labels}});
            state.put(&kind("ConfigMap"), object, "c");
        }
        state
    }

    fn listed(state: &ModelState, query: &str) -> Result<(Vec<String>, Value), ApiStatus> {
        let kind = kind("ConfigMap");
        let target = PathTarget { namespace: "x".to_owned(), ..PathTarget::default() };
        let list = list(state, (&kind, &target), &QueryParams::parse(query), 2)?;
        let body: Value = serde_json::from_slice(&list.body(&kind)).expect("JSON");
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
        let items = body["items"].as_array().expect("items");
        assert!(items.iter().all(|item| item.get("kind").is_none()));
        let names = items.iter().map(|item| object::name(item).to_owned()).collect();
        Ok((names, body["metadata"].clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn pages_show_one_state_however_it_changes_meanwhile() {
        let mut state = state();
        let (names, metadata) = listed(&state, "limit=2").expect("a page");
        assert_eq!((names.concat(), &metadata["remainingItemCount"]), ("ab".to_owned(), &json!(3)));
        state.remove(&kind("ConfigMap"), "x", "c", "c");
        let next = |metadata: &Value| {
            format!("limit=2&continue={}", metadata["continue"].as_str().expect("more").replace('/', "%2F"))
        };
        let (names, metadata) = listed(&state, &next(&metadata)).expect("a page");
        assert_eq!(names.concat(), "cd", "as it was");
        assert_eq!(metadata["resourceVersion"], "5");
        let last = next(&metadata);
        let (names, metadata) = listed(&state, &last).expect("a page");
        assert_eq!((names.concat(), metadata.get("continue")), ("e".to_owned(), None));
        state.storage.compact();
        assert_eq!(listed(&state, &last).expect_err("gone").code, 410);
        assert_eq!(listed(&state, "continue=odd").expect_err("no token").code, 400);
        let (names, metadata) = listed(&state, "labelSelector=odd%3Dyes&limit=1").expect("a page");
        assert_eq!((names.concat(), metadata.get("remainingItemCount")), ("a".to_owned(), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_as_new_as_its_version_demands() {
        let mut state = state();
        let names = |state: &ModelState, query: &str| listed(state, query).map(|(names, _)| names.concat());
        assert_eq!(names(&state, "").as_deref(), Ok("abcde"));
        assert_eq!(names(&state, "resourceVersion=0").as_deref(), Ok("ab"), "the cache lags");
        assert_eq!(names(&state, "resourceVersion=4").as_deref(), Ok("abcd"));
        assert_eq!(names(&state, "resourceVersion=1&resourceVersionMatch=Exact").as_deref(), Ok("a"));
        assert_eq!(names(&state, "resourceVersion=1&limit=5").as_deref(), Ok("a"));
        for (query, code) in [
            ("resourceVersion=6", 504),
            ("resourceVersion=x", 400),
            ("resourceVersion=0&resourceVersionMatch=Exact", 422),
            ("resourceVersionMatch=Exact", 422),
            ("resourceVersion=1&continue=1:a", 400),
        ] {
            assert_eq!(names(&state, query).expect_err(query).code, code, "{query}");
        }
        state.storage.compact();
        let exact = "resourceVersion=1&resourceVersionMatch=Exact";
        assert_eq!(names(&state, exact).expect_err("compacted").code, 410);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(names(&state, "").as_deref(), Ok("abcde"));
    }
}
