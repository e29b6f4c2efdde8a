//! Translates operations of a JSON patch, as kube-apiserver's library reads them, to RFC 6902.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Value, json};

use super::PatchError;

/// Applies one operation. On failure the object is left in an unusable state.
///
/// Where the library of kube-apiserver is more lenient than the RFC, clients depend on it: negative indices count from
/// the end, `replace` also adds a member, a `test` for null holds for an absent value, and text before the first slash
/// of a path is ignored.
///
/// # Errors
/// [`PatchError::Malformed`] when the operation is not an object of strings, [`PatchError::Rejected`] when it lacks a
/// member or is none of the six.
pub(super) fn apply(object: &mut Value, operation: &Value) -> Result<(), PatchError> {
    let steps = read(object, operation)?;
    json_patch::patch(object, &steps).map_err(|_| PatchError::Rejected)
}

/// The steps of one operation: none, the operation itself, or several. The value of a move is taken out of the object.
fn read(object: &mut Value, operation: &Value) -> Result<Vec<PatchOperation>, PatchError> {
    check_types(operation)?;
    if !operation["path"].is_string() {
        return Err(PatchError::Rejected);
    }
    let path = pointer(operation, "path");
    let replaced =
        |op: &str| json!({"op": op, "path": resolved(object, path, 0), "value": operation["value"]});
    let has_value = operation.get("value").is_some();
    let nothing = has_parent(object, path) && object.pointer(&resolved(object, path, 0)).is_none();
    let steps = match operation["op"].as_str().unwrap_or_default() {
        "test" if nothing && operation["value"].is_null() => vec![],
        "replace" if has_value && nothing => vec![replaced("add")],
        op @ ("test" | "replace") if has_value => vec![replaced(op)],
        "add" if has_value => {
            vec![json!({"op": "add", "path": resolved(object, path, 1), "value": operation["value"]})]
        }
        "remove" => vec![json!({"op": "remove", "path": resolved(object, path, 0)})],
        op @ ("copy" | "move") if operation.get("from").is_some() => return transfer(object, op, operation),
        _ => return Err(PatchError::Rejected),
    };
    steps.into_iter().map(|step| serde_json::from_value(step).map_err(|_| PatchError::Rejected)).collect()
}

/// A copy or a move: the target path is resolved after the value was taken away.
fn transfer(object: &mut Value, op: &str, operation: &Value) -> Result<Vec<PatchOperation>, PatchError> {
    let from = resolved(object, pointer(operation, "from"), 0);
    if from.is_empty() {
        return Err(PatchError::Rejected);
    }
    // A moved item is missing from the list when its new index is counted from the end.
    let same_list = parent(&from) == parent(pointer(operation, "path"));
    let added = i64::from(op == "copy" || !same_list);
    let path = resolved(object, pointer(operation, "path"), added);
    let path = PointerBuf::parse(path).map_err(|_| PatchError::Rejected)?;
    let value = object.pointer_mut(&from).ok_or(PatchError::Rejected)?;
    if op == "copy" {
        return Ok(vec![PatchOperation::Add(AddOperation { path, value: value.clone() })]);
    }
    let value = std::mem::take(value);
    let remove = json!({"op": "remove", "path": from});
    let remove = serde_json::from_value(remove).map_err(|_| PatchError::Rejected)?;
    Ok(vec![remove, PatchOperation::Add(AddOperation { path, value })])
}

/// How many list items an operation shifts when it adds or removes the value at one of its paths.
pub(super) fn shifted(object: &Value, operation: &Value, key: &str) -> usize {
    let path = resolved(object, pointer(operation, key), 1);
    let index = path.rsplit_once('/').and_then(|(_, index)| index.parse::<usize>().ok());
    let list = object.pointer(parent(&path)).and_then(Value::as_array);
    list.zip(index).map_or(0, |(list, index)| list.len().saturating_sub(index))
}

fn check_types(operation: &Value) -> Result<(), PatchError> {
    let wrong = |what: &str| PatchError::Malformed(format!("json: cannot unmarshal {what} of a JSON patch"));
    if !operation.is_object() {
        return Err(wrong("an operation"));
    }
    let odd = ["op", "path", "from"]
        .into_iter()
        .find(|key| operation.get(key).is_some_and(|value| !value.is_string() && !value.is_null()));
    odd.map_or(Ok(()), |key| Err(wrong(key)))
}

/// A path of an operation, from its first slash on.
pub(super) fn pointer<'a>(operation: &'a Value, key: &str) -> &'a str {
    let path = operation[key].as_str().unwrap_or_default();
    path.find('/').map_or(path, |at| &path[at..])
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Whether the path names a member of an existing object.
fn has_parent(object: &Value, path: &str) -> bool {
    path.starts_with('/') && object.pointer(&resolved(object, parent(path), 0)).is_some_and(Value::is_object)
}

/// Replaces negative indices of a path; `added` is 1 where the last index may name the position after the end.
pub(super) fn resolved(object: &Value, path: &str, added: i64) -> String {
    let mut at = Some(object);
    let mut out = String::with_capacity(path.len());
    let mut tokens = path.split('/').skip(1).peekable();
    if !path.starts_with('/') {
        return path.to_owned();
    }
    while let Some(token) = tokens.next() {
        let last = tokens.peek().is_none();
        let length = at.and_then(Value::as_array).and_then(|items| i64::try_from(items.len()).ok());
        let negative = token.parse::<i64>().ok().filter(|index| *index < 0);
        let behind = if last { added } else { 0 };
        let counted =
            length.zip(negative).map(|(length, index)| length + behind + index).filter(|index| *index >= 0);
        let token = counted.map_or_else(|| token.to_owned(), |index| index.to_string());
        at = at.and_then(|value| value.pointer(&format!("/{token}")));
        out.push('/');
        out.push_str(&token);
    }
    out
}
