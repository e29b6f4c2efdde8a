//! The three patch types that carry a change: JSON patch (RFC 6902), merge patch (RFC 7386) and the strategic merge
//! patch of Kubernetes. Server-side apply is in [`crate::ssa`].

mod difference;
mod directives;
mod operation;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::schema::decode::depth_over;
use crate::schema::types::SchemaPosition;
use crate::schema::{DEPTH_MAX, Schema};
use crate::tree::value_bytes;
use crate::value::json_type;

/// Maximum number of operations in a JSON patch, as in kube-apiserver.
pub const OPERATIONS_MAX: usize = 10_000;

/// Maximum size of a patched object, in bytes of its JSON: copy operations can double it again and again.
pub const PATCHED_LEN_MAX: usize = 3 * 1024 * 1024;

/// Maximum total memory in bytes of the values that a JSON patch copies. A text of many small parts takes many times
/// its length in memory, and a short patch can copy a large value many times.
pub const COPIED_MAX: usize = 4 * 1024 * 1024;

/// Maximum total bytes of JSON that the operations of a JSON patch move: each move measures the depth of its value.
pub const MOVED_LEN_MAX: usize = 16 * PATCHED_LEN_MAX;

/// Maximum total number of list items that the operations of a JSON patch shift: a list makes room item by item.
pub const SHIFTED_MAX: usize = 256 * 1024 * 1024;

/// Why a patch was not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The body is not a patch of its type (400).
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// The patch has more operations than the server applies (413).
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {0}")]
    TooManyOperations(usize),
    /// The result would exceed the size limit of objects (413).
    #[error("the patched object would be larger than {PATCHED_LEN_MAX} bytes")]
    TooLarge,
    /// The copied values exceed the memory limit of one request (413).
    #[error(
        "what the patch copies would take more than {COPIED_MAX} bytes in memory: copy less in one patch"
    )]
    CopiesTooMuch,
    /// The operations move or merge more than the limit of one request (413).
    #[error("the operations of the patch change large values too often: send fewer in one patch")]
    TooMuchWork,
    /// A directive contradicts the rest of the patch, or the patch is invalid (400).
    #[error("{0}")]
    Contradiction(&'static str),
    /// A strategic merge patch is not an object but has this JSON type (400).
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NoObject(&'static str),
    /// The patch does not fit the object (422, without naming the operation, as kube-apiserver answers).
    #[error("the server rejected our request due to an error in our request")]
    Rejected,
    /// A strategic merge patch that cannot be merged (500, as kube-apiserver answers).
    #[error("{0}")]
    Unmergeable(String),
    /// A list has an item without the merge key (500, as kube-apiserver answers).
    #[error("map: {item} does not contain declared merge key: {key}")]
    MissingKey {
        /// The item as Go prints it.
        item: String,
        /// The merge key.
        key: String,
    },
}

impl PatchError {
    /// HTTP status code of the answer.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Contradiction(_) | Self::NoObject(_) => 400,
            Self::TooManyOperations(_) | Self::TooLarge | Self::CopiesTooMuch | Self::TooMuchWork => 413,
            Self::Rejected => 422,
            Self::Unmergeable(_) | Self::MissingKey { .. } => 500,
        }
    }
}

/// Applies a JSON patch, all operations or none.
///
/// # Errors
/// [`PatchError`] when the body is not a patch, an operation does not fit the object, or a limit is exceeded.
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let operations: Option<Vec<Value>> =
        serde_json::from_slice(patch).map_err(|e| PatchError::Malformed(e.to_string()))?;
    let operations = operations.unwrap_or_default();
    if operations.len() > OPERATIONS_MAX {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let mut patched = object.clone();
    let mut spent = Spent::default();
    for operation in operations {
        let depth = reach(&patched, &operation, &mut spent)?;
        if depth > DEPTH_MAX {
            return Err(PatchError::Rejected);
        }
        operation::apply(&mut patched, &operation)?;
    }
    check_size(&patched)?;
    Ok(patched)
}

/// Maximum memory in bytes of the copies of a JSON patch beyond the patch and the object: zero when it cannot copy.
pub(crate) fn copied_max(patch: &[u8]) -> usize {
    // An escape may encode any letter.
    let may_copy = patch.contains(&b'\\') || patch.windows(4).any(|word| word == b"copy");
    if may_copy { COPIED_MAX } else { 0 }
}

/// One operation counts as reading and writing this fraction of the object.
const OPERATION_SHARE: usize = 16;

/// The work of a JSON patch beyond reading it and an object of this many bytes, in bytes that could be read in the same
/// time: what it copies, and what each operation traverses.
pub(crate) fn operations_work(patch: &[u8], object: usize) -> usize {
    let operations = patch.iter().filter(|byte| **byte == b'{').count();
    copied_max(patch).saturating_add(operations.saturating_mul(object) / OPERATION_SHARE)
}

/// Totals of the operations so far: bytes copied, bytes moved, and list items shifted.
#[derive(Debug, Default)]
struct Spent {
    copied: usize,
    moved: usize,
    shifted: usize,
}

/// The depth that the value of an operation will have. Also updates the totals of copies and moves. All limits are
/// checked before the operation is applied, because a short patch can create a deep or huge object, or move a large
/// value back and forth.
fn reach(object: &Value, one: &Value, spent: &mut Spent) -> Result<usize, PatchError> {
    let segments = one["path"].as_str().map_or(0, |path| path.matches('/').count());
    let op = one["op"].as_str().unwrap_or_default();
    let keys: &[&str] = match op {
        "add" | "remove" | "copy" => &["path"],
        "move" => &["path", "from"],
        _ => &[],
    };
    let shifted: usize = keys.iter().map(|key| operation::shifted(object, one, key)).sum();
    spent.shifted = spent.shifted.saturating_add(shifted);
    if spent.shifted > SHIFTED_MAX {
        return Err(PatchError::TooMuchWork);
    }
    let value = match op {
        "add" | "replace" => one.get("value"),
        "copy" | "move" => {
            let from = operation::pointer(one, "from");
            object.pointer(&operation::resolved(object, from, 0))
        }
        _ => None,
    };
    let Some(value) = value else { return Ok(segments) };
    match op {
        "copy" => {
            spent.copied = spent.copied.saturating_add(value_bytes(value));
            if spent.copied > COPIED_MAX {
                return Err(PatchError::CopiesTooMuch);
            }
        }
        "move" => count(&mut spent.moved, Some(value), MOVED_LEN_MAX)?,
        _ => {}
    }
    Ok(segments + depth_of(value))
}

/// Adds the length of a value to a sum, up to a limit.
fn count(sum: &mut usize, value: Option<&Value>, max: usize) -> Result<(), PatchError> {
    let len = value.map_or(Some(0), length).ok_or(PatchError::TooLarge)?;
    *sum = sum.saturating_add(len);
    if *sum > max { Err(PatchError::TooMuchWork) } else { Ok(()) }
}

fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

fn check_size(value: &Value) -> Result<(), PatchError> {
    length(value).map(|_| ()).ok_or(PatchError::TooLarge)
}

/// Length of the JSON in bytes; `None` when it exceeds the size limit of objects.
fn length(value: &Value) -> Option<usize> {
    /// Fails at the limit, so that a large value is not encoded to its end.
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            if self.0 > PATCHED_LEN_MAX {
                Err(std::io::ErrorKind::FileTooLarge.into())
            } else {
                Ok(bytes.len())
            }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).ok()?;
    Some(counter.0)
}

/// Applies a merge patch: objects are merged, null removes a field, other values replace it.
///
/// # Errors
/// [`PatchError::Malformed`] when the patch is not an object: a Kubernetes object cannot be replaced by a scalar.
pub fn merge_patch(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    match patch {
        Value::Object(_) => {}
        Value::Null => return Err(PatchError::Contradiction("Invalid JSON Patch")),
        other => return Err(PatchError::Malformed(PatchError::NoObject(json_type(other)).to_string())),
    }
    if depth_over(patch, DEPTH_MAX) {
        return Err(PatchError::Malformed(format!("nests deeper than {DEPTH_MAX}")));
    }
    let mut patched = object.clone();
    merge(&mut patched, patch);
    Ok(patched)
}

/// RFC 7386 for any two values.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Applies a strategic merge patch to an object of a built-in type: lists with a merge key are merged item by item.
///
/// # Errors
/// [`PatchError`] when the patch is not an object, a directive is wrong, or an item has no merge key.
pub fn strategic_merge_patch(schema: &Schema, object: &Value, patch: &Value) -> Result<Value, PatchError> {
    if patch.is_null() {
        return Ok(object.clone());
    }
    if !patch.is_object() {
        return Err(PatchError::NoObject(json_type(patch)));
    }
    if depth_over(patch, DEPTH_MAX) {
        return Err(PatchError::Malformed(format!("nests deeper than {DEPTH_MAX}")));
    }
    let patched =
        strategic::merge(SchemaPosition(Some(schema.cursor())), Some(object.clone()), patch, &mut 0)?;
    check_size(&patched)?;
    Ok(patched)
}

/// The strategic merge patch that turns `old` into `new`: it contains only differences. Lists with a merge key are in
/// the order of `old`, with new items at the end.
#[must_use]
pub fn strategic_merge_difference(schema: &Schema, old: &Value, new: &Value) -> Value {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            difference::between(SchemaPosition(Some(schema.cursor())), old, new).into()
        }
        (_, new) => new.clone(),
    }
}
