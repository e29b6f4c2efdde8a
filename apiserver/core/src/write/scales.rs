//! Writes of the scale subresource: the Scale is written like any object, and its count is copied to the object behind
//! it.

use serde_json::Value;

use crate::backend::PatchType;
use crate::kinds::scale_kind;
use crate::scale;
use crate::ssa::scale::Count;
use crate::status::ApiError;

use super::naming::check_name;
use super::source::Source;
use super::{Context, fields, meta, patches};

/// The stored object with the count, the preconditions and the ownership of the requested Scale.
pub(super) fn scaled(
    context: &mut Context<'_>,
    source: &Source<'_>,
    live: &Value,
) -> Result<Value, ApiError> {
    let kind = context.kind;
    let paths = kind.scale.as_ref().ok_or_else(ApiError::no_such_path)?;
    let api_version = kind.api_version();
    let count = Count { api_version: &api_version, path: &paths.spec_replicas };
    let owners = meta::get(live, "managedFields").cloned().unwrap_or_default();
    let mut current = scale::of(kind, live)?;
    meta::set(&mut current, "managedFields", count.to_scale(&owners));
    let wanted = match source {
        Source::Object(scale) => tracked(context, &current, super::kept(scale)?),
        Source::Patch(PatchType::Apply, _) => {
            let (_, merged) = patches::apply(context, scale_kind(), Some(&current))?;
            patches::decode_merged(scale_kind(), merged)?
        }
        Source::Patch(patch, request) => {
            let patched = patches::patched(context, scale_kind(), *patch, request, &current)?;
            tracked(context, &current, patched)
        }
    };
    check_name(context, &wanted)?;
    let mut object = live.clone();
    scale::put(kind, &mut object, &wanted)?;
    for field in ["resourceVersion", "uid"] {
        meta::set(&mut object, field, meta::get(&wanted, field).cloned().unwrap_or_default());
    }
    let owned = meta::get(&wanted, "managedFields").cloned().unwrap_or_default();
    let list = count.to_object(&owners, &owned);
    meta::set(
        &mut object,
        "managedFields",
        if list == Value::Array(Vec::new()) { Value::Null } else { list },
    );
    Ok(object)
}

fn tracked(context: &Context<'_>, current: &Value, mut wanted: Value) -> Value {
    scale_kind().default(&mut wanted);
    fields::track_as(context, scale_kind(), Some(current), &mut wanted);
    wanted
}
