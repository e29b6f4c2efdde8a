//! The parts of a status that grow with the units, and their bounds.

use serde_json::{Map, Value, json};

/// Most bytes of `states` as JSON text. It contains all units while they fit.
pub const STATES_BYTES_MAX: usize = 64 * 1024;

/// Most units in `states` once they do not all fit: the first ones that are not ready.
pub const STATES_MAX: usize = 100;

/// Most bytes of one unit's state; of a larger one only the counts and the error are kept.
const STATE_BYTES_MAX: usize = 4 * 1024;

/// Most bytes of `owned` as JSON text: 2,400 units with the longest possible names, or ten thousand with names of ten
/// letters.
pub const OWNED_BYTES_MAX: usize = 128 * 1024;

/// Most bytes of one message, whatever an API server or a webhook has returned.
pub const TEXT_LEN_MAX: usize = 1000;

/// The state of one unit.
pub(super) struct State<'a> {
    pub(super) unit: &'a str,
    pub(super) state: Value,
    pub(super) is_ready: bool,
}

/// Writes `states`, and in `statesOmitted` the number of units that are not in it.
pub(super) fn states(all: Vec<State<'_>>, status: &mut Value) {
    let total = all.len();
    let all: Vec<State<'_>> = all.into_iter().map(|one| State { state: fitting(one.state), ..one }).collect();
    let sizes = all.iter().map(|one| one.unit.len() + one.state.to_string().len() + OVERHEAD);
    let shown: Map<String, Value> = if sizes.sum::<usize>() <= STATES_BYTES_MAX {
        all.into_iter().map(|one| (one.unit.to_owned(), one.state)).collect()
    } else {
        first_not_ready(all)
    };
    let omitted = total - shown.len();
    if omitted > 0 {
        status["statesOmitted"] = omitted.into();
    }
    status["states"] = Value::Object(shown);
}

/// Quotes, colon and comma around a name and its value.
const OVERHEAD: usize = 4;

/// Units with an error first, then those whose pods are not ready, each by name.
fn first_not_ready(all: Vec<State<'_>>) -> Map<String, Value> {
    let mut open: Vec<State<'_>> = all.into_iter().filter(|one| !one.is_ready).collect();
    open.sort_by_key(|one| one.state["error"].is_null());
    let mut bytes = 0;
    let fits = |one: &State<'_>| {
        bytes += one.unit.len() + one.state.to_string().len() + OVERHEAD;
        bytes <= STATES_BYTES_MAX
    };
    open.into_iter().take(STATES_MAX).take_while(fits).map(|one| (one.unit.to_owned(), one.state)).collect()
}

/// A state, reduced to the size that one unit may have.
fn fitting(state: Value) -> Value {
    if state.to_string().len() <= STATE_BYTES_MAX {
        return state;
    }
    let mut less = json!({"replicas": state["replicas"].as_i64().unwrap_or_default()});
    less["readyReplicas"] = state["readyReplicas"].as_i64().unwrap_or_default().into();
    if let Some(error) = state.get("error") {
        less["error"] = error.clone();
    }
    less
}

/// Writes `owned`: the units whose child belongs to the grid, from which nodes know whose pods have uniform names.
/// `ownedOmitted` is the number of further ones.
pub(super) fn owned<'a>(units: impl Iterator<Item = &'a str>, status: &mut Value) {
    let mut bytes = 2;
    let (mut shown, mut omitted) = (Vec::new(), 0_usize);
    for unit in units {
        bytes += unit.len() + OVERHEAD - 1;
        if bytes <= OWNED_BYTES_MAX { shown.push(unit) } else { omitted += 1 }
    }
    status["owned"] = json!(shown);
    if omitted > 0 {
        status["ownedOmitted"] = omitted.into();
    }
}

/// The beginning of a message, at most [`TEXT_LEN_MAX`] bytes.
pub(super) fn text(message: &str) -> &str {
    let mut end = message.len().min(TEXT_LEN_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
