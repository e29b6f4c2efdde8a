//! The four kinds of patches.

use serde_json::{Value, json};

use super::convert;
use super::managers::{FieldConflicts, FieldManagers};
use super::object::{self, metadata};
use super::state::ModelState;
use super::status::{ApiStatus, FieldProblem};
use super::strategic;
use super::writes::{FieldOwners, WriteCall, change, check_type, create};

/// A kind of patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchForm {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchForm {
    /// The form that a content type names.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// The content types of patches of a kind.
pub(super) fn accepted(built_in: bool) -> &'static [&'static str] {
    const ALL: [&str; 4] = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
    ];
    if built_in { &ALL } else { &ALL[..3] }
}

/// Patches an object. Returns whether it was created, and the object.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn patch(
    state: &mut ModelState,
    call: &WriteCall,
    (form, force): (PatchForm, bool),
    body: &[u8],
) -> Result<(bool, Value), ApiStatus> {
    let unreadable =
        |error: serde_json::Error| ApiStatus::bad_request(&format!("error decoding patch: {error}"));
    if form == PatchForm::Apply {
        let body = serde_json::from_slice(body).map_err(unreadable)?;
        return apply(state, call, body, force);
    }
    let Some(live) = state.object(&call.kind, &call.target.namespace, &call.target.name).cloned() else {
        return Err(ApiStatus::not_found(&call.kind.key, &call.target.name));
    };
    let mut new = convert::to_served(&call.kind, (*live).clone());
    match form {
        PatchForm::Json => {
            let steps: json_patch::Patch = serde_json::from_slice(body).map_err(unreadable)?;
            let applied = json_patch::patch(&mut new, &steps.0);
            applied.map_err(|_| ApiStatus::unprocessable())?;
        }
        PatchForm::Merge => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            if !patch.is_object() {
                return Err(ApiStatus::bad_request("the patch is not an object"));
            }
            json_patch::merge(&mut new, &patch);
        }
        PatchForm::Strategic => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            strategic::apply(&mut new, &patch).map_err(|why| ApiStatus::bad_request(&why))?;
        }
        PatchForm::Apply => {}
    }
    let new = convert::to_stored(&call.kind, new);
    change(state, call, (&live, new), FieldOwners::Updated).map(|changed| (false, changed))
}

/// Server-side apply.
fn apply(
    state: &mut ModelState,
    call: &WriteCall,
    mut config: Value,
    force: bool,
) -> Result<(bool, Value), ApiStatus> {
    check_type(call, &mut config)?;
    if object::name(&config).is_empty() {
        metadata(&mut config).insert("name".to_owned(), call.target.name.clone().into());
    }
    if config["metadata"].get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(ApiStatus::bad_request("metadata.managedFields must be nil"));
    }
    let now = state.clock.timestamp(0);
    let id = call.manager_id("Apply");
    let config = convert::to_stored(&call.kind, config);
    let live = state.object(&call.kind, &call.target.namespace, &call.target.name).cloned();
    let Some(live) = live else {
        let uid = object::uid(&config);
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiStatus::conflict(&call.kind.key, &call.target.name, &why));
        }
        if !call.target.subresource.is_empty() {
            return Err(ApiStatus::not_found(&call.kind.key, &call.target.name));
        }
        let mut managers = FieldManagers::default();
        let stated = without_status(call, &config);
        // Nobody owns anything yet, so there can be no conflict.
        let merged = managers.apply(call.shapes(), (&json!({}), &stated), &id, (&now, true));
        let merged = merged.unwrap_or_else(|_| stated.clone());
        return create(state, call, merged, FieldOwners::Applied(managers)).map(|created| (true, created));
    };
    let mut managers = FieldManagers::of(&live);
    let stated = confined(call, &config);
    let merged = managers.apply(call.shapes(), (&live, &stated), &id, (&now, force));
    let mut merged = merged.map_err(|conflicts| refusal(&conflicts))?;
    for name in ["uid", "resourceVersion"] {
        if let Some(given) = config["metadata"].get(name).filter(|given| !given.is_null()) {
            metadata(&mut merged).insert(name.to_owned(), given.clone());
        }
    }
    change(state, call, (&live, merged), FieldOwners::Applied(managers)).map(|changed| (false, changed))
}

/// The part of a configuration that its path may write.
fn confined(call: &WriteCall, config: &Value) -> Value {
    let mut stated = match call.target.subresource.as_str() {
        "" => without_status(call, config),
        _ => json!({"status": config["status"]}),
    };
    if let Some(metadata) = stated.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["uid", "resourceVersion"] {
            metadata.remove(name);
        }
    }
    stated
}

fn without_status(call: &WriteCall, config: &Value) -> Value {
    let mut stated = config.clone();
    if let Some(members) = stated.as_object_mut().filter(|_| call.kind.has_status) {
        members.remove("status");
    }
    stated
}

/// The refusal of an apply that is not forced.
fn refusal(conflicts: &FieldConflicts) -> ApiStatus {
    let mut causes = Vec::new();
    for (manager, fields) in conflicts {
        for field in fields {
            let field: String = field.iter().map(|part| shown(part)).collect();
            let by = format!("conflict with {}", manager.shown());
            causes.push(json!({"reason": "FieldManagerConflict", "message": by, "field": field}));
        }
    }
    let count =
        if causes.len() == 1 { "1 conflict".to_owned() } else { format!("{} conflicts", causes.len()) };
    let list: Vec<String> = causes
        .iter()
        .map(|cause| {
            format!(
                "{}: {}",
                cause["message"].as_str().unwrap_or_default(),
                cause["field"].as_str().unwrap_or_default()
            )
        })
        .collect();
    let message = format!("Apply failed with {count}: {}", list.join(", "));
    ApiStatus { details: json!({ "causes": causes }), ..ApiStatus::new(409, "Conflict", &message) }
}

/// A path element as people read it: `.spec`, `[name="c"]`.
fn shown(part: &str) -> String {
    if let Some(name) = part.strip_prefix("f:") {
        return format!(".{name}");
    }
    let Some(key) = part.strip_prefix("k:") else {
        return format!("[{}]", part.strip_prefix("v:").unwrap_or(part).replacen('"', "=\"", 1));
    };
    let key: Value = serde_json::from_str(key).unwrap_or_default();
    let members = key.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    format!("[{}]", members.collect::<Vec<_>>().join(","))
}

/// Checks the options of an apply.
///
/// # Errors
/// 422 when no field manager is named.
pub(super) fn check_options(call: &WriteCall, form: PatchForm, force: &str) -> Result<(), ApiStatus> {
    let problem = match form {
        PatchForm::Apply if call.manager.is_empty() => {
            FieldProblem::required("fieldManager", "is required for apply patch")
        }
        PatchForm::Json | PatchForm::Merge | PatchForm::Strategic if !force.is_empty() => {
            FieldProblem::forbidden("force", "may not be specified for non-apply patch")
        }
        _ => return Ok(()),
    };
    Err(ApiStatus::invalid_request("meta.k8s.io", "PatchOptions", &problem))
}

#[cfg(test)]
mod tests;
